package fsdp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

// Collective is what a function of Communication is asked for.
type Collective struct {
	Unit  string     // "" is the root
	Group dist.Group // the ranks that take part
}

// Communication replaces the collectives of units (set_custom_all_gather, set_custom_reduce_scatter, set_all_reduce_hook).
// The functions have the meaning of the methods of dist.Group; nil leaves those. Every rank must do the same.
type Communication struct {
	// AllGather gets the unit's bytes.
	AllGather func(ctx context.Context, c Collective, out, in *torch.Tensor) (dist.Work, error)
	// ReduceScatter gets 1-D gradients; op is Sum. Their last elements count the ranks that have a gradient of each
	// parameter: a reduction that loses precision may change them, but not to 0.
	ReduceScatter func(ctx context.Context, c Collective, out, in *torch.Tensor, op dist.ReduceOp) (dist.Work, error)
	// AllReduce gets what a reduce-scatter put out, to sum it over the replicas.
	AllReduce func(ctx context.Context, c Collective, t *torch.Tensor, op dist.ReduceOp) (dist.Work, error)
}

// Counters count what the model's collectives did. They may be read at any time from any goroutine.
type Counters struct {
	AllGathers     atomic.Int64
	ReduceScatters atomic.Int64
	AllReduces     atomic.Int64
	Bytes          atomic.Int64 // of all ranks' parts together
}

// Tally sums up the collectives of one kind.
type Tally struct {
	Calls int64
	Bytes int64         // of the whole tensors: what all-gather puts out, reduce-scatter takes in, all-reduce changes
	Wait  time.Duration // this rank stood still for them
}

// UnitStats is what a unit's collectives did.
type UnitStats struct {
	Unit          string
	AllGather     Tally
	ReduceScatter Tally
	AllReduce     Tally
}

// Stats lists the collectives of every unit so far, in the order of Units. It may be called at any time from any goroutine.
func (m *Model) Stats() []UnitStats {
	list := make([]UnitStats, len(m.units))
	for i, u := range m.units {
		list[i] = UnitStats{u.name, u.gathers.load(), u.scatters.load(), u.sums.load()}
	}
	return list
}

// Counters are the model's collectives so far.
func (m *Model) Counters() *Counters { return &m.counters }

type tally struct{ calls, bytes, wait atomic.Int64 }

func (t *tally) load() Tally {
	return Tally{t.calls.Load(), t.bytes.Load(), time.Duration(t.wait.Load())}
}

// timed is work that adds the time of waiting to a tally.
type timed struct {
	dist.Work
	wait *atomic.Int64
}

func (w timed) Wait(ctx context.Context) error {
	begin := time.Now()
	err := w.Work.Wait(ctx)
	w.wait.Add(int64(time.Since(begin)))
	return err
}

func (u *unit) count(w dist.Work, err error, t *tally, total *atomic.Int64, whole *torch.Tensor) (dist.Work, error) {
	if err != nil {
		return nil, err
	}
	bytes := whole.Numel() * whole.DType().Size()
	t.calls.Add(1)
	t.bytes.Add(bytes)
	total.Add(1)
	u.m.counters.Bytes.Add(bytes)
	return timed{w, &t.wait}, nil
}

// label names the unit in errors and counters of package dist.
func (u *unit) label(ctx context.Context) context.Context { return dist.WithLabel(ctx, u.String()) }

func (u *unit) allGather(ctx context.Context, g dist.Group, out, in *torch.Tensor) (dist.Work, error) {
	f := u.m.config.Comm.AllGather
	if f == nil {
		f = func(ctx context.Context, c Collective, out, in *torch.Tensor) (dist.Work, error) {
			return c.Group.AllGather(ctx, out, in)
		}
	}
	w, err := f(u.label(ctx), Collective{u.name, g}, out, in)
	return u.count(w, err, &u.gathers, &u.m.counters.AllGathers, out)
}

func (u *unit) reduceScatter(ctx context.Context, out, in *torch.Tensor) (dist.Work, error) {
	f := u.m.config.Comm.ReduceScatter
	if f == nil {
		f = func(ctx context.Context, c Collective, out, in *torch.Tensor, op dist.ReduceOp) (dist.Work, error) {
			return c.Group.ReduceScatter(ctx, out, in, op)
		}
	}
	w, err := f(u.label(ctx), Collective{u.name, u.m.shard}, out, in, dist.Sum)
	return u.count(w, err, &u.scatters, &u.m.counters.ReduceScatters, in)
}

func (u *unit) allReduce(ctx context.Context, t *torch.Tensor) (dist.Work, error) {
	f := u.m.config.Comm.AllReduce
	if f == nil {
		f = func(ctx context.Context, c Collective, t *torch.Tensor, op dist.ReduceOp) (dist.Work, error) {
			return c.Group.AllReduce(ctx, t, op)
		}
	}
	w, err := f(u.label(ctx), Collective{u.name, u.m.replicate}, t, dist.Sum)
	return u.count(w, err, &u.sums, &u.m.counters.AllReduces, t)
}

// String is the unit's name in messages.
func (u *unit) String() string {
	if u.root {
		return "root unit"
	}
	return fmt.Sprintf("unit %q", u.name)
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
	return fmt.Errorf("fsdp: rank %d: %s %v: %w", u.m.world.Rank(), what, u, err)
}
