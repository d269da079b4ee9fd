package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"runtime"
	"sync"
)

const (
	// chunkSize is how much of the tar becomes one zstd frame. Frames are encoded
	// side by side; a frame knows nothing of the one before it, which at this size
	// costs less than a hundredth in size.
	chunkSize = 2 << 20
	// longZeros is from where a run of zeros is worth a frame of its own.
	longZeros = 256 << 10
	// mostWorkers bounds the memory: each takes some 12 MB.
	mostWorkers = 4
)

// encoder turns a tar into zstd frames: whoever writes fills chunks, workers
// encode them, and one goroutine sends them off in order.
type encoder struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	free    chan *chunk
	todo    chan *chunk
	ordered chan *chunk
	cur     *chunk
	pace    pace
	workers sync.WaitGroup
	sent    chan struct{} // closed when the sender has ended

	w     io.Writer
	sum   hash.Hash
	bytes int64
}

// chunk is a piece of the tar on its way.
type chunk struct {
	raw, frame []byte
	ready      chan struct{} // has one element when frame is
	fast       bool          // which level it gets
	probe      bool
}

// newEncoder starts the workers. They end with close, or with ctx.
func newEncoder(ctx context.Context, w io.Writer) (*encoder, error) {
	n := min(runtime.GOMAXPROCS(0), mostWorkers)
	coders := make([]coder, n)
	for i := range coders {
		var err error
		if coders[i], err = newCoder(); err != nil {
			return nil, err
		}
	}
	e := &encoder{w: w, sum: sha256.New(), sent: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancelCause(ctx)
	total := n + 2 // one is being filled, one is being sent
	e.free, e.todo, e.ordered = make(chan *chunk, total), make(chan *chunk, total), make(chan *chunk, total)
	for range total {
		e.free <- &chunk{ready: make(chan struct{}, 1)}
	}
	for _, c := range coders {
		e.workers.Go(func() { e.work(c) })
	}
	go e.send()
	return e, nil
}

func (e *encoder) work(c coder) {
	defer c.close()
	for k := range e.todo {
		if e.ctx.Err() == nil {
			if k.probe {
				c.probe(k.raw, &e.pace)
			}
			level := c.slow
			if k.fast {
				level = c.fast
			}
			k.frame = level.EncodeAll(k.raw, k.frame[:0])
		}
		k.ready <- struct{}{}
	}
}

func (e *encoder) send() {
	defer close(e.sent)
	for c := range e.ordered {
		<-c.ready
		if e.ctx.Err() == nil {
			if _, err := e.w.Write(c.frame); err != nil {
				e.cancel(err)
			}
			e.sum.Write(c.frame)
			e.bytes += int64(len(c.frame))
		}
		e.free <- c
	}
}

// space gives room for at least one byte to be written into, at most for n;
// advance tells how much was.
func (e *encoder) space(n int64) ([]byte, error) {
	if e.cur == nil {
		select {
		case e.cur = <-e.free:
		case <-e.ctx.Done():
			return nil, context.Cause(e.ctx)
		}
		if e.cur.raw == nil {
			e.cur.raw = make([]byte, 0, chunkSize)
		}
		e.cur.raw = e.cur.raw[:0]
	}
	at := len(e.cur.raw)
	return e.cur.raw[at:min(int64(chunkSize), int64(at)+n)], nil
}

func (e *encoder) advance(n int) {
	e.cur.raw = e.cur.raw[:len(e.cur.raw)+n]
	if len(e.cur.raw) == chunkSize {
		e.flush()
	}
}

// flush ends the frame.
func (e *encoder) flush() {
	if e.cur == nil {
		return
	}
	c := e.cur
	e.cur = nil
	if len(c.raw) == 0 {
		e.free <- c
		return
	}
	c.fast, c.probe = e.pace.choose()
	e.ordered <- c
	e.todo <- c
}

func (e *encoder) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		room, err := e.space(int64(len(p)))
		if err != nil {
			return n - len(p), err
		}
		k := copy(room, p)
		e.advance(k)
		p = p[k:]
	}
	return n, nil
}

// zeros writes n zeros.
func (e *encoder) zeros(n int64) error {
	if n >= longZeros {
		e.flush()
		for n >= longZeros {
			some := min(n, zerosAtOnce)
			if err := e.zeroFrame(some); err != nil {
				return err
			}
			n -= some
		}
	}
	for n > 0 {
		room, err := e.space(n)
		if err != nil {
			return err
		}
		clear(room)
		e.advance(len(room))
		n -= int64(len(room))
	}
	return nil
}

// zerosAtOnce makes a frame of 128 KiB.
const (
	zerosAtOnce = 4 << 30
	blockMax    = 128 << 10
)

// zeroFrame sends a frame of RLE blocks (RFC 8878, 3.1.1.2), four bytes for every
// 128 KiB of zeros.
func (e *encoder) zeroFrame(n int64) error {
	if _, err := e.space(1); err != nil {
		return err
	}
	c := e.cur
	e.cur = nil
	const windowOf128K = (17 - 10) << 3
	c.frame = append(c.frame[:0], 0x28, 0xb5, 0x2f, 0xfd, 0, windowOf128K)
	for n > 0 {
		size := min(n, blockMax)
		n -= size
		const rle = 1 << 1
		head := uint32(size)<<3 | rle
		if n == 0 {
			head |= 1 // the last block
		}
		c.frame = binary.LittleEndian.AppendUint32(c.frame, head) // three bytes of it, and the byte to repeat: 0
	}
	c.ready <- struct{}{}
	e.ordered <- c
	return nil
}

// close waits until everything is sent, or given up, and ends the workers.
func (e *encoder) close() error {
	if e.ctx.Err() == nil {
		e.flush()
	}
	close(e.todo)
	close(e.ordered)
	e.workers.Wait()
	<-e.sent
	err := context.Cause(e.ctx)
	e.cancel(nil)
	return err
}
