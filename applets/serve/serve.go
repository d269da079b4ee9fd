// Package serve is the applet that runs the HTTP server.
package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/applets/cmdline"
	"difyrt/runtime/api"
	"difyrt/runtime/confine"
	"difyrt/runtime/service"
)

// Main is the applet.
func Main(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags]", `
Serves the runtime's HTTP API: starts jobs, pages their output, takes input,
stops them. Jobs outlive the server: stop it, upgrade it, start it again.`, s)
	c.After = help
	listen := c.Flags.String("listen", "127.0.0.1:8765", "`ADDRESS` to listen on: host:port, or unix:PATH")
	state := c.Flags.String("state-dir", "", "`DIR` of the job table, outputs and sockets (default $XDG_DATA_HOME/shellctl or ~/.local/share/shellctl, which is a link to a place outside of the home)")
	token := c.Flags.String("token", "", "bearer `TOKEN` that clients must send; it is in the process list until the server has read it, prefer --token-file")
	tokenFile := c.Flags.String("token-file", "", "`FILE` that holds the token")
	cert := c.Flags.String("tls-cert", "", "serve TLS with the certificate in this PEM `FILE`, read again when it changes")
	key := c.Flags.String("tls-key", "", "`FILE` of the certificate's key")
	connections := c.Flags.Int("max-connections", 0, "`NUMBER` of connections at a time (default half of the open files limit, at most 4096)")
	retention := c.Flags.Duration("retention", 300*time.Second, "how long a finished job is kept, a `DURATION` such as 10m")
	gc := c.Flags.Duration("gc-interval", 60*time.Second, "how often finished jobs are looked for, a `DURATION`")
	format := c.Flags.String("log-format", "text", "`FORMAT` of the log on standard error: text or json")
	level := c.Flags.String("log-level", "info", "least `LEVEL` that is logged: debug, info, warn or error")
	if code, ok := c.Parse(args); !ok {
		return code
	}
	log, err := logger(c, *format, *level)
	switch {
	case err != nil:
		return c.Wrong("%v", err)
	case c.Flags.NArg() > 0:
		return c.Wrong("unexpected argument %q", c.Flags.Arg(0))
	case *retention < 0:
		return c.Wrong("--retention must not be negative")
	case *gc <= 0:
		return c.Wrong("--gc-interval must be positive")
	case *token != "" && *tokenFile != "":
		return c.Wrong("--token and --token-file exclude each other")
	case (*cert == "") != (*key == ""):
		return c.Wrong("--tls-cert and --tls-key go together")
	case *cert != "" && strings.HasPrefix(*listen, "unix:"):
		return c.Wrong("TLS is not for a unix socket, which no network carries")
	case *connections < 0:
		return c.Wrong("--max-connections must not be negative")
	}
	conf := service.Config{Listen: *listen, MaxConnections: *connections, Environ: os.Environ(), Retention: *retention, GCEvery: *gc, Log: log}
	if err := complete(&conf, *state, *token, *tokenFile); err != nil {
		return c.Fail(err)
	}
	if *cert != "" {
		if conf.TLS, err = api.LoadKeyPair(*cert, *key, log); err != nil {
			return c.Fail(err)
		}
	}
	if err := confine.SealDescriptors(); err != nil {
		return c.Fail(err)
	}
	if err := hideToken(&conf.Token); err != nil {
		return c.Fail(err)
	}
	// Caught, so that a log whose reader has gone away is a failed write and not
	// the end of the server (os/signal, SIGPIPE).
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the server at once
	if err := service.Run(ctx, conf); err != nil {
		return c.Fail(err)
	}
	return cmdline.OK
}

const help = `
Environment:
  SHELLCTL_AUTH_TOKEN             the token, when no flag gives one
  SHELLCTL_ENABLE_PATH_ISOLATION  false runs jobs without Landlock (default true)
  SHELLCTL_ISOLATION              strict refuses jobs where there is no Landlock (default best-effort)
  SHELLCTL_LANDLOCK_RW_PATHS      comma list of more read-write directories
  SHELLCTL_LANDLOCK_RO_PATHS      comma list in place of the read-only directories
  SHELLCTL_LANDLOCK_RW_DEV_PATHS  comma list in place of the device files
  SHELLCTL_SECCOMP                false runs jobs without the system call filter (default true)
  SHELLCTL_SECCOMP_IO_URING       true lets jobs use io_uring (default false)
  SHELLCTL_MAX_JOBS               jobs at a time (default unlimited, as all limits)
  SHELLCTL_JOB_MAX_SECONDS        run time of a job; then it is terminated
  SHELLCTL_MAX_OUTPUT_BYTES       size of a job's output; what follows is dropped
  SHELLCTL_MIN_FREE_BYTES         space that must stay free; below it jobs are refused
  SHELLCTL_JOB_MAX_OPEN_FILES     open files of each process of a job
  SHELLCTL_JOB_MAX_FILE_BYTES     size of a file that it writes
  SHELLCTL_JOB_MAX_CPU_SECONDS    processor time of each process
  SHELLCTL_JOB_MAX_PROCESSES      processes of the job with a cgroup, else of the user
  SHELLCTL_JOB_MAX_MEMORY_BYTES   memory of the job with a cgroup, else address space of each process
  SHELLCTL_JOB_MAX_CPU_PERCENT    processor share of the job, 100 is one core; wants a cgroup
  SHELLCTL_SNAPSHOT_TIMEOUT       deadline of one snapshot operation (default 45s)

