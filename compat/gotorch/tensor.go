// Package gotorch is the API of github.com/wangkuiyi/gotorch on the tensors of gofsdp: programs written for that library
// run on current libtorch, with one replace line in their go.mod. README.md shows it, and lists what differs.
//
// A Tensor holds a *torch.Tensor of github.com/gofsdp/gofsdp/torch. Tensor.Torch and Wrap lead across, so that a program
// can be carried over bit by bit: everything that this package lacks is there.
//
// Faults in arguments panic with a *torch.Error, which torch.Try turns into an error. The original panicked with a string,
// or ended the process.
package gotorch

import (
	"fmt"
	"unsafe"

	"github.com/gofsdp/gofsdp/torch"
)

// Tensor is a handle of a tensor. The zero value is no tensor: an absent bias, an absent weight of a loss. Where T points
// to nil the tensor is undefined: Grad gives such a one before the first Backward.
type Tensor struct {
	T *unsafe.Pointer // points to a *torch.Tensor; programs only compare it with nil
}

// Wrap makes a Tensor of t, without a copy; nil gives an undefined Tensor.
func Wrap(t *torch.Tensor) Tensor {
	p := unsafe.Pointer(t)
	return Tensor{T: &p}
}

// Torch is the tensor behind a, for operators that this package lacks. It panics where there is none.
func (a Tensor) Torch() *torch.Tensor {
	switch {
	case a.T == nil:
		fail("Tensor", "the Tensor is empty: its T is nil")
	case *a.T == nil:
		fail("Tensor", "the Tensor is undefined: no Backward has reached the tensor whose gradient it is")
	}
	return (*torch.Tensor)(*a.T)
}

func (a Tensor) defined() bool { return a.T != nil && *a.T != nil }

// fail panics with a *torch.Error.
func fail(op, format string, args ...any) {
	panic(&torch.Error{Op: op, Kind: torch.ErrArgument, Msg: fmt.Sprintf(format, args...)})
}

// MustNil panics with the C string at err, if there is one. Nothing in this module makes such strings; the function is for
// programs that called it on results of C++ code of their own.
func MustNil(err unsafe.Pointer) {
	if err == nil {
		return
	}
	n := 0
	for *(*byte)(unsafe.Add(err, n)) != 0 {
		n++
	}
	panic(string(unsafe.Slice((*byte)(err), n)))
}

// Detach is a, outside autograd; it shares a's memory.
func (a Tensor) Detach() Tensor { return Wrap(a.Torch().Detach()) }

// Dim is the number of dimensions.
func (a Tensor) Dim() int64 { return int64(a.Torch().Dim()) }

// Shape is the sizes of the dimensions.
func (a Tensor) Shape() []int64 { return append([]int64{}, a.Torch().Shape()...) }

// Dtype is the element type, one of the constants Byte, Char, ….
func (a Tensor) Dtype() int8 { return int8(a.Torch().DType()) }

// Backward accumulates the gradient of a, which has one element, into the leaves of its graph.
func (a Tensor) Backward() { a.Torch().Backward() }

// Grad is the gradient of a leaf; it is undefined before the first Backward.
func (a Tensor) Grad() Tensor { return Wrap(a.Torch().Grad()) }

// SetData makes a hold b's elements, shape and type; a stays the same leaf of autograd.
func (a Tensor) SetData(b Tensor) { a.Torch().SetData(b.Torch()) }

// Index is the element at the given place, as a tensor without dimensions. It needs an index for each dimension; negative
// ones count from the end.
func (a Tensor) Index(index ...int64) Tensor {
	t := a.Torch()
	if shape := t.Shape(); len(index) != len(shape) {
		fail("Index", "%d indices %v for a tensor of shape %v", len(index), index, shape)
	}
	t = t.AliasView()
	for _, i := range index {
		t = t.Select(0, i)
	}
	return Wrap(t)
}

// Item is the value of a tensor of one element: a byte, bool, int8, int16, int32, int64, float32 (of Half and BFloat16
// too) or float64, by the tensor's type.
func (a Tensor) Item() interface{} {
	t := a.Torch()
	if n := t.Numel(); n != 1 {
		fail("Item", "needs one element, got shape %v", t.Shape())
	}
	switch d := a.Dtype(); d {
	case Byte:
		return one[uint8](t)
	case Bool:
		return one[bool](t)
	case Char:
		return one[int8](t)
	case Short:
		return one[int16](t)
	case Int:
		return one[int32](t)
	case Long:
		return one[int64](t)
	case Half, Float, BFloat16:
		return float32(t.Item())
	case Double:
		return one[float64](t)
	default:
		fail("Item", "elements of type %v have no Go value", torch.DType(d))
		return nil
	}
}

// one is the element of a tensor of one element.
func one[T torch.Element](t *torch.Tensor) T { return torch.Slice[T](t)[0] }
