package supervisor

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
)

// Artifact is an opened file of a job. It is a bare descriptor: os.File would
// ask the poller about a regular file first.
type Artifact struct {
	fd   int
	size int64
	path string
}

// OpenArtifact opens a file of a job for reading, below the opened directory of
// all jobs. A job may be able to write in its own directory, so what is there is
// not trusted: no symbolic link is followed (os.Root follows those that stay
// inside it, and so would lead to another job's output), and only a regular file
// is opened (a fifo would block for ever).
func OpenArtifact(jobs *os.File, id job.ID, name string) (*Artifact, error) {
	a := &Artifact{path: string(id) + "/" + name}
	dir, err := unix.Openat(int(jobs.Fd()), string(id), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: string(id), Err: err}
	}
	defer unix.Close(dir)
	if a.fd, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return nil, &os.PathError{Op: "open", Path: a.path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(a.fd, &st); err != nil {
		a.Close()
		return nil, &os.PathError{Op: "stat", Path: a.path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		a.Close()
		return nil, fmt.Errorf("%s is not a regular file", a.path)
	}
	a.size = st.Size
	return a, nil
}

// Size is the file's size in bytes when it was opened.
func (a *Artifact) Size() int64 { return a.size }

// ReadAt implements io.ReaderAt.
func (a *Artifact) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := unix.Pread(a.fd, p[n:], off+int64(n))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return n, &os.PathError{Op: "read", Path: a.path, Err: err}
		case m == 0:
			return n, io.EOF
		default:
			n += m
		}
	}
	return n, nil
}

// Close gives the descriptor back.
func (a *Artifact) Close() { unix.Close(a.fd) }
