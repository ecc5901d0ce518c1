package nn

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
)

// NamedTensor is a tensor of a state dict.
type NamedTensor struct {
	Name   string
	Tensor *torch.Tensor
}

// NamedBuffers lists the buffers of a module in the order of declaration, each once.
func NamedBuffers(module any) []Named {
	return slices.DeleteFunc(NamedParams(module), func(n Named) bool { return !n.Param.Buffer() })
}

// StateDict lists parameters and buffers under all their names, in the order of declaration. The tensors share the
// module's memory (Clone them to keep today's values), are outside autograd, and in no scope. Of a sharded parameter it
// is this rank's rows.
func StateDict(module any) []NamedTensor {
	var list []NamedTensor
	torch.NoGrad(func() {
		for _, n := range NamedParams(module) {
			t := n.Param.Tensor().Detach()
			list = append(list, NamedTensor{n.Name, t})
			for _, name := range n.Shared {
				list = append(list, NamedTensor{name, t})
			}
		}
	})
	return list
}

// LoadStateDict copies tensors into a module's parameters and buffers of the same names, converting dtypes. Tensors have
// the shape of the whole parameter; of a sharded one this rank's rows are copied. missing are the module's names that
// state lacks, unexpected those of state that the module lacks; the rest is loaded. A tensor of another shape, or a name
// that occurs twice, is an error, and then nothing is changed. Parameters that share their memory under two names need
// only one of them.
func LoadStateDict(module any, state []NamedTensor) (missing, unexpected []string, err error) {
	params := map[string]*Param{}
	named := NamedParams(module)
	for _, n := range named {
		for _, name := range append([]string{n.Name}, n.Shared...) {
			params[name] = n.Param
		}
	}
	given := map[string]bool{}
	filled := map[*Param]bool{}
	for _, s := range state {
		p := params[s.Name]
		switch {
		case given[s.Name]:
			return nil, nil, fmt.Errorf("nn: load state: %q is given twice", s.Name)
		case p == nil:
			unexpected = append(unexpected, s.Name)
		case s.Tensor == nil:
			return nil, nil, fmt.Errorf("nn: load state: %q is nil", s.Name)
		case p.Tensor().Device().Type == torch.MetaType:
			return nil, nil, fmt.Errorf("nn: load state: the module's %q is on the meta device: give it memory first", s.Name)
		case !slices.Equal(s.Tensor.Shape(), p.shape):
			return nil, nil, fmt.Errorf("nn: load state: %q has shape %v, the module's has %v", s.Name, s.Tensor.Shape(), p.shape)
		default:
			filled[p] = true
		}
		given[s.Name] = true
	}
	for _, n := range named {
		if !filled[n.Param] {
			missing = append(missing, append([]string{n.Name}, n.Shared...)...)
		}
	}
	err = torch.Try(func() {
		torch.NoGrad(func() {
			for _, s := range state {
				if p := params[s.Name]; p != nil {
					copyRows(p, s.Tensor)
				}
			}
		})
	})
	return missing, unexpected, err
}

// copyRows fills the rows of p that this rank owns from the whole src.
func copyRows(p *Param, src *torch.Tensor) {
	dst := p.Tensor()
	if slices.Equal(dst.Shape(), p.shape) {
		dst.Copy(src)
		return
	}
	rows := src.Narrow(0, p.lo, p.hi-p.lo)
	defer rows.Free()
	dst.Copy(rows)
}

// Resetter is a module that can draw its initial values.
type Resetter interface {
	// ResetParameters draws PyTorch's initial values of this module alone; g nil is the process-wide generator.
	ResetParameters(g *torch.Generator)
}

// ResetParameters draws the initial values of every module in a model, outer ones first, in the order of declaration.
// Where a model declares its layers in PyTorch's order the values are PyTorch's for the same seed.
func ResetParameters(model any, g *torch.Generator) {
	for _, m := range Modules(model) {
		if r, ok := m.Module.(Resetter); ok {
			r.ResetParameters(g)
		}
	}
}
