package snapshot

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// A large home: 100,000 files, and files of 10 GiB together. It goes from save to
// restore through a pipe, and is compared. Only with DIFYRT_SOAK.
func TestSoak(t *testing.T) {
	if os.Getenv("DIFYRT_SOAK") == "" {
		t.Skip("DIFYRT_SOAK is not set")
	}
	home, into := t.TempDir(), t.TempDir()
	for i := range 100_000 {
		put(t, fmt.Sprintf("%s/d%d/e%d/f%d", home, i/5000, i%5000/100, i), fmt.Sprintf("file %d\n", i))
	}
	seed := [32]byte{}
	for i := range 5 {
		f, err := os.Create(fmt.Sprintf("%s/big%d", home, i))
		must(t, err)
		_, err = io.CopyN(f, rand.NewChaCha8(seed), 2<<30)
		must(t, err)
		must(t, f.Close())
	}
	r, w := io.Pipe()
	var peak int64
	stop := watchMemory(&peak)
	began := time.Now()
	saved := make(chan Saved)
	go func() {
		s, err := Save(t.Context(), w, SaveOptions{Home: home})
		w.CloseWithError(err)
		saved <- s
	}()
	got, err := Restore(t.Context(), r, RestoreOptions{Home: into})
	must(t, err)
	s := <-saved
	took := time.Since(began)
	stop()
	t.Logf("%d entries, %d bytes in %v, peak growth %d MB", s.Entries, s.Read, took, peak/1e6)
	if got.Entries != s.Entries || got.BytesWritten != s.Read || s.Read < 10<<30 {
		t.Errorf("%+v, %+v", s, got)
	}
	same(t, look(t, into), look(t, home))
}
