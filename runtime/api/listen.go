package api

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"difyrt/runtime/unixsock"
)

// Listen opens the address of --listen: host:port, or unix:PATH. A unix socket
// is open to its owner only, from its first moment on, and removed by Close; one
// that a dead server left behind is replaced. An address that a live server has is
// an error that says "in use".
func Listen(addr string) (net.Listener, error) {
	if addr == "" { // to package net it is any port of every interface
		return nil, errors.New("listen: an address is wanted, host:port or unix:PATH")
	}
	path, isUnix := strings.CutPrefix(addr, "unix:")
	if !isUnix {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("listen on %q: %w", addr, err)
		}
		return l, nil
	}
	if path == "" {
		return nil, errors.New("listen on \"unix:\": a path is wanted behind it")
	}
	l, err := unixsock.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix:%s: %w", path, err)
	}
	return l, nil
}
