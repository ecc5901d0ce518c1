package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/sft"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// fixedCmd is the hidden `gofsdp fixed-steps`: optimiser steps on given token batches, for benchmarks and comparisons.
// Each rank prints a JSON line per step (rank 0) and one at the end.
type fixedCmd struct {
	Model         string `name:"model" required:"" help:"Model folder."`
	Batches       string `name:"batches" required:"" help:"Safetensors file with input_ids (steps, rows, tokens), int32; labels are the same."`
	LoRAInit      string `name:"lora-init" help:"Safetensors file with the first lora_A weights."`
	Quant         string `name:"quant" default:"nf4" enum:"nf4,fp4,none" help:"Type of the base weights."`
	Steps         int    `name:"steps" default:"0" help:"Number of steps; 0: all."`
	Checkpointing bool   `name:"gradient_checkpointing" help:"Recompute activations."`
	Adapter       string `name:"adapter" help:"Folder for the adapter after the last step; none is written by default."`
}

// Run makes the steps.
func (c *fixedCmd) Run(ctx context.Context) error {
	runtime.LockOSThread()
	started := startTime()
	env, err := dist.FromEnv()
	if err != nil {
		return err
	}
	if err := torch.LoadLibrary(); err != nil {
		return err
	}
	torch.SetNumThreads(sft.Threads(env))
	group, leave, err := dist.Init(ctx, env, 5*time.Minute)
	if err != nil {
		return err
	}
	if err := c.run(ctx, group, started); err != nil {
		group.Abort(err)
		return err
	}
	return leave(ctx)
}

func (c *fixedCmd) run(ctx context.Context, g dist.Group, started time.Time) (err error) {
	defer torch.Catch(&err)
	out := json.NewEncoder(os.Stdout)
	batches, err := fixedBatches(c.Batches, g)
	if err != nil {
		return err
	}
	if c.Steps > 0 && c.Steps < len(batches) {
		batches = batches[:c.Steps]
	}
	trainer, built, err := fixedTrainer(ctx, c, g)
	if err != nil {
		return err
	}
	firstStep := 0.0
	for i, b := range batches {
		cpu := cpuSeconds()
		r, err := trainer.Step(ctx, []data.Batch{b}, false)
		if err != nil {
			return err
		}
		if i == 0 {
			firstStep = time.Since(started).Seconds()
		}
		if g.Rank() == 0 {
			_ = out.Encode(map[string]any{
				"step": i, "loss": r.Loss, "grad_norm": r.GradNorm, "t": r.Duration.Seconds(), "cpu_s": cpuSeconds() - cpu,
			})
		}
	}
	if c.Adapter != "" {
		if err := saveFixedAdapter(ctx, built, c.Adapter, g); err != nil {
			return err
		}
	}
	return out.Encode(map[string]any{
		"rank": g.Rank(), "world": g.Size(), "peak_rss_mib": float64(sft.PeakRSS()) / (1 << 20), "start_to_first_step_s": firstStep,
		"peak_tensor_mib": float64(torch.MemoryStats().PeakBytes) / (1 << 20), "threads": torch.NumThreads(),
		"gradient_checkpointing": c.Checkpointing, "quant": c.Quant,
	})
}

// fixedTrainer builds the model and loads the adapters' first weights.
func fixedTrainer(ctx context.Context, c *fixedCmd, g dist.Group) (*sft.Trainer, *sft.Built, error) {
	o := sft.ModelOptions{
		Checkpointing: c.Checkpointing,
		LoRA:          &peft.Config{R: 16, LoRAAlpha: 16, TargetModules: peft.AllLinear},
	}
	if c.Quant != "none" {
		o.Quant = &quant.Config{Type: c.Quant, DoubleQuant: true}
	}
	built, err := sft.Build(ctx, c.Model, g, o)
	if err != nil {
		return nil, nil, err
	}
	if c.LoRAInit != "" {
		if err := loadAdapterRows(c.LoRAInit, built); err != nil {
			return nil, nil, err
		}
	}
	opt, err := optim.NewAdamW(built.Params, optim.AdamConfig{LR: 1e-4, WeightDecay: 0.01})
	if err != nil {
		return nil, nil, err
	}
	return &sft.Trainer{Model: built.Model, Sharded: built.Sharded, Optimizer: opt}, built, nil
}

// saveFixedAdapter writes the whole adapter from rank 0. Every rank calls it.
func saveFixedAdapter(ctx context.Context, built *sft.Built, folder string, g dist.Group) error {
	return built.Adapter.Save(ctx, folder, peft.SaveOptions{
		Full: func(ctx context.Context, _ string, p *nn.Param) (*torch.Tensor, error) {
			return built.Sharded.FullParam(ctx, p)
		},
		Silent: g.Rank() != 0,
	})
}

// loadAdapterRows sets this rank's rows of the adapter weights that a PEFT-named file holds.
func loadAdapterRows(path string, built *sft.Built) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return torch.Try(func() {
		torch.NoGrad(func() {
			for s := range built.Sharded.Shards() {
				name := "base_model.model." + s.Name
				if !s.Param.Trainable() || !f.Has(name) || s.Lo == s.Hi {
					continue
				}
				view, err := f.Tensor(name)
				torch.Throw(err)
				dtype, err := torch.ParseDType(view.DType)
				torch.Throw(err)
				shape := append([]int64{s.Hi - s.Lo}, s.Shape[1:]...)
				scope := torch.NewScope(nil)
				rows := scope.Own(torch.FromBytes(dtype, view.Rows(s.Lo, s.Hi), shape...))
				s.Tensor.VariableData().Copy(rows)
				scope.Close()
			}
		})
	})
}

// fixedBatches reads this rank's rows of every step.
func fixedBatches(path string, g dist.Group) ([]data.Batch, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	view, err := f.Tensor("input_ids")
	if err != nil {
		return nil, err
	}
	if len(view.Shape) != 3 || view.DType != "I32" || view.Shape[1]%int64(g.Size()) != 0 {
		return nil, fmt.Errorf("fixed-steps: %s: input_ids is %s %v, needs I32 (steps, rows, tokens) with rows for %d ranks", path, view.DType, view.Shape, g.Size())
	}
	rows, tokens := int(view.Shape[1])/g.Size(), int(view.Shape[2])
	var list []data.Batch
	for step := range view.Shape[0] {
		ids := torch.FromBytes(torch.Int32, view.Rows(step, step+1), view.Shape[1], view.Shape[2])
		mine := ids.Narrow(0, int64(g.Rank()*rows), int64(rows)).To(torch.Int64)
		b := data.Batch{IDs: torch.Slice[int64](mine), B: rows, T: tokens}
		b.Labels = b.IDs
		for range rows {
			b.Lengths = append(b.Lengths, tokens)
		}
		list = append(list, b)
	}
	return list, nil
}

// startTime is when the program that measures started this one, or now.
func startTime() time.Time {
	if ns, err := strconv.ParseInt(os.Getenv("GOFSDP_START_UNIX_NS"), 10, 64); err == nil {
		return time.Unix(0, ns)
	}
	return time.Now()
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
