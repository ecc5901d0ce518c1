// Package optim holds the optimisers AdamW, Adam and SGD, and gradient clipping.
//
// An optimiser updates the parameters that its groups list, in that order, from the gradients that backward left on them.
// Under sharding a parameter's tensor is this rank's rows, and so is its state: optimisers need no communication. State
// is made at a parameter's first step, as in PyTorch, whose names it has. The update itself is libtorch's fused kernel, or, with
// Foreach, PyTorch's foreach formulas.
package optim

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Optimizer is what a training loop drives.
type Optimizer interface {
	// Step updates every parameter that has a gradient. It panics with a *torch.Error, like operators.
	Step()
	// ZeroGrad drops the gradients.
	ZeroGrad()
	// Groups are the parameter groups in the order of their addition. Learning rates may be changed in them.
	Groups() []*Group
	// LR is the learning rate of the first group.
	LR() float64
	// SetLR gives every group the same learning rate.
	SetLR(lr float64)
	// ScaleLR gives every group factor times its initial learning rate, as schedulers do.
	ScaleLR(factor float64)
	// InitState makes the state that the first Step would make, for loading into it.
	InitState()
	// State lists the state tensors. They stay the optimiser's: valid until Close, changed by Step.
	State() []NamedState
	// LoadState replaces the whole state by copies of what State gave earlier, there or on another rank layout.
	LoadState(state []NamedState) error
	// Close frees the state.
	Close()
}

// Group is a set of parameters with settings of its own.
type Group struct {
	Params      []*nn.Param
	LR          float64
	InitialLR   float64
	WeightDecay float64
}

// NamedState is one state tensor of one parameter.
type NamedState struct {
	Index  int           // of the parameter, counted over all groups in order
	Param  *nn.Param     // not looked at by LoadState
	Name   string        // PyTorch's: "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"
	Tensor *torch.Tensor // "step": a float32 scalar; else of the parameter's (local) shape and dtype
}

// String is the state's place, for error messages.
func (s NamedState) String() string { return fmt.Sprintf("%s of parameter %d", s.Name, s.Index) }

// base is what the optimisers share: groups, and state tensors by name for each parameter.
type base struct {
	name   string
	groups []*Group
	params []*paramState
	names  []string // of the state tensors that a full state has, in order
}

type paramState struct {
	param *nn.Param
	group *Group
	state map[string]*torch.Tensor // in no scope; read through names, never ranged over
}

func (b *base) addGroup(params []*nn.Param, lr, decay float64) {
	g := &Group{Params: params, LR: lr, InitialLR: lr, WeightDecay: decay}
	b.groups = append(b.groups, g)
	for _, p := range params {
		b.params = append(b.params, &paramState{param: p, group: g})
	}
}

// Groups are the parameter groups.
func (b *base) Groups() []*Group { return b.groups }

// LR is the learning rate of the first group, 0 without groups.
func (b *base) LR() float64 {
	if len(b.groups) == 0 {
		return 0
	}
	return b.groups[0].LR
}

// SetLR gives every group the same learning rate.
func (b *base) SetLR(lr float64) {
	for _, g := range b.groups {
		g.LR = lr
	}
}

// ScaleLR gives every group factor times its initial learning rate.
func (b *base) ScaleLR(factor float64) {
	for _, g := range b.groups {
		g.LR = factor * g.InitialLR
	}
}

// ZeroGrad drops the gradients.
func (b *base) ZeroGrad() {
	for _, p := range b.params {
		p.param.Tensor().SetGrad(nil)
	}
}

// InitState makes the state of every parameter that has none.
func (b *base) InitState() {
	torch.NoGrad(func() {
		for _, p := range b.params {
			b.init(p)
		}
	})
}

// init makes p's state if it has none, and tells whether it did.
func (b *base) init(p *paramState) bool {
	if p.state != nil {
		return false
	}
	state := make(map[string]*torch.Tensor, len(b.names))
	t := p.param.Tensor()
	for _, name := range b.names {
		if name == "step" {
			state[name] = torch.EmptyOn(t.Device(), torch.Float32).Zero()
			continue
		}
		zeros := t.ZerosLike()
		state[name] = zeros.In(nil)
		zeros.Free()
	}
	p.state = state
	return true
}

// State lists the state of the parameters that have some.
func (b *base) State() []NamedState {
	var list []NamedState
	for i, p := range b.params {
		if p.state == nil {
			continue
		}
		for _, name := range b.names {
			list = append(list, NamedState{Index: i, Param: p.param, Name: name, Tensor: p.state[name]})
		}
	}
	return list
}

