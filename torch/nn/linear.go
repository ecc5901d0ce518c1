package nn

import (
	"reflect"

	"github.com/gofsdp/gofsdp/torch"
)

// LinearLayer is what a model holds where it needs a linear map: a Linear, or what took its place (a quantised weight, an
// adapter around either). Inputs are (…, in), outputs (…, out).
type LinearLayer interface {
	Layer[*torch.Tensor, *torch.Tensor]
	// Features gives the sizes of the last dimension of inputs and outputs.
	Features() (in, out int64)
	// ForwardLowRank is Forward(x) + scaling · x·aᵀ·bᵀ in one operator; a is (r, in) and b (out, r), of x's dtype.
	ForwardLowRank(c *Call, x, a, b *torch.Tensor, scaling float64) *torch.Tensor
}

// Linear is y = x·Wᵀ + bias.
type Linear struct {
	Hooks
	Weight *Param `torch:"weight"` // (out, in)
	Bias   *Param `torch:"bias"`   // (out), or nil
}

// NewLinear makes a linear layer with uninitialised (or, on torch.Meta, absent) values.
func NewLinear(in, out int64, bias bool, dtype torch.DType, device torch.Device) *Linear {
	l := &Linear{Weight: NewParam(torch.EmptyOn(device, dtype, out, in), true)}
	if bias {
		l.Bias = NewParam(torch.EmptyOn(device, dtype, out), true)
	}
	return l
}

// ResetParameters draws PyTorch's initial values.
func (l *Linear) ResetParameters(g *torch.Generator) { resetAffine(l.Weight, l.Bias, g) }

// Features gives the sizes of the last dimension of inputs and outputs.
func (l *Linear) Features() (in, out int64) { return l.Weight.shape[1], l.Weight.shape[0] }

// Forward computes x·Wᵀ + bias.
func (l *Linear) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return x.Linear(l.Weight.In(c.Scope), l.Bias.in(c.Scope))
}

// ForwardLowRank computes x·Wᵀ + bias + scaling · x·aᵀ·bᵀ.
func (l *Linear) ForwardLowRank(c *Call, x, a, b *torch.Tensor, scaling float64) *torch.Tensor {
	return torch.CallOne("gofsdp::lora_linear", x, l.Weight.In(c.Scope), a, b, scaling, l.Bias.in(c.Scope))
}

// in is In for a parameter that may be absent.
func (p *Param) in(s *torch.Scope) *torch.Tensor {
	if p == nil {
		return nil
	}
	return p.In(s)
}

var linearType = reflect.TypeFor[LinearLayer]()

// ReplaceLinears puts f's result in the place of every linear layer of a model, in the order of declaration. name is the
// layer's path. f returns its argument for layers that stay. Only fields of type LinearLayer take part, and layers inside
// a linear layer do not.
func ReplaceLinears(model any, f func(name string, l LinearLayer) LinearLayer) {
	seen := map[uintptr]bool{}
	walk(reflect.ValueOf(model), "", func(name string, v reflect.Value) bool {
		if seen[v.Pointer()] || v.Type().Implements(linearType) {
			return false
		}
		seen[v.Pointer()] = true
		replaceFields(v.Elem(), name, f)
		return true
	})
}

func replaceFields(v reflect.Value, name string, f func(string, LinearLayer) LinearLayer) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		tag, tagged := field.Tag.Lookup("torch")
		if !field.IsExported() || tag == "-" {
			continue
		}
		if !tagged {
			tag = field.Name
		}
		switch value := v.Field(i); {
		case field.Anonymous && !tagged && field.Type.Kind() == reflect.Struct:
			replaceFields(value, name, f)
		case field.Type == linearType && !value.IsNil():
			value.Set(reflect.ValueOf(f(join(name, tag), value.Interface().(LinearLayer))))
		}
	}
}
