package peft

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// LoRALinear is a linear layer with a low-rank update: base(x) + scaling · B·A·dropout(x).
type LoRALinear struct {
	nn.Hooks
	Base nn.LinearLayer `torch:""`              // frozen; its parameters keep their names
	A    *nn.Param      `torch:"lora_A.weight"` // (r, in)
	B    *nn.Param      `torch:"lora_B.weight"` // (out, r)

	Scaling float64
	Dropout float64 // probability that an element of x is zeroed in training
}

// Features gives the sizes of the last dimension of inputs and outputs.
func (l *LoRALinear) Features() (in, out int64) { return l.Base.Features() }

// AdapterParams are the parameters that the base model's checkpoint does not have.
func (l *LoRALinear) AdapterParams() []*nn.Param { return []*nn.Param{l.A, l.B} }

// Forward computes the base layer and its update, in one operator unless dropout is at work. It computes in x's dtype,
// whatever that of the adapter is.
func (l *LoRALinear) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	dtype := x.DType()
	a, b := l.A.In(c.Scope).To(dtype), l.B.In(c.Scope).To(dtype)
	if !c.Training || l.Dropout == 0 {
		return l.Base.ForwardLowRank(c, x, a, b, l.Scaling)
	}
	dropout := nn.Dropout{P: l.Dropout}
	update := dropout.Forward(c, x).Linear(a, nil).Linear(b, nil)
	return nn.Run(l.Base, c, x).AddScaled(update, l.Scaling)
}

// ForwardLowRank adds a further low-rank update to Forward.
func (l *LoRALinear) ForwardLowRank(c *nn.Call, x, a, b *torch.Tensor, scaling float64) *torch.Tensor {
	return l.Forward(c, x).AddScaled(x.Linear(a, nil).Linear(b, nil), scaling)
}

// Options of Apply and LoadAdapter. The zero value makes float32 adapters on the CPU.
type Options struct {
	DType  torch.DType  // of the adapters; 0 stands for float32, which PEFT uses too, whatever the base model's
	Device torch.Device // where they live
	// Generator of the initial values; nil is one with seed 0, so that all ranks start alike.
	Generator *torch.Generator
}

// Adapter is the adapters of a model.
type Adapter struct {
	Config Config
	Layers []Layer
}

// Layer is a layer with an adapter, and its path in the model.
type Layer struct {
	Name string
	*LoRALinear
}

// Apply freezes a model and gives the targeted linear layers adapters that change nothing yet: B is zero. The model may be
// on the meta device; it must not be sharded yet.
func Apply(model any, c Config, o Options) (_ *Adapter, err error) {
	defer torch.Catch(&err)
	a, err := attach(model, c, o)
	if err != nil {
		return nil, err
	}
	if o.Generator == nil {
		o.Generator = torch.NewGenerator(0)
	}
	for _, l := range a.Layers {
		l.reset(c.InitLoRAWeights, o.Generator)
	}
	return a, nil
}

// attach puts adapters without values into a model.
func attach(model any, c Config, o Options) (*Adapter, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("peft: %w", err)
	}
	if o.DType == 0 {
		o.DType = torch.Float32
	}
	a := &Adapter{Config: c}
	var seen []string
	var failed error
	err := torch.Try(func() {
		nn.ReplaceLinears(model, func(name string, base nn.LinearLayer) nn.LinearLayer {
			seen = append(seen, name)
			rank, scaling, ok, err := c.layer(name)
			if _, has := base.(*LoRALinear); has && ok && err == nil {
				err = errors.New("the layer has an adapter already")
			}
			if err != nil && failed == nil {
				failed = fmt.Errorf("peft: %s: %w", name, err)
			}
			if !ok || failed != nil {
				return base
			}
			in, out := base.Features()
			l := &LoRALinear{
				Base: base, Scaling: scaling, Dropout: c.LoRADropout,
				A: nn.NewParam(torch.EmptyOn(o.Device, o.DType, int64(rank), in), true),
				B: nn.NewParam(torch.EmptyOn(o.Device, o.DType, out, int64(rank)), true),
			}
			a.Layers = append(a.Layers, Layer{name, l})
			return l
		})
	})
	if err == nil {
		err = failed
	}
	if err == nil {
		err = a.check(seen)
	}
	if err != nil {
		a.detach(model)
		return nil, err
	}
	for _, n := range nn.Params(model) {
		n.SetTrainable(false)
	}
	for _, l := range a.Layers {
		l.A.SetTrainable(true)
		l.B.SetTrainable(true)
	}
	a.Config.TargetModules = a.resolved()
	return a, nil
}

