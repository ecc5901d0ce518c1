package nn

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn/functional"
	"github.com/gofsdp/gofsdp/torch/nn/initializer"
)

// BatchNormConfig are the settings of a BatchNorm. The zero value is PyTorch's default.
type BatchNormConfig struct {
	Momentum   float64 // weight of a batch in the running statistics; default 0.1
	Cumulative bool    // running statistics are the plain average of all batches
	Eps        float64 // default 1e-5
	NoAffine   bool    // no weight and bias
	NoRunning  bool    // no running statistics: always those of the batch
}

// BatchNorm normalises each channel over a batch: by the batch's statistics while training, by running ones otherwise.
// BatchNorm1d, BatchNorm2d and BatchNorm3d differ in the inputs that they take.
type BatchNorm struct {
	Hooks
	Weight      *Param `torch:"weight"`              // (channels), or nil
	Bias        *Param `torch:"bias"`                // (channels), or nil
	RunningMean *Param `torch:"running_mean"`        // buffer (channels), or nil
	RunningVar  *Param `torch:"running_var"`         // buffer (channels), or nil
	Batches     *Param `torch:"num_batches_tracked"` // buffer, int64 scalar, or nil
	Config      BatchNormConfig
}

func newBatchNorm(channels int64, c BatchNormConfig, dtype torch.DType, device torch.Device) BatchNorm {
	if c.Momentum == 0 {
		c.Momentum = 0.1
	}
	if c.Eps == 0 {
		c.Eps = 1e-5
	}
	n := BatchNorm{Config: c}
	if !c.NoAffine {
		n.Weight = NewParam(torch.EmptyOn(device, dtype, channels), true)
		n.Bias = NewParam(torch.EmptyOn(device, dtype, channels), true)
	}
	if !c.NoRunning {
		n.RunningMean = NewBuffer(torch.EmptyOn(device, dtype, channels))
		n.RunningVar = NewBuffer(torch.EmptyOn(device, dtype, channels))
		n.Batches = NewBuffer(torch.EmptyOn(device, torch.Int64))
	}
	return n
}

// ResetParameters sets weights and variances to 1, the rest to 0.
func (n *BatchNorm) ResetParameters(*torch.Generator) {
	resetNorm(n.Weight, n.Bias)
	if n.RunningMean != nil {
		initializer.Zeros(n.RunningMean.Tensor())
		initializer.Ones(n.RunningVar.Tensor())
		initializer.Zeros(n.Batches.Tensor())
	}
}

// forward normalises x, which must have one of the given numbers of dimensions.
func (n *BatchNorm) forward(c *Call, x *torch.Tensor, dims ...int) *torch.Tensor {
	known := false
	for _, d := range dims {
		known = known || x.Dim() == d
	}
	if !known {
		torch.Throw(fmt.Errorf("nn: BatchNorm%dd got an input of shape %v", dims[len(dims)-1]-2, x.Shape()))
	}
	mean, variance := n.RunningMean.in(c.Scope), n.RunningVar.in(c.Scope)
	o := functional.BatchNormOptions{Training: c.Training || mean == nil, Momentum: n.Config.Momentum, Eps: n.Config.Eps}
	switch {
	case mean == nil || !c.Training:
	case c.Recomputing: // the first run has counted this batch
		mean, variance = mean.Clone(), variance.Clone()
	default:
		torch.NoGrad(func() { torch.CallOne("aten::add_.Scalar", n.Batches.In(c.Scope), 1) })
		if n.Config.Cumulative {
			o.Momentum = 1 / n.Batches.Tensor().Item()
		}
	}
	return functional.BatchNorm(x, mean, variance, n.Weight.in(c.Scope), n.Bias.in(c.Scope), o)
}

// BatchNorm1d normalises (batch, channels) or (batch, channels, length).
type BatchNorm1d struct{ BatchNorm }

// NewBatchNorm1d makes a norm with uninitialised (or, on torch.Meta, absent) values.
func NewBatchNorm1d(channels int64, c BatchNormConfig, dtype torch.DType, device torch.Device) *BatchNorm1d {
	return &BatchNorm1d{newBatchNorm(channels, c, dtype, device)}
}

// Forward normalises x (batch, channels) or (batch, channels, length).
func (n *BatchNorm1d) Forward(c *Call, x *torch.Tensor) *torch.Tensor { return n.forward(c, x, 2, 3) }

// BatchNorm2d normalises (batch, channels, height, width).
type BatchNorm2d struct{ BatchNorm }

// NewBatchNorm2d makes a norm with uninitialised (or, on torch.Meta, absent) values.
func NewBatchNorm2d(channels int64, c BatchNormConfig, dtype torch.DType, device torch.Device) *BatchNorm2d {
	return &BatchNorm2d{newBatchNorm(channels, c, dtype, device)}
}

// Forward normalises x (batch, channels, height, width).
func (n *BatchNorm2d) Forward(c *Call, x *torch.Tensor) *torch.Tensor { return n.forward(c, x, 4) }

// BatchNorm3d normalises (batch, channels, depth, height, width).
type BatchNorm3d struct{ BatchNorm }

// NewBatchNorm3d makes a norm with uninitialised (or, on torch.Meta, absent) values.
func NewBatchNorm3d(channels int64, c BatchNormConfig, dtype torch.DType, device torch.Device) *BatchNorm3d {
	return &BatchNorm3d{newBatchNorm(channels, c, dtype, device)}
}

// Forward normalises x (batch, channels, depth, height, width).
func (n *BatchNorm3d) Forward(c *Call, x *torch.Tensor) *torch.Tensor { return n.forward(c, x, 5) }
