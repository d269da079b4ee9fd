package api

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"difyrt/runtime/unixsock"
)

// Listen opens the address of --listen: host:port, or unix:PATH. A unix socket
// is closed to other users; one that a dead server left behind is replaced.
func Listen(addr string) (net.Listener, error) {
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
