package fsdp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// hooked is a module that runs through nn.Run.
type hooked interface{ LayerHooks() *nn.Hooks }

// Wrap shards root over the ranks of g. Parameters may hold values, of which each rank keeps its rows, or be on the meta
// device: then each rank loads its rows (Param.Rows) into them before the first forward, or calls Materialize.
//
// Root and units must be layers that run through nn.Run. A parameter that two units share is refused.
//
// With Config.SyncModuleStates or ReshardSize it is a collective, which the group's timeout bounds.
func Wrap(root any, g dist.Group, c Config) (*Model, error) {
	return wrap(context.Background(), root, g, nil, c)
}

// WrapMesh is Wrap over a mesh of one dimension, or of two: the model is replicated over the first and sharded over the
// second (hybrid sharding). It is a collective.
func WrapMesh(ctx context.Context, root any, mesh *dist.Mesh, c Config) (*Model, error) {
	return wrap(ctx, root, nil, mesh, c)
}

func wrap(ctx context.Context, root any, g dist.Group, mesh *dist.Mesh, c Config) (*Model, error) {
	l, err := place(g, mesh, c)
	if err != nil {
		return nil, err
	}
	if c, err = c.withDefaults(l.shard.Size() * l.replicas()); err != nil {
		return nil, err
	}
	w := wrapper{root: root, owner: map[*nn.Param]*unit{}, names: map[*nn.Param]string{}}
	for _, n := range nn.NamedParams(root) {
		w.names[n.Param] = n.Name
	}
	w.m = &Model{config: c, world: l.world, shard: l.shard, replicate: l.replicate, replicas: l.replicas(),
		byName: map[string]*param{}, ctx: context.Background()}
	if err := w.makeUnits(); err != nil {
		return nil, err
	}
	if c, err = l.neighbours(ctx, c); err != nil {
		return nil, err
	}
	w.m.config, w.m.reshardGroup = c, l.reshard
	if err := w.shard(ctx); err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: shard the parameters: %w", l.world.Rank(), err)
	}
	w.finish()
	return w.m, nil
}

// wrapper is the work of Wrap.
type wrapper struct {
	m       *Model
	root    any
	owner   map[*nn.Param]*unit
	names   map[*nn.Param]string // in the root
	modules []hooked             // of the units' members, in the order in which they were added
	members []*member
}

// makeUnits chooses the units, inner ones first: they own their parameters.
func (w *wrapper) makeUnits() error {
	m, c := w.m, &w.m.config
	modules := nn.Modules(w.root)
	index := map[string]int{}
	for i, mod := range modules {
		index[mod.Name] = i
	}
	together := map[int][]nn.NamedModule{} // by the first in order of declaration
	grouped := map[int]bool{}
	for _, names := range c.Together {
		var list []int
		for _, name := range names {
			i, ok := index[name]
			if !ok || i == 0 {
				return fmt.Errorf("fsdp: Config.Together names module %q: the model has no such module, or it is the root", name)
			}
			if grouped[i] {
				return fmt.Errorf("fsdp: Config.Together names module %q twice", name)
			}
			grouped[i] = true
			list = append(list, i)
		}
		slices.Sort(list)
		for k, i := range list {
			if k > 0 && within(modules[i].Name, modules[list[k-1]].Name) {
				return fmt.Errorf("fsdp: Config.Together puts module %q and %q, which is inside it, in one unit", modules[list[k-1]].Name, modules[i].Name)
			}
			together[list[0]] = append(together[list[0]], modules[i])
		}
	}
	for i := len(modules) - 1; i > 0; i-- {
		mod := modules[i]
		if list := together[i]; list != nil {
			if err := w.add(list); err != nil {
				return err
			}
			continue
		}
		if grouped[i] || c.Units == nil {
			continue
		}
		if c.Units(Candidate{Name: mod.Name, Module: mod.Module, Params: w.free(mod.Module)}) {
			if err := w.add([]nn.NamedModule{mod}); err != nil {
				return err
			}
		}
	}
	slices.Reverse(m.units)
	if err := w.add(modules[:1]); err != nil {
		return err
	}
	for i, u := range m.units {
		u.number = i
		for k := i - 1; k >= 0 && !u.root; k-- { // the innermost unit around it
			if around := m.units[k]; around.around(u) {
				around.inside = append(around.inside, u)
				break
			}
		}
	}
	return w.checkTied()
}

