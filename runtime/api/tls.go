package api

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"
)

// KeyPair is a certificate and its key in two PEM files. It is read again when
// one of the files has changed, by the next client that connects; while the new
// files do not make a pair, the last good one stays in force.
type KeyPair struct {
	cert, key string
	log       *slog.Logger

	mu    sync.Mutex
	pair  *tls.Certificate
	files [2]fileID // that were last looked at
}

// fileID changes when a file is replaced or written.
type fileID struct {
	dev, ino uint64
	mtime    unix.Timespec
	size     int64
}

// LoadKeyPair reads the files. They must make a pair now.
func LoadKeyPair(cert, key string, log *slog.Logger) (*KeyPair, error) {
	k := &KeyPair{cert: cert, key: key, log: log}
	files, err := k.look()
	if err != nil {
		return nil, fmt.Errorf("load the TLS certificate: %w", err)
	}
	if err := k.load(files); err != nil {
		return nil, fmt.Errorf("load the TLS certificate: %w", err)
	}
	return k, nil
}

func (k *KeyPair) look() (files [2]fileID, err error) {
	for i, path := range []string{k.cert, k.key} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return files, fmt.Errorf("%s: %w", path, err)
		}
		files[i] = fileID{uint64(st.Dev), st.Ino, st.Mtim, st.Size}
	}
	return files, nil
}

// load reads the pair. Files that change meanwhile are looked at again by the
// next client, since their identity was taken before.
func (k *KeyPair) load(files [2]fileID) error {
	k.files = files
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err == nil {
		k.pair = &pair
	}
	return err
}

func (k *KeyPair) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	files, err := k.look()
	if err == nil && files != k.files {
		if err = k.load(files); err == nil {
			k.log.Info("the TLS certificate was loaded again", "file", k.cert)
		} else { // once for these files
			k.log.Error("the changed TLS certificate is not used; the last one stays in force", "err", err)
		}
	}
	return k.pair, nil
}

// config offers HTTP/1.1 alone: waiting clients hold a connection each anyway.
func (k *KeyPair) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: k.current, NextProtos: []string{"http/1.1"}}
}
