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
	slabs  [][]member // see Note [Slabs]; the last one has room
	len    int
	closed bool
}

// Note [Slabs]
// A scope makes many tensors and lets go of them together, so it takes the memory of their handles in slabs: an allocation
// for every call of an operator, and a list of them to free, would cost as much as the call into C.
const slab = 64 // handles of a slab; the first ones are smaller

// member is a tensor of a scope.
type member struct {
	tensor Tensor
	cell   cell
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
	slabs := s.slabs
	s.slabs, s.len, s.closed = nil, 0, true
	s.mu.Unlock()
	list := batches.Get().(*[batch]capi.Handle)
	n := 0
	for _, members := range slabs {
		for i := range members {
			if h := members[i].cell.end(); h != 0 {
				list[n] = h
				n++
			}
			if n == batch {
				freeAll(list[:])
				n = 0
			}
		}
	}
	freeAll(list[:n])
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
	return s.len
}

// add makes a tensor of h in s, or gives nil where s is closed.
func (s *Scope) add(h capi.Handle) *Tensor {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	last := len(s.slabs) - 1
	if last < 0 || len(s.slabs[last]) == cap(s.slabs[last]) {
		s.slabs = append(s.slabs, make([]member, 0, min(slab, 4+s.len)))
		last++
	}
	n := len(s.slabs[last])
	s.slabs[last] = s.slabs[last][:n+1]
	s.len++
	m := &s.slabs[last][n]
	m.tensor.cell, m.tensor.scope = &m.cell, s
	m.cell.init(h)
	s.mu.Unlock()
	return &m.tensor
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
	uses     atomic.Int32 // calls under way, less one once the owner has let go: the handle is freed at -1
	freed    atomic.Bool
	tracked  bool
	unscoped int64 // bytes that count for Note [Byte-triggered collection]
}

var liveTensors atomic.Int64

func (c *cell) init(h capi.Handle) {
	c.h = h
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
		if n < 0 {
			return 0
		}
		if c.uses.CompareAndSwap(n, n+1) {
			return c.h
		}
	}
}

// last ends one use, and gives the handle if it was the last one: the caller frees it, with freeAll or freeOne. Otherwise
// it gives 0.
func (c *cell) last() capi.Handle {
	if c.uses.Add(-1) != -1 {
		return 0
	}
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
		freeOne(h)
	}
}

func (c *cell) free() {
	if h := c.end(); h != 0 {
		freeOne(h)
	}
}

func freeOne(h capi.Handle) {
	liveTensors.Add(-1)
	capi.Free(h)
}

func freeAll(list []capi.Handle) {
	liveTensors.Add(-int64(len(list)))
	capi.FreeAll(list)
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
