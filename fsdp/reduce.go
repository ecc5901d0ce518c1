package fsdp

import (
	"context"
	"slices"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

// bucket is the trainable parameters of a unit whose gradients are summed in one type: usually all of them.
type bucket struct {
	dtype  torch.DType
	params []*param
}

// numel is the size of this rank's part of the reduction: chunks and one number per parameter.
func (b *bucket) numel() int64 {
	n := int64(len(b.params))
	for _, p := range b.params {
		n += p.chunkNumel()
	}
	return n
}

func (u *unit) fillBuckets() {
	var list []bucket
	for _, p := range u.trainable {
		dtype := u.precision.reduce(p.compute)
		i := slices.IndexFunc(list, func(b bucket) bool { return b.dtype == dtype })
		if i < 0 {
			i = len(list)
			list = append(list, bucket{dtype: dtype})
		}
		list[i].params = append(list[i].params, p)
	}
	same := slices.EqualFunc(list, u.buckets, func(a, b bucket) bool { return a.dtype == b.dtype && slices.Equal(a.params, b.params) })
	if !same {
		u.buckets = list
		u.dropPartial()
	}
}

// reduction is the gradients of a unit on their way to the shards. It has two stages: a reduce-scatter over the ranks that
// the model is sharded over, and an all-reduce over the replicas; either may be absent.
type reduction struct {
	u       *unit
	parts   []reducing // per bucket
	scatter bool       // in the first stage
	hold    bool       // ends after the first stage (Phase.NoAllReduce)
}

// reducing is the reduction of one bucket.
type reducing struct {
	*bucket
	work   dist.Work
	input  *torch.Tensor // nil after the first stage
	output *torch.Tensor
}

// Note [Unused parameters]
// Each rank's chunk of the reduction ends with one number per trainable parameter: 1 where this rank has a gradient.
// Their sums tell every rank the same: a parameter that no rank used keeps a nil gradient, as in unsharded training, and
// one that some ranks used gets the sum with zeros for the others. So branches taken on one rank only neither hang nor
// change what the optimiser does. The cost is one element per parameter and rank.
//
// Note [Reductions in flight]
// A unit's reduction is started when its backward is done and looked at again when the next one starts: then the
// reduce-scatter is awaited and the all-reduce started, or the all-reduce awaited. So each stage overlaps with the backward
// of one unit, and at most one reduce-scatter's input is in memory beside the one that is being filled.

// postBackward runs when the gradients of the unit's parameters are complete for the use that began at place.
func (u *unit) postBackward(place int) error {
	u.trace("post-backward")
	switch {
	case len(u.trainable) == 0:
		return u.afterBackward(place)
	case u.m.phase.NoSync:
		u.unreduced = true
		torch.NoGrad(u.accumulate)
		return u.afterBackward(place)
	case u.m.shard.Size() == 1 && u.m.replicate == nil:
		u.unreduced = false
		torch.NoGrad(u.keepGradients)
		return u.afterBackward(place)
	}
	return u.reduceGrads(place)
}

// afterBackward frees the unit's parameters.
func (u *unit) afterBackward(place int) error {
	if u.open == 0 {
		u.dropPart()
	}
	if !u.m.phase.KeepUnsharded {
		u.reshard()
	}
	if u.m.config.Prefetch.Backward == BackwardPost {
		return u.m.prefetchBackward(u.m.ctx, u, place)
	}
	return nil
}

// accumulate adds the gradients to those of earlier micro-batches in the type of the reduction, so that small ones are
// not lost. Where that is the type that autograd accumulates in, they are where they belong.
func (u *unit) accumulate() {
	for _, b := range u.buckets {
		for _, p := range b.params {
			if p.compute == b.dtype {
				continue
			}
			s := torch.NewScope(nil)
			if g := p.full.In(s).Grad(); g != nil {
				if p.accumulated == nil {
					p.accumulated = g.To(b.dtype).In(nil)
				} else {
					p.accumulated.AddInPlace(g, 1)
				}
				p.full.SetGrad(nil)
			}
			s.Close()
		}
	}
}

// takeGradient is the parameter's gradient of all micro-batches, or nil.
func (p *param) takeGradient(s *torch.Scope) *torch.Tensor {
	g := p.full.In(s).Grad()
	p.full.SetGrad(nil)
	if p.accumulated == nil {
		return g
	}
	sum := s.Own(p.accumulated)
	p.accumulated = nil
	if g != nil {
		sum.AddInPlace(g, 1)
	}
	return sum
}

// keepGradients hands the gradients over where there is no other rank.
func (u *unit) keepGradients() {
	for _, b := range u.buckets {
		for _, p := range b.params {
			s := torch.NewScope(nil)
			if g := p.takeGradient(s); g != nil {
				g = g.To(b.dtype)
				if f := u.m.config.DivideFactor; f != 1 {
					g = g.DivScalarInPlace(f)
				}
				p.addGradient(s, g)
			}
			s.Close()
		}
	}
}

// addGradient adds g, of the shard's shape, to the shard's gradient.
func (p *param) addGradient(s *torch.Scope, g *torch.Tensor) {
	g = g.To(p.dtype).ToDevice(p.shard.Device())
	if before := p.shard.In(s).Grad(); before != nil {
		before.AddInPlace(g, 1)
		return
	}
	p.shard.SetGrad(g)
}

// reduceGrads starts the reduction of the unit's gradients and reshards.
func (u *unit) reduceGrads(place int) error {
	m := u.m
	if err := m.advanceReductions(m.ctx, false); err != nil {
		return err
	}
	if err := u.afterBackward(place); err != nil { // before the reduction takes memory
		return err
	}
	r := &reduction{u: u, scatter: m.shard.Size() > 1, hold: m.phase.NoAllReduce && m.replicate != nil}
	if r.scatter {
		u.trace("reduce-scatter")
	}
	u.unreduced = false
	torch.NoGrad(func() {
		for i := range u.buckets {
			r.parts = append(r.parts, m.fill(&u.buckets[i]))
		}
	})
	if !r.scatter {
		done, err := r.sumReplicas(m.ctx)
		if err != nil || done {
			return err
		}
	} else {
		for i := range r.parts {
			part := &r.parts[i]
			var err error
			if part.work, err = u.reduceScatter(m.ctx, part.output, part.input); err != nil {
				_ = r.wait(m.ctx)
				r.free()
				return u.wrap(err, "reduce-scatter gradients of")
			}
		}
	}
	m.reductions = append(m.reductions, r)
	return nil
}

// fill copies a bucket's gradients to where they are reduced from. Must run without grad.
func (m *Model) fill(b *bucket) reducing {
	s := torch.NewScope(nil)
	defer s.Close()
	size, total := int64(m.shard.Size()), b.numel()
	input := torch.CallOne("aten::zeros", []int64{size * total}, b.dtype, torch.Default, m.config.Device)
	in := input.In(s).View(size, total)
	used := make([]float32, len(b.params))
	offset := int64(0)
	for i, p := range b.params {
		if g := p.takeGradient(s); g != nil {
			used[i] = 1
			fillChunks(in.Narrow(1, offset, p.chunkNumel()), g, p)
			g.Free()
		}
		offset += p.chunkNumel()
	}
	if pre, _ := m.divisors(b.dtype); pre != 1 {
		in.DivScalarInPlace(pre)
	}
	in.Narrow(1, offset, int64(len(used))).Copy(s.Own(torch.FromSlice(used)))
	if size == 1 {
		return reducing{bucket: b, output: input}
	}
	return reducing{bucket: b, input: input, output: torch.EmptyOn(m.config.Device, b.dtype, total)}
}

// divisors splits Config.DivideFactor in what divides before and after the sum. Half precision overflows soon: there about
// the square root goes before.
func (m *Model) divisors(dtype torch.DType) (before, after float64) {
	f := m.config.DivideFactor
	before = 1
	if dtype == torch.Float16 {
		for before*before < f {
			before *= 2
		}
	}
	return before, f / before
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

// advanceReductions brings every reduction in flight one stage on, or to its end.
func (m *Model) advanceReductions(ctx context.Context, all bool) error {
	list := m.reductions
	m.reductions = nil
	for i, r := range list {
		done, err := r.advance(ctx)
		for err == nil && !done && all {
			done, err = r.advance(ctx)
		}
		if err != nil {
			m.reductions = append(m.reductions, list[i+1:]...)
			return err
		}
		if !done {
			m.reductions = append(m.reductions, r)
		}
	}
	return nil
}

// advance ends the present stage and starts the next. After an error the reduction is given up.
func (r *reduction) advance(ctx context.Context) (done bool, err error) {
	if err := r.wait(ctx); err != nil {
		r.free()
		return true, err
	}
	if r.scatter {
		r.scatter = false
		for i := range r.parts {
			r.parts[i].input.Free()
			r.parts[i].input = nil
		}
		if r.u.m.replicate != nil {
			return r.sumReplicas(ctx)
		}
	}
	return true, r.deliver()
}

// sumReplicas starts the all-reduce over the replicas, or keeps what there is for a later one.
func (r *reduction) sumReplicas(ctx context.Context) (done bool, err error) {
	u := r.u
	err = torch.Try(func() {
		torch.NoGrad(func() {
			for i := range r.parts {
				if i < len(u.partial) {
					r.parts[i].output.AddInPlace(u.partial[i], 1)
				}
			}
			u.dropPartial()
			if r.hold {
				for i := range r.parts {
					u.partial = append(u.partial, r.parts[i].output)
				}
				return
			}
			u.trace("all-reduce")
			for i := range r.parts {
				var err error
				r.parts[i].work, err = u.allReduce(ctx, r.parts[i].output)
				torch.Throw(err)
			}
		})
	})
	if err != nil {
		_ = r.wait(ctx)
		r.free()
		return true, u.wrap(err, "all-reduce gradients of")
	}
	return r.hold, nil
}

// wait ends what is in flight.
func (r *reduction) wait(ctx context.Context) error {
	var first error
	for i := range r.parts {
		if w := r.parts[i].work; w != nil {
			r.parts[i].work = nil
			if err := w.Wait(ctx); err != nil && first == nil {
				first = r.u.wrap(err, "reduce gradients of")
			}
		}
	}
	return first
}

func (r *reduction) free() {
	for i := range r.parts {
		r.parts[i].input.Free()
		r.parts[i].output.Free()
	}
}

func (u *unit) dropPartial() {
	for _, t := range u.partial {
		t.Free()
	}
	u.partial = nil
}

// deliver hands the sums to the shards' gradients.
func (r *reduction) deliver() error {
	defer r.free()
	return torch.Try(func() {
		torch.NoGrad(func() {
			for i := range r.parts {
				r.u.m.deliver(&r.parts[i])
			}
		})
	})
}

func (m *Model) deliver(part *reducing) {
	s := torch.NewScope(nil)
	defer s.Close()
	out := part.output.In(s)
	n := int64(len(part.params))
	used := make([]float32, n)
	if m.config.Device.Type == torch.MetaType {
		for i := range used {
			used[i] = 1
		}
	} else {
		used = torch.Slice[float32](out.Narrow(0, out.Numel()-n, n).To(torch.Float32))
	}
	_, divisor := m.divisors(part.dtype)
	offset := int64(0)
	for i, p := range part.params {
		sum := out.Narrow(0, offset, (p.hi-p.lo)*p.rowNumel())
		offset += p.chunkNumel()
		if used[i] != 0 {
			// The division makes a tensor of its own, so the reduction's buffer is not kept alive by its parts.
			p.addGradient(s, sum.DivScalar(divisor).View(p.shardShape()...))
		}
	}
}
