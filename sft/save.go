package sft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// trainerState is what a checkpoint keeps besides tensors.
type trainerState struct {
	Step     int           `json:"global_step"`
	MaxSteps int           `json:"max_steps"`
	Position data.Position `json:"data_position"`
	Seed     int64         `json:"seed"`
	// Settings are those that the rest of the run must share with its beginning.
	Settings map[string]string `json:"settings"`
}

// setting is a value that a resumed run may not change without changing what it computes.
type setting struct{ name, value string }

// settled lists what a checkpoint does not hold itself, but depends on: the order of the data, the scale of the adapters
// and the form of the frozen weights.
func (r *run) settled() []setting {
	c := &r.c
	list := []setting{
		{"seed", fmt.Sprint(c.Seed)}, {"rows of training data", fmt.Sprint(len(r.train))}, {"packing", fmt.Sprint(c.Packing)},
		{"group_by_length", fmt.Sprint(c.GroupByLength)}, {"use_peft_lora", fmt.Sprint(c.UseLoRA)},
	}
	if c.UseLoRA {
		list = append(list, setting{"lora_alpha", fmt.Sprint(c.LoRAAlpha)}, setting{"use_rslora", fmt.Sprint(c.UseRSLoRA)},
			setting{"use_4bit_quantization", fmt.Sprint(c.Use4Bit)})
	}
	if c.Use4Bit {
		list = append(list, setting{"bnb_4bit_quant_type", c.QuantType}, setting{"use_nested_quant", fmt.Sprint(c.NestedQuant)})
	}
	return list
}

// check compares the settings of a checkpoint with this run's. Older checkpoints lack some.
func (s *trainerState) check(now []setting) error {
	var faults []error
	for _, n := range now {
		if was, ok := s.Settings[n.name]; ok && was != n.value {
			faults = append(faults, fmt.Errorf("%s: %s here, %s in the checkpoint; resume with what it began with, or start anew", n.name, n.value, was))
		}
	}
	return errors.Join(faults...)
}

// entries are the tensors of a checkpoint. Frozen weights are not among them: they are in the model folder.
func (r *run) entries() (model, optimizer []checkpoint.Entry, err error) {
	model = checkpoint.ModelEntries(r.built.Sharded, func(s fsdp.Shard) bool { return s.Param.Trainable() })
	optimizer, err = checkpoint.OptimizerEntries(r.trainer.Optimizer, nn.NamedParams(r.built.Model))
	return model, optimizer, err
}

// save writes a checkpoint. A collective.
func (r *run) save() error {
	r.trainer.Optimizer.InitState() // the same entries on every rank
	model, optimizer, err := r.entries()
	if err != nil {
		return err
	}
	rng := r.trainer.Generator.State()
	defer rng.Free()
	step := r.trainer.StepsDone()
	settings := map[string]string{}
	for _, s := range r.settled() {
		settings[s.name] = s.value
	}
	dir, err := checkpoint.Save(r.work, r.group, r.c.OutputDir, step, checkpoint.Snapshot{
		Model: model, Optimizer: optimizer, RankState: []checkpoint.Entry{checkpoint.Whole("rng", rng)},
		Trainer: trainerState{Step: step, MaxSteps: r.steps, Position: r.position, Seed: r.c.Seed, Settings: settings},
	}, checkpoint.SaveOptions{TotalLimit: r.c.SaveTotalLimit})
	if err != nil {
		return fmt.Errorf("sft: save step %d: %w", step, err)
	}
	r.saved, r.savedDir = step, dir
	r.say.saved(dir)
	return nil
}

// resume goes back to a checkpoint, if one is asked for, and starts the data loader where the run stands.
func (r *run) resume() error {
	err := func() error {
		dir, err := r.resumeFolder()
		if err != nil || dir == "" {
			return err
		}
		return r.restore(dir)
	}()
	if err := agree(r.work, r.group, err); err != nil {
		return err
	}
	sampler, err := r.sampler(r.train, r.c.TrainBatchSize, false)
	if err != nil {
		return err
	}
	if err := sampler.Seek(r.position); err != nil {
		return fmt.Errorf("sft: resume: the data has changed since the checkpoint: %w", err)
	}
	r.loader = data.NewLoader(r.train, sampler, data.LoaderConfig{Collate: r.collate()})
	return nil
}

