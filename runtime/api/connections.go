package api

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sys/unix"
)

// DefaultConnections is half of the descriptors that this process may have, at
// most mostConnections: the other half is for what requests need.
func DefaultConnections() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 512
	}
	return int(max(min(l.Cur/2, mostConnections), 16))
}

const mostConnections = 4096

// connections bounds how many there are. When one too many comes, one is closed in
// its favour: of those that never sent a request, silent ones and drippers of
// headers, the oldest; else the one that has been idle for longest. Only when
// every connection has a request under way do new ones wait.
type connections struct {
	net.Listener
	most int

	mu     sync.Mutex
	all    map[net.Conn]*list.Element // nil while it has a request
	silent *list.List                 // of net.Conn without a request so far, the oldest first
	idle   *list.List                 // of those between requests, the longest idle first
	freed  *sync.Cond
	closed bool
}

func limitConnections(l net.Listener, most int) *connections {
	c := &connections{Listener: l, most: most, all: map[net.Conn]*list.Element{}, silent: list.New(), idle: list.New()}
	c.freed = sync.NewCond(&c.mu)
	return c
}

// Accept makes room when somebody has come, and not before: the last that came
// may just be about to send its request.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.all) >= c.most {
		if c.closed {
			return nil, errors.Join(net.ErrClosed, conn.Close())
		}
		oldest := c.silent.Front()
		if oldest == nil {
			oldest = c.idle.Front()
		}
		if oldest != nil {
			c.forget(oldest.Value.(net.Conn)).Close()
			continue
		}
		c.freed.Wait()
	}
	c.all[conn] = c.silent.PushBack(conn)
	return conn, nil
}

// Close ends a waiting Accept too.
func (c *connections) Close() error {
	c.mu.Lock()
	c.closed = true
	c.freed.Broadcast()
	c.mu.Unlock()
	return c.Listener.Close()
}

// closeSilent ends connections without a request: a stop would wait for them as
// if one were on its way.
func (c *connections) closeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.silent.Front(); e != nil; e = c.silent.Front() {
		c.forget(e.Value.(net.Conn)).Close()
	}
}

// forget takes a connection off the lists. The caller holds c.mu.
func (c *connections) forget(conn net.Conn) net.Conn {
	if e, ok := c.all[conn]; ok {
		c.unlist(e)
		delete(c.all, conn)
		c.freed.Signal()
	}
	return conn
}

// unlist knows that a list leaves an element alone that is none of its own.
func (c *connections) unlist(e *list.Element) {
	if e != nil {
		c.silent.Remove(e)
		c.idle.Remove(e)
	}
}

// state is the server's ConnState: it hears of each connection's end, and of the
// end of each request. That is when its answer has been sent, which a handler's
// return is not.
func (c *connections) state(conn net.Conn, s http.ConnState) {
	conn = inner(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateClosed, http.StateHijacked:
		c.forget(conn)
	case http.StateIdle:
		if e, ok := c.all[conn]; ok && e == nil {
			c.all[conn] = c.idle.PushBack(conn)
			c.freed.Signal()
		}
	}
}

type connKey struct{}

// remember is the server's ConnContext.
func (c *connections) remember(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, inner(conn))
}

// busy wraps the handler: from its call on, the connection is not idle.
func (c *connections) busy(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		c.mu.Lock()
		if e := c.all[conn]; e != nil {
			c.unlist(e)
			c.all[conn] = nil
		}
		c.mu.Unlock()
		h.ServeHTTP(w, r)
	})
}

// inner gives the connection that was accepted.
func inner(conn net.Conn) net.Conn {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return conn
}
