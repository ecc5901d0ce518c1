package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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
	return s.gofsdp(ctx, "convert", "smollm2", filepath.Join(s.ours, "smollm2"))
}

// gofsdp runs the program.
func (s *session) gofsdp(ctx context.Context, args ...string) error {
	if text, err := peer.Command(ctx, s.binary, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gofsdp %s: %w\n%s", strings.Join(args, " "), err, text)
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
		R: 4, LoRAAlpha: 6, UseRSLoRA: true, TargetModules: peft.AllLinear, LayersToTransform: []int{0},
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
	return s.saveLogits(m, dir)
}

// saveLogits writes a model's logits next to the files that they come from.
func (s *session) saveLogits(m *loaded, dir string) error {
	logits, shape, err := s.logits(m.model)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "expected"), 0o755); err != nil {
		return err
	}
	out, err := safetensors.Create(filepath.Join(dir, "expected", "logits.safetensors"), []safetensors.Spec{{Name: "logits", DType: "F32", Shape: shape}}, nil)
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

// trainTiny fine-tunes a tiny model on two ranks, once as a whole and once with an adapter. The rates are large, so that
// the results differ clearly from the base model.
func (s *session) trainTiny(ctx context.Context) error {
	base := filepath.Join(s.ours, "tuned", "base")
	if err := s.gofsdp(ctx, "convert", filepath.Join(s.goldens, "..", "gguf", "tiny_llama.gguf"), base); err != nil {
		return err
	}
	rows := filepath.Join(s.ours, "tuned", "rows.jsonl")
	if err := os.WriteFile(rows, []byte(strings.Repeat(`{"text": "the cat sat on the mat, and the hat sat on the cat"}`+"\n", 8)), 0o644); err != nil {
		return err
	}
	train := func(name string, more ...string) (dir string, err error) {
		dir = filepath.Join(s.ours, "tuned", name)
		args := []string{"launch", "--num_processes", "2", "sft", "--model_name_or_path", base, "--dataset_name", rows, "--output_dir", dir,
			"--max_steps", "4", "--per_device_train_batch_size", "2", "--learning_rate", "2e-2", "--save_strategy", "no"}
		return dir, s.gofsdp(ctx, append(args, more...)...)
	}

	dir, err := train("full")
	if err != nil {
		return err
	}
	whole, err := s.loadModel(ctx, filepath.Join(dir, "model"))
	if err != nil {
		return err
	}
	defer whole.free()
	if err := s.saveLogits(whole, filepath.Join(dir, "model")); err != nil {
		return err
	}

	if dir, err = train("lora", "--use_peft_lora", "--lora_r", "4", "--lora_target_modules", "all-linear"); err != nil {
		return err
	}
	m, err := s.loadModel(ctx, base)
	if err != nil {
		return err
	}
	defer m.free()
	if _, err := peft.LoadAdapter(filepath.Join(dir, "adapter"), m.model, peft.Options{}); err != nil {
		return err
	}
	return s.saveLogits(m, filepath.Join(dir, "adapter"))
}
