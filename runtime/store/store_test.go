package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"difyrt/runtime/job"
)

func temp(t testing.TB) (*Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a b#c?d%e", "jobs.db")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	return reopen(t, path), path
}

func reopen(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func add(t testing.TB, s *Store) job.Job {
	t.Helper()
	j := job.Job{ID: job.NewID(), Mode: job.PTY, Status: job.Starting, CreatedAt: time.UnixMilli(1700000000123)}
	if err := s.Insert(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	return j
}

func end(status job.Status, code int, at int64) job.End {
	return job.End{Status: status, StartedAt: time.UnixMilli(at - 5), EndedAt: time.UnixMilli(at), ExitCode: &code}
}

func TestLifeOfARow(t *testing.T) {
	s, path := temp(t)
	ctx := t.Context()
	j := add(t, s)
	if got, err := s.Get(ctx, j.ID); err != nil || got != j {
		t.Errorf("%+v, %v; want %+v", got, err, j)
	}
	e := end(job.Terminated, 137, 1700000001000)
	e.Reason = "why"
	for _, next := range []job.End{e, end(job.Lost, 1, 5), e} { // only the first counts
		if err := s.Finish(ctx, j.ID, next); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = reopen(t, path)
	got, err := s.Get(ctx, j.ID)
	if err != nil || got.Status != job.Terminated || *got.ExitCode != 137 || !got.StartedAt.Equal(e.StartedAt) || !got.EndedAt.Equal(e.EndedAt) || got.Reason != "why" {
		t.Errorf("%+v, %v", got, err)
	}
	if n, err := s.Delete(ctx, j.ID, "ffffffffffffffff"); n != 1 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
	for name, err := range map[string]error{"finish": s.Finish(ctx, j.ID, e), "get": errOf(s.Get(ctx, j.ID))} {
		if job.CodeOf(err) != job.CodeNotFound {
			t.Errorf("%s without a row: %v", name, err)
		}
	}
	if err := s.Finish(ctx, j.ID, job.End{Status: job.Running}); err == nil {
		t.Error("running was taken for an end")
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestLists(t *testing.T) {
	s, _ := temp(t)
	ctx := t.Context()
	if l, err := s.List(ctx, "", 10); err != nil || l == nil || len(l) != 0 {
		t.Errorf("empty: %v %v", l, err)
	}
	var ids []job.ID
	for i := range 10 {
		j := add(t, s)
		ids = append(ids, j.ID)
		if i%2 == 0 {
			if err := s.Finish(ctx, j.ID, end(job.Exited, 0, int64(1000+i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	names := func(l []job.Job) (out []job.ID) {
		for _, j := range l {
			out = append(out, j.ID)
		}
		return out
	}
	for _, c := range []struct {
		status job.Status
		limit  int
		want   []job.ID
	}{
		{"", 3, []job.ID{ids[9], ids[8], ids[7]}}, {job.Exited, 2, []job.ID{ids[8], ids[6]}},
		{job.Starting, 9, []job.ID{ids[9], ids[7], ids[5], ids[3], ids[1]}}, {job.Lost, 9, nil},
	} {
		if l, err := s.List(ctx, c.status, c.limit); err != nil || fmt.Sprint(names(l)) != fmt.Sprint(c.want) {
			t.Errorf("%q, %d: %v %v", c.status, c.limit, names(l), err)
		}
	}
	if l, err := s.Live(ctx); err != nil || fmt.Sprint(names(l)) != fmt.Sprint([]job.ID{ids[1], ids[3], ids[5], ids[7], ids[9]}) {
		t.Errorf("live: %v %v", l, err)
	}
	if l, err := s.Expired(ctx, time.UnixMilli(1004), 9); err != nil || fmt.Sprint(l) != fmt.Sprint([]job.ID{ids[0], ids[2], ids[4]}) {
		t.Errorf("expired: %v %v", l, err)
	}
	if k, err := s.Known(ctx, []job.ID{ids[0], "ffffffffffffffff"}); err != nil || !k[ids[0]] || k["ffffffffffffffff"] {
		t.Errorf("known: %v %v", k, err)
	}
}

// No query of the store reads the whole table or sorts.
func TestQueriesUseIndexes(t *testing.T) {
	s, _ := temp(t)
	for _, q := range []string{
		"SELECT id FROM jobs ORDER BY seq DESC LIMIT 9", "SELECT id FROM jobs WHERE status = 'exited' ORDER BY seq DESC LIMIT 9",
		"SELECT id FROM jobs WHERE ended_at IS NULL ORDER BY seq", "SELECT id FROM jobs WHERE id = 'x'",
		"SELECT id FROM jobs WHERE ended_at IS NOT NULL AND ended_at <= 5 ORDER BY ended_at LIMIT 9",
	} {
		rows, err := s.read.Query("EXPLAIN QUERY PLAN " + q)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var a, b, c int
			var text string
			rows.Scan(&a, &b, &c, &text)
			plan = append(plan, text)
		}
		rows.Close()
		all := strings.Join(plan, "; ")
		byKey := strings.Contains(q, "FROM jobs ORDER BY seq DESC") && all == "SCAN jobs" // newest first by key, and the limit ends it
		if strings.Contains(all, "TEMP B-TREE") || strings.Contains(all, "SCAN") && !strings.Contains(all, "INDEX") && !byKey {
			t.Errorf("%s: %s", q, all)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	s, path := temp(t)
	other := reopen(t, path) // as another process would
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			j := job.Job{ID: job.NewID(), Mode: job.Stdio, Status: job.Starting, CreatedAt: time.Now()}
			ctx := context.Background()
			if err := s.Insert(ctx, j); err != nil {
				t.Error(err)
			}
			w := s
			if i%10 == 0 {
				w = other
			}
			if err := w.Finish(ctx, j.ID, end(job.Exited, i, 1000)); err != nil {
				t.Error(err)
			}
			if got, err := s.Get(ctx, j.ID); err != nil || got.ExitCode == nil || *got.ExitCode != i {
				t.Errorf("%+v %v", got, err)
			}
		})
	}
	wg.Wait()
}

// A write that fails does not take those of its batch with it.
func TestBadWriteInABatch(t *testing.T) {
	s, _ := temp(t)
	twice := add(t, s)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			j := twice
			if i%10 != 0 {
				j.ID = job.NewID()
			}
			if err := s.Insert(context.Background(), j); (err != nil) != (i%10 == 0) {
				t.Errorf("insert %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if l, err := s.List(t.Context(), "", 200); err != nil || len(l) != 91 {
		t.Errorf("%d rows, %v", len(l), err)
	}
}

// A full disk is reported and passes.
func TestFullDisk(t *testing.T) {
	s, _ := temp(t)
	limit := func(pages int) {
		if _, err := s.write.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
			t.Fatal(err)
		}
	}
	limit(1) // SQLite takes the present size for it
	j := job.Job{ID: job.NewID(), Mode: job.PTY, Status: job.Failed, CreatedAt: time.Now(), Reason: strings.Repeat("x", 1<<20)}
	if err := s.Insert(t.Context(), j); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("on a full disk: %v", err)
	}
	limit(1 << 20)
	if err := s.Insert(t.Context(), j); err != nil {
		t.Errorf("after space came back: %v", err)
	}
}

func TestClosed(t *testing.T) {
	s, _ := temp(t)
	j := add(t, s)
	s.Close()
	ctx := t.Context()
	for name, err := range map[string]error{"insert": s.Insert(ctx, j), "finish": s.Finish(ctx, j.ID, end(job.Exited, 0, 1)),
		"get": errOf(s.Get(ctx, j.ID)), "list": errOf(s.List(ctx, "", 1)), "delete": errOf(s.Delete(ctx, j.ID))} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMigration(t *testing.T) {
	_, path := temp(t)
	s := reopen(t, path)
	j := add(t, s)
	steps := append(append([]string(nil), migrations...), "ALTER TABLE jobs ADD COLUMN extra TEXT;", "UPDATE jobs SET extra = 'x';")
	for range 2 {
		if err := migrate(t.Context(), s.write, steps); err != nil {
			t.Fatal(err)
		}
	}
	var extra string
	var version int
	s.write.QueryRowContext(t.Context(), "SELECT extra FROM jobs WHERE id = ?", string(j.ID)).Scan(&extra)
	s.write.QueryRowContext(t.Context(), "PRAGMA user_version").Scan(&version)
	if extra != "x" || version != len(steps) {
		t.Errorf("%q, version %d", extra, version)
	}
	if err := migrate(t.Context(), s.write, append(steps, "junk;")); err == nil {
		t.Error("a step that fails was passed over")
	}
	s.Close()
	if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrNewer) {
		t.Errorf("a newer database: %v", err)
	}
}

func TestFilesThatCannotBeOpened(t *testing.T) {
	s, path := temp(t)
	for range 500 {
		add(t, s)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	s.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	change := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"garbage":   {bytes.Repeat([]byte("garbage "), 1000), ErrCorrupt},
		"short":     {[]byte("SQLite format 3\x00"), ErrCorrupt},
		"truncated": {good[:len(good)-5000], ErrCorrupt},
		"cut page":  {good[:len(good)-100], ErrCorrupt},
		"page size": {change(16, 0, 0), ErrCorrupt},
		"page":      {change(4096*3, bytes.Repeat([]byte{0xff}, 4096)...), ErrCorrupt},
		"newer":     {change(60, 0, 0, 0, 99), ErrNewer},
		"foreign":   {change(68, 1, 2, 3, 4), ErrNewer},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "jobs.db")
		if err := os.WriteFile(path, c.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		old := time.Unix(1000, 0)
		os.Chtimes(path, old, old)
		_, err := Open(t.Context(), path, Options{})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		after, _ := os.ReadFile(path)
		st, _ := os.Stat(path)
		if !bytes.Equal(after, c.bytes) || !st.ModTime().Equal(old) {
			t.Errorf("%s: the file was touched", name)
		}
		if names, _ := os.ReadDir(dir); len(names) != 1 {
			t.Errorf("%s: left behind: %v", name, names)
		}
	}
	dir := t.TempDir()
	for name, path := range map[string]string{"directory": dir, "below a file": filepath.Join(path, "x")} {
		if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "none"), Options{MustExist: true}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	empty := filepath.Join(dir, "empty")
	os.WriteFile(empty, nil, 0o600)
	reopen(t, empty)
}

// What a killed server left in its write-ahead log is there afterwards.
func TestLeftOverLog(t *testing.T) {
	s, path := temp(t)
	j := add(t, s)
	dir := t.TempDir()
	for _, side := range []string{"", "-wal"} { // a copy, as after a kill -9
		b, err := os.ReadFile(path + side)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "jobs.db"+side), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, filepath.Join(dir, "jobs.db"))
	if got, err := s.Get(t.Context(), j.ID); err != nil || got != j {
		t.Errorf("%+v %v", got, err)
	}
}

func BenchmarkInsertFinish(b *testing.B) {
	s, _ := temp(b)
	for b.Loop() {
		j := add(b, s)
		if err := s.Finish(b.Context(), j.ID, end(job.Exited, 0, 1000)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInsertFinishParallel(b *testing.B) {
	s, _ := temp(b)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			j := add(b, s)
			if err := s.Finish(b.Context(), j.ID, end(job.Exited, 0, 1000)); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkList200Of1000(b *testing.B) {
	s, _ := temp(b)
	for range 1000 {
		add(b, s)
	}
	for b.Loop() {
		if l, err := s.List(b.Context(), "", 200); err != nil || len(l) != 200 {
			b.Fatal(len(l), err)
		}
	}
}

func BenchmarkOpen1000(b *testing.B) {
	s, path := temp(b)
	for range 1000 {
		add(b, s)
	}
	s.Close()
	for b.Loop() {
		s, err := Open(b.Context(), path, Options{})
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}
