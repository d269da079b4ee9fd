package shellctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/client"
)

// serverWithin is how long a private server may take to begin and to end.
const serverWithin = 10 * time.Second

// nobodyThere reports that no server was named and none is at the default place.
func (r remote) nobodyThere(ctx context.Context, cl *client.Client) bool {
	if *r.server != "" || os.Getenv(serverVariable) != "" {
		return false
	}
	return errors.Is(cl.Health(ctx), unix.ECONNREFUSED)
}

// private starts a server for one job, on a socket and with a state of its own;
// end takes it away again. The caller must be on the main thread, whose end ends
// the server.
func private() (cl *client.Client, end func(), err error) {
	dir, err := os.MkdirTemp("", "shellctl-")
	if err != nil {
		return nil, nil, err
	}
	socket := "unix:" + filepath.Join(dir, "socket")
	cmd := exec.Command("/proc/self/exe", "serve", "--listen", socket, "--state-dir", filepath.Join(dir, "state"), "--log-format", "json")
	cmd.Args[0] = "difyrt"
	// Not in our group: the terminal's Ctrl-C is for the job.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start a private server: %w", err), os.RemoveAll(dir))
	}
	end = func() {
		cmd.Process.Signal(unix.SIGTERM)
		late := time.AfterFunc(serverWithin, func() { cmd.Process.Kill() })
		cmd.Wait()
		late.Stop()
		os.RemoveAll(dir)
	}
	late := time.AfterFunc(serverWithin, func() { cmd.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewScanner(log)
	last := ""
	for lines.Scan() {
		if last = lines.Text(); strings.Contains(last, `"msg":"serving"`) {
			go func() { // so that it can go on logging
				for lines.Scan() {
				}
			}()
			cl, err = client.New(socket, "")
			return cl, end, err
		}
	}
	end()
	return nil, nil, fmt.Errorf("a private server did not start: %s", last)
}