// check makes sure that every target names a layer: a misspelt one would silently train less.
func (a *Adapter) check(seen []string) error {
	for _, target := range a.Config.TargetModules.Names {
		one := Targets(target)
		if !slices.ContainsFunc(seen, func(name string) bool { ok, _ := one.match(name); return ok }) {
			return fmt.Errorf("peft: target module %q names no linear layer; the model has %s", target, lastNames(seen))
		}
	}
	if len(a.Layers) == 0 {
		return fmt.Errorf("peft: the configuration targets no linear layer; the model has %s", lastNames(seen))
	}
	return nil
}

// lastNames lists the different last components of paths.
func lastNames(paths []string) string { return strings.Join(suffixes(paths), ", ") }

func suffixes(paths []string) []string {
	var list []string
	for _, p := range paths {
		if last := p[strings.LastIndex(p, ".")+1:]; !slices.Contains(list, last) {
			list = append(list, last)
		}
	}
	return list
}

// resolved replaces "all-linear" by names: other programs read the file without the model.
func (a *Adapter) resolved() Modules {
	if a.Config.TargetModules.Regexp != AllLinear.Regexp {
		return a.Config.TargetModules
	}
	paths := make([]string, len(a.Layers))
	for i, l := range a.Layers {
		paths[i] = l.Name
	}
	return Targets(suffixes(paths)...)
}

// detach undoes attach.
func (a *Adapter) detach(model any) {
	nn.ReplaceLinears(model, func(_ string, l nn.LinearLayer) nn.LinearLayer {
		for _, mine := range a.Layers {
			if l == nn.LinearLayer(mine.LoRALinear) {
				return mine.Base
			}
		}
		return l
	})
}

// reset gives A and B their initial values.
func (l *LoRALinear) reset(init string, g *torch.Generator) {
	torch.NoGrad(func() {
		shape := l.A.Shape()
		a := torch.Empty(torch.Float32, shape...)
		defer a.Free()
		if init == "gaussian" {
			a.NormalInPlace(0, 1/float64(shape[0]), g)
		} else { // Kaiming's uniform distribution with a = √5
			bound := 1 / math.Sqrt(float64(shape[1]))
			a.UniformInPlace(-bound, bound, g)
		}
		l.A.Tensor().VariableData().Copy(a)
		l.B.Tensor().VariableData().Zero()
	})
}

// dequantizer is a base layer that is not dense.
type dequantizer interface {
	Dequantize(dtype torch.DType) (*nn.Linear, error)
}

// Merge adds the updates to the base weights and takes the adapters out of the model. Quantised layers become dense, of
// the adapter's dtype: four bits could not hold the update. The model must not be sharded.
func (a *Adapter) Merge(model any) error {
	merged := map[nn.LinearLayer]nn.LinearLayer{}
	for _, l := range a.Layers {
		base, err := l.merge()
		if err != nil {
			return fmt.Errorf("peft: merge %s: %w", l.Name, err)
		}
		merged[l.LoRALinear] = base
	}
	nn.ReplaceLinears(model, func(_ string, l nn.LinearLayer) nn.LinearLayer {
		if base, ok := merged[l]; ok {
			return base
		}
		return l
	})
	return nil
}

func (l *LoRALinear) merge() (nn.LinearLayer, error) {
	for _, n := range nn.NamedParams(l) {
		if lo, hi := n.Param.Rows(); !n.Param.Replicated() && (lo != 0 || hi != n.Param.Shape()[0]) {
			return nil, fmt.Errorf("%s is sharded: this rank holds rows %d to %d", n.Name, lo, hi)
		}
	}
	dense, ok := l.Base.(*nn.Linear)
	if q, quantized := l.Base.(dequantizer); quantized {
		var err error
		if dense, err = q.Dequantize(l.A.Tensor().DType()); err != nil {
			return nil, err
		}
	} else if !ok {
		return nil, fmt.Errorf("a base layer of type %T cannot be merged", l.Base)
	}
	err := torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			update := l.B.In(s).MM(l.A.In(s)).MulScalar(l.Scaling)
			w := dense.Weight.In(s)
			w.VariableData().Copy(w.To(update.DType()).Add(update))
		})
	})
	return dense, err
}
