package gotorch

import (
	"reflect"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/aten"
	"github.com/wangkuiyi/gotorch/variadic"
)

// Add is a + alpha · other.
func Add(a, other Tensor, alpha float32) Tensor {
	return Wrap(a.Torch().AddScaled(other.Torch(), float64(alpha)))
}

// Add is a + alpha · other.
func (a Tensor) Add(other Tensor, alpha float32) Tensor { return Add(a, other, alpha) }

// AddI adds alpha · other to a, and gives a.
func (a Tensor) AddI(other Tensor, alpha float32) Tensor {
	a.Torch().AddInPlace(other.Torch(), float64(alpha))
	return a
}

// Sub is a − alpha · other.
func Sub(a, other Tensor, alpha float32) Tensor {
	return Wrap(aten.SubTensor(a.Torch(), other.Torch(), aten.SubOptions{Alpha: alpha}))
}

// Sub is a − alpha · other.
func (a Tensor) Sub(other Tensor, alpha float32) Tensor { return Sub(a, other, alpha) }

// SubI subtracts alpha · other from a, and gives a.
func (a Tensor) SubI(other Tensor, alpha float32) Tensor {
	aten.SubInPlaceTensor(a.Torch(), other.Torch(), aten.SubOptions{Alpha: alpha})
	return a
}

// Mul is a · other, element by element.
func Mul(a, other Tensor) Tensor { return Wrap(a.Torch().Mul(other.Torch())) }

// Mul is a · other, element by element.
func (a Tensor) Mul(other Tensor) Tensor { return Mul(a, other) }

// MulI multiplies a by other, element by element, and gives a.
func (a Tensor) MulI(other Tensor) Tensor {
	a.Torch().MulInPlace(other.Torch())
	return a
}

// Div is a / other, element by element. Integers give Float.
func Div(a, other Tensor) Tensor { return Wrap(a.Torch().Div(other.Torch())) }

// Div is a / other, element by element. Integers give Float.
func (a Tensor) Div(other Tensor) Tensor { return Div(a, other) }

// DivI divides a by other, element by element, and gives a.
func (a Tensor) DivI(other Tensor) Tensor {
	aten.DivInPlaceTensor(a.Torch(), other.Torch())
	return a
}

// MM is the product of two matrices.
func MM(a, b Tensor) Tensor { return Wrap(a.Torch().MM(b.Torch())) }

// Eq tells for each element whether it is the same in both, as a Bool tensor.
func Eq(a, other Tensor) Tensor { return Wrap(a.Torch().Eq(other.Torch())) }

// Eq tells for each element whether it is the same in both, as a Bool tensor.
func (a Tensor) Eq(other Tensor) Tensor { return Eq(a, other) }

// Equal tells whether two tensors have the same shape and elements.
func Equal(a, b Tensor) bool { return a.Torch().Equal(b.Torch()) }

// AllClose tells whether all elements differ by at most 1e-8 + 1e-5 · |b|.
func AllClose(a, b Tensor) bool { return aten.Allclose(a.Torch(), b.Torch()) }

// LeakyRelu is t where it is positive, else negativeSlope · t.
func LeakyRelu(t Tensor, negativeSlope float64) Tensor { return t.LeakyRelu(negativeSlope) }

// LeakyRelu is a where it is positive, else negativeSlope · a.
func (a Tensor) LeakyRelu(negativeSlope float64) Tensor {
	return Wrap(aten.LeakyRelu(a.Torch(), aten.LeakyReluOptions{NegativeSlope: negativeSlope}))
}

// LogSoftmax is the logarithm of the softmax along dim.
func LogSoftmax(t Tensor, dim int64) Tensor { return t.LogSoftmax(dim) }

// LogSoftmax is the logarithm of the softmax along dim.
func (a Tensor) LogSoftmax(dim int64) Tensor { return Wrap(a.Torch().LogSoftmax(int(dim))) }

// Relu is max(t, 0).
func Relu(t Tensor) Tensor { return t.Relu() }

// Relu is max(a, 0).
func (a Tensor) Relu() Tensor { return Wrap(a.Torch().ReLU()) }

// Sigmoid is 1 / (1 + e^−t).
func Sigmoid(t Tensor) Tensor { return t.Sigmoid() }

// Sigmoid is 1 / (1 + e^−a).
func (a Tensor) Sigmoid() Tensor { return Wrap(a.Torch().Sigmoid()) }

// Tanh is the hyperbolic tangent.
func Tanh(t Tensor) Tensor { return t.Tanh() }

// Tanh is the hyperbolic tangent.
func (a Tensor) Tanh() Tensor { return Wrap(a.Torch().Tanh()) }

// Mean is the mean of all elements.
func Mean(t Tensor) Tensor { return t.Mean() }

// Mean is the mean of all elements.
func (a Tensor) Mean() Tensor { return Wrap(a.Torch().Mean()) }

