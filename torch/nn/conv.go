package nn

import (
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn/functional"
	"github.com/gofsdp/gofsdp/torch/nn/initializer"
)

// ConvConfig are the settings of a convolution layer. The zero value is stride 1, no padding, one group and a bias.
type ConvConfig struct {
	functional.ConvOptions
	NoBias bool
}

// Conv is what convolution layers share.
type Conv struct {
	Hooks
	Weight  *Param `torch:"weight"` // (out, in/groups, kernel…); transposed: (in, out/groups, kernel…)
	Bias    *Param `torch:"bias"`   // (out), or nil
	Options functional.ConvOptions
}

func newConv(dims int, in, out int64, kernel []int64, c ConvConfig, dtype torch.DType, device torch.Device, transposed bool) Conv {
	groups := max(c.Groups, 1)
	switch {
	case len(kernel) == 1:
		kernel = slices.Repeat(kernel, dims)
	case len(kernel) != dims:
		torch.Throw(fmt.Errorf("nn: a kernel of %d sizes for a convolution over %d dimensions", len(kernel), dims))
	}
	if in%groups != 0 || out%groups != 0 {
		torch.Throw(fmt.Errorf("nn: a convolution of %d to %d channels cannot have %d groups", in, out, groups))
	}
	shape := []int64{out, in / groups}
	if transposed {
		shape = []int64{in, out / groups}
	}
	l := Conv{Options: c.ConvOptions, Weight: NewParam(torch.EmptyOn(device, dtype, append(shape, kernel...)...), true)}
	if !c.NoBias {
		l.Bias = NewParam(torch.EmptyOn(device, dtype, out), true)
	}
	return l
}

// ResetParameters draws PyTorch's initial values.
func (l *Conv) ResetParameters(g *torch.Generator) { resetAffine(l.Weight, l.Bias, g) }

// resetAffine is the initialisation of Linear and the convolutions.
func resetAffine(weight, bias *Param, g *torch.Generator) {
	w := weight.Tensor()
	initializer.KaimingUniform(w, initializer.KaimingOptions{Nonlinearity: "leaky_relu", Param: math.Sqrt(5)}, g)
	if bias == nil {
		return
	}
	if fanIn, _ := initializer.FanInAndFanOut(w); fanIn > 0 {
		bound := 1 / math.Sqrt(float64(fanIn))
		initializer.Uniform(bias.Tensor(), -bound, bound, g)
	}
}

// Conv1d convolves (batch, in, length).
type Conv1d struct{ Conv }

// NewConv1d makes a layer with uninitialised (or, on torch.Meta, absent) values.
func NewConv1d(in, out int64, kernel []int64, c ConvConfig, dtype torch.DType, device torch.Device) *Conv1d {
	return &Conv1d{newConv(1, in, out, kernel, c, dtype, device, false)}
}

// Forward convolves x (batch, in, length).
func (l *Conv1d) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return functional.Conv1d(x, l.Weight.In(c.Scope), l.Bias.in(c.Scope), l.Options)
}

// Conv2d convolves (batch, in, height, width).
type Conv2d struct{ Conv }

// NewConv2d makes a layer with uninitialised (or, on torch.Meta, absent) values. One kernel size stands for both.
func NewConv2d(in, out int64, kernel []int64, c ConvConfig, dtype torch.DType, device torch.Device) *Conv2d {
	return &Conv2d{newConv(2, in, out, kernel, c, dtype, device, false)}
}

// Forward convolves x (batch, in, height, width).
func (l *Conv2d) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return functional.Conv2d(x, l.Weight.In(c.Scope), l.Bias.in(c.Scope), l.Options)
}

// Conv3d convolves (batch, in, depth, height, width).
type Conv3d struct{ Conv }

// NewConv3d makes a layer with uninitialised (or, on torch.Meta, absent) values. One kernel size stands for all.
func NewConv3d(in, out int64, kernel []int64, c ConvConfig, dtype torch.DType, device torch.Device) *Conv3d {
	return &Conv3d{newConv(3, in, out, kernel, c, dtype, device, false)}
}

// Forward convolves x (batch, in, depth, height, width).
func (l *Conv3d) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return functional.Conv3d(x, l.Weight.In(c.Scope), l.Bias.in(c.Scope), l.Options)
}

// ConvTranspose1d is the transpose of Conv1d ("deconvolution").
type ConvTranspose1d struct{ Conv }

// NewConvTranspose1d makes a layer with uninitialised (or, on torch.Meta, absent) values.
func NewConvTranspose1d(in, out int64, kernel []int64, c ConvConfig, dtype torch.DType, device torch.Device) *ConvTranspose1d {
	return &ConvTranspose1d{newConv(1, in, out, kernel, c, dtype, device, true)}
}

// Forward maps x (batch, in, length).
func (l *ConvTranspose1d) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return functional.ConvTranspose1d(x, l.Weight.In(c.Scope), l.Bias.in(c.Scope), l.Options)
}

// ConvTranspose2d is the transpose of Conv2d.
type ConvTranspose2d struct{ Conv }

// NewConvTranspose2d makes a layer with uninitialised (or, on torch.Meta, absent) values.
func NewConvTranspose2d(in, out int64, kernel []int64, c ConvConfig, dtype torch.DType, device torch.Device) *ConvTranspose2d {
	return &ConvTranspose2d{newConv(2, in, out, kernel, c, dtype, device, true)}
}

// Forward maps x (batch, in, height, width).
func (l *ConvTranspose2d) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return functional.ConvTranspose2d(x, l.Weight.In(c.Scope), l.Bias.in(c.Scope), l.Options)
}

// ConvTranspose3d is the transpose of Conv3d.
type ConvTranspose3d struct{ Conv }

// NewConvTranspose3d makes a layer with uninitialised (or, on torch.Meta, absent) values.
func NewConvTranspose3d(in, out int64, kernel []int64, c ConvConfig, dtype torch.DType, device torch.Device) *ConvTranspose3d {
	return &ConvTranspose3d{newConv(3, in, out, kernel, c, dtype, device, true)}
}

// Forward maps x (batch, in, depth, height, width).
func (l *ConvTranspose3d) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return functional.ConvTranspose3d(x, l.Weight.In(c.Scope), l.Bias.in(c.Scope), l.Options)
}
