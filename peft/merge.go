package peft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// MergeOptions are the settings of MergeFolder. The zero value works.
type MergeOptions struct {
	// DType is what floating-point weights are stored as; 0 stands for bfloat16.
	DType torch.DType
	// MaxShardBytes is the size of a weights file; 0 stands for modelio.DefaultMaxShardBytes.
	MaxShardBytes int64
	// Quant, if not nil, merges into the weights as the training saw them: the decoder's linear layers are quantised to four
	// bits and back before the update is added, which is what PEFT's merge_and_unload does with a 4-bit model. Nil adds the
	// update to the weights of the base folder as they are.
	Quant *quant.Config
	// Progress is told how many of the tensors are written; nil is not called.
	Progress func(done, total int)
}

// MergeFolder adds the adapter in a folder to the base model in another and writes the merged model to the folder out, which
// must not exist or be empty: out appears when it is complete. Tensor by tensor, W + scaling·B·A is computed in fp32 and
// stored, so the memory that it needs is bounded by a few copies of the largest tensor. The result is that of Merge on a
// model in one process.
func MergeFolder(ctx context.Context, base, adapter, out string, o MergeOptions) (err error) {
	defer torch.Catch(&err)
	if err := mergeFolder(ctx, base, adapter, out, o); err != nil {
		return fmt.Errorf("peft: merge %s into %s: %w", adapter, base, err)
	}
	return nil
}

func mergeFolder(ctx context.Context, base, adapter, out string, o MergeOptions) error {
	if o.DType == 0 {
		o.DType = torch.BFloat16
	}
	model, err := modelio.Open(base)
	if err != nil {
		return err
	}
	defer model.Close()
	config, err := ReadConfig(adapter)
	if err != nil {
		return err
	}
	file, err := safetensors.Open(filepath.Join(adapter, WeightsName))
	if err != nil {
		return err
	}
	defer file.Close()
	m := &merger{config: config, file: file, o: o}
	specs, views, err := m.plan(model.Weights)
	if err != nil {
		return err
	}
	folder, err := modelio.CreateFolder(out)
	if err != nil {
		return err
	}
	defer folder.Abort()
	w, err := modelio.CreateWeights(folder.Dir(), specs, o.MaxShardBytes)
	if err != nil {
		return err
	}
	defer w.Abort()
	for i, v := range views {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := m.write(ctx, w, v, specs[i]); err != nil {
			return fmt.Errorf("tensor %q: %w", v.Name, err)
		}
		if err := v.Release(0, v.NumRows()); err != nil {
			return err
		}
		if o.Progress != nil {
			o.Progress(i+1, len(views))
		}
	}
	if err := w.Commit(); err != nil {
		return err
	}
	if err := modelio.CopyTexts(base, folder.Dir()); err != nil {
		return err
	}
	merged := *model.Config
	merged.DType = o.DType.String()
	if err := modelio.WriteConfig(folder.Dir(), &merged); err != nil {
		return err
	}
	return folder.Commit()
}

// merger merges tensor by tensor.
type merger struct {
	config Config
	file   *safetensors.File
	o      MergeOptions
	deltas map[string]delta // by the path of the layer
}

// delta is the update of one layer.
type delta struct {
	a, b    safetensors.View
	scaling float64
}

// plan finds the update of every layer and checks that all of the adapter has its place, before anything is written.
func (m *merger) plan(w *modelio.Weights) (specs []safetensors.Spec, views []modelio.View, err error) {
	m.deltas = map[string]delta{}
	used := map[string]bool{}
	for _, name := range w.Names() {
		v, err := w.Tensor(name)
		if err != nil {
			return nil, nil, err
		}
		dtype := v.DType
		if d, err := torch.ParseDType(v.DType); err == nil && d.IsFloat() {
			dtype = m.o.DType.Safetensors()
		}
		specs, views = append(specs, safetensors.Spec{Name: name, DType: dtype, Shape: v.Shape}), append(views, v)
		path, ok := strings.CutSuffix(name, ".weight")
		if !ok {
			continue
		}
		d, found, err := m.delta(path, v.Shape)
		if err != nil {
			return nil, nil, err
		}
		if found {
			m.deltas[path] = d
			used[d.a.Name], used[d.b.Name] = true, true
		}
	}
	for _, name := range m.file.Names() {
		if !used[name] {
			return nil, nil, fmt.Errorf("%s has the tensor %q, for which the base model has no weight", m.file.Path(), name)
		}
	}
	if len(m.deltas) == 0 {
		return nil, nil, fmt.Errorf("%s holds no adapter", m.file.Path())
	}
	return specs, views, nil
}