// around tells whether every module of other is inside one of u's.
func (u *unit) around(other *unit) bool {
	return u != other && (u.root || !slices.ContainsFunc(other.members, func(name string) bool {
		return !slices.ContainsFunc(u.members, func(mine string) bool { return within(name, mine) })
	}))
}

// within tells whether the path name leads into module.
func within(name, module string) bool { return module == "" || strings.HasPrefix(name, module+".") }

// free lists the parameters of a module that no unit owns.
func (w *wrapper) free(module any) []nn.Named {
	return slices.DeleteFunc(nn.NamedParams(module), func(n nn.Named) bool { return w.owner[n.Param] != nil || w.leaveAlone(n.Param) })
}

// leaveAlone tells whether a parameter stays whole.
func (w *wrapper) leaveAlone(p *nn.Param) bool {
	ignore := w.m.config.Ignore
	return p.Replicated() || ignore != nil && ignore(nn.Named{Name: w.names[p], Param: p})
}

// add makes a unit of modules.
func (w *wrapper) add(modules []nn.NamedModule) error {
	m := w.m
	u := &unit{m: m, root: modules[0].Name == "", precision: m.config.Precision, ran: make([]bool, len(modules))}
	for i, mod := range modules {
		h, ok := mod.Module.(hooked)
		if !ok {
			return fmt.Errorf("fsdp: module %q (%s) is no layer: embed nn.Hooks and call it through nn.Run", mod.Name, typeName(mod.Module))
		}
		u.members = append(u.members, mod.Name)
		w.modules, w.members = append(w.modules, h), append(w.members, &member{u, i})
	}
	u.name = strings.Join(u.members, "+")
	reshard := m.config.Reshard
	u.smaller = m.config.ReshardSize > 1 && m.config.ReshardSize < m.shard.Size() && !u.root
	if f := m.config.PerUnit; f != nil {
		o := f(u.name, modules[0].Module)
		if o.Precision != nil {
			if err := o.Precision.check(); err != nil {
				return fmt.Errorf("%w (of %v)", err, u)
			}
			u.precision = *o.Precision
		}
		if o.Reshard != ReshardAuto {
			reshard, u.smaller = o.Reshard, false
		}
		u.noBackwardUnshard = o.NoBackwardUnshard
	}
	if m.config.ReshardSize == 1 && reshard == ReshardAuto {
		reshard = ReshardAfterBackward
	}
	u.keep = reshard == ReshardAfterBackward || u.root && reshard == ReshardAuto
	for _, mod := range modules {
		for _, n := range nn.NamedParams(mod.Module) {
			if w.leaveAlone(n.Param) {
				continue
			}
			if other := w.owner[n.Param]; other != nil {
				if other == u || u.around(other) {
					continue
				}
				return fmt.Errorf("fsdp: parameter %s belongs to %v and to %v: tied parameters must be in one unit; Config.Together makes one of several modules",
					w.names[n.Param], other, u)
			}
			w.owner[n.Param] = u
			p, err := newParam(nn.Named{Name: w.names[n.Param], Param: n.Param}, m.shard.Rank(), m.shard.Size(), &m.config, u.precision)
			if err != nil {
				return err
			}
			u.params = append(u.params, p)
			m.byName[p.name] = p
		}
	}
	u.pieces = cut(u.params, m.config.DirectBytes)
	m.units = append(m.units, u)
	return nil
}

