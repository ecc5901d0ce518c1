package peft

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// prefix is what PEFT puts before the names of a model's parameters.
const prefix = "base_model.model."

// SaveOptions are the settings of Save. The zero value saves a model that is not sharded.
type SaveOptions struct {
	// Full gives the whole value of a parameter, in no scope; sharded models gather it here. It is called for every
	// parameter in the same order on every rank. Nil takes the parameter's own value.
	Full func(ctx context.Context, name string, p *nn.Param) (*torch.Tensor, error)
	// Silent is for ranks that help to gather and write nothing.
	Silent bool
}

// params lists the adapter's parameters with the names that they have in a file.
func (a *Adapter) params() []nn.Named {
	var list []nn.Named
	for _, l := range a.Layers {
		list = append(list, nn.Named{Name: prefix + l.Name + ".lora_A.weight", Param: l.A},
			nn.Named{Name: prefix + l.Name + ".lora_B.weight", Param: l.B})
	}
	return list
}

// Save writes adapter_config.json and adapter_model.safetensors into dir, which is made if need be. Each file appears as a
// whole, the weights last.
func (a *Adapter) Save(ctx context.Context, dir string, o SaveOptions) error {
	if o.Full == nil {
		o.Full = func(_ context.Context, _ string, p *nn.Param) (*torch.Tensor, error) { return p.Tensor().Detach(), nil }
	}
	out, failed := a.create(dir, o)
	if out != nil {
		defer out.Abort()
	}
	for _, n := range a.params() {
		t, err := o.Full(ctx, n.Name, n.Param)
		if err != nil {
			return fmt.Errorf("peft: save %s: %w", n.Name, err)
		}
		// A rank that cannot write goes on gathering: the others wait for it.
		if out != nil && failed == nil {
			failed = write(out, n.Name, t)
		}
		t.Free()
	}
	if failed == nil && out != nil {
		if failed = writeConfig(dir, a.Config); failed == nil {
			failed = out.Commit()
		}
	}
	if failed != nil {
		return fmt.Errorf("peft: save: %w", failed)
	}
	return nil
}

func (a *Adapter) create(dir string, o SaveOptions) (*safetensors.Writer, error) {
	if o.Silent {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var specs []safetensors.Spec
	for _, n := range a.params() {
		specs = append(specs, safetensors.Spec{Name: n.Name, DType: n.Param.Tensor().DType().Safetensors(), Shape: n.Param.Shape()})
	}
	return safetensors.Create(filepath.Join(dir, WeightsName), specs, []safetensors.KV{{Key: "format", Value: "pt"}})
}

func write(out *safetensors.Writer, name string, t *torch.Tensor) (err error) {
	var data []byte
	if err := torch.Try(func() { data = t.Bytes() }); err != nil {
		return err
	}
	return out.Write(name, data)
}

func writeConfig(dir string, c Config) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, ConfigName), append(data, '\n'))
}

// LoadAdapter applies the adapter in a folder to a model that is not sharded yet.
func LoadAdapter(dir string, model any, o Options) (_ *Adapter, err error) {
	defer torch.Catch(&err)
	c, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	a, err := attach(model, c, o)
	if err != nil {
		return nil, err
	}
	if err := a.LoadWeights(dir); err != nil {
		a.detach(model)
		return nil, err
	}
	return a, nil
}

// LoadWeights reads the values of the adapters from a folder; of sharded ones, the rows that this rank owns. The file must
// have exactly this adapter's tensors.
func (a *Adapter) LoadWeights(dir string) error {
	f, err := safetensors.Open(filepath.Join(dir, WeightsName))
	if err != nil {
		return fmt.Errorf("peft: load: %w", err)
	}
	defer f.Close()
	params := a.params()
	known := make(map[string]bool, len(params))
	for _, n := range params {
		known[n.Name] = true
	}
	for _, name := range f.Names() {
		if !known[name] {
			return fmt.Errorf("peft: load: %s has the tensor %q, for which the model has no adapter", f.Path(), name)
		}
	}
	for _, n := range params {
		if err := loadParam(f, n); err != nil {
			return fmt.Errorf("peft: load: %s: %w", f.Path(), err)
		}
	}
	return nil
}

func loadParam(f *safetensors.File, n nn.Named) error {
	v, err := f.Tensor(n.Name)
	if err != nil {
		return err
	}
	if shape := n.Param.Shape(); !slices.Equal(v.Shape, shape) {
		return fmt.Errorf("tensor %q has shape %v, the adapter has %v", n.Name, v.Shape, shape)
	}
	dtype, err := torch.ParseDType(v.DType)
	if err != nil || !dtype.IsFloat() {
		return fmt.Errorf("tensor %q is stored as %s, which is no floating-point type", n.Name, v.DType)
	}
	lo, hi := n.Param.Rows()
	return torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			value := s.Own(torch.FromBytes(dtype, v.Rows(lo, hi), hi-lo, v.Shape[1]))
			n.Param.In(s).VariableData().Copy(value)
		})
	})
}
