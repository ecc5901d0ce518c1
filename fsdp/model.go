package fsdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Model is a sharded model: the units and what they share. One goroutine drives it.
type Model struct {
	config       Config
	world        dist.Group
	shard        dist.Group // the ranks that hold one copy of the model between them
	replicate    dist.Group // the ranks that hold the same shard, or nil
	reshardGroup dist.Group // of Config.ReshardSize, or nil
	replicas     int
	units        []*unit // in order of declaration, outer ones first; the root last
	byName       map[string]*param
	names        []string
	ignored      []*nn.Param // left alone (Config.Ignore)
	counters     Counters

	ctx     context.Context // of the running forward, for its backward
	phase   Phase
	started bool // the root has run
	begun   bool // inside the root's forward

	now      []*unit // units in the order in which their forwards began
	last     []*unit // the same of the forward before
	position int     // of the unit that runs, in last
	passed   int     // units that have run or were left out, with Config.Branches

	// See Note [The tape].
	tape    []event
	graph   int   // number of the last forward
	active  []int // graphs that the running backward has entered
	entered int   // the one it entered last
	queued  bool  // the final callback of the running backward is queued

	reductions []*reduction // in flight, oldest first
}

// Group is all ranks that the model is spread over.
func (m *Model) Group() dist.Group { return m.world }

// ShardGroup is the ranks that hold one copy of the model between them.
func (m *Model) ShardGroup() dist.Group { return m.shard }

// Close leaves the group that Config.ReshardSize needs. Every rank calls it; without ReshardSize it does nothing.
func (m *Model) Close(ctx context.Context) error {
	if m.reshardGroup == nil {
		return nil
	}
	return m.reshardGroup.Close(ctx)
}

// Units lists the units' names in order; the root is "". A unit of several modules has their names with "+" between them.
func (m *Model) Units() []string {
	list := make([]string, len(m.units))
	for i, u := range m.units {
		list[i] = u.name
	}
	return list
}

func (m *Model) unitNamed(name string) (*unit, error) {
	for _, u := range m.units {
		if u.name == name {
			return u, nil
		}
	}
	return nil, fmt.Errorf("fsdp: the model has no unit %q; it has %q", name, m.Units())
}

// errBegun is what the root says when its last forward never ended.
var errBegun = errors.New("fsdp: the forward before ended in an error: call Model.Reset first")

// begin starts a forward of the root: it takes in parameters that were loaded or replaced since the last one.
func (m *Model) begin(ctx context.Context) error {
	if m.begun {
		return errBegun
	}
	for _, u := range m.units {
		if u.open == 0 {
			u.dropPart()
		}
	}
	m.ctx, m.started, m.begun = ctx, true, true
	m.position, m.passed, m.now = 0, 0, nil
	m.graph++
	m.pruneTape()
	return m.Load()
}

// Load takes the values that parameters were given since Wrap into the units' buffers. The first forward does it too;
// calling it after loading frees the loaded tensors earlier.
func (m *Model) Load() error {
	var err error
	torch.NoGrad(func() {
		for _, u := range m.units {
			if err = u.load(); err != nil {
				return
			}
		}
	})
	return err
}

// end closes a forward of the root.
func (m *Model) end() {
	m.begun = false
	for _, u := range m.units {
		if u.left > 0 { // some of its modules did not run: they may yet, outside the root
			if !u.endForward() {
				u.reshard()
			}
		}
		u.drop(m.ctx) // prefetched, but this forward took another way: after the next step it would be stale
	}
	m.last, m.now = m.now, nil
	if m.config.Branches {
		m.last = m.units[:len(m.units)-1] // every rank must prefetch the same
	}
}

// final ends a backward: units that autograd did not reach, reductions in flight, gathers that nobody used.
func (m *Model) final() error {
	m.queued = false
	if err := m.catchUp(-1); err != nil {
		return err
	}
	for i := len(m.units) - 1; i >= 0; i-- {
		if u := m.units[i]; u.unreduced && !m.phase.NoSync {
			if err := u.postBackward(-1); err != nil {
				return err
			}
		}
	}
	if !m.phase.NotLast {
		if err := m.advanceReductions(m.ctx, true); err != nil {
			return err
		}
	}
	m.cleanTape()
	for _, u := range m.units {
		u.drop(m.ctx)
		if !m.phase.KeepUnsharded {
			u.reshard()
		}
		if u.open == 0 {
			u.dropPart()
		}
	}
	return nil
}

// Phase is how backwards end that do not belong to the last micro-batch of a step. The zero value is an ordinary backward.
type Phase struct {
	// NoSync leaves gradients whole on each rank; the next backward with synchronisation reduces the sum
	// (no_sync, set_requires_gradient_sync).
	NoSync bool
	// NoAllReduce reduces over the ranks that hold one copy and leaves the sum over the replicas to a later backward
	// (set_requires_all_reduce).
	NoAllReduce bool
	// KeepUnsharded leaves the units gathered after backward (set_reshard_after_backward(False)): the next forward needs
	// no all-gathers. No optimiser step may follow before a backward without it.
	KeepUnsharded bool
	// NotLast says that another backward follows before gradients are looked at: reductions may stay in flight
	// (set_is_last_backward(False)).
	NotLast bool
}

// During runs f (forwards and backwards) in a phase. All ranks must agree.
func (m *Model) During(p Phase, f func() error) error {
	before := m.phase
	m.phase = p
	defer func() { m.phase = before }()
	return f()
}

// Accumulate runs f (forwards and backwards) without reducing gradients: they stay whole on each rank, and the next
// backward outside reduces the sum. All ranks must agree.
func (m *Model) Accumulate(f func() error) error { return m.During(Phase{NoSync: true}, f) }

// Unshard gathers a unit by hand; its parameters are whole until its next forward or backward ends, or Reshard. A
// collective: every rank must call it.
func (m *Model) Unshard(ctx context.Context, unit string) error {
	wait, err := m.UnshardAsync(ctx, unit)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// UnshardAsync starts to gather a unit. Its parameters are whole when the returned function has been called, which the
// unit's forward and backward do too.
func (m *Model) UnshardAsync(ctx context.Context, unit string) (wait func(context.Context) error, err error) {
	u, err := m.unitNamed(unit)
	if err != nil {
		return nil, err
	}
	torch.NoGrad(func() { err = u.load() })
	if err != nil {
		return nil, err
	}
	if err := u.startUnshard(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return u.unshard(ctx, false) }, nil
}

// Reshard frees a unit that Unshard, or a forward that keeps its parameters, has gathered. It is no collective.
func (m *Model) Reshard(ctx context.Context, unit string) error {
	u, err := m.unitNamed(unit)
	if err != nil {
		return err
	}
	u.drop(ctx)
	u.reshard()
	return nil
}

// Reset gives up a forward or backward that ended with an error: collectives in flight are awaited, gathered parameters
// freed and unreduced gradients dropped, so that the next step starts clean (reset_iter_state).
func (m *Model) Reset(ctx context.Context) {
	for _, r := range m.reductions {
		_ = r.wait(ctx)
		r.free()
	}
	m.reductions = nil
	for _, e := range m.tape {
		e.use.begin, e.use.end, e.use.done = -1, -1, true
	}
	m.tape, m.active = nil, nil
	for _, u := range m.units {
		u.drop(ctx)
		u.reshard()
		u.dropPart()
		u.dropPartial()
		u.left, u.open, u.using, u.unreduced = 0, 0, nil, false
		for _, p := range u.params {
			p.dropGradients()
		}
	}
	m.now, m.begun, m.queued = nil, false, false
}
