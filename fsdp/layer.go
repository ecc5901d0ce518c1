package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// member is the hook of one module of a unit.
type member struct {
	u     *unit
	index int
}

// Note [Recomputed units]
// A unit inside a checkpointed layer runs a second time in backward. With the non-reentrant kind the first run is the one
// that was recorded: the second only needs the parameters. With the re-entrant kind the first was not recorded and the
// second is like a forward of its own, whose backward follows at once.

// BeforeForward gathers the unit and arranges for its post-backward.
func (h *member) BeforeForward(c *nn.Call, in []*torch.Tensor) []*torch.Tensor {
	u, m, ctx := h.u, h.u.m, c.Ctx()
	if c.Recomputing && m.isPending(u) {
		torch.Throw(u.unshard(ctx, false))
		return u.precision.castInputs(in)
	}
	if u.left > 0 && len(u.members) > 1 { // another module of the unit has begun
		torch.Throw(u.unshard(ctx, false))
		return u.precision.castInputs(in)
	}
	switch {
	case u.root:
		torch.Throw(m.begin(ctx))
	case !m.started:
		torch.Throw(fmt.Errorf("fsdp: %v runs before the root module: call the root first", u))
	case !m.begun && !c.Recomputing:
		m.ctx = ctx
		m.graph++
		torch.NoGrad(func() { torch.Throw(u.load()) })
	}
	if m.begun && !c.Recomputing {
		torch.Throw(m.passBranches(ctx, u))
		m.now = append(m.now, u)
	}
	u.left = len(h.u.members)
	clear(u.ran)
	u.using = nil
	record := torch.GradEnabled()
	if !c.Recomputing {
		torch.Throw(u.checkOrder(ctx, record))
	}
	torch.Throw(u.unshard(ctx, record && u.smaller))
	m.prefetchForward(ctx, u)
	in = u.precision.castInputs(in)
	if !record {
		return in
	}
	u.using = m.beginUse(u)
	return u.using.watch(in)
}

// AfterForward frees the unit's parameters and arranges for them to be back before its backward.
func (h *member) AfterForward(c *nn.Call, out []*torch.Tensor) []*torch.Tensor {
	u, m := h.u, h.u.m
	out = u.precision.castOutputs(out)
	if u.left == 0 { // a recomputation, see Note [Recomputed units]
		return out
	}
	if use := u.using; use != nil {
		for _, t := range out {
			if t.RequiresGrad() {
				use.recorded = true
				t.RegisterHook(func(*torch.Tensor) (*torch.Tensor, error) { return nil, m.preBackward(use) })
			}
		}
	}
	if !u.ran[h.index] {
		u.ran[h.index] = true
		u.left--
	}
	if u.left > 0 && m.begun {
		return out
	}
	if u.root {
		torch.Throw(m.passBranches(m.ctx, nil))
	}
	partly := u.left > 0
	recorded := u.endForward()
	if !(recorded && (u.keep || partly)) {
		u.reshard()
	}
	if u.root {
		m.end()
	}
	return out
}

// endForward closes the running use and tells whether backward will come back to it.
func (u *unit) endForward() bool {
	use := u.using
	u.using, u.left = nil, 0
	if use == nil {
		return false
	}
	u.m.endUse(use)
	return use.recorded
}

// watch passes the inputs that need gradients through a node whose backward is the unit's post-backward. Where no input
// does, the next event of backward, or its end, takes its place.
func (s *use) watch(in []*torch.Tensor) []*torch.Tensor {
	var need []*torch.Tensor
	for _, t := range in {
		if t.RequiresGrad() {
			need = append(need, t)
		}
	}
	if len(need) == 0 {
		return in
	}
	watched := torch.OnBackward(func() error { return s.u.m.postBackward(s) }, need...)
	out := make([]*torch.Tensor, len(in))
	for i, t := range in {
		out[i] = t
		if len(need) > 0 && t == need[0] {
			out[i], watched, need = watched[0], watched[1:], need[1:]
		}
	}
	return out
}
