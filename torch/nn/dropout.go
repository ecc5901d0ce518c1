package nn

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// Dropout zeroes each element with probability P while training and scales the others by 1/(1−P). It draws from the
// call's generator, so that activation checkpointing finds the same mask again; with the same generator state the mask
// is the one of PyTorch's CPU dropout.
type Dropout struct {
	Hooks
	P float64
}

// NewDropout makes a Dropout; p must be in [0, 1].
func NewDropout(p float64) (*Dropout, error) {
	if !(p >= 0 && p <= 1) {
		return nil, fmt.Errorf("nn: dropout probability %v is not in [0, 1]", p)
	}
	return &Dropout{P: p}, nil
}

// Forward gives x itself outside training.
func (d *Dropout) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	switch {
	case !c.Training || d.P == 0 || x.Numel() == 0:
		return x
	case d.P == 1:
		return x.MulScalar(0)
	}
	mask := torch.CallOne("aten::empty_like", x).BernoulliInPlace(1-d.P, c.Generator)
	return x.Mul(mask.DivScalarInPlace(1 - d.P))
}
