package output

import (
	"fmt"
	"io"
	"sync"
)

// keep is the size up to which a buffer is used again, a little more than the
// largest page that a client may ask for.
const keep = 1 << 20

var pool = sync.Pool{New: func() any { return new(window) }}

// window is a part of a file, in a buffer that is used again.
type window struct {
	bytes []byte
}

// read gives the n bytes of f from off, or as many as there are.
func read(f io.ReaderAt, off, n int64) (*window, error) {
	if off < 0 {
		return nil, fmt.Errorf("output: negative offset %d", off)
	}
	w := pool.Get().(*window)
	w.bytes = w.bytes[:0]
	if n <= 0 {
		return w, nil
	}
	if int64(cap(w.bytes)) < n {
		w.bytes = make([]byte, n)
	}
	got, err := f.ReadAt(w.bytes[:n], off)
	if err != nil && err != io.EOF {
		w.free()
		return nil, err
	}
	w.bytes = w.bytes[:got]
	return w, nil
}

// free gives the buffer back; its bytes must not be used any more.
func (w *window) free() {
	if cap(w.bytes) <= keep {
		pool.Put(w)
	}
}
