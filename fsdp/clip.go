package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Clip are the settings of Model.Clip. The zero value measures the 2-norm of all gradients.
type Clip struct {
	// Max is the largest norm; 0 or +Inf only measures.
	Max float64
	// NormType is p of the p-norm, +Inf for the largest absolute value; 0 means 2.
	NormType float64
	// Params are the parameters to look at, in any order; nil means all.
	Params []*nn.Param
	// ErrorIfNonfinite makes a norm that is NaN or infinite an error, on every rank alike, and leaves the gradients alone.
	ErrorIfNonfinite bool
}

// ErrNonfinite is the error of a norm that is NaN or infinite.
var ErrNonfinite = errors.New("the norm of the gradients is not finite")

// ClipGradNorm scales the gradients of all ranks together so that their 2-norm is at most max, and returns the norm
// before (NaN or +Inf where a gradient is not finite). max 0 or +Inf only measures. A collective: every rank must call
// it. The values behind carry are summed over the ranks in the same all-reduce; decisions that all ranks must share
// travel there for free.
func (m *Model) ClipGradNorm(ctx context.Context, max float64, carry ...*float64) (float64, error) {
	return m.Clip(ctx, Clip{Max: max}, carry...)
}

// Clip is ClipGradNorm with all settings. The norm is that of the unsharded gradients and the same on every rank:
// a rank whose shards are empty counts 0, replicas count once, and so do gradients of parameters that are not sharded
// (Config.Ignore), for which rank 0's count. Half-precision gradients are measured in float32.
func (m *Model) Clip(ctx context.Context, c Clip, carry ...*float64) (float64, error) {
	if c.NormType == 0 {
		c.NormType = 2
	}
	if !(c.NormType > 0) || math.IsNaN(c.Max) || c.Max < 0 {
		return 0, fmt.Errorf("fsdp: clip gradients: norm type %v, maximum %v: both must be positive", c.NormType, c.Max)
	}
	norm := 0.0
	err := m.advanceReductions(ctx, true)
	if err == nil {
		err = torch.Try(func() {
			torch.NoGrad(func() { norm = m.clip(ctx, c, carry) })
		})
	}
	if err != nil {
		return 0, fmt.Errorf("fsdp: rank %d: clip gradients: %w", m.world.Rank(), err)
	}
	return norm, nil
}

// gradients are the gradients of one type.
type gradients struct {
	dtype torch.DType
	list  []*torch.Tensor
}

func (m *Model) clip(ctx context.Context, c Clip, carry []*float64) float64 {
	s := torch.NewScope(nil)
	defer s.Close()
	ours, theirs := m.gradients(s, c.Params)
	norm := m.allNorm(ctx, s, c.NormType, powerSum(ours, c.NormType), powerSum(theirs, c.NormType), carry)
	if c.ErrorIfNonfinite && (math.IsNaN(norm) || math.IsInf(norm, 0)) {
		torch.Throw(fmt.Errorf("%w: %v", ErrNonfinite, norm))
	}
	if c.Max > 0 && !math.IsInf(c.Max, 1) {
		for _, g := range append(ours, theirs...) {
			// The factor is computed in the gradients' precision, as torch.nn.utils.clip_grad_norm_ does.
			scale := float64(float32(c.Max) / (float32(norm) + 1e-6))
			if g.dtype == torch.Float64 {
				scale = c.Max / (norm + 1e-6)
			}
			if scale < 1 {
				torch.ForeachMulInPlace(g.list, scale)
			}
		}
	}
	return norm
}

// gradients lists those of the shards and those of parameters that are not sharded, by type.
func (m *Model) gradients(s *torch.Scope, params []*nn.Param) (shards, whole []gradients) {
	wanted := func(p *nn.Param) bool { return true }
	if params != nil {
		set := make(map[*nn.Param]bool, len(params))
		for _, p := range params {
			set[p] = true
		}
		wanted = func(p *nn.Param) bool { return set[p] }
	}
	add := func(list []gradients, t *torch.Tensor) []gradients {
		g := t.In(s).Grad()
		if g == nil || g.Numel() == 0 {
			return list
		}
		for i := range list {
			if list[i].dtype == g.DType() {
				list[i].list = append(list[i].list, g)
				return list
			}
		}
		return append(list, gradients{g.DType(), []*torch.Tensor{g}})
	}
	for _, u := range m.units {
		for _, p := range u.trainable {
			if wanted(p.p) {
				shards = add(shards, p.shard)
			}
		}
	}
	for _, p := range m.ignored {
		if wanted(p) {
			whole = add(whole, p.Tensor())
		}
	}
	return shards, whole
}

// powerSum is Σ|x|ᵖ, or the largest |x| where p is infinite.
func powerSum(groups []gradients, p float64) float64 {
	sum := 0.0
	for _, g := range groups {
		list := g.list
		if g.dtype.Size() < 4 { // their norms would be rounded to a few digits
			list = make([]*torch.Tensor, len(g.list))
			for i, t := range g.list {
				list[i] = t.To(torch.Float32)
			}
		}
		norm := torch.Stack(0, torch.ForeachNorm(list, p)...).To(torch.Float64).Norm(p).Item()
		switch {
		case !math.IsInf(p, 1):
			sum += math.Pow(norm, p)
		case math.IsNaN(norm) || norm > sum:
			sum = norm
		}
	}
	return sum
}

// allNorm joins the ranks' sums. Of whole gradients rank 0's count, of replicas their mean. Infinite norms need a reduction
// by maximum, in which a NaN may be lost: a flag goes with it.
func (m *Model) allNorm(ctx context.Context, s *torch.Scope, p, shards, whole float64, carry []*float64) float64 {
	if m.world.Rank() != 0 {
		whole = 0
	}
	infinite := math.IsInf(p, 1)
	values := []float64{shards, whole}
	if infinite {
		values = nil
	}
	for _, v := range carry {
		values = append(values, *v)
	}
	if len(values) > 0 {
		values = m.reduceValues(ctx, s, dist.Sum, values)
	}
	for i, v := range carry {
		*v = values[len(values)-len(carry)+i]
	}
	if !infinite {
		sum := values[0]/float64(m.replicas) + values[1]
		if p == 2 {
			return math.Sqrt(sum)
		}
		return math.Pow(sum, 1/p)
	}
	nan := 0.0
	largest := max(shards, whole)
	if math.IsNaN(largest) {
		largest, nan = 0, 1
	}
	values = m.reduceValues(ctx, s, dist.Max, []float64{largest, nan})
	if values[1] > 0 {
		return math.NaN()
	}
	return values[0]
}

func (m *Model) reduceValues(ctx context.Context, s *torch.Scope, op dist.ReduceOp, values []float64) []float64 {
	t := s.Own(torch.FromSlice(values))
	torch.Throw(dist.Wait(ctx)(m.world.AllReduce(dist.WithLabel(ctx, "gradient norm"), t, op)))
	m.counters.AllReduces.Add(1)
	m.counters.Bytes.Add(int64(8 * len(values)))
	return torch.Slice[float64](t)
}
