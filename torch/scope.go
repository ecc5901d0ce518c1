package torch

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Scope owns tensors and frees them together. Scopes nest: a child may use its ancestors' tensors. A nil Scope is no scope:
// its tensors are the collector's.
type Scope struct {
	parent *Scope
	depth  int
	mu     sync.Mutex
	cells  []*cell
	closed bool
}

// NewScope makes a scope inside parent, or a root scope.
func NewScope(parent *Scope) *Scope {
	s := &Scope{parent: parent}
	if parent != nil {
		s.depth = parent.depth + 1
	}
	return s
}

// Parent is the scope around s, or nil.
func (s *Scope) Parent() *Scope {
	if s == nil {
		return nil
	}
	return s.parent
}

// Close frees every tensor that belongs to s. Operators that run in other goroutines with such a tensor finish first;
// closing twice does nothing.
func (s *Scope) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	cells := s.cells
	s.cells, s.closed = nil, true
	s.mu.Unlock()
	list := batches.Get().(*[batch]capi.Handle)
	n := 0
	for _, c := range cells {
		if h := c.end(); h != 0 {
			list[n] = h
			n++
		}
		if n == batch {
			capi.FreeAll(list[:])
			n = 0
		}
	}
	capi.FreeAll(list[:n])
	batches.Put(list)
}

const batch = 64 // tensors that one C call frees

// Batches are on the heap: what the death of a tensor calls in Go may move the stack.
var batches = sync.Pool{New: func() any { return new([batch]capi.Handle) }}

// Own moves t into s and returns it.
func (s *Scope) Own(t *Tensor) *Tensor {
	if t.Scope() == s && !t.Freed() {
		return t
	}
	moved := wrapHandle(t.alias("Own"), s)
	t.Free()
	return moved
}

// Escape gives a handle of t that belongs to the parent of s, or to no scope where s is a root.
func (s *Scope) Escape(t *Tensor) *Tensor { return t.In(s.Parent()) }

// Len is the number of tensors that s owns.
func (s *Scope) Len() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cells)
}

func (s *Scope) add(c *cell) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.cells = append(s.cells, c)
	return true
}

func (s *Scope) isAncestorOf(other *Scope) bool {
	for other != nil && other.depth > s.depth {
		other = other.parent
	}
	return other == s
}

// innermost returns the scope of a result: the deeper of two scopes of arguments, nil being the shallowest. ok is false
// where neither contains the other.
func innermost(a, b *Scope) (s *Scope, ok bool) {
	switch {
	case b == nil || a == b:
		return a, true
	case a == nil || a.isAncestorOf(b):
		return b, true
	case b.isAncestorOf(a):
		return a, true
	}
	return nil, false
}

// Note [Cells]
// A cell is the one owner of a C++ handle. Tensor values point to it; scopes list it; the collector's clean-up frees it.
// Operators hold a use while the C call runs, so that a Close or a collection at that moment frees the handle after the
// call and not under it. The first free drops the owner's use; the last use frees the handle.
type cell struct {
	h        capi.Handle
	uses     atomic.Int32 // the owner counts as one
	freed    atomic.Bool
	tracked  bool
	unscoped int64 // bytes that count for Note [Byte-triggered collection]
}

var liveTensors atomic.Int64

func (c *cell) init(h capi.Handle) {
	c.h = h
	c.uses.Store(1)
	liveTensors.Add(1)
	if tracking.Load() {
		track(c)
	}
}

// use returns the handle for the length of a call, or 0 if the tensor was freed.
func (c *cell) use() capi.Handle {
	if c.freed.Load() {
		return 0
	}
	for {
		n := c.uses.Load()
		if n <= 0 {
			return 0
		}
		if c.uses.CompareAndSwap(n, n+1) {
			return c.h
		}
	}
}

// last ends one use, and gives the handle if it was the last one: the caller frees it. Otherwise it gives 0.
func (c *cell) last() capi.Handle {
	if c.uses.Add(-1) != 0 {
		return 0
	}
	liveTensors.Add(-1)
	if c.tracked {
		untrack(c)
	}
	releasePressure(c.unscoped)
	return c.h
}

// end is free for a caller that frees the handle itself, where it is not 0.
func (c *cell) end() capi.Handle {
	if !c.freed.CompareAndSwap(false, true) {
		return 0
	}
	return c.last()
}

func (c *cell) release() {
	if h := c.last(); h != 0 {
		capi.Free(h)
	}
}

func (c *cell) free() {
	if h := c.end(); h != 0 {
		capi.Free(h)
	}
}

// Note [Byte-triggered collection]
// Tensors in no scope are freed by the collector, which runs when Go's own heap grows and knows nothing of their bytes.
// So the bytes behind such tensors are counted, down again when they are freed, and a collection runs each time they
// have grown by collectEvery.
const (
	collectEvery = 512 << 20
	smallTensor  = 64 << 10 // not worth the counting
)

var (
	unscopedBytes atomic.Int64
	collectAt     atomic.Int64
)

func init() { collectAt.Store(collectEvery) }

func notePressure(c *cell, bytes int64) {
	if bytes < smallTensor {
		return
	}
	c.unscoped = bytes
	now := unscopedBytes.Add(bytes)
	if at := collectAt.Load(); now > at && collectAt.CompareAndSwap(at, now+collectEvery) {
		runtime.GC()
	}
}

func releasePressure(bytes int64) {
	if bytes == 0 {
		return
	}
	next := unscopedBytes.Add(-bytes) + collectEvery
	for at := collectAt.Load(); next < at; at = collectAt.Load() {
		if collectAt.CompareAndSwap(at, next) {
			return
		}
	}
}
