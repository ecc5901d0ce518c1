package sft

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// output is a tensor of a model folder and how the ranks put it together. value is a collective; ranks that do not write
// may get nil.
type output struct {
	name  string
	shape []int64
	value func(ctx context.Context) (*torch.Tensor, error)
}

// SaveModel writes the whole model as a Hugging Face folder in the given dtype, parameter by parameter: no rank holds
// more than one of them. base is the folder that it came from, for configuration and tokenizer. A collective; rank 0
// writes.
func (b *Built) SaveModel(ctx context.Context, base, dir string, dtype torch.DType) error {
	var list []output
	for s := range b.Sharded.Shards() {
		list = append(list, output{s.Name, s.Shape, func(ctx context.Context) (*torch.Tensor, error) { return b.Sharded.FullTensor(ctx, s.Name) }})
	}
	return b.saveFolder(ctx, base, dir, dtype, list)
}

// SaveMerged is SaveModel for a model with adapters: every update is added to its weight, and four-bit weights become dense,
// layer by layer. The result is that of a merge in one process, of the weights as the training saw them.
func (b *Built) SaveMerged(ctx context.Context, base, dir string, dtype torch.DType) error {
	o := peft.SaveOptions{
		Full: func(ctx context.Context, _ string, p *nn.Param) (*torch.Tensor, error) {
			if p.Replicated() {
				return p.Tensor().Detach(), nil
			}
			return b.Sharded.FullParam(ctx, p)
		},
		Silent: b.Sharded.Group().Rank() != 0,
	}
	full := func(ctx context.Context, p *nn.Param) (*torch.Tensor, error) { return o.Full(ctx, "", p) }
	taken := map[*nn.Param]bool{}
	values := map[string]output{} // of weights that are not stored as they are
	for _, m := range nn.Modules(b.Model) {
		name := m.Name + ".weight"
		switch l := m.Module.(type) {
		case *peft.LoRALinear:
			in, out := l.Features()
			values[name] = output{name, []int64{out, in}, func(ctx context.Context) (*torch.Tensor, error) { return l.MergedWeight(ctx, o) }}
			taken[l.A], taken[l.B] = true, true
		case *quant.Linear4bit:
			in, out := l.Features()
			if _, merged := values[name]; !merged {
				values[name] = output{name, []int64{out, in}, func(ctx context.Context) (*torch.Tensor, error) {
					return l.DequantizeFull(ctx, torch.Float32, full, !o.Silent)
				}}
			}
			taken[l.Absmax], taken[l.NestedAbsmax], taken[l.NestedOffset] = true, true, true
		}
	}
	var list []output
	for s := range b.Sharded.Shards() {
		if merged, ok := values[s.Name]; ok {
			list = append(list, merged)
		} else if !taken[s.Param] {
			list = append(list, output{s.Name, s.Shape, func(ctx context.Context) (*torch.Tensor, error) { return b.Sharded.FullTensor(ctx, s.Name) }})
		}
	}
	return b.saveFolder(ctx, base, dir, dtype, list)
}

func (b *Built) saveFolder(ctx context.Context, base, dir string, dtype torch.DType, list []output) error {
	writing := b.Sharded.Group().Rank() == 0
	var w *modelio.WeightsWriter
	var fault error
	if writing {
		var specs []safetensors.Spec
		for _, o := range list {
			specs = append(specs, safetensors.Spec{Name: o.name, DType: dtype.Safetensors(), Shape: o.shape})
		}
		if fault = os.MkdirAll(dir, 0o777); fault == nil {
			w, fault = modelio.CreateWeights(dir, specs, 0)
		}
	}
	for _, o := range list { // to the end even after a fault: the other ranks are in the same collectives
		whole, err := o.value(ctx)
		if err != nil {
			fault = errors.Join(fault, err)
			break
		}
		if whole == nil {
			continue
		}
		if w != nil && fault == nil {
			fault = torch.Try(func() {
				scope := torch.NewScope(nil)
				defer scope.Close()
				torch.Throw(w.Write(o.name, whole.In(scope).To(dtype).Bytes()))
			})
		}
		whole.Free()
	}
	if w != nil {
		if fault == nil {
			fault = w.Commit()
		} else {
			w.Abort()
		}
	}
	if writing && fault == nil {
		fault = b.writeTexts(base, dir, dtype)
	}
	if fault != nil {
		return fmt.Errorf("sft: save the model to %s: %w", dir, fault)
	}
	return nil
}

func (b *Built) writeTexts(base, dir string, dtype torch.DType) error {
	if err := modelio.CopyTexts(base, dir); err != nil {
		return err
	}
	config := *b.Model.Config
	config.DType = dtype.String()
	return modelio.WriteConfig(dir, &config)
}
