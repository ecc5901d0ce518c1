package torch

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Tensor is a handle of a libtorch tensor. Several handles may share one tensor. Methods may be called from any
// goroutine while nobody changes the tensor in place.
type Tensor struct {
	cell  *cell
	scope *Scope
}

// wrapHandle makes a Tensor that owns h.
func wrapHandle(h capi.Handle, scope *Scope) *Tensor {
	if h == 0 {
		return nil
	}
	if scope != nil {
		t := scope.add(h)
		if t == nil {
			capi.Free(h)
			fail("scope", ErrFreed, "the scope is closed")
		}
		return t
	}
	t := &Tensor{cell: &cell{}} // apart, since the clean-up of t keeps the cell reachable
	t.cell.init(h)
	var buf [metaWords]int64
	if m, err := capi.Meta(h, buf[:]); err == nil {
		notePressure(t.cell, m[6]*m[7])
	}
	runtime.AddCleanup(t, (*cell).collected, t.cell)
	return t
}

const freedMessage = "the tensor was freed, or its scope is closed"

// use gives the handle for one call; done must follow.
func (t *Tensor) use(op string) capi.Handle {
	if t == nil || t.cell == nil {
		fail(op, ErrArgument, "tensor is nil")
	}
	h := t.cell.use()
	if h == 0 {
		fail(op, ErrFreed, freedMessage)
	}
	return h
}

func (t *Tensor) done() {
	t.cell.release()
	runtime.KeepAlive(t)
}

func (t *Tensor) alias(op string) capi.Handle {
	h := t.use(op)
	defer t.done()
	a, err := capi.Alias(h)
	check(op, err)
	return a
}

// In gives a handle of the same tensor that belongs to s (nil: to no scope). The data is not copied.
func (t *Tensor) In(s *Scope) *Tensor { return wrapHandle(t.alias("In"), s) }

// Scope is the scope that frees t, or nil.
func (t *Tensor) Scope() *Scope {
	if t == nil {
		return nil
	}
	return t.scope
}

// Free releases the handle now. Freeing twice does nothing; other use of a freed tensor panics.
func (t *Tensor) Free() {
	if t != nil && t.cell != nil {
		t.cell.free()
	}
}

// Freed tells whether the handle was released. A nil tensor, and the zero Tensor, count as freed.
func (t *Tensor) Freed() bool { return t == nil || t.cell == nil || t.cell.freed.Load() }

const metaWords = 12 + 2*64 // what capi.Meta gives for the most dimensions that libtorch allows

// meta holds the facts of a tensor at one moment.
type meta struct {
	dtype        DType
	device       Device
	requiresGrad bool
	isLeaf       bool
	numel        int64
	contiguous   bool // and plain: see gf_tensor_meta
	storageBytes int64
	offset       int64
	version      int64
	shape        []int64
	stride       []int64
}

func (t *Tensor) meta() meta {
	h := t.use("meta")
	defer t.done()
	var buf [metaWords]int64
	m, err := capi.Meta(h, buf[:])
	check("meta", err)
	nd := m[0]
	dims := make([]int64, 2*nd)
	copy(dims, m[12:])
	return meta{
		dtype: DType(m[1]), device: deviceOf(m[2], m[3]), requiresGrad: m[4] != 0,
		isLeaf: m[5] != 0, numel: m[6], contiguous: m[8] != 0, storageBytes: m[9], offset: m[10], version: m[11],
		shape: dims[:nd:nd], stride: dims[nd:],
	}
}

// Shape is a copy of the sizes.
func (t *Tensor) Shape() []int64 { return t.meta().shape }

// Stride is a copy of the strides, in elements.
func (t *Tensor) Stride() []int64 { return t.meta().stride }

// Dim is the number of dimensions.
func (t *Tensor) Dim() int { return len(t.meta().shape) }

// Size is the length of dimension dim; negative dims count from the end.
func (t *Tensor) Size(dim int) int64 {
	s := t.meta().shape
	if dim < 0 {
		dim += len(s)
	}
	if dim < 0 || dim >= len(s) {
		fail("Size", ErrArgument, "dimension %d of shape %v", dim, s)
	}
	return s[dim]
}

