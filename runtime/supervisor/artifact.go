package supervisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
)

// OpenArtifact opens a file of a job for reading, below the opened directory of
// all jobs. A job may be able to write in its own directory, so what is there is
// not trusted: no symbolic link is followed (os.Root follows those that stay
// inside it, and so would lead to another job's output), and only a regular file
// is opened (a fifo would block for ever).
func OpenArtifact(jobs *os.File, id job.ID, name string) (*os.File, error) {
	path := string(id) + "/" + name
	dir, err := unix.Openat(int(jobs.Fd()), string(id), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: string(id), Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return os.NewFile(uintptr(fd), path), nil
}
