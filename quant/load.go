package quant

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Note [Quantising a part of a weight]
// A rank quantises the weights whose codes it owns, from the border of a block to the border of a block: a block that
// crosses the edge between two ranks is read by both, and both get its scale. Double quantisation looks at all scales of
// the tensor (the offset is their mean, groups of 256 cross ranks), so the fp32 scales are gathered, 4 bytes per block.
// Each rank then computes the same offset and the same 8-bit scales, and keeps those that it owns. The result does not
// depend on how many ranks there are.

// span is a half-open range.
type span struct{ lo, hi int64 }

// LoadWeight quantises the rows of the stored weight that this rank owns. All ranks of the group call it together.
func (q *Linear4bit) LoadWeight(ctx context.Context, w modelio.View, g dist.Group) error {
	if !slices.Equal(w.Shape, []int64{q.out, q.in}) {
		return fmt.Errorf("quant: %s is stored with shape %v, the layer has [%d %d]", w.Name, w.Shape, q.out, q.in)
	}
	dtype, err := torch.ParseDType(w.DType)
	if err != nil || !dtype.IsFloat() {
		return fmt.Errorf("quant: %s is stored as %s, which is no floating-point type", w.Name, w.DType)
	}
	return q.quantize(ctx, g, func(s *torch.Scope, elements span) (*torch.Tensor, error) {
		lo, hi := elements.lo/q.in, ceilDiv(elements.hi, q.in)
		data, err := w.Rows(lo, hi)
		if err != nil {
			return nil, err
		}
		size := dtype.Size()
		part := data[(elements.lo-lo*q.in)*size : (elements.hi-lo*q.in)*size]
		t := s.Own(torch.FromBytes(dtype, part, elements.hi-elements.lo))
		return t, w.Release(lo, hi)
	})
}

// quantizeFrom quantises a weight in memory, on one rank.
func (q *Linear4bit) quantizeFrom(weight *nn.Param) error {
	if lo, hi := weight.Rows(); lo != 0 || hi != q.out {
		return fmt.Errorf("quantise before sharding: this rank holds rows %d to %d of %d only", lo, hi, q.out)
	}
	err := q.quantize(context.Background(), dist.NewSingle(), func(s *torch.Scope, elements span) (*torch.Tensor, error) {
		return weight.In(s).Reshape(-1).Narrow(0, elements.lo, elements.hi-elements.lo), nil
	})
	if err == nil {
		weight.Tensor().Free()
	}
	return err
}

// reader gives a range of the weight's elements, flat, in s.
type reader func(s *torch.Scope, elements span) (*torch.Tensor, error)

// quantize fills the parameters.
func (q *Linear4bit) quantize(ctx context.Context, g dist.Group, read reader) error {
	s := torch.NewScope(nil)
	defer s.Close()
	var failed error
	err := torch.Try(func() {
		torch.NoGrad(func() { failed = q.quantizeIn(ctx, s, g, read) })
	})
	if err == nil {
		err = failed
	}
	return err
}

func (q *Linear4bit) quantizeIn(ctx context.Context, s *torch.Scope, g dist.Group, read reader) error {
	codes := q.ownedCodes()
	blocks := span{2 * codes.lo / q.config.BlockSize, ceilDiv(min(2*codes.hi, q.out*q.in), q.config.BlockSize)}
	if codes.lo == codes.hi {
		blocks.hi = blocks.lo
	}
	packed := s.Own(torch.Empty(torch.Uint8, 0))
	absmax := s.Own(torch.Empty(torch.Float32, 0))
	if blocks.lo < blocks.hi {
		weights, err := read(s, span{blocks.lo * q.config.BlockSize, min(blocks.hi*q.config.BlockSize, q.out*q.in)})
		if err != nil {
			return err
		}
		r := torch.Call("gofsdp::quantize_4bit", weights, q.config.Type, q.config.BlockSize)
		packed, absmax = r[0].(*torch.Tensor), r[1].(*torch.Tensor)
		packed = packed.Narrow(0, codes.lo-blocks.lo*q.config.BlockSize/2, codes.hi-codes.lo)
	}
	set(q.Weight, packed)
	owned := ownedElements(q.Absmax)
	switch {
	case q.config.DoubleQuant:
		all, err := gatherScales(ctx, s, g, absmax, blocks, q.blocks())
		if err != nil {
			return err
		}
		r := torch.Call("gofsdp::quantize_absmax", all)
		set(q.Absmax, r[0].(*torch.Tensor).Narrow(0, owned.lo, owned.hi-owned.lo))
		set(q.NestedAbsmax, r[1].(*torch.Tensor))
		set(q.NestedOffset, r[2].(*torch.Tensor))
	case q.in%q.config.BlockSize == 0: // scales go with their rows
		set(q.Absmax, absmax)
	default:
		all, err := gatherScales(ctx, s, g, absmax, blocks, q.blocks())
		if err != nil {
			return err
		}
		set(q.Absmax, all.Narrow(0, owned.lo, owned.hi-owned.lo))
	}
	return nil
}

