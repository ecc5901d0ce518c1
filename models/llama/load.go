package llama

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// LoadOptions are the settings of Load. The zero value loads on one rank, to the CPU.
type LoadOptions struct {
	// Group holds the ranks that load together. Quantised layers need it where the model is sharded.
	Group dist.Group
	// Device is where the parameters go; the zero value is the CPU.
	Device torch.Device
	// Progress is told how many of the parameters are loaded; nil is not called.
	Progress func(done, total int)
}

// weightLoader is a module that makes its parameters from a stored weight of another form, as quantised layers do.
type weightLoader interface {
	LoadWeight(ctx context.Context, w modelio.View, g dist.Group) error
}

// adapter is a module with parameters that a base model's checkpoint does not have.
type adapter interface{ AdapterParams() []*nn.Param }

// Load fills the parameters of a model with the rows that this rank owns. It reads those rows only, through mapped files,
// and gives the pages back, so memory is bounded by the largest part of a tensor. The model may be sharded before or after.
// Parameters of other dtypes than stored are converted; those of adapters are left alone.
func Load(ctx context.Context, m *Model, w *modelio.Weights, o LoadOptions) (err error) {
	defer torch.Catch(&err)
	if o.Group == nil {
		o.Group = dist.NewSingle()
	}
	loaded := map[*nn.Param]bool{}
	for _, module := range nn.Modules(m) {
		if a, ok := module.Module.(adapter); ok {
			for _, p := range a.AdapterParams() {
				loaded[p] = true
			}
		}
		l, ok := module.Module.(weightLoader)
		if !ok {
			continue
		}
		view, err := w.Tensor(module.Name + ".weight")
		if err != nil {
			return fmt.Errorf("llama: load: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("llama: load %s: %w", module.Name, err)
		}
		if err := l.LoadWeight(ctx, view, o.Group); err != nil {
			return fmt.Errorf("llama: load %s: rank %d: %w", module.Name, o.Group.Rank(), err)
		}
		// The parameters made from the weight are those directly under it; a bias is stored by itself.
		for _, n := range nn.NamedParams(module.Module) {
			if n.Name != "bias" {
				loaded[n.Param] = true
				moveTo(n.Param, o.Device)
			}
		}
	}
	params := nn.NamedParams(m)
	for i, n := range params {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("llama: load %s: %w", n.Name, err)
		}
		if !loaded[n.Param] {
			if err := loadParam(n, w, o); err != nil {
				return fmt.Errorf("llama: load: %w", err)
			}
		}
		if o.Progress != nil {
			o.Progress(i+1, len(params))
		}
	}
	return nil
}

func loadParam(n nn.Named, w *modelio.Weights, o LoadOptions) error {
	name := n.Name
	for _, other := range n.Shared { // a tied parameter is stored under one of its names
		if !w.Has(name) {
			name = other
		}
	}
	view, err := w.Tensor(name)
	if err != nil {
		return err
	}
	if !slices.Equal(view.Shape, n.Param.Shape()) {
		return fmt.Errorf("%s is stored with shape %v, the model has %v", name, view.Shape, n.Param.Shape())
	}
	stored, err := torch.ParseDType(view.DType)
	if err != nil || !stored.IsFloat() {
		return fmt.Errorf("%s is stored as %s, which is no floating-point type", name, view.DType)
	}
	lo, hi := n.Param.Rows()
	data, err := view.Rows(lo, hi)
	if err != nil {
		return err
	}
	shape := slices.Clone(view.Shape)
	if len(shape) > 0 {
		shape[0] = hi - lo
	}
	err = torch.Try(func() { torch.NoGrad(func() { fill(n.Param, torch.FromBytes(stored, data, shape...), o.Device) }) })
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return view.Release(lo, hi)
}

// fill makes t, converted, the value of p: in place where p has one, so that sharding and optimisers keep what they hold.
func fill(p *nn.Param, t *torch.Tensor, device torch.Device) {
	now := p.Tensor()
	if now.Device().Type != torch.MetaType {
		now.VariableData().Copy(t)
		t.Free()
		return
	}
	converted := t.To(now.DType()).ToDevice(device)
	if !converted.IsSame(t) {
		t.Free()
	}
	p.SetTensor(converted)
}

func moveTo(p *nn.Param, device torch.Device) {
	if now := p.Tensor(); now.Device() != device {
		p.SetTensor(now.ToDevice(device))
		now.Free()
	}
}
