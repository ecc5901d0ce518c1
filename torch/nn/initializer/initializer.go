// Package initializer fills tensors with first values, as torch.nn.init does. With a generator in the same state the
// values are PyTorch's, bit for bit; a nil generator is the process-wide one.
package initializer

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/torch"
)

// Zeros fills t with 0.
func Zeros(t *torch.Tensor) { Constant(t, 0) }

// Ones fills t with 1.
func Ones(t *torch.Tensor) { Constant(t, 1) }

// Constant fills t with v.
func Constant(t *torch.Tensor, v float64) { torch.NoGrad(func() { t.Fill(v) }) }

// Uniform fills t from [lo, hi).
func Uniform(t *torch.Tensor, lo, hi float64, g *torch.Generator) {
	torch.NoGrad(func() { t.UniformInPlace(lo, hi, g) })
}

// Normal fills t from the normal distribution.
func Normal(t *torch.Tensor, mean, std float64, g *torch.Generator) {
	torch.NoGrad(func() { t.NormalInPlace(mean, std, g) })
}

// TruncNormal fills t from the normal distribution cut to [lo, hi], drawing again what falls outside, as PyTorch does since
// 2.13. Where most would fall outside it draws uniformly and accepts by the density.
func TruncNormal(t *torch.Tensor, mean, std, lo, hi float64, g *torch.Generator) {
	if t.Device().Type == torch.MetaType {
		return
	}
	if !(lo < hi && std > 0) {
		panic(&torch.Error{Op: "TruncNormal", Kind: torch.ErrArgument, Msg: fmt.Sprintf("standard deviation %v, cut to [%v, %v]", std, lo, hi)})
	}
	cdf := func(x float64) float64 { return (1 + math.Erf(x/math.Sqrt2)) / 2 }
	inside := cdf((hi-mean)/std) - cdf((lo-mean)/std)
	torch.NoGrad(func() {
		if inside > 0.3 {
			redrawNormal(t, mean, std, lo, hi, g)
		} else {
			acceptUniform(t, mean, std, lo, hi, g)
		}
	})
}

func redrawNormal(t *torch.Tensor, mean, std, lo, hi float64, g *torch.Generator) {
	bound := func(v float64) float64 { return torch.Scalar(t.DType(), v).Item() } // rounded to what t can hold
	lo, hi = bound(lo), bound(hi)
	t.NormalInPlace(mean, std, g)
	for again := true; again; {
		s := torch.NewScope(nil)
		x := t.In(s)
		outside := x.LtScalar(lo).Add(x.GtScalar(hi))
		if again = outside.Any().Item() != 0; again {
			x.Copy(torch.Where(outside, x.ZerosLike().NormalInPlace(mean, std, g), x))
		}
		s.Close()
	}
}

func acceptUniform(t *torch.Tensor, mean, std, lo, hi float64, g *torch.Generator) {
	s := torch.NewScope(nil)
	defer s.Close()
	peak := (max(lo, min(mean, hi)) - mean) / std // of the density in [lo, hi]
	logPeak := -0.5 * peak * peak
	x := t.In(s)
	pending := x.EqScalar(0).Fill(1)
	for pending.Any().Item() != 0 {
		drawn := x.ZerosLike().UniformInPlace(lo, hi, g)
		x.Copy(torch.Where(pending, drawn, x))
		density := drawn.AddScalar(-mean).DivScalar(std).Pow(2).MulScalar(-0.5).AddScalar(-logPeak)
		refused := drawn.ZerosLike().UniformInPlace(0, 1, g).Log().Sub(density).GtScalar(0)
		pending = pending.LogicalAnd(refused)
	}
}

// FanMode says which count of connections keeps its variance.
type FanMode int

// FanIn keeps the variance of the forward pass, FanOut that of the backward pass.
const (
	FanIn FanMode = iota
	FanOut
)

// KaimingOptions are the settings of the Kaiming initialisers. The zero value is for layers followed by ReLU, by fan-in.
type KaimingOptions struct {
	Mode         FanMode
	Nonlinearity string  // as in Gain; "" is relu
	Param        float64 // of the nonlinearity: the negative slope of leaky_relu
}

// KaimingUniform fills t from [−b, b) with b = gain · sqrt(3 / fan) (He et al. 2015).
func KaimingUniform(t *torch.Tensor, o KaimingOptions, g *torch.Generator) {
	bound := math.Sqrt(3) * o.std(t)
	Uniform(t, -bound, bound, g)
}

// KaimingNormal fills t from the normal distribution of standard deviation gain / sqrt(fan).
func KaimingNormal(t *torch.Tensor, o KaimingOptions, g *torch.Generator) { Normal(t, 0, o.std(t), g) }

func (o KaimingOptions) std(t *torch.Tensor) float64 {
	in, out := FanInAndFanOut(t)
	fan := in
	if o.Mode == FanOut {
		fan = out
	}
	name := o.Nonlinearity
	if name == "" {
		name = "relu"
	}
	return Gain(name, o.Param) / math.Sqrt(float64(fan))
}

// XavierUniform fills t from [−b, b) with b = gain · sqrt(6 / (fan-in + fan-out)) (Glorot and Bengio 2010).
func XavierUniform(t *torch.Tensor, gain float64, g *torch.Generator) {
	bound := math.Sqrt(3) * xavierStd(t, gain)
	Uniform(t, -bound, bound, g)
}

// XavierNormal fills t from the normal distribution of standard deviation gain · sqrt(2 / (fan-in + fan-out)).
func XavierNormal(t *torch.Tensor, gain float64, g *torch.Generator) {
	Normal(t, 0, xavierStd(t, gain), g)
}

func xavierStd(t *torch.Tensor, gain float64) float64 {
	in, out := FanInAndFanOut(t)
	return gain * math.Sqrt(2/float64(in+out))
}

// FanInAndFanOut counts the connections of a weight (out, in, …): in and out times the size of the kernel. It panics
// with a *torch.Error where t has fewer than two dimensions.
func FanInAndFanOut(t *torch.Tensor) (in, out int64) {
	shape := t.Shape()
	if len(shape) < 2 {
		panic(&torch.Error{Op: "FanInAndFanOut", Kind: torch.ErrArgument, Msg: fmt.Sprintf("needs two dimensions, got shape %v", shape)})
	}
	field := int64(1)
	for _, d := range shape[2:] {
		field *= d
	}
	return shape[1] * field, shape[0] * field
}

// Gain is the factor by which a nonlinearity ("linear", "conv1d", "sigmoid", "tanh", "relu", "leaky_relu", "selu", …) lets
// the standard deviation grow; param is the negative slope of leaky_relu. It panics with a *torch.Error for other names.
func Gain(nonlinearity string, param float64) float64 {
	switch nonlinearity {
	case "linear", "identity", "sigmoid", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d":
		return 1
	case "tanh":
		return 5.0 / 3
	case "relu":
		return math.Sqrt2
	case "leaky_relu":
		return math.Sqrt(2 / (1 + param*param))
	case "selu":
		return 0.75
	}
	panic(&torch.Error{Op: "Gain", Kind: torch.ErrArgument, Msg: fmt.Sprintf("unknown nonlinearity %q", nonlinearity)})
}