// delta reads the update of the layer at path, whose weight has the given shape.
func (m *merger) delta(path string, shape []int64) (d delta, found bool, err error) {
	nameA, nameB := prefix+path+".lora_A.weight", prefix+path+".lora_B.weight"
	rank, scaling, targeted, err := m.config.layer(path)
	switch hasA, hasB := m.file.Has(nameA), m.file.Has(nameB); {
	case err != nil:
		return d, false, err
	case !hasA && !hasB:
		return d, false, nil // a target with a name that the head or a table has too
	case !hasA || !hasB:
		return d, false, fmt.Errorf("%s has only one of %q and %q", m.file.Path(), nameA, nameB)
	case !targeted:
		return d, false, fmt.Errorf("%s has %q, but %s does not target %s", m.file.Path(), nameA, ConfigName, path)
	}
	d.scaling = scaling
	for _, part := range []struct {
		name string
		to   *safetensors.View
	}{{nameA, &d.a}, {nameB, &d.b}} {
		if *part.to, err = m.file.Tensor(part.name); err != nil {
			return d, false, err
		}
		if dtype, err := torch.ParseDType(part.to.DType); err != nil || !dtype.IsFloat() {
			return d, false, fmt.Errorf("tensor %q is stored as %s, which is no floating-point type", part.name, part.to.DType)
		}
	}
	if len(shape) != 2 || len(d.a.Shape) != 2 || len(d.b.Shape) != 2 || d.a.Shape[0] != int64(rank) || d.a.Shape[1] != shape[1] ||
		d.b.Shape[0] != shape[0] || d.b.Shape[1] != int64(rank) {
		return d, false, fmt.Errorf("%s has %q with shape %v and %q with shape %v: a weight of shape %v and rank %d need [%d in] and [out %d]",
			m.file.Path(), nameA, d.a.Shape, nameB, d.b.Shape, shape, rank, rank, rank)
	}
	return d, true, nil
}

// write writes one tensor.
func (m *merger) write(ctx context.Context, w *modelio.WeightsWriter, v modelio.View, spec safetensors.Spec) error {
	path := strings.TrimSuffix(v.Name, ".weight")
	d, merged := m.deltas[path]
	if !merged && !m.quantised(path, v) {
		return copyView(ctx, w, v, spec)
	}
	return torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			weight, err := m.weight(ctx, s, path, v)
			torch.Throw(err)
			if merged {
				weight = addUpdate(weight, view(s, d.a), view(s, d.b), d.scaling)
			}
			weight.To(m.o.DType).WithBytes(func(b []byte) { torch.Throw(w.Write(v.Name, b)) })
		})
	})
}

// quantised tells whether training would have held the layer in four bits.
func (m *merger) quantised(path string, v modelio.View) bool {
	return m.o.Quant != nil && len(v.Shape) == 2 && strings.HasSuffix(path, "_proj")
}

// weight gives the base weight in fp32.
func (m *merger) weight(ctx context.Context, s *torch.Scope, path string, v modelio.View) (*torch.Tensor, error) {
	if !m.quantised(path, v) {
		dtype, err := torch.ParseDType(v.DType)
		if err != nil || !dtype.IsFloat() {
			return nil, fmt.Errorf("it is stored as %s, which is no floating-point type", v.DType)
		}
		data, err := v.Bytes()
		if err != nil {
			return nil, err
		}
		return s.Own(torch.FromMemory(dtype, data, func() {}, v.Shape...)).To(torch.Float32), nil
	}
	holder := struct {
		nn.Hooks
		Layer nn.LinearLayer `torch:"layer"`
	}{Layer: &nn.Linear{Weight: nn.NewParam(torch.EmptyOn(torch.Meta, torch.Float32, v.Shape...), false)}}
	if _, err := quant.Quantize(&holder, *m.o.Quant, nil); err != nil {
		return nil, err
	}
	q, ok := holder.Layer.(*quant.Linear4bit)
	if !ok {
		return nil, errors.New("the layer cannot be quantised")
	}
	if err := q.LoadWeight(ctx, v, dist.NewSingle()); err != nil {
		return nil, err
	}
	dense, err := q.Dequantize(torch.Float32)
	for _, p := range nn.Params(&holder) {
		p.Tensor().Free()
	}
	if err != nil {
		return nil, err
	}
	return s.Own(dense.Weight.Tensor()), nil
}

func view(s *torch.Scope, v safetensors.View) *torch.Tensor {
	dtype, err := torch.ParseDType(v.DType)
	torch.Throw(err)
	return s.Own(torch.FromMemory(dtype, v.Data, func() {}, v.Shape...)).To(torch.Float32)
}

// addUpdate is w + scaling · b·a, computed in the dtype of the adapter.
func addUpdate(w, a, b *torch.Tensor, scaling float64) *torch.Tensor {
	update := b.MM(a).MulScalar(scaling)
	return w.To(update.DType()).Add(update)
}

// copyView copies a tensor, converted, in pieces of rows.
func copyView(ctx context.Context, w *modelio.WeightsWriter, v modelio.View, spec safetensors.Spec) error {
	const piece = 1 << 20 // elements
	from, err := torch.ParseDType(v.DType)
	if err != nil && spec.DType != v.DType {
		return err
	}
	step, at := max(1, piece/max(1, v.RowLen())), int64(0)
	for lo := int64(0); lo < v.NumRows(); lo += step {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		data, err := v.Rows(lo, min(lo+step, v.NumRows()))
		if err != nil {
			return err
		}
		put := func(b []byte) error {
			at += int64(len(b))
			return w.WriteAt(v.Name, at-int64(len(b)), b)
		}
		if spec.DType == v.DType || len(data) == 0 {
			err = put(data)
		} else {
			err = torch.Try(func() {
				torch.NoGrad(func() {
					s := torch.NewScope(nil)
					defer s.Close()
					to, err := torch.ParseDType(spec.DType)
					torch.Throw(err)
					t := s.Own(torch.FromMemory(from, data, func() {}, int64(len(data))/from.Size()))
					t.To(to).WithBytes(func(b []byte) { torch.Throw(put(b)) })
				})
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
