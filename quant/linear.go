package quant

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Linear4bit is a linear layer whose weight (out, in) is held in four bits. It computes in the dtype of its input.
type Linear4bit struct {
	nn.Hooks
	// Weight holds two codes per byte, the first in the high half: uint8 (out, in/2), or flat where in is odd.
	Weight *nn.Param `torch:"weight"`
	// Absmax holds the scales of the blocks, uint8 with double quantisation, else fp32: (out, in/block), or flat where
	// blocks cross rows.
	Absmax *nn.Param `torch:"weight.absmax"`
	// NestedAbsmax and NestedOffset are what double quantisation needs to read Absmax: fp32, one scale per 256 blocks and
	// the mean. Nil without it.
	NestedAbsmax *nn.Param `torch:"weight.nested_absmax"`
	NestedOffset *nn.Param `torch:"weight.nested_offset"`
	Bias         *nn.Param `torch:"bias"` // (out), or nil

	config  Config
	out, in int64
}

// newLinear4bit makes the layer that takes l's place, on the meta device.
func newLinear4bit(l *nn.Linear, c Config) *Linear4bit {
	in, out := l.Features()
	q := &Linear4bit{Bias: l.Bias, config: c, out: out, in: in}
	empty := func(dtype torch.DType, shape ...int64) *torch.Tensor {
		return torch.EmptyOn(torch.Meta, dtype, shape...)
	}
	weight, absmax := []int64{ceilDiv(out*in, 2)}, []int64{q.blocks()}
	if in%2 == 0 {
		weight = []int64{out, in / 2}
	}
	if in%c.BlockSize == 0 {
		absmax = []int64{out, in / c.BlockSize}
	}
	scale := torch.Float32
	if c.DoubleQuant {
		scale = torch.Uint8
		q.NestedAbsmax = nn.NewReplicatedParam(empty(torch.Float32, ceilDiv(q.blocks(), nestedBlock)))
		q.NestedOffset = nn.NewReplicatedParam(empty(torch.Float32, 1))
	}
	q.Weight = nn.NewParam(empty(torch.Uint8, weight...), false).SetVerbatim()
	q.Absmax = nn.NewParam(empty(scale, absmax...), false).SetVerbatim()
	return q
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// blocks is the number of scales.
func (q *Linear4bit) blocks() int64 { return ceilDiv(q.out*q.in, q.config.BlockSize) }

// Config says how the weight is quantised.
func (q *Linear4bit) Config() Config { return q.config }

// Features gives the sizes of the last dimension of inputs and outputs.
func (q *Linear4bit) Features() (in, out int64) { return q.in, q.out }

// Forward computes x·Wᵀ + bias.
func (q *Linear4bit) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	packed, absmax, nested, offset := q.weight(c.Scope)
	return torch.CallOne("gofsdp::linear_4bit", x, packed, absmax, nested, offset, q.out, q.in, q.config.Type,
		q.config.BlockSize, q.bias(c.Scope, x))
}

// ForwardLowRank computes x·Wᵀ + bias + scaling · x·aᵀ·bᵀ.
func (q *Linear4bit) ForwardLowRank(c *nn.Call, x, a, b *torch.Tensor, scaling float64) *torch.Tensor {
	packed, absmax, nested, offset := q.weight(c.Scope)
	return torch.CallOne("gofsdp::lora_linear_4bit", x, packed, absmax, nested, offset, q.out, q.in, q.config.Type,
		q.config.BlockSize, a, b, scaling, q.bias(c.Scope, x))
}

func (q *Linear4bit) weight(s *torch.Scope) (packed, absmax, nested, offset *torch.Tensor) {
	if q.config.DoubleQuant {
		nested, offset = q.NestedAbsmax.In(s), q.NestedOffset.In(s)
	}
	return q.Weight.In(s), q.Absmax.In(s), nested, offset
}

func (q *Linear4bit) bias(s *torch.Scope, x *torch.Tensor) *torch.Tensor {
	if q.Bias == nil {
		return nil
	}
	return q.Bias.In(s).To(x.DType())
}

// Dequantize gives the layer with its weight in full, of a layer that is not sharded.
func (q *Linear4bit) Dequantize(dtype torch.DType) (*nn.Linear, error) {
	if lo, hi := q.Weight.Rows(); lo != 0 || hi != q.Weight.Shape()[0] {
		return nil, fmt.Errorf("quant: dequantise: this rank holds rows %d to %d only", lo, hi)
	}
	l := &nn.Linear{Bias: q.Bias}
	err := torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			packed, absmax, nested, offset := q.weight(s)
			w := torch.CallOne("gofsdp::dequantize_4bit", packed, absmax, nested, offset, []int64{q.out, q.in}, dtype,
				q.config.Type, q.config.BlockSize)
			l.Weight = nn.NewParam(w.In(nil), false)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("quant: dequantise: %w", err)
	}
	return l, nil
}

// Quantize replaces the linear layers of a model by quantised ones and freezes them. skip names layers that stay; nil
// skips none. A language model's output head is no linear layer of this kind and stays as well. Layers on the meta device
// are quantised when they are loaded. It returns how many were replaced.
func Quantize(model any, c Config, skip func(name string) bool) (n int, err error) {
	defer torch.Catch(&err)
	if c, err = c.withDefaults(); err != nil {
		return 0, err
	}
	nn.ReplaceLinears(model, func(name string, l nn.LinearLayer) nn.LinearLayer {
		dense, ok := l.(*nn.Linear)
		if !ok || err != nil || skip != nil && skip(name) {
			return l
		}
		q := newLinear4bit(dense, c)
		if dense.Weight.Tensor().Device().Type != torch.MetaType {
			if e := q.quantizeFrom(dense.Weight); e != nil {
				err = fmt.Errorf("quant: %s: %w", name, e)
				return l
			}
		}
		if q.Bias != nil {
			q.Bias.SetTrainable(false)
		}
		n++
		return q
	})
	return n, err
}
