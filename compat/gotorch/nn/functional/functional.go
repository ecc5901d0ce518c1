// Package functional holds the layers of package nn as plain functions of tensors. An absent bias, weight or running
// statistic is the zero Tensor.
package functional

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/aten"
	F "github.com/gofsdp/gofsdp/torch/nn/functional"
	"github.com/wangkuiyi/gotorch"
)

// optional gives nil for the zero Tensor.
func optional(a gotorch.Tensor) *torch.Tensor {
	if a.T == nil {
		return nil
	}
	return a.Torch()
}

func fail(op, format string, args ...any) {
	panic(&torch.Error{Op: op, Kind: torch.ErrArgument, Msg: fmt.Sprintf(format, args...)})
}

// reduction reads "none", "mean" or "sum".
func reduction(op, name string) torch.Reduction {
	switch name {
	case "none":
		return torch.ReduceNone
	case "mean":
		return torch.ReduceMean
	case "sum":
		return torch.ReduceSum
	}
	fail(op, "the reduction %q is not one of none, mean, sum", name)
	return 0
}

// BatchNorm normalises each channel (dimension 1) of input over the others. runningMean and runningVar are updated in
// training, and used otherwise.
func BatchNorm(input, runningMean, runningVar, weight, bias gotorch.Tensor,
	training bool, momentum, eps float64) gotorch.Tensor {
	o := F.BatchNormOptions{Training: training, Momentum: momentum, Eps: eps}
	return gotorch.Wrap(F.BatchNorm(input.Torch(), optional(runningMean), optional(runningVar), optional(weight), optional(bias), o))
}

// Conv2d convolves input (batch, in, height, width) with weight (out, in/groups, kh, kw).
func Conv2d(input, weight, bias gotorch.Tensor,
	stride, padding, dilation []int64, groups int64) gotorch.Tensor {
	o := F.ConvOptions{Stride: stride, Padding: padding, Dilation: dilation, Groups: groups}
	return gotorch.Wrap(F.Conv2d(input.Torch(), weight.Torch(), optional(bias), o))
}

// ConvTranspose2d is the transpose of Conv2d; weight is (in, out/groups, kh, kw).
func ConvTranspose2d(
	input, weight, bias gotorch.Tensor,
	stride, padding, outputPadding []int64,
	groups int64, dilation []int64) gotorch.Tensor {
	o := F.ConvOptions{Stride: stride, Padding: padding, OutputPadding: outputPadding, Dilation: dilation, Groups: groups}
	return gotorch.Wrap(F.ConvTranspose2d(input.Torch(), weight.Torch(), optional(bias), o))
}

// LogSoftmax is the logarithm of the softmax along dim. A negative dim stands for dimension 0 of tensors with 0, 1 or 3
// dimensions, and for dimension 1 of others, as where PyTorch's dim is None.
func LogSoftmax(input gotorch.Tensor, dim int64) gotorch.Tensor {
	if dim < 0 {
		dim = 1
		if d := input.Dim(); d == 0 || d == 1 || d == 3 {
			dim = 0
		}
	}
	return input.LogSoftmax(dim)
}

// NllLoss is the loss of log-probabilities (batch, classes, …) against Long classes (batch, …). Targets of ignoreIndex do
// not count; weight is per class. The reduction is "none", "mean" or "sum".
func NllLoss(input, target, weight gotorch.Tensor, ignoreIndex int64,
	how string) gotorch.Tensor {
	o := F.ClassOptions{Weight: optional(weight), IgnoreIndex: &ignoreIndex}
	return gotorch.Wrap(F.NLLLoss(input.Torch(), target.Torch(), reduction("NllLoss", how), o))
}

