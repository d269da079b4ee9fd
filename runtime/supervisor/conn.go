package supervisor

import (
	"bufio"
	"net"
	"sync"
	"time"

	"difyrt/runtime/job"
)

// growthEvery is how long growth is collected before the server hears of it. A
// waiter only comes back when the output has been quiet for a while, or when it
// is more than a page, so that nobody misses these milliseconds; a short job is
// over before them and costs no event at all, and a flood costs the server a few
// hundred wake-ups a second and no more.
const growthEvery = 4 * time.Millisecond

// stalled is how long a server may leave its socket unread before the runner
// gives it up. The server finds everything again when it connects anew.
const stalled = 10 * time.Second

// serverConn is the runner's end of a connection to a server.
type serverConn struct {
	c net.Conn
	r *bufio.Reader

	write sync.Mutex // held for each frame

	mu     sync.Mutex
	grown  map[job.ID]int64 // not yet told; nil before the subscription
	signal chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newServerConn(c net.Conn) *serverConn {
	return &serverConn{c: c, r: bufio.NewReaderSize(c, 4<<10), signal: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (c *serverConn) read(r *request) error { return readFrame(c.r, r) }

// send reports whether the message was handed to the kernel. A connection that
// fails is closed; its reader then ends.
func (c *serverConn) send(m message) bool {
	c.write.Lock()
	defer c.write.Unlock()
	return c.sendLocked(m)
}

// sendLocked is send for a caller that holds c.write.
func (c *serverConn) sendLocked(m message) bool {
	c.c.SetWriteDeadline(time.Now().Add(stalled))
	if err := writeFrame(c.c, m); err != nil {
		c.close()
		return false
	}
	return true
}

func (c *serverConn) close() {
	c.once.Do(func() {
		close(c.closed)
		c.c.Close()
	})
}

// subscribe starts the flow of growth events.
func (c *serverConn) subscribe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.grown == nil {
		c.grown = map[job.ID]int64{}
		go c.tellGrowth()
	}
}

// grew notes that a job's output has a new size; only the last size counts.
func (c *serverConn) grew(id job.ID, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.grown == nil {
		return
	}
	c.grown[id] = size
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// forget drops what was not told yet of a job that has ended.
func (c *serverConn) forget(id job.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.grown, id)
}

func (c *serverConn) subscribed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grown != nil
}

func (c *serverConn) tellGrowth() {
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for {
		select {
		case <-c.signal:
		case <-c.closed:
			return
		}
		pause.Reset(growthEvery)
		select {
		case <-pause.C:
		case <-c.closed:
			return
		}
		c.mu.Lock()
		list := make([]Grown, 0, len(c.grown))
		for id, size := range c.grown {
			list = append(list, Grown{id, size})
		}
		clear(c.grown)
		c.mu.Unlock()
		if len(list) > 0 && !c.send(message{Grown: list}) {
			return
		}
	}
}