// Numel is the number of elements.
func (t *Tensor) Numel() int64 { return t.meta().numel }

// DType is the element type.
func (t *Tensor) DType() DType { return t.meta().dtype }

// Device is where the tensor lives.
func (t *Tensor) Device() Device { return t.meta().device }

// RequiresGrad tells whether autograd records operations on t.
func (t *Tensor) RequiresGrad() bool { return t.meta().requiresGrad }

// IsLeaf tells whether t is no result of a recorded operation.
func (t *Tensor) IsLeaf() bool { return t.meta().isLeaf }

// IsContiguous tells whether the elements lie in row-major order without gaps. Views that still have to be conjugated or
// negated (of complex tensors) do not count.
func (t *Tensor) IsContiguous() bool { return t.meta().contiguous }

// Version counts in-place changes; autograd compares it between forward and backward.
func (t *Tensor) Version() int64 { return t.meta().version }

// StorageBytes is the size of the storage behind t, which views share.
func (t *Tensor) StorageBytes() int64 { return t.meta().storageBytes }

// IsSame tells whether two handles are of one tensor object.
func (t *Tensor) IsSame(o *Tensor) bool { return !t.Freed() && !o.Freed() && t.cell.h == o.cell.h }

// String describes the tensor without its values.
func (t *Tensor) String() string {
	if t == nil {
		return "Tensor(nil)"
	}
	if t.Freed() {
		return "Tensor(freed)"
	}
	m := t.meta()
	return fmt.Sprintf("Tensor(%v, %v, %v)", m.shape, m.dtype, m.device)
}

// Storage is the memory behind a tensor, which its views share. It is valid while that tensor is.
type Storage struct{ of *Tensor }

// Storage is the memory behind t.
func (t *Tensor) Storage() Storage { return Storage{t} }

// Bytes is the size of the storage.
func (s Storage) Bytes() int64 { return s.of.StorageBytes() }

// ResizeStorage frees (0 bytes) or allocates the storage in place; the contents are lost, the tensor object and its
// place in the autograd graph stay. nbytes is 0, or at least what t needs; of other views of the storage the caller takes
// care. See Note [Storage free and refill] in csrc/tensor.cc.
func (t *Tensor) ResizeStorage(nbytes int64) {
	h := t.use("ResizeStorage")
	defer t.done()
	check("ResizeStorage", capi.StorageResize(h, nbytes))
}

// VariableData is an alias of t outside autograd with a version counter of its own, for writing values that autograd
// need not know of.
func (t *Tensor) VariableData() *Tensor {
	h := t.use("VariableData")
	defer t.done()
	v, err := capi.VariableData(h)
	check("VariableData", err)
	return wrapHandle(v, t.scope)
}

// SetData makes t hold src's storage, shape and dtype; t stays the same autograd leaf.
func (t *Tensor) SetData(src *Tensor) {
	h, s := t.use("SetData"), src.use("SetData")
	defer t.done()
	defer src.done()
	check("SetData", capi.SetData(h, s))
}

// bytes is the memory of a contiguous CPU tensor, valid while t is.
func (t *Tensor) bytes(op string) []byte {
	h := t.use(op)
	defer t.done()
	m := t.meta()
	if m.device.Type != CPUType || !m.contiguous {
		fail(op, ErrArgument, "needs a contiguous CPU tensor, got %v", t)
	}
	n := m.numel * m.dtype.Size()
	if n == 0 {
		return nil
	}
	if m.storageBytes < n {
		fail(op, ErrArgument, "the storage of %v is freed", t)
	}
	p, err := capi.DataPtr(h)
	check(op, err)
	return unsafe.Slice((*byte)(p), n)
}

// WithHandle calls f with the address of the tensor's at::TensorImpl, valid during the call. It is for packages that hand
// tensors to other C++ code.
func (t *Tensor) WithHandle(f func(impl uintptr)) {
	h := t.use("WithHandle")
	defer t.done()
	f(uintptr(h))
}
