package supervisor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shell runs every script that does not name its own interpreter.
const shell = "/bin/sh"

// startError is why a job's process could not be started, with the exit code
// that a shell would give for it: 127 not found, 126 not executable, 125 else.
type startError struct {
	code int
	err  error
}

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// command says how the script of a job directory is run (contract, Jobs): one
// that begins with #! by itself, any other by sh.
func command(dir string) (path string, argv []string, err error) {
	path = filepath.Join(dir, ScriptFile)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &startError{125, fmt.Errorf("read the script: %w", err)}
	}
	defer unix.Close(fd)
	var head [2]byte
	if _, err := unix.Read(fd, head[:]); err != nil {
		return "", nil, &startError{125, fmt.Errorf("read the script: %w", err)}
	}
	if string(head[:]) == "#!" {
		return path, []string{path}, nil
	}
	return shell, []string{"sh", path}, nil
}

// grounds are a job's HOME and working directory, opened. Rules are made from
// the descriptors and the job is put into the very directory, so that what
// another job does to the paths meanwhile gains nothing.
type grounds struct{ home, cwd int }

// openGrounds makes HOME when it is missing.
func openGrounds(home, cwd string) (grounds, error) {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return grounds{}, &startError{125, fmt.Errorf("make HOME: %w", err)}
	}
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	h, err := unix.Open(home, flags, 0)
	if err != nil {
		return grounds{}, &startError{125, fmt.Errorf("open HOME %s: %w", home, err)}
	}
	c, err := unix.Open(cwd, flags, 0)
	if err != nil {
		unix.Close(h)
		return grounds{}, &startError{111, fmt.Errorf("working directory %s: %w", cwd, err)}
	}
	g := grounds{h, c}
	if err := unix.Faccessat(unix.AT_FDCWD, g.cwdPath(), unix.X_OK, unix.AT_EACCESS); err != nil {
		g.close()
		return grounds{}, &startError{111, fmt.Errorf("working directory %s: %w", cwd, err)}
	}
	return g, nil
}

func (g grounds) close() {
	unix.Close(g.home)
	unix.Close(g.cwd)
}

func (g grounds) homePath() string { return descriptorPath(g.home) }
func (g grounds) cwdPath() string  { return descriptorPath(g.cwd) }

// descriptorPath names what a descriptor is open on, whatever its path is by now.
func descriptorPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// explain puts an errno of fork or exec into words. The kernel blames the
// script when it means the interpreter, so that one is looked up.
func explain(err error, path string, argv []string) error {
	if err == nil {
		return nil
	}
	what := path
	if argv[0] == path {
		if i := interpreter(path); i != "" {
			what = "the script's interpreter " + i
		}
	}
	code := 125
	switch {
	case errors.Is(err, unix.ENOENT):
		code, err = 127, errors.New("not found")
	case errors.Is(err, unix.EACCES):
		code, err = 126, errors.New("not executable, or not within the job's reach")
	case errors.Is(err, unix.ENOEXEC):
		code, err = 126, errors.New("not a program")
	case errors.Is(err, unix.E2BIG):
		code, err = 126, errors.New("environment and arguments are too long for the kernel")
	case errors.Is(err, unix.EAGAIN):
		err = errors.New("no more processes: a limit of the user or the container is reached")
	}
	return &startError{code, fmt.Errorf("start %s: %w", what, err)}
}

// interpreter reads the program of a #! line; the kernel looks at 256 bytes.
func interpreter(script string) string {
	f, err := os.Open(script)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(io.LimitReader(f, 256), 256).ReadSlice('\n')
	line, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return ""
	}
	fields := strings.Fields(string(line))
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// EncodeEnv puts an environment into the form that Spec.Env has.
func EncodeEnv(env []string) []byte {
	n := 0
	for _, kv := range env {
		n += len(kv) + 1
	}
	b := make([]byte, 0, n)
	for _, kv := range env {
		b = append(append(b, kv...), 0)
	}
	return b
}

func decodeEnv(b []byte) []string {
	s := strings.Split(string(b), "\x00")
	return s[:len(s)-1]
}