// LoadState checks everything first, so an error leaves the state as it was.
func (b *base) LoadState(state []NamedState) error {
	given := make(map[string]bool, len(state))
	count := make([]int, len(b.params))
	for _, s := range state {
		switch {
		case s.Index < 0 || s.Index >= len(b.params):
			return fmt.Errorf("optim: %s state: %v, but there are %d parameters", b.name, s, len(b.params))
		case !slices.Contains(b.names, s.Name):
			return fmt.Errorf("optim: %s state: %v is unknown; it has %v", b.name, s, b.names)
		case given[s.String()]:
			return fmt.Errorf("optim: %s state: %v is given twice", b.name, s)
		case s.Tensor == nil:
			return fmt.Errorf("optim: %s state: %v is nil", b.name, s)
		}
		want := b.params[s.Index].param.Tensor().Shape()
		if s.Name == "step" {
			want = nil
		}
		if got := s.Tensor.Shape(); !slices.Equal(got, want) {
			return fmt.Errorf("optim: %s state: %v has shape %v, want %v", b.name, s, got, want)
		}
		given[s.String()] = true
		count[s.Index]++
	}
	for i, n := range count {
		if n != 0 && n != len(b.names) {
			return fmt.Errorf("optim: %s state: parameter %d has %d of the state tensors %v", b.name, i, n, b.names)
		}
	}
	return torch.Try(func() {
		torch.NoGrad(func() {
			for i, p := range b.params {
				if count[i] == 0 {
					p.free(b.names)
				} else {
					b.init(p)
				}
			}
			for _, s := range state {
				b.params[s.Index].state[s.Name].Copy(s.Tensor)
			}
		})
	})
}

// Close frees the state.
func (b *base) Close() {
	for _, p := range b.params {
		p.free(b.names)
	}
}

func (p *paramState) free(names []string) {
	for _, name := range names {
		p.state[name].Free()
	}
	p.state = nil
}

// batch is the parameters of one group that one kernel call can update: same device and dtype.
type batch struct {
	group  *Group
	device torch.Device
	dtype  torch.DType
	first  bool // their state was made by this step
	states []*paramState
	params []*torch.Tensor
	grads  []*torch.Tensor
}

// step calls update for each batch, inside NoGrad and a scope. Parameters without a gradient, and shards without
// elements, take no part.
func (b *base) step(update func(*batch, *torch.Scope)) {
	scope := torch.NewScope(nil)
	defer scope.Close()
	torch.NoGrad(func() {
		var batches []*batch
		for i, p := range b.params {
			t := p.param.In(scope)
			g := t.Grad()
			if g == nil {
				continue
			}
			if !slices.Equal(g.Shape(), t.Shape()) {
				torch.Throw(fmt.Errorf("optim: %s: gradient of parameter %d is %v, the parameter %v", b.name, i, g, t))
			}
			first := b.init(p)
			if t.Numel() == 0 {
				continue
			}
			key := batch{group: p.group, device: t.Device(), dtype: t.DType(), first: first}
			at := slices.IndexFunc(batches, func(o *batch) bool {
				return o.group == key.group && o.device == key.device && o.dtype == key.dtype && o.first == key.first
			})
			if at < 0 {
				at = len(batches)
				batches = append(batches, &key)
			}
			o := batches[at]
			o.states = append(o.states, p)
			o.params = append(o.params, t)
			o.grads = append(o.grads, g.To(key.dtype).Contiguous())
		}
		for _, o := range batches {
			update(o, scope)
		}
	})
}

func (o *batch) list(name string, s *torch.Scope) []*torch.Tensor {
	list := make([]*torch.Tensor, len(o.states))
	for i, p := range o.states {
		list[i] = p.state[name].In(s)
	}
	return list
}

// undecayed matches the names of parameters that transformers' trainer leaves without weight decay.
var undecayed = regexp.MustCompile(`bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.)`)

// SplitDecay divides the trainable parameters into those that weight decay applies to and the others: biases and norms,
// by transformers' rule for names.
func SplitDecay(named []nn.Named) (decay, noDecay []*nn.Param) {
	for _, n := range named {
		switch {
		case !n.Param.Trainable():
		case undecayed.MatchString(n.Name):
			noDecay = append(noDecay, n.Param)
		default:
			decay = append(decay, n.Param)
		}
	}
	return decay, noDecay
}