// resumeFolder resolves resume_from_checkpoint; "" means a fresh start.
func (r *run) resumeFolder() (string, error) {
	switch strings.ToLower(r.c.Resume) {
	case "", "false", "no":
		return "", nil
	case "true", "yes", "latest":
		dir, _, err := checkpoint.Latest(r.c.OutputDir)
		if err != nil {
			return "", fmt.Errorf("sft: resume_from_checkpoint: %w", err)
		}
		return dir, nil
	}
	return r.c.Resume, nil
}

func (r *run) restore(dir string) error {
	c, err := checkpoint.Open(dir)
	if err != nil {
		return fmt.Errorf("sft: resume: %w", err)
	}
	defer c.Close()
	var state trainerState
	if err := c.ReadTrainer(&state); err != nil {
		return fmt.Errorf("sft: resume: %w", err)
	}
	if err := state.check(r.settled()); err != nil {
		return fmt.Errorf("sft: resume %s: %w", dir, err)
	}
	r.trainer.Optimizer.InitState()
	model, optimizer, err := r.entries()
	if err != nil {
		return err
	}
	if err := c.Load(r.work, checkpoint.Model, model); err != nil {
		return fmt.Errorf("sft: resume: %w", err)
	}
	if err := c.Load(r.work, checkpoint.Optimizer, optimizer); err != nil {
		return fmt.Errorf("sft: resume: %w", err)
	}
	rng := r.trainer.Generator.State()
	defer rng.Free()
	err = c.LoadRankState(r.work, r.group.Rank(), r.group.Size(), []checkpoint.Entry{checkpoint.Whole("rng", rng)})
	switch {
	case err == nil:
		r.trainer.Generator.SetState(rng)
	case errors.Is(err, checkpoint.ErrWorldSize):
		r.say.line("  saved by %d ranks: dropout masks start anew", c.Info().WorldSize)
	default:
		return fmt.Errorf("sft: resume: %w", err)
	}
	r.trainer.step, r.position, r.restored = state.Step, state.Position, true
	r.saved, r.savedDir = state.Step, dir
	r.say.line("resumed from %s", relative(dir))
	return nil
}

// saveResult writes what the run was for: the adapter, or the whole model. A collective; rank 0 writes.
func (r *run) saveResult() error {
	if r.built.Adapter != nil {
		dir := filepath.Join(r.c.OutputDir, "adapter")
		err := r.built.Adapter.Save(r.work, dir, peft.SaveOptions{
			Full: func(ctx context.Context, _ string, p *nn.Param) (*torch.Tensor, error) {
				return r.built.Sharded.FullParam(ctx, p)
			},
			Silent: r.group.Rank() != 0,
		})
		if err := agree(r.work, r.group, err); err != nil {
			return err
		}
		r.result.Adapter = dir
		return nil
	}
	dir := filepath.Join(r.c.OutputDir, "model")
	if err := agree(r.work, r.group, r.built.SaveModel(r.work, r.c.ModelNameOrPath, dir, torch.BFloat16)); err != nil {
		return err
	}
	r.result.Model = dir
	return nil
}

// SaveModel writes the whole model as a Hugging Face folder in the given dtype, parameter by parameter: no rank holds
// more than one of them. base is the folder that it came from, for configuration and tokenizer. A collective; rank 0
// writes.
func (b *Built) SaveModel(ctx context.Context, base, dir string, dtype torch.DType) (err error) {
	writing := b.Sharded.Group().Rank() == 0
	var w *modelio.WeightsWriter
	var fault error
	if writing {
		var specs []safetensors.Spec
		for s := range b.Sharded.Shards() {
			specs = append(specs, safetensors.Spec{Name: s.Name, DType: dtype.Safetensors(), Shape: s.Shape})
		}
		if fault = os.MkdirAll(dir, 0o777); fault == nil {
			w, fault = modelio.CreateWeights(dir, specs, 5<<30)
		}
	}
	for s := range b.Sharded.Shards() { // to the end even after a fault: the other ranks are in the same collectives
		whole, err := b.Sharded.FullTensor(ctx, s.Name)
		if err != nil {
			fault = errors.Join(fault, err)
			break
		}
		if w != nil && fault == nil {
			fault = torch.Try(func() {
				scope := torch.NewScope(nil)
				defer scope.Close()
				torch.Throw(w.Write(s.Name, whole.In(scope).To(dtype).Bytes()))
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
