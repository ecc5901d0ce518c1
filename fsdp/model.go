package fsdp

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Counters count what the model's collectives did.
type Counters struct {
	AllGathers     atomic.Int64
	ReduceScatters atomic.Int64
	AllReduces     atomic.Int64
	Bytes          atomic.Int64 // of all ranks' parts together
}

func (c *Counters) add(kind *atomic.Int64, bytes int64) {
	kind.Add(1)
	c.Bytes.Add(bytes)
}

// Model is a sharded model: the units and what they share. One goroutine drives it.
type Model struct {
	config   Config
	group    dist.Group
	units    []*unit // in order of declaration, the root last
	byName   map[string]*param
	names    []string
	counters Counters

	ctx      context.Context // of the running forward, for its backward
	begun    bool            // inside the root's forward
	sync     bool            // reduce gradients in backward
	queued   bool            // the final callback of the running backward is queued
	order    []*unit         // units in the order in which their forwards ended
	last     []*unit         // the order of the forward before
	position int             // of the unit that runs, in last
	reducing *unit
}

// hooked is a module that runs through nn.Run.
type hooked interface{ LayerHooks() *nn.Hooks }

// Wrap shards root over the ranks of g. Parameters may hold values, of which each rank keeps its rows, or be on the meta
// device: then each rank loads its rows (Param.Rows) into them before the first forward.
//
// Root and units must be layers that run through nn.Run. A parameter that two units share is refused.
func Wrap(root any, g dist.Group, c Config) (*Model, error) {
	c, err := c.withDefaults(g.Size())
	if err != nil {
		return nil, err
	}
	m := &Model{config: c, group: g, sync: true, byName: map[string]*param{}, ctx: context.Background()}
	owner := map[*nn.Param]*unit{}
	full := map[*nn.Param]string{}
	for _, n := range nn.NamedParams(root) {
		full[n.Param] = n.Name
	}
	add := func(name string, module any, isRoot bool) error {
		h, ok := module.(hooked)
		if !ok {
			return fmt.Errorf("fsdp: module %q (%T) is no layer: embed nn.Hooks and call it through nn.Run", name, module)
		}
		u := &unit{m: m, name: name, root: isRoot}
		for _, n := range nn.NamedParams(module) {
			if n.Param.Replicated() {
				continue
			}
			if other := owner[n.Param]; other != nil {
				if isRoot || strings.HasPrefix(other.name, name+".") {
					continue // of a unit inside this one
				}
				return fmt.Errorf("fsdp: parameter %s belongs to unit %q and to unit %q: tied parameters must be in one unit", full[n.Param], other.name, name)
			}
			owner[n.Param] = u
			p, err := newParam(nn.Named{Name: full[n.Param], Param: n.Param}, g.Rank(), g.Size())
			if err != nil {
				return err
			}
			u.params = append(u.params, p)
		}
		u.pieces = cut(u.params, c.DirectBytes)
		m.units = append(m.units, u)
		h.LayerHooks().AddHook(u)
		return nil
	}
	modules := nn.Modules(root)
	for i := len(modules) - 1; i > 0; i-- { // inner units first: they own their parameters
		if c.Units != nil && c.Units(modules[i].Name, modules[i].Module) {
			if err := add(modules[i].Name, modules[i].Module, false); err != nil {
				return nil, err
			}
		}
	}
	slices.Reverse(m.units)
	if err := add("", root, true); err != nil {
		return nil, err
	}
	if err := m.checkTied(root, owner, modules); err != nil {
		return nil, err
	}
	err = torch.Try(func() { torch.NoGrad(m.shard) })
	if err != nil {
		return nil, fmt.Errorf("fsdp: shard the parameters: %w", err)
	}
	for _, n := range nn.NamedParams(root) {
		m.names = append(m.names, n.Name)
	}
	return m, nil
}

// checkTied refuses a parameter that is reachable from a unit and from outside of it: its unit would free it while the
// other module computes.
func (m *Model) checkTied(root any, owner map[*nn.Param]*unit, modules []nn.NamedModule) error {
	inside := map[*nn.Param]map[string]bool{}
	for _, mod := range modules {
		for _, u := range m.units {
			if !u.root && u.name == mod.Name {
				for _, n := range nn.NamedParams(mod.Module) {
					names := map[string]bool{u.name + "." + n.Name: true}
					for _, s := range n.Shared {
						names[u.name+"."+s] = true
					}
					if inside[n.Param] == nil {
						inside[n.Param] = names
					}
				}
			}
		}
	}
	for _, n := range nn.NamedParams(root) {
		u := owner[n.Param]
		if u == nil || u.root {
			continue
		}
		for _, name := range append([]string{n.Name}, n.Shared...) {
			if !inside[n.Param][name] {
				return fmt.Errorf("fsdp: parameter %s of unit %q is also %s, outside the unit: tied parameters must be in one unit", n.Name, u.name, name)
			}
		}
	}
	return nil
}

// shard cuts every parameter down to this rank's rows.
func (m *Model) shard() {
	for _, u := range m.units {
		for _, p := range u.params {
			m.byName[p.name] = p
			s := torch.NewScope(nil)
			t := p.p.Tensor()
			rows := t.In(s).Detach().Narrow(0, p.lo, p.hi-p.lo)
			if t.Device().Type != torch.MetaType {
				rows = rows.Clone()
			}
			p.p.SetRows(p.lo, p.hi)
			p.p.SetTensor(rows.In(nil))
			s.Close()
			t.Free()
			p.makeFull(m.group.Size())
		}
	}
}

