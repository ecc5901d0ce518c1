package fsdp

import (
	"context"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

// reduction is a reduce-scatter in flight.
type reduction struct {
	work   dist.Work
	input  *torch.Tensor
	output *torch.Tensor
}

// Note [Unused parameters]
// Each rank's chunk of the reduce-scatter ends with one number per trainable parameter: 1 where this rank has a gradient.
// Their sums tell every rank the same: a parameter that no rank used keeps a nil gradient, as in unsharded training, and
// one that some ranks used gets the sum with zeros for the others. So branches taken on one rank only neither hang nor
// change what the optimiser does. The cost is one element per parameter and rank.

// reduceGrads starts the reduce-scatter of the unit's gradients and reshards. At most one reduction is in flight.
func (u *unit) reduceGrads() error {
	ctx := u.m.ctx
	if err := u.m.finishReduction(ctx); err != nil {
		return err
	}
	u.trace("reduce-scatter")
	size := int64(u.m.group.Size())
	total := int64(len(u.trainable))
	for _, p := range u.trainable {
		total += p.chunkNumel()
	}
	var input, output *torch.Tensor
	torch.NoGrad(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		input = torch.Zeros(u.reduceDType, size*total)
		in := input.In(s).View(size, total)
		used := make([]float32, len(u.trainable))
		offset := int64(0)
		for i, p := range u.trainable {
			if g := p.full.In(s).Grad(); g != nil {
				used[i] = 1
				fillChunks(in.Narrow(1, offset, p.chunkNumel()), g, p)
				p.full.SetGrad(nil)
			}
			offset += p.chunkNumel()
		}
		in.Narrow(1, offset, int64(len(used))).Copy(s.Own(torch.FromSlice(used)))
		output = torch.Empty(u.reduceDType, total)
	})
	u.reshard()
	work, err := u.m.group.ReduceScatter(ctx, output, input, dist.Sum)
	if err != nil {
		return u.wrap(err, "reduce-scatter gradients of")
	}
	u.m.counters.add(&u.m.counters.ReduceScatters, total*size*u.reduceDType.Size())
	u.reduce = &reduction{work: work, input: input, output: output}
	u.m.reducing = u
	u.pending = false
	return nil
}

// fillChunks writes the gradient g of p into dst (size, chunk elements), row ranges of rank r into row r. The padding
// keeps its zeros.
func fillChunks(dst, g *torch.Tensor, p *param) {
	row := p.rowNumel()
	size := dst.Size(0)
	if p.chunk*size == p.shape[0] {
		dst.Copy(g.Reshape(size, p.chunk*row))
		return
	}
	for r := range size {
		lo, hi := ShardRows(p.shape[0], int(r), int(size))
		if lo < hi {
			dst.Select(0, r).Narrow(0, 0, (hi-lo)*row).Copy(g.Narrow(0, lo, hi-lo).Reshape(-1))
		}
	}
}

// finishReduction waits for the reduction in flight and hands its parts to the shards' gradients.
func (m *Model) finishReduction(ctx context.Context) error {
	u := m.reducing
	if u == nil {
		return nil
	}
	m.reducing = nil
	r := u.reduce
	u.reduce = nil
	defer r.input.Free()
	defer r.output.Free()
	if err := r.work.Wait(ctx); err != nil {
		return u.wrap(err, "reduce-scatter gradients of")
	}
	torch.NoGrad(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		out := r.output.In(s)
		n := int64(len(u.trainable))
		used := torch.Slice[float32](out.Narrow(0, out.Numel()-n, n).To(torch.Float32))
		offset := int64(0)
		for i, p := range u.trainable {
			part := out.Narrow(0, offset, (p.hi-p.lo)*p.rowNumel())
			offset += p.chunkNumel()
			if used[i] == 0 {
				continue
			}
			// The division makes a tensor of its own, so the reduction's buffer is not kept alive by its parts.
			grad := part.DivScalar(m.config.DivideFactor).View(p.shardShape()...).To(p.dtype)
			if before := p.shard.In(s).Grad(); before != nil {
				before.AddInPlace(grad, 1)
				continue
			}
			p.shard.SetGrad(grad)
		}
	})
	return nil
}
