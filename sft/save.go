package sft

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/fsdp"
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
	best
}

// best is the saved step with the lowest evaluation loss so far.
type best struct {
	Step int      `json:"best_global_step,omitempty"`
	Loss *float64 `json:"best_metric,omitempty"`
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
		{"mixed_precision", r.sharding.mixedPrecision()},
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

// save writes a checkpoint, or begins to with save_async. A collective.
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
	r.noteBest(step)
	snapshot := checkpoint.Snapshot{
		Model: model, Optimizer: optimizer, RankState: []checkpoint.Entry{checkpoint.Whole("rng", rng)},
		Trainer: trainerState{Step: step, MaxSteps: r.steps, Position: r.position, Seed: r.c.Seed, Settings: settings, best: r.best},
	}
	o := checkpoint.SaveOptions{TotalLimit: r.c.SaveTotalLimit}
	if r.best.Step > 0 {
		o.Keep = []int{r.best.Step}
	}
	if r.c.SaveFormat == "dcp" {
		o.Format, o.DCPName = checkpoint.DCP, r.torchName
		if snapshot.Groups, err = checkpoint.AdamWGroups(r.trainer.Optimizer, nn.NamedParams(r.built.Model), r.c.adam()); err != nil {
			return err
		}
	}
	var dir string
	if r.c.SaveAsync {
		if r.saver == nil {
			r.saver = &checkpoint.Saver{Group: r.group, Root: r.c.OutputDir, Timeout: time.Duration(r.c.DDPTimeout) * time.Second}
		}
		r.saver.Options = o
		dir, err = r.saver.Start(r.work, step, snapshot)
	} else {
		dir, err = checkpoint.Save(r.work, r.group, r.c.OutputDir, step, snapshot, o)
	}
	if err != nil {
		return fmt.Errorf("sft: save step %d: %w", step, err)
	}
	r.saved = step
	r.noteSaved(dir)
	return nil
}

func (r *run) noteSaved(dir string) {
	if dir != "" {
		r.savedDir = dir
		r.say.saved(dir)
	}
}

// flush waits for a save in the background. A collective.
func (r *run) flush() error {
	if r.saver == nil {
		return nil
	}
	dir, err := r.saver.Wait(r.work)
	if err != nil {
		return fmt.Errorf("sft: save: %w", err)
	}
	r.noteSaved(dir)
	return nil
}

// noteBest compares the evaluation that was made at this step, if there was one, with the best so far.
func (r *run) noteBest(step int) {
	if r.evaluatedAt != step || r.evalLoss == nil || math.IsNaN(*r.evalLoss) || math.IsInf(*r.evalLoss, 0) || r.best.Loss != nil && !(*r.evalLoss < *r.best.Loss) {
		return
	}
	r.best = best{Step: step, Loss: r.evalLoss}
}

// loadBest goes back to the weights of the best checkpoint.
func (r *run) loadBest() error {
	if !r.c.LoadBest || r.best.Step == 0 || r.best.Step == r.trainer.StepsDone() {
		return nil
	}
	err := func() error {
		dir := filepath.Join(r.c.OutputDir, fmt.Sprintf("checkpoint-%d", r.best.Step))
		c, err := checkpoint.Open(dir)
		if err != nil {
			return fmt.Errorf("sft: load_best_model_at_end: %w", err)
		}
		defer c.Close()
		model, _, err := r.entries()
		if err != nil {
			return err
		}
		if err := c.Load(r.work, checkpoint.Model, model); err != nil {
			return fmt.Errorf("sft: load_best_model_at_end: %w", err)
		}
		r.say.line("the result is that of %s, with eval loss %.4f", relative(dir), *r.best.Loss)
		return nil
	}()
	return agree(r.work, r.group, err)
}

// torchName is what PyTorch and PEFT call a parameter: files hold adapters without the adapter's name, the model and its
// optimiser with it.
func (r *run) torchName(kind checkpoint.Kind, param string) string {
	if r.built.Adapter == nil {
		return param
	}
	if kind == checkpoint.Optimizer {
		for _, part := range []string{".lora_A.", ".lora_B."} {
			param = strings.Replace(param, part, part+"default.", 1)
		}
	}
	return "base_model.model." + param
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
	if c.Foreign() {
		state.Step = c.Info().Step
		if r.built.Model.Config.TieWordEmbeddings { // one parameter, which PyTorch may store under both of its names
			if err := c.Drop(checkpoint.Model, "lm_head.weight"); err != nil {
				return err
			}
		}
		state.Position = r.positionAt(state.Step)
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
	case c.Foreign():
		r.say.line("  saved by another program: the order of the data and the dropout masks are this one's")
	case errors.Is(err, checkpoint.ErrWorldSize):
		r.say.line("  saved by %d ranks: dropout masks start anew", c.Info().WorldSize)
	default:
		return fmt.Errorf("sft: resume: %w", err)
	}
	r.trainer.step, r.position, r.restored = state.Step, state.Position, true
	r.saved, r.savedDir, r.best = state.Step, dir, state.best
	r.say.line("resumed from %s", relative(dir))
	return nil
}

// positionAt is where in the data a run stands after so many steps.
func (r *run) positionAt(step int) data.Position {
	rows := (step % r.perEpoch) * r.c.AccumulateSteps * r.c.TrainBatchSize * r.group.Size()
	return data.Position{Epoch: step / r.perEpoch, Index: min(rows, len(r.train))}
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
		if !r.c.SaveMerged {
			return nil
		}
	}
	dir := filepath.Join(r.c.OutputDir, "model")
	if r.c.SaveMerged {
		if err := agree(r.work, r.group, r.built.SaveMerged(r.work, r.c.ModelNameOrPath, dir, torch.BFloat16)); err != nil {
			return err
		}
		r.result.Model = dir
		return nil
	}
	if err := agree(r.work, r.group, r.built.SaveModel(r.work, r.c.ModelNameOrPath, dir, torch.BFloat16)); err != nil {
		return err
	}
	r.result.Model = dir
	return nil
}