// checkTied refuses a parameter that is reachable from a unit and from outside of it: its unit would free it while the
// other module computes.
func (w *wrapper) checkTied() error {
	for _, n := range nn.NamedParams(w.root) {
		u := w.owner[n.Param]
		if u == nil || u.root {
			continue
		}
		for _, name := range append([]string{n.Name}, n.Shared...) {
			if !slices.ContainsFunc(u.members, func(module string) bool { return within(name, module) }) {
				return fmt.Errorf("fsdp: parameter %s of %v is also %s, outside the unit: tied parameters must be in one unit; Config.Together makes one of several modules", n.Name, u, name)
			}
		}
	}
	return nil
}

// shard cuts every parameter down to this rank's rows, in the order of declaration.
func (w *wrapper) shard(ctx context.Context) error {
	m := w.m
	if m.config.SyncModuleStates {
		if err := w.checkSync(ctx); err != nil {
			return err
		}
	}
	return torch.Try(func() {
		torch.NoGrad(func() {
			for _, n := range nn.NamedParams(w.root) {
				if m.config.SyncModuleStates {
					torch.Throw(w.broadcast(ctx, n))
				}
				p := m.byName[n.Name]
				if p != nil {
					p.cutRows(m.shard.Size())
				} else if !n.Param.Replicated() {
					m.ignored = append(m.ignored, n.Param)
				}
				m.names = append(m.names, n.Name)
			}
		})
	})
}

// finish hooks the units in, when nothing can fail any more.
func (w *wrapper) finish() {
	for i, h := range w.modules {
		h.LayerHooks().AddHook(w.members[i])
	}
}

// checkSync makes sure, on all ranks alike, that ranks have the same parameters and rank 0 their values.
func (w *wrapper) checkSync(ctx context.Context) error {
	missing := ""
	description := ""
	for _, n := range nn.NamedParams(w.root) {
		t := n.Param.Tensor()
		description += fmt.Sprintln(n.Name, t.DType(), n.Param.Shape())
		if missing == "" && t.Device().Type == torch.MetaType {
			missing = n.Name
		}
	}
	hash := int64(hashOf(description))
	bad := int64(0)
	if w.m.world.Rank() == 0 && missing != "" {
		bad = 1
	}
	var values []int64
	err := torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		t := s.Own(torch.FromSlice([]int64{hash, -hash, bad}))
		torch.Throw(dist.Wait(ctx)(w.m.world.AllReduce(ctx, t, dist.Max)))
		values = torch.Slice[int64](t)
	})
	switch {
	case err != nil:
		return err
	case values[0] != -values[1]:
		return errors.New("Config.SyncModuleStates: ranks have different models: names, types and shapes of the parameters must agree")
	case values[2] != 0 && bad != 0:
		return fmt.Errorf("Config.SyncModuleStates: rank 0 has no values: %s is on the meta device", missing)
	case values[2] != 0:
		return errors.New("Config.SyncModuleStates: rank 0 has no values: its parameters are on the meta device")
	}
	return nil
}

// broadcast gives a whole parameter or buffer the value of rank 0, as bytes. Must run without grad.
func (w *wrapper) broadcast(ctx context.Context, n nn.Named) error {
	p := n.Param
	if t := p.Tensor(); t.Device().Type == torch.MetaType {
		p.SetTensor(torch.EmptyOn(w.m.config.Device, t.DType(), p.Shape()...))
		t.Free()
	}
	if numel(p.Shape()) == 0 {
		return nil
	}
	s := torch.NewScope(nil)
	defer s.Close()
	bytes := p.In(s).VariableData().View(-1).ViewDType(torch.Uint8)
	if err := dist.Wait(ctx)(w.m.world.Broadcast(dist.WithLabel(ctx, n.Name), bytes, 0)); err != nil {
		return fmt.Errorf("broadcast %s: %w", n.Name, err)
	}
	return nil
}
