package fsdp

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

func hashOf(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64() >> 1
}

// Materialize draws the initial values of root, the model that Wrap got, where its parameters are on the meta device:
// module by module, whole, of which each rank keeps its rows. With the same seed on all ranks the values are those of
// nn.ResetParameters of the whole model, whatever the number of ranks; no rank ever holds more than one module whole, and
// tied parameters stay tied. Modules that hold such parameters must have a method ResetParameters.
func (m *Model) Materialize(root any, g *torch.Generator) error {
	return torch.Try(func() {
		torch.NoGrad(func() {
			absent := map[*nn.Param]bool{}
			for _, p := range nn.Params(root) {
				absent[p] = p.Tensor().Device().Type == torch.MetaType
			}
			for _, mod := range nn.Modules(root) {
				if r, ok := mod.Module.(nn.Resetter); ok {
					m.materialize(r, g, absent)
				}
			}
			var left []string
			for _, n := range nn.NamedParams(root) {
				if n.Param.Tensor().Device().Type == torch.MetaType {
					left = append(left, n.Name)
				}
			}
			if len(left) > 0 {
				torch.Throw(fmt.Errorf("fsdp: no module draws the values of %s: they are still on the meta device", strings.Join(left, ", ")))
			}
		})
	})
}

// materialize draws the values of one module's own parameters and keeps them where there were none. A parameter of several
// modules is drawn by each; the last one's values stay.
func (m *Model) materialize(r nn.Resetter, g *torch.Generator, absent map[*nn.Param]bool) {
	inner := map[*nn.Param]bool{}
	for _, mod := range nn.Modules(r)[1:] {
		for _, p := range nn.Params(mod.Module) {
			inner[p] = true
		}
	}
	var own []*nn.Param
	kept := map[*nn.Param]*torch.Tensor{} // of parameters that had a value before
	for _, p := range nn.Params(r) {
		if inner[p] {
			continue
		}
		own = append(own, p)
		before := p.Tensor()
		p.SetTensor(torch.EmptyOn(m.config.Device, before.DType(), p.Shape()...))
		if absent[p] {
			before.Free()
		} else {
			kept[p] = before
		}
	}
	r.ResetParameters(g)
	for _, p := range own {
		whole := p.Tensor()
		lo, hi := p.Rows()
		switch {
		case kept[p] != nil: // drawn again only so that the generator goes on as for the whole model
			p.SetTensor(kept[p])
			whole.Free()
		case len(p.Shape()) > 0 && hi-lo < p.Shape()[0]:
			s := torch.NewScope(nil)
			rows := whole.In(s).Detach().Narrow(0, lo, hi-lo).Clone()
			p.SetTensor(rows.In(nil))
			s.Close()
			whole.Free()
		}
	}
}
