package snapshot

import (
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// The library has a default level, which is like zstd -3 in size, and a fast one,
// which is about a quarter quicker. Of most trees that makes source code and
// binaries some 6 % larger, of some nothing at all. So now and then both are
// tried, and the fast one is used while it costs nothing.
const (
	probeEvery = 16 // chunks
	probeSize  = 128 << 10
)

// pace chooses the level of each chunk.
type pace struct {
	chunks int
	free   atomic.Bool // the fast level was no larger when last seen
}

// choose is called for each chunk in order.
func (p *pace) choose() (fast, probe bool) {
	probe = p.chunks%probeEvery == 0
	p.chunks++
	return p.free.Load(), probe
}

// coder is one worker's pair of encoders.
type coder struct{ fast, slow *zstd.Encoder }

func newCoder() (c coder, err error) {
	for to, level := range map[**zstd.Encoder]zstd.EncoderLevel{&c.fast: zstd.SpeedFastest, &c.slow: zstd.SpeedDefault} {
		// A window of 2 MiB is that of zstd -3; larger ones find little more.
		if *to, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(level), zstd.WithWindowSize(chunkSize)); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c coder) close() {
	c.fast.Close()
	c.slow.Close()
}

// probe compares the levels on a piece from the middle.
func (c coder) probe(raw []byte, p *pace) {
	at := max(0, (len(raw)-probeSize)/2)
	piece := raw[at:min(len(raw), at+probeSize)]
	fast, slow := len(c.fast.EncodeAll(piece, nil)), len(c.slow.EncodeAll(piece, nil))
	p.free.Store(fast <= slow)
}