// Sum is the sum of all elements, or along the dimension of the option "dim", an int. The option "keepDim", a bool, keeps
// that dimension with size 1.
func Sum(a Tensor, opt ...map[string]interface{}) Tensor {
	dim, ok := variadic.Lookup(opt, "dim")
	if !ok {
		return Wrap(aten.Sum(a.Torch()))
	}
	keep, ok := variadic.Get(opt, "keepDim", false).(bool)
	if !ok {
		fail("Sum", "the option keepDim is not a bool")
	}
	return Wrap(aten.SumDimIntList(a.Torch(), []int64{integer("Sum", dim)}, aten.SumDimIntListOptions{Keepdim: keep}))
}

// Sum is the function Sum of a.
func (a Tensor) Sum(opt ...map[string]interface{}) Tensor { return Sum(a, opt...) }

// Argmin is the index of the smallest element of all, or along a dimension: the options are dim, an integer, and keepdim, a
// bool.
func (a Tensor) Argmin(opts ...interface{}) Tensor {
	dim, keep := argOptions("Argmin", opts)
	return Wrap(aten.Argmin(a.Torch(), aten.ArgminOptions{Dim: dim, Keepdim: keep}))
}

// Argmax is the index of the largest element of all, or along a dimension: the options are dim, an integer, and keepdim, a
// bool.
func (a Tensor) Argmax(opts ...interface{}) Tensor {
	dim, keep := argOptions("Argmax", opts)
	return Wrap(aten.Argmax(a.Torch(), aten.ArgmaxOptions{Dim: dim, Keepdim: keep}))
}

func argOptions(op string, opts []interface{}) (dim *int64, keep bool) {
	if len(opts) > 0 {
		d := integer(op, opts[0])
		dim = &d
	}
	if len(opts) > 1 {
		var ok bool
		if keep, ok = opts[1].(bool); !ok {
			fail(op, "keepdim is a %T, not a bool", opts[1])
		}
	}
	if len(opts) > 2 {
		fail(op, "takes dim and keepdim, got %d options", len(opts))
	}
	return dim, keep
}

// integer reads a dimension of any of Go's signed integer types.
func integer(op string, v any) int64 {
	r := reflect.ValueOf(v)
	if !r.IsValid() || !r.CanInt() {
		fail(op, "the dimension is a %T, not an integer", v)
	}
	return r.Int()
}

// TopK gives the k largest elements along dim, or the smallest, and their indices.
func TopK(a Tensor, k, dim int64, largest, sorted bool) (Tensor, Tensor) {
	values, indices := aten.Topk(a.Torch(), k, aten.TopkOptions{Dim: &dim, Largest: &largest, Sorted: &sorted})
	return Wrap(values), Wrap(indices)
}

// IndexSelect picks the slices of a along dim that index, a 1-D tensor, lists.
func IndexSelect(a Tensor, dim int64, index Tensor) Tensor {
	return Wrap(a.Torch().IndexSelect(int(dim), index.Torch()))
}

// IndexSelect picks the slices of a along dim that index, a 1-D tensor, lists.
func (a Tensor) IndexSelect(dim int64, index Tensor) Tensor { return IndexSelect(a, dim, index) }

// ExpandAs repeats dimensions of size 1, without a copy, until a has other's shape.
func ExpandAs(a, other Tensor) Tensor { return Wrap(a.Torch().Expand(other.Torch().Shape()...)) }

// ExpandAs repeats dimensions of size 1, without a copy, until a has other's shape.
func (a Tensor) ExpandAs(other Tensor) Tensor { return ExpandAs(a, other) }

// Flatten joins the dimensions startDim to endDim into one.
func Flatten(a Tensor, startDim, endDim int64) Tensor {
	return Wrap(a.Torch().Flatten(int(startDim), int(endDim)))
}

// Permute puts the dimensions into the given order.
func (a Tensor) Permute(dims []int64) Tensor { return Wrap(a.Torch().Permute(dims...)) }

// Squeeze drops all dimensions of size 1, or the given one if its size is 1.
func Squeeze(t Tensor, dim ...int64) Tensor { return t.Squeeze(dim...) }

// Squeeze drops all dimensions of size 1, or the given one if its size is 1.
func (a Tensor) Squeeze(dim ...int64) Tensor {
	switch len(dim) {
	case 0:
		return Wrap(aten.Squeeze(a.Torch()))
	case 1:
		return Wrap(a.Torch().Squeeze(int(dim[0])))
	}
	fail("Squeeze", "takes one dimension or none, got %v", dim)
	return Tensor{}
}

// Stack joins tensors of one shape along a new dimension dim.
func Stack(tensors []Tensor, dim int64) Tensor {
	list := make([]*torch.Tensor, len(tensors))
	for i, t := range tensors {
		list[i] = t.Torch()
	}
	return Wrap(torch.Stack(int(dim), list...))
}

// Transpose swaps two dimensions.
func Transpose(a Tensor, dim0, dim1 int64) Tensor {
	return Wrap(a.Torch().Transpose(int(dim0), int(dim1)))
}

// Transpose swaps two dimensions.
func (a Tensor) Transpose(dim0, dim1 int64) Tensor { return Transpose(a, dim0, dim1) }

// View has a's memory and another shape, in which one size may be -1.
func View(a Tensor, shape ...int64) Tensor { return Wrap(a.Torch().View(shape...)) }

// View has a's memory and another shape, in which one size may be -1.
func (a Tensor) View(shape ...int64) Tensor { return View(a, shape...) }