// ownedCodes is the range of bytes of the packed weight that this rank owns.
func (q *Linear4bit) ownedCodes() span { return ownedElements(q.Weight) }

// ownedElements is the range of a parameter's elements, laid flat, that this rank owns.
func ownedElements(p *nn.Param) span {
	lo, hi := p.Rows()
	row := int64(1)
	for _, n := range p.Shape()[1:] {
		row *= n
	}
	return span{lo * row, hi * row}
}

// set makes flat, shaped like the rows that this rank owns, the value of p: in place where p has one.
func set(p *nn.Param, flat *torch.Tensor) {
	shape := p.Shape()
	lo, hi := p.Rows()
	shape[0] = hi - lo
	value := flat.Reshape(shape...)
	if now := p.Tensor(); now.Device().Type != torch.MetaType {
		now.VariableData().Copy(value)
		return
	}
	p.SetTensor(value.Clone().In(nil))
}

// gatherScales gives the fp32 scales of the whole tensor to every rank. mine are this rank's, of the given blocks; blocks
// on an edge come from both sides and are the same.
func gatherScales(ctx context.Context, s *torch.Scope, g dist.Group, mine *torch.Tensor, blocks span, total int64) (*torch.Tensor, error) {
	if g.Size() == 1 {
		if blocks != (span{0, total}) {
			return nil, fmt.Errorf("quant: a sharded layer needs the group of its ranks: one rank has blocks %d to %d of %d", blocks.lo, blocks.hi, total)
		}
		return mine, nil
	}
	wait := dist.Wait(ctx)
	header := s.Own(torch.Empty(torch.Int64, 2*int64(g.Size())))
	if err := wait(g.AllGather(ctx, header, s.Own(torch.FromSlice([]int64{blocks.lo, blocks.hi})))); err != nil {
		return nil, fmt.Errorf("quant: gather the ranges of scales: %w", err)
	}
	borders := torch.Slice[int64](header)
	most := int64(0)
	for i := 0; i < len(borders); i += 2 {
		most = max(most, borders[i+1]-borders[i])
	}
	padded := s.Own(torch.Zeros(torch.Float32, most))
	padded.Narrow(0, 0, mine.Numel()).Copy(mine)
	gathered := s.Own(torch.Empty(torch.Float32, most*int64(g.Size())))
	if err := wait(g.AllGather(ctx, gathered, padded)); err != nil {
		return nil, fmt.Errorf("quant: gather scales: %w", err)
	}
	all := s.Own(torch.Empty(torch.Float32, total))
	covered := int64(0)
	for i := 0; i < len(borders); i += 2 {
		lo, hi := borders[i], borders[i+1]
		if lo >= hi {
			continue
		}
		if lo > covered {
			break
		}
		all.Narrow(0, lo, hi-lo).Copy(gathered.Narrow(0, int64(i/2)*most, hi-lo))
		covered = max(covered, hi)
	}
	if covered != total {
		return nil, fmt.Errorf("quant: the ranks' rows do not cover the weight: blocks from %d of %d are missing", covered, total)
	}
	return all, nil
}
