package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
	"difyrt/runtime/unixsock"
)

// ErrGone is the error of a call to a runner that has died or ended.
var ErrGone = errors.New("the runner is gone")

// handshake bounds how long a runner may take to say hello: its start, and on a
// busy machine its turn on the CPU.
const handshake = 15 * time.Second

// client is a server's end of the connection to one runner.
type client struct {
	c     net.Conn
	path  string // of the socket
	hello Hello

	// guarded by Fleet.mu
	retiring bool // it starts no more jobs
	left     bool // we closed the connection, since it has no job of ours left

	write sync.Mutex

	mu      sync.Mutex
	seq     uint64
	replies map[uint64]chan message
	gone    chan struct{}
}

// events is who hears what a runner has to say. The calls come one at a time
// and must not block.
type events struct {
	grown     func(Grown)
	ended     func(Ended)
	stopping  func()
	leftEnded func(job.ID)
	gone      func(*client)
}

// dial connects to a runner and introduces itself. From then on events flow,
// and ready is called with the client before the first of them.
func dial(ctx context.Context, path string, ready func(*client) events) (*client, error) {
	conn, err := unixsock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	c := &client{c: conn, path: path, replies: map[uint64]chan message{}, gone: make(chan struct{})}
	r := bufio.NewReaderSize(conn, 4<<10)
	conn.SetDeadline(time.Now().Add(handshake))
	c.seq = 1
	if err := writeFrame(conn, request{Seq: 1, Op: opHello}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("greet the runner: %w", hungUp(err))
	}
	var m message
	if err := readFrame(r, &m); err != nil {
		conn.Close()
		return nil, fmt.Errorf("greet the runner: %w", hungUp(err))
	}
	if m.Hello == nil {
		conn.Close()
		return nil, errors.New("greet the runner: it says something else first")
	}
	if m.Hello.Protocol < 1 || m.Hello.Protocol > Protocol {
		conn.Close()
		return nil, fmt.Errorf("runner %d (version %s) speaks protocol %d, this build at most %d: it was started by a newer version, which must also serve its jobs",
			m.Hello.PID, m.Hello.Version, m.Hello.Protocol, Protocol)
	}
	conn.SetDeadline(time.Time{})
	c.hello = *m.Hello
	ev := ready(c)
	go c.listen(r, ev)
	return c, nil
}

// hungUp puts the ways in which a runner can close a connection into one.
func hungUp(err error) error {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return err
}

func (c *client) listen(r *bufio.Reader, ev events) {
	for {
		var m message
		if err := readFrame(r, &m); err != nil {
			break
		}
		switch {
		case m.Seq != 0:
			c.mu.Lock()
			ch := c.replies[m.Seq]
			delete(c.replies, m.Seq)
			c.mu.Unlock()
			if ch != nil {
				ch <- m
			}
		case m.Ended != nil:
			ev.ended(*m.Ended)
		case m.Stopping:
			ev.stopping()
		case m.LeftEnded != "":
			ev.leftEnded(m.LeftEnded)
		default:
			for _, g := range m.Grown {
				ev.grown(g)
			}
		}
	}
	c.c.Close()
	close(c.gone)
	ev.gone(c)
}

// call sends one request and waits for its reply.
func (c *client) call(ctx context.Context, r request) (message, error) {
	ch := make(chan message, 1)
	c.mu.Lock()
	c.seq++
	r.Seq = c.seq
	c.replies[r.Seq] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.replies, r.Seq)
		c.mu.Unlock()
	}()

	c.write.Lock()
	c.c.SetWriteDeadline(time.Now().Add(stalled))
	err := writeFrame(c.c, r)
	c.write.Unlock()
	if err != nil {
		c.c.Close() // a frame may be cut: nothing more can follow it
		return message{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	select {
	case m := <-ch:
		if m.Error != nil {
			return m, m.Error.err()
		}
		return m, nil
	case <-c.gone:
		return message{}, ErrGone
	case <-ctx.Done():
		return message{}, ctx.Err()
	}
}

func (c *client) spawn(ctx context.Context, s Spec) (Started, error) {
	m, err := c.call(ctx, request{Op: opSpawn, Spawn: &s})
	if err != nil {
		return Started{}, err
	}
	if m.Started == nil {
		return Started{}, errors.New("the runner's answer to spawn is empty")
	}
	return *m.Started, nil
}

func (c *client) input(ctx context.Context, id job.ID, text []byte, timeout time.Duration) error {
	_, err := c.call(ctx, request{Op: opInput, Input: &inputArgs{id, text, timeout}})
	return err
}

func (c *client) terminate(ctx context.Context, id job.ID, grace time.Duration) error {
	_, err := c.call(ctx, request{Op: opTerminate, Terminate: &terminateArgs{id, grace}})
	return err
}

func (c *client) sweep(ctx context.Context, id job.ID) error {
	_, err := c.call(ctx, request{Op: opSweep, Sweep: &sweepArgs{id}})
	return err
}

func (c *client) retire(ctx context.Context) error {
	_, err := c.call(ctx, request{Op: opRetire})
	return err
}
