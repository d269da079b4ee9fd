package supervisor

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

const exit3 = unix.WaitStatus(3 << 8)

func TestExitBeforeRegistration(t *testing.T) {
	r := newReaper(func() {}, func(int) {})
	got := make(chan unix.WaitStatus, 1)
	pid, err := r.fork(func(func(int) bool) (int, error) {
		r.reaped(77, exit3) // the child is dead before fork returns
		return 77, nil
	}, func(ws unix.WaitStatus) { got <- ws })
	if pid != 77 || err != nil || exitCode(<-got) != 3 {
		t.Errorf("%d %v", pid, err)
	}
	if len(r.waiting)+len(r.early) != 0 {
		t.Errorf("left behind: %v %v", r.waiting, r.early)
	}
}

func TestExitAfterRegistration(t *testing.T) {
	r := newReaper(func() {}, func(int) {})
	var got []unix.WaitStatus
	r.fork(func(func(int) bool) (int, error) { return 77, nil }, func(ws unix.WaitStatus) { got = append(got, ws) })
	r.reaped(78, exit3) // somebody's orphan
	r.reaped(77, exit3)
	r.reaped(77, exit3) // the number's next owner
	if len(got) != 1 || len(r.early) != 0 {
		t.Errorf("%v, early %v", got, r.early)
	}
}

// An orphan's exit, seen while one fork was under way, is not taken for that of
// a later child which got the same number.
func TestReusedNumber(t *testing.T) {
	r := newReaper(func() {}, func(int) {})
	called := false
	r.fork(func(func(int) bool) (int, error) { // keeps early entries alive
		r.reaped(77, exit3)
		r.fork(func(func(int) bool) (int, error) { return 77, nil }, func(unix.WaitStatus) { called = true })
		return 76, nil
	}, func(unix.WaitStatus) {})
	if called || r.waiting[77] == nil {
		t.Error("the old exit was given to the new child")
	}
}

func TestFailedForkLeavesNothing(t *testing.T) {
	r := newReaper(func() {}, func(int) {})
	_, err := r.fork(func(func(int) bool) (int, error) {
		r.reaped(77, exit3)
		return 0, errors.New("no")
	}, func(unix.WaitStatus) { t.Error("called") })
	if err == nil || len(r.waiting)+len(r.early) != 0 || !r.empty() {
		t.Errorf("%v %v %v", err, r.waiting, r.early)
	}
}

func TestExitCode(t *testing.T) {
	for ws, want := range map[unix.WaitStatus]int{0: 0, 1 << 8: 1, 255 << 8: 255, 9: 137, 15: 143, 11 | 0x80: 139} {
		if got := exitCode(ws); got != want {
			t.Errorf("exitCode(%#x) = %d, want %d", ws, got, want)
		}
	}
}