Examples:
  difyrt serve
  difyrt serve --listen 0.0.0.0:5004 --token-file /run/secrets/token --log-format json
  difyrt serve --listen unix:/run/difyrt.sock --state-dir /var/lib/difyrt`

func logger(c *cmdline.Command, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q is not debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(c.Err, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(c.Err, o)), nil
	}
	return nil, fmt.Errorf("--log-format %q is not text or json", format)
}

const tokenVariable = "SHELLCTL_AUTH_TOKEN"

// complete takes from the environment what no flag gave.
func complete(c *service.Config, state, token, tokenFile string) (err error) {
	if c.Token, err = Token(token, tokenFile); err != nil {
		return err
	}
	if c.Places, err = service.FindPlaces(state); err != nil {
		return err
	}
	c.SnapshotHome = os.Getenv("HOME")
	if c.SnapshotTimeout, err = snapshotTimeout(); err != nil {
		return err
	}
	if c.Limits, err = confine.LimitsFromEnv(os.LookupEnv); err != nil {
		return err
	}
	c.Policy, err = confine.PolicyFromEnv(os.LookupEnv)
	return err
}

// Token gives the token of a flag, of a file, or of the environment.
func Token(token, file string) (string, error) {
	if file == "" {
		if token == "" {
			token = os.Getenv(tokenVariable)
		}
		return token, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	if token = strings.TrimSpace(string(b)); token == "" {
		return "", fmt.Errorf("token file %s is empty", file)
	}
	return token, nil
}

// hideToken keeps the token where no job can read it: in the memory of a process
// that is closed to others, and nowhere else.
func hideToken(token *string) error {
	*token = strings.Clone(*token) // a flag's value is a part of the argument block
	os.Unsetenv(tokenVariable)
	if err := confine.Scrub(tokenVariable, "--token", "-token"); err != nil {
		return err
	}
	return confine.Conceal()
}

// snapshotTimeout refuses a deadline that could not be kept, at the start and not
// in the middle of a snapshot.
func snapshotTimeout() (time.Duration, error) {
	const name = "SHELLCTL_SNAPSHOT_TIMEOUT"
	v := strings.TrimSpace(os.Getenv(name))
	if v == "" {
		return 45 * time.Second, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s is %q: use a positive duration such as 90s", name, v)
	}
	return d, nil
}
