package nn

import (
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn/functional"
)

// TensorLayer is a layer from one tensor to one tensor.
type TensorLayer = Layer[*torch.Tensor, *torch.Tensor]

// Sequential calls layers one after the other. On disk they are called "0", "1", …, as in PyTorch.
type Sequential struct {
	Hooks
	Layers []TensorLayer `torch:""`
}

// NewSequential makes a chain of layers.
func NewSequential(layers ...TensorLayer) *Sequential { return &Sequential{Layers: layers} }

// Forward gives x to the first layer, its output to the second, and so on.
func (s *Sequential) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	for _, l := range s.Layers {
		x = Run(l, c, x)
	}
	return x
}

// Func is a layer without parameters.
type Func struct {
	Hooks
	F func(x *torch.Tensor) *torch.Tensor
}

// NewFunc makes a layer of a function.
func NewFunc(f func(x *torch.Tensor) *torch.Tensor) *Func { return &Func{F: f} }

// Forward calls the function.
func (f *Func) Forward(_ *Call, x *torch.Tensor) *torch.Tensor { return f.F(x) }

// ReLU is the layer max(x, 0).
func ReLU() *Func { return NewFunc(functional.ReLU) }

// LeakyReLU is the layer that is x where x is positive, else slope · x.
func LeakyReLU(slope float64) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.LeakyReLU(x, slope) })
}

// ELU is the layer that is x where x is positive, else alpha · (e^x − 1).
func ELU(alpha float64) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.ELU(x, alpha) })
}

// Softplus is the layer log(1 + e^x).
func Softplus() *Func { return NewFunc(functional.Softplus) }

// Identity is the layer that gives its input.
func Identity() *Func { return NewFunc(func(x *torch.Tensor) *torch.Tensor { return x }) }

// GELU is the layer x · Φ(x); approximate is "none" or "tanh".
func GELU(approximate string) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.GELU(x, approximate) })
}

// SiLU is the layer x · sigmoid(x).
func SiLU() *Func { return NewFunc(functional.SiLU) }

// Sigmoid is the layer 1 / (1 + e^−x).
func Sigmoid() *Func { return NewFunc(functional.Sigmoid) }

// Tanh is the hyperbolic tangent as a layer.
func Tanh() *Func { return NewFunc(functional.Tanh) }

// Softmax is the layer that normalises exp(x) along dim.
func Softmax(dim int) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.Softmax(x, dim) })
}

// LogSoftmax is the logarithm of Softmax.
func LogSoftmax(dim int) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.LogSoftmax(x, dim) })
}

// Flatten is the layer that joins all dimensions but the first.
func Flatten() *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return x.Flatten(1, -1) })
}

// MaxPool2d is the layer that gives the largest element of each window.
func MaxPool2d(kernel []int64, o functional.PoolOptions) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.MaxPool2d(x, kernel, o) })
}

// AvgPool2d is the layer that averages over windows.
func AvgPool2d(kernel []int64, o functional.PoolOptions) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.AvgPool2d(x, kernel, o) })
}

// AdaptiveAvgPool2d is the layer that averages the last two dimensions down to the given size.
func AdaptiveAvgPool2d(height, width int64) *Func {
	return NewFunc(func(x *torch.Tensor) *torch.Tensor { return functional.AdaptiveAvgPool2d(x, height, width) })
}