// BinaryCrossEntropy is the loss of probabilities against as many targets. The reduction is "none", "mean" or "sum". As in
// the original, targets may lie outside [0, 1], and have another shape, such as (batch) for an input (batch, 1).
func BinaryCrossEntropy(input, target, weight gotorch.Tensor,
	how string) gotorch.Tensor {
	r := reduction("BinaryCrossEntropy", how)
	x, y, w := input.Torch(), target.Torch(), optional(weight)
	if a, b := x.Shape(), y.Shape(); !slices.Equal(a, b) {
		if x.Numel() != y.Numel() {
			fail("BinaryCrossEntropy", "the input has shape %v, the target %v", a, b)
		}
		y = y.Reshape(a...)
	}
	var loss *torch.Tensor
	if torch.Try(func() { loss = F.BinaryCrossEntropy(x, y, w, r) }) != nil {
		loss = linearCrossEntropy(x, y, w, r)
	}
	return gotorch.Wrap(loss)
}

// linearCrossEntropy computes the loss from those of targets 1 and 0, since libtorch now refuses targets outside [0, 1]: the
// loss is linear in the target.
func linearCrossEntropy(x, y, weight *torch.Tensor, r torch.Reduction) *torch.Tensor {
	zeros := y.ZerosLike()
	ones := zeros.AddScalar(1)
	loss := y.Mul(F.BinaryCrossEntropy(x, ones, weight, torch.ReduceNone)).
		Add(ones.Sub(y).Mul(F.BinaryCrossEntropy(x, zeros, weight, torch.ReduceNone)))
	switch r {
	case torch.ReduceMean:
		return loss.Mean()
	case torch.ReduceSum:
		return loss.Sum()
	}
	return loss
}

// CrossEntropy is the loss of logits (batch, classes, …) against Long classes (batch, …). Targets of ignoreIndex do not
// count; weight is per class. The reduction is "none", "mean" or "sum".
func CrossEntropy(input, target, weight gotorch.Tensor, ignoreIndex int64,
	how string) gotorch.Tensor {
	o := F.ClassOptions{Weight: optional(weight), IgnoreIndex: &ignoreIndex}
	return gotorch.Wrap(F.CrossEntropy(input.Torch(), target.Torch(), reduction("CrossEntropy", how), o))
}

// Relu is max(input, 0); in place it changes input, and gives it.
func Relu(input gotorch.Tensor, inplace bool) gotorch.Tensor {
	if inplace {
		aten.ReluInPlace(input.Torch())
		return input
	}
	return input.Relu()
}

// LeakyRelu is input where it is positive, else negativeSlope · input; in place it changes input, and gives it.
func LeakyRelu(input gotorch.Tensor, negativeSlope float64, inplace bool) gotorch.Tensor {
	if inplace {
		aten.LeakyReluInPlace(input.Torch(), aten.LeakyReluOptions{NegativeSlope: negativeSlope})
		return input
	}
	return input.LeakyRelu(negativeSlope)
}

// Linear is input × weightᵀ + bias; weight is (out, in).
func Linear(input, weight, bias gotorch.Tensor) gotorch.Tensor {
	return gotorch.Wrap(F.Linear(input.Torch(), weight.Torch(), optional(bias)))
}

// MaxPool2d gives the largest element of each window of the last two dimensions. An empty stride is the kernel's size.
func MaxPool2d(input gotorch.Tensor, kernelSize, stride, padding,
	dilation []int64, ceilMode bool) gotorch.Tensor {
	o := F.PoolOptions{Stride: stride, Padding: padding, Dilation: dilation, CeilMode: ceilMode}
	return gotorch.Wrap(F.MaxPool2d(input.Torch(), kernelSize, o))
}

// AdaptiveAvgPool2d averages the last two dimensions down, or up, to outputSize: height and width, or one number for both.
func AdaptiveAvgPool2d(input gotorch.Tensor, outputSize []int64) gotorch.Tensor {
	switch len(outputSize) {
	case 1:
		return gotorch.Wrap(F.AdaptiveAvgPool2d(input.Torch(), outputSize[0], outputSize[0]))
	case 2:
		return gotorch.Wrap(F.AdaptiveAvgPool2d(input.Torch(), outputSize[0], outputSize[1]))
	}
	fail("AdaptiveAvgPool2d", "the output size is %v, it must be a height and a width", outputSize)
	return gotorch.Tensor{}
}
