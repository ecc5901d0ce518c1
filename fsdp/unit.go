package fsdp

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

type unitState int

const (
	sharded unitState = iota
	gathering
	unsharded
)

// unit is the modules whose parameters are gathered and freed together.
type unit struct {
	m      *Model
	name   string
	root   bool
	params []*param
	pieces []*piece
	state  unitState

	works    []dist.Work     // all-gathers in flight, one per piece
	gathered []*torch.Tensor // their outputs, nil for direct pieces

	trainable   []*param
	reduceDType torch.DType // of the trainable parameters, which must agree
	reduce      *reduction  // reduce-scatter in flight
	pending     bool        // a forward was recorded whose backward has not been reduced
	done        bool        // post-backward ran in this backward
}

func (u *unit) trace(event string) {
	if t := u.m.config.Trace; t != nil {
		t(event, u.name)
	}
}

func (u *unit) wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fsdp: rank %d: %s unit %q: %w", u.m.group.Rank(), what, u.name, err)
}

// startUnshard enqueues the all-gathers. It does nothing where the unit is gathered or being gathered.
func (u *unit) startUnshard(ctx context.Context) error {
	if u.state != sharded || len(u.pieces) == 0 {
		return nil
	}
	u.trace("unshard")
	u.state = gathering
	size := int64(u.m.group.Size())
	u.works, u.gathered = u.works[:0], u.gathered[:0]
	for _, c := range u.pieces {
		var out *torch.Tensor
		var kept *torch.Tensor
		if c.direct {
			p := c.params[0]
			p.full.ResizeStorage(p.fullStorage)
			out = p.fullBytes
		} else {
			out = torch.Empty(torch.Uint8, size*c.bytes)
			kept = out
		}
		w, err := u.m.group.AllGather(ctx, out, c.buffer)
		if err != nil {
			kept.Free()
			u.drop(ctx) // what was started before
			return u.wrap(err, "gather")
		}
		u.m.counters.add(&u.m.counters.AllGathers, c.bytes*size)
		u.works = append(u.works, w)
		u.gathered = append(u.gathered, kept)
	}
	return nil
}

// unshard makes the full parameters current.
func (u *unit) unshard(ctx context.Context) error {
	if u.state == unsharded || len(u.pieces) == 0 {
		return nil
	}
	if err := u.startUnshard(ctx); err != nil {
		return err
	}
	u.trace("wait")
	var err error
	torch.NoGrad(func() {
		size := int64(u.m.group.Size())
		for i, c := range u.pieces {
			if err = u.works[i].Wait(ctx); err != nil {
				return
			}
			if c.direct {
				continue
			}
			s := torch.NewScope(nil)
			all := u.gathered[i].In(s).View(size, c.bytes)
			for _, p := range c.params {
				p.full.ResizeStorage(p.fullStorage)
				p.fullBytes.In(s).View(size, p.bytes).Copy(all.Narrow(1, p.offset, p.bytes))
			}
			s.Close()
			u.gathered[i].Free()
		}
	})
	if err != nil {
		return u.wrap(err, "gather")
	}
	u.works, u.gathered = u.works[:0], u.gathered[:0]
	u.state = unsharded
	for _, p := range u.params {
		p.p.SetTensor(p.full)
	}
	return nil
}

// reshard frees the full parameters and makes the shards current.
func (u *unit) reshard() {
	if u.state != unsharded {
		return
	}
	u.trace("reshard")
	for _, p := range u.params {
		p.full.ResizeStorage(0)
		p.p.SetTensor(p.shard)
	}
	u.state = sharded
}

// drop forgets a gather in flight whose result nobody needs.
func (u *unit) drop(ctx context.Context) {
	if u.state != gathering {
		return
	}
	for _, w := range u.works {
		_ = w.Wait(ctx)
	}
	for _, t := range u.gathered {
		t.Free()
	}
	for _, p := range u.params {
		p.full.ResizeStorage(0)
	}
	u.works, u.gathered = u.works[:0], u.gathered[:0]
	u.state = sharded
}

// BeforeForward gathers the unit and arranges for its post-backward.
func (u *unit) BeforeForward(c *nn.Call, in []*torch.Tensor) []*torch.Tensor {
	ctx := c.Ctx()
	if u.root {
		torch.Throw(u.m.begin(ctx))
	} else if !u.m.begun {
		torch.Throw(fmt.Errorf("fsdp: unit %q runs before the root module: call the root first", u.name))
	}
	torch.Throw(u.unshard(ctx))
	u.m.prefetchForward(ctx, u)
	if !torch.GradEnabled() || len(u.trainable) == 0 {
		return in
	}
	u.pending, u.done = true, false
	return u.watch(in)
}

// watch passes the inputs that need gradients through a node whose backward is the unit's post-backward. Where no input
// does, the root's final callback takes its place.
func (u *unit) watch(in []*torch.Tensor) []*torch.Tensor {
	var need []*torch.Tensor
	for _, t := range in {
		if t.RequiresGrad() {
			need = append(need, t)
		}
	}
	if len(need) == 0 {
		return in
	}
	watched := torch.OnBackward(func() error { return u.postBackward() }, need...)
	out := make([]*torch.Tensor, len(in))
	for i, t := range in {
		out[i] = t
		if len(need) > 0 && t == need[0] {
			out[i], watched, need = watched[0], watched[1:], need[1:]
		}
	}
	return out
}

// AfterForward frees the unit's parameters and arranges for them to be back before its backward.
func (u *unit) AfterForward(c *nn.Call, out []*torch.Tensor) []*torch.Tensor {
	u.m.order = append(u.m.order, u)
	recording := false
	for _, t := range out {
		if t.RequiresGrad() {
			recording = true
			t.RegisterHook(func(*torch.Tensor) (*torch.Tensor, error) { return nil, u.preBackward() })
		}
	}
	keep := u.m.config.Reshard == ReshardAfterBackward || u.root && u.m.config.Reshard == ReshardAuto
	if !recording || !keep {
		u.reshard()
	}
	if u.root {
		u.m.end(recording)
	}
	return out
}

func (u *unit) preBackward() error {
	ctx := u.m.ctx
	u.m.queueFinal()
	if err := u.unshard(ctx); err != nil {
		return err
	}
	return u.m.prefetchBackward(ctx, u)
}

// postBackward runs when the gradients of the unit's parameters are complete for one use of the unit.
func (u *unit) postBackward() error {
	u.trace("post-backward")
	u.done = true
	if !u.m.sync {
		u.reshard()
		return nil
	}
	return u.reduceGrads()
}
