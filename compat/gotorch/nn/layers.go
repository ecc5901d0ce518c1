package nn

import (
	"math"

	"github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/nn/functional"
	"github.com/wangkuiyi/gotorch/nn/initializer"
)

// reset draws a weight and a bias, if there is one, as PyTorch's layers do.
func reset(weight, bias *gotorch.Tensor) {
	initializer.KaimingUniform(weight, math.Sqrt(5), "fan_in", "leaky_relu")
	if bias.T != nil {
		in, _ := initializer.CalculateFanInAndFanOut(*weight)
		bound := 1 / math.Sqrt(float64(in))
		initializer.Uniform(bias, -bound, bound)
	}
}

// pair is the same number for height and width.
func pair(n int64) []int64 { return []int64{n, n} }

// LinearModule is x × weightᵀ + bias.
type LinearModule struct {
	Module
	InFeatures  int64
	OutFeatures int64
	Weight      gotorch.Tensor // (out, in)
	Bias        gotorch.Tensor // (out), or none
}

// Linear makes a LinearModule.
func Linear(in, out int64, bias bool) *LinearModule {
	l := &LinearModule{InFeatures: in, OutFeatures: out, Weight: gotorch.Empty([]int64{out, in}, true)}
	if bias {
		l.Bias = gotorch.Empty([]int64{out}, true)
	}
	l.Init(l)
	reset(&l.Weight, &l.Bias)
	return l
}

// Forward computes the layer for x (…, in).
func (l *LinearModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	return functional.Linear(x, l.Weight, l.Bias)
}

// Conv2dModule is a convolution.
type Conv2dModule struct {
	Module
	InChannels  int64
	OutChannels int64
	KernelSize  int64
	Stride      int64
	Padding     int64
	Dilation    int64
	Groups      int64
	PaddingMode string         // "zeros"
	Weight      gotorch.Tensor // (out, in/groups, kernel, kernel)
	Bias        gotorch.Tensor // (out), or none
}

// Conv2d makes a Conv2dModule. Whatever paddingMode says, the padding is of zeros, as in the original.
func Conv2d(inChannels, outChannels, kernelSize, stride, padding, dilation,
	groups int64, bias bool, paddingMode string) *Conv2dModule {
	c := &Conv2dModule{InChannels: inChannels, OutChannels: outChannels, KernelSize: kernelSize, Stride: stride, Padding: padding,
		Dilation: dilation, Groups: groups, PaddingMode: "zeros"}
	c.Weight = gotorch.Empty([]int64{outChannels, inChannels / groups, kernelSize, kernelSize}, true)
	if bias {
		c.Bias = gotorch.Empty([]int64{outChannels}, true)
	}
	c.Init(c)
	reset(&c.Weight, &c.Bias)
	return c
}

// Forward computes the layer for x (batch, in, height, width).
func (c *Conv2dModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	return functional.Conv2d(x, c.Weight, c.Bias, pair(c.Stride), pair(c.Padding), pair(c.Dilation), c.Groups)
}

// ConvTranspose2dModule is the transpose of a convolution.
type ConvTranspose2dModule struct {
	Module
	InChannels  int64
	OutChannels int64
	KernelSize  int64
	Stride      int64
	Padding     int64
	OutPadding  int64
	Groups      int64
	Dilation    int64
	PaddingMode string         // "zeros"
	Weight      gotorch.Tensor // (in, out/groups, kernel, kernel)
	Bias        gotorch.Tensor // (out), or none
}

// ConvTranspose2d makes a ConvTranspose2dModule. Whatever paddingMode says, the padding is of zeros, as in the original.
func ConvTranspose2d(inChannels, outChannels, kernelSize, stride, padding,
	outPadding, groups int64, bias bool, dilation int64, paddingMode string) *ConvTranspose2dModule {
	c := &ConvTranspose2dModule{InChannels: inChannels, OutChannels: outChannels, KernelSize: kernelSize, Stride: stride,
		Padding: padding, OutPadding: outPadding, Groups: groups, Dilation: dilation, PaddingMode: "zeros"}
	c.Weight = gotorch.Empty([]int64{inChannels, outChannels / groups, kernelSize, kernelSize}, true)
	if bias {
		c.Bias = gotorch.Empty([]int64{outChannels}, true)
	}
	c.Init(c)
	reset(&c.Weight, &c.Bias)
	return c
}

// Forward computes the layer for x (batch, in, height, width).
func (c *ConvTranspose2dModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	return functional.ConvTranspose2d(x, c.Weight, c.Bias, pair(c.Stride), pair(c.Padding), pair(c.OutPadding), c.Groups,
		pair(c.Dilation))
}

// BatchNorm2dModule normalises each channel over the batch, height and width.
type BatchNorm2dModule struct {
	Module
	NumFeatures       int64
	Eps               float64
	Momentum          float64
	Affine            bool
	TrackRunningStats bool
	Weight            gotorch.Tensor // (channels), or none; so are the others
	Bias              gotorch.Tensor
	RunningMean       gotorch.Tensor `gotorch:"buffer"`
	RunningVar        gotorch.Tensor `gotorch:"buffer"`
}

// BatchNorm2d makes a BatchNorm2dModule: affine has a weight and a bias, trackRunningStats the statistics of past batches,
// which evaluation uses.
func BatchNorm2d(numFeatures int64, eps, momentum float64,
	affine, trackRunningStats bool) *BatchNorm2dModule {
	b := &BatchNorm2dModule{NumFeatures: numFeatures, Eps: eps, Momentum: momentum, Affine: affine,
		TrackRunningStats: trackRunningStats}
	shape := []int64{numFeatures}
	if affine {
		b.Weight, b.Bias = gotorch.Full(shape, 1, true), gotorch.Full(shape, 0, true)
	}
	if trackRunningStats {
		b.RunningMean, b.RunningVar = gotorch.Full(shape, 0, false), gotorch.Full(shape, 1, false)
	}
	b.Init(b)
	return b
}

// Forward computes the layer for x (batch, channels, height, width). In training, and where there are no running
// statistics, it uses those of x.
func (b *BatchNorm2dModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	training := b.isTraining || b.RunningMean.T == nil && b.RunningVar.T == nil
	var mean, variance gotorch.Tensor
	if !b.isTraining || b.TrackRunningStats {
		mean, variance = b.RunningMean, b.RunningVar
	}
	return functional.BatchNorm(x, mean, variance, b.Weight, b.Bias, training, b.Momentum, b.Eps)
}
