package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// At the limit a new client takes the place of the one that has longest had no
// request under way, whether it is silent, drips its header, or is idle.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	base, stop := serveAs(t, &fake{}, ServeConfig{MaxConnections: 3, Grace: time.Second})
	defer stop()
	addr := strings.TrimPrefix(base, "http://")
	var old []net.Conn
	for i := range 3 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		switch i {
		case 1:
			io.WriteString(c, "GET /healthz HTTP/1.1\r\nX-Drip: ")
		case 2:
			io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
			if n, err := c.Read(make([]byte, 1000)); err != nil {
				t.Fatal(n, err)
			}
		}
		old = append(old, c)
	}
	for range 3 {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
		r, err := client.Get(base + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
	}
	old[0].SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := old[0].Read(make([]byte, 1)); err != io.EOF && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the longest silent: %v", err)
	}
}

// Connections with a request under way are never closed: new ones wait.
func TestBusyConnectionsStay(t *testing.T) {
	f := &fake{block: make(chan struct{}), stopping: make(chan struct{})}
	base, stop := serveAs(t, f, ServeConfig{MaxConnections: 2, Grace: time.Second})
	answered := make(chan error, 3)
	ask := func(path, body string) {
		r, err := http.Post(base+path, "application/json", strings.NewReader(body))
		if err == nil {
			r.Body.Close()
		}
		answered <- err
	}
	for range 2 {
		go ask("/v1/jobs/"+string(known)+"/wait", `{}`)
		select {
		case <-f.block:
		case err := <-answered:
			t.Fatalf("the answer of a wait: %v", err)
		}
	}
	go ask("/v1/jobs/run", `{"script":"x"}`)
	select {
	case err := <-answered:
		t.Errorf("a third was answered beside two: %v", err)
	case <-time.After(100 * time.Millisecond): // it waits
	}
	close(f.stopping) // lets the waiters go
	for range 3 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	stop()
}

// slowWriter delays what is written, as a network does.
type slowWriter struct {
	net.Conn
	gate chan struct{}
}

func (s slowWriter) Write(p []byte) (int, error) {
	<-s.gate
	return s.Conn.Write(p)
}

// slowListener makes the first connection a slow one.
type slowListener struct {
	net.Listener
	first *slowWriter
	once  sync.Once
}

func (l *slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.once.Do(func() { l.first.Conn = c; c = l.first })
	}
	return c, err
}

// An answer that is on its way is not lost to a client that comes meanwhile.
func TestAnswersAreSentBeforeTheirConnectionIsIdle(t *testing.T) {
	inner, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	l := &slowListener{Listener: inner, first: &slowWriter{gate: gate}}
	handled := make(chan struct{}, 2)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		h := NewHandler(Config{Jobs: &fake{}, Log: quiet()})
		done <- Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			handled <- struct{}{}
		}), ServeConfig{Log: quiet(), MaxConnections: 1, Grace: time.Second})
	}()
	answers := make(chan error, 2)
	ask := func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
		r, err := client.Get("http://" + inner.Addr().String() + "/healthz")
		if err == nil {
			r.Body.Close()
		}
		answers <- err
	}
	go ask()
	<-handled // and not sent yet
	go ask()
	time.Sleep(100 * time.Millisecond) // the second is at the door
	close(gate)
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// certificate writes a pair of files for localhost, signed by itself.
func certificate(t *testing.T, dir, name string) (cert *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "EC PRIVATE KEY", Bytes: k}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, _ = x509.ParseCertificate(der)
	return cert
}

// A certificate that changes is used by the next client; one that is broken is
// not, and the last one stays.
func TestCertificateIsLoadedAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	if _, err := LoadKeyPair(cert, key, quiet()); err == nil {
		t.Error("missing files were taken")
	}
	first := certificate(t, dir, "first")
	pair, err := LoadKeyPair(cert, key, quiet())
	if err != nil {
		t.Fatal(err)
	}
	base, stop := serveAs(t, &fake{}, ServeConfig{TLS: pair, Grace: time.Second})
	defer stop()
	name := func(trust *x509.Certificate) string {
		roots := x509.NewCertPool()
		roots.AddCert(trust)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
		r, err := client.Get(base + "/healthz")
		if err != nil {
			return err.Error()
		}
		defer r.Body.Close()
		if r.ProtoMajor != 1 {
			t.Errorf("protocol %s", r.Proto)
		}
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	if got := name(first); got != "first" {
		t.Errorf("at first: %s", got)
	}
	second := certificate(t, dir, "second")
	if got := name(second); got != "second" {
		t.Errorf("after a change: %s", got)
	}
	if err := os.WriteFile(cert, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := name(second); got != "second" {
		t.Errorf("with a broken file: %s", got)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if got := name(second); got != "second" {
		t.Errorf("with a missing file: %s", got)
	}
	if got := name(first); !strings.Contains(got, "certificate") {
		t.Errorf("control: a client that trusts another certificate: %s", got)
	}
	r, err := http.Get("http://" + strings.TrimPrefix(base, "https://") + "/healthz")
	if err == nil && r.StatusCode == 200 {
		t.Error("an answer in clear")
	}
}
