package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/gofsdp/gofsdp/bench/peer"
	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/torch"
)

// writeModel converts SmolLM2 from GGUF with the program itself.
func (s *session) writeModel(ctx context.Context) error {
	out := filepath.Join(s.ours, "smollm2")
	if text, err := peer.Command(ctx, s.binary, "convert", "smollm2", out).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

// goldenAdapters are cases of testdata/goldens/peft; each holds an adapter that PEFT trained.
var goldenAdapters = []string{"lora_all_r8", "lora_qv_bias", "lora_rslora", "lora_rank_pattern"}

// writeAdapters saves adapters of tiny/plain, and the logits of the model with each of them next to them. Some are PEFT's,
// loaded and saved again; one is made from a configuration here.
func (s *session) writeAdapters(ctx context.Context) error {
	for _, name := range goldenAdapters {
		m, err := s.loadModel(ctx, filepath.Join(s.goldens, "tiny", "plain"))
		if err != nil {
			return err
		}
		adapter, err := peft.LoadAdapter(filepath.Join(s.goldens, "peft", name, "adapter_after10"), m.model, peft.Options{})
		if err == nil {
			err = s.saveAdapter(ctx, m, adapter, name)
		}
		m.free()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}

	m, err := s.loadModel(ctx, filepath.Join(s.goldens, "tiny", "plain"))
	if err != nil {
		return err
	}
	defer m.free()
	adapter, err := peft.Apply(m.model, peft.Config{
		R: 4, LoraAlpha: 6, UseRSLoRA: true, TargetModules: peft.AllLinear, LayersToTransform: []int{0},
	}, peft.Options{})
	if err != nil {
		return err
	}
	random := torch.NewGenerator(7)
	torch.NoGrad(func() {
		for _, l := range adapter.Layers { // B is zero at first, which would hide mistakes
			scope := torch.NewScope(nil)
			l.B.In(scope).VariableData().Copy(scope.Own(torch.Randn(random, torch.Float32, l.B.Shape()...)))
			scope.Close()
		}
	})
	return s.saveAdapter(ctx, m, adapter, "made_here")
}

func (s *session) saveAdapter(ctx context.Context, m *loaded, adapter *peft.Adapter, name string) error {
	dir := filepath.Join(s.ours, "adapters", name)
	if err := adapter.Save(ctx, dir, peft.SaveOptions{}); err != nil {
		return err
	}
	logits, shape, err := s.logits(m.model)
	if err != nil {
		return err
	}
	out, err := safetensors.Create(filepath.Join(dir, "logits.safetensors"), []safetensors.Spec{{Name: "logits", DType: "F32", Shape: shape}}, nil)
	if err != nil {
		return err
	}
	defer out.Abort()
	if err := out.Write("logits", logits); err != nil {
		return err
	}
	return out.Commit()
}

// writeCheckpoint shards tiny/plain over two ranks and saves it.
func (s *session) writeCheckpoint(ctx context.Context) error {
	return ranktest.Ranks(ctx, 2, func(ctx context.Context, g dist.Group) error {
		m, err := s.loadModel(ctx, filepath.Join(s.goldens, "tiny", "plain"))
		if err != nil {
			return err
		}
		defer m.free()
		sharded, err := fsdp.Wrap(m.model, g, fsdp.Config{Units: fsdp.ByKind("LlamaDecoderLayer")})
		if err != nil {
			return err
		}
		if err := sharded.Load(); err != nil {
			return err
		}
		snapshot := checkpoint.Snapshot{Model: checkpoint.ModelEntries(sharded, nil)}
		_, err = checkpoint.Save(ctx, g, s.ours, 1, snapshot, checkpoint.SaveOptions{})
		return err
	})
}