// Group is the process group over which the model is sharded.
func (m *Model) Group() dist.Group { return m.group }

// Counters are the model's collectives so far.
func (m *Model) Counters() *Counters { return &m.counters }

// Units lists the units' names in order; the root is "".
func (m *Model) Units() []string {
	list := make([]string, len(m.units))
	for i, u := range m.units {
		list[i] = u.name
	}
	return list
}

// begin starts a forward of the root: it takes in parameters that were loaded or replaced since the last one.
func (m *Model) begin(ctx context.Context) error {
	m.ctx, m.begun, m.position = ctx, true, 0
	return m.Load()
}

// Load takes the values that parameters were given since Wrap into the units' buffers. The first forward does it too;
// calling it after loading frees the loaded tensors earlier.
func (m *Model) Load() error {
	var err error
	torch.NoGrad(func() {
		for _, u := range m.units {
			if u.state != sharded {
				continue
			}
			u.trainable = u.trainable[:0]
			for _, p := range u.params {
				if p.p.Trainable() {
					u.trainable = append(u.trainable, p)
					if u.reduceDType = p.dtype; u.trainable[0].dtype != p.dtype {
						err = fmt.Errorf("fsdp: unit %q: trainable parameters must have one dtype: %s is %v, %s is %v",
							u.name, u.trainable[0].name, u.trainable[0].dtype, p.name, p.dtype)
						return
					}
				}
				if p.full.RequiresGrad() != p.p.Trainable() {
					p.full.SetRequiresGrad(p.p.Trainable())
				}
			}
			for _, c := range u.pieces {
				if err = c.load(); err != nil {
					return
				}
			}
		}
	})
	return err
}

// end closes a forward of the root. A forward that recorded nothing has no backward to reset the order.
func (m *Model) end(recording bool) {
	m.begun = false
	for _, u := range m.units {
		u.drop(m.ctx) // prefetched, but this forward took another way: after the next step it would be stale
	}
	if !recording {
		m.last, m.order = m.order, nil
	}
}

// prefetchForward starts to gather the units that ran after u the last time. The root begins first and ends last.
func (m *Model) prefetchForward(ctx context.Context, u *unit) {
	if m.config.Prefetch < 0 {
		return
	}
	next := 0
	if !u.root {
		at := slices.Index(m.last[min(m.position, len(m.last)):], u)
		if at < 0 {
			return
		}
		next = m.position + at + 1
	}
	m.position = next
	for k := next; k < len(m.last) && k < next+m.config.Prefetch; k++ {
		if !m.last[k].root {
			torch.Throw(m.last[k].startUnshard(ctx))
		}
	}
}

// prefetchBackward starts to gather the units whose forwards ended before u's.
func (m *Model) prefetchBackward(ctx context.Context, u *unit) error {
	if m.config.Prefetch < 0 {
		return nil
	}
	for i := len(m.order) - 1; i >= 0; i-- {
		if m.order[i] != u {
			continue
		}
		for k := i - 1; k >= 0 && k >= i-m.config.Prefetch; k-- {
			if len(m.order[k].trainable) > 0 {
				if err := m.order[k].startUnshard(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return nil
}

// queueFinal arranges for final at the end of the running backward, once.
func (m *Model) queueFinal() {
	if m.queued {
		return
	}
	m.queued = true
	torch.QueueCallback(m.final)
}

// final ends a backward: units that autograd did not reach, reductions in flight, gathers that nobody used.
func (m *Model) final() error {
	m.queued = false
	for i := len(m.units) - 1; i >= 0; i-- {
		u := m.units[i]
		if u.pending && !u.done {
			if err := u.postBackward(); err != nil {
				return err
			}
		}
	}
	if err := m.finishReduction(m.ctx); err != nil {
		return err
	}
	for _, u := range m.units {
		u.drop(m.ctx)
		u.reshard()
		u.done = false
		if m.sync {
			u.pending = false
		}
	}
	m.last, m.order = m.order, nil
	return nil
}

// Accumulate runs f (forwards and backwards) without reducing gradients: they stay whole on each rank, and the next
// backward outside reduces the sum. All ranks must agree.
func (m *Model) Accumulate(f func() error) error {
	before := m.sync
	m.sync = false
	defer func() { m.sync = before }()
	return f()
}

// Reset gives up a forward or backward that ended with an error: collectives in flight are awaited, gathered parameters
// freed and unreduced gradients dropped, so that the next step starts clean.
func (m *Model) Reset(ctx context.Context) {
	if u := m.reducing; u != nil {
		_ = u.reduce.work.Wait(ctx)
		u.reduce.input.Free()
		u.reduce.output.Free()
		u.reduce, m.reducing = nil, nil
	}
	for _, u := range m.units {
		u.drop(ctx)
		u.reshard()
		u.pending, u.done = false, false
		for _, p := range u.trainable {
			p.full.SetGrad(nil)
		}
	}
	m.order, m.begun, m.queued = nil, false, false
}
