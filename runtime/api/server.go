package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits of a connection beyond those of a body.
const (
	headerWithin = 10 * time.Second
	idleWithin   = 120 * time.Second
	maxHeader    = 64 << 10
)

// Serve answers requests on l until ctx ends; open requests then get grace to
// finish. Requests see the end of ctx only through the job table, so that a
// waiter can still be answered. It returns nil after a clean stop.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger, grace time.Duration) error {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerWithin,
		IdleTimeout:       idleWithin,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		within, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if err := s.Shutdown(within); err != nil {
			log.Warn("requests were cut off by the stop", "err", err)
			s.Close()
		}
	})
	err := s.Serve(l)
	if stop() { // it ended by itself
		return err
	}
	<-stopped
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
