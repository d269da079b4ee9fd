package supervisor

import (
	"fmt"
	"os"
	"syscall"

	"difyrt/runtime/job"
)

// OpenArtifact opens a file of a job for reading. A job may be able to write in
// its own directory, so what is there is not trusted: symbolic links are not
// followed, nothing outside jobs is reached, and only a regular file is opened
// (a fifo would block for ever).
func OpenArtifact(jobs *os.Root, id job.ID, name string) (*os.File, error) {
	f, err := jobs.OpenFile(string(id)+"/"+name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s of job %s is not a regular file", name, id)
	}
	return f, nil
}
