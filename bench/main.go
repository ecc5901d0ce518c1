// Command bench runs the same QLoRA job with gofsdp and with PyTorch (FSDP2, PEFT, bitsandbytes), side by side on this
// machine, and prints what each needs: time and CPU per step, memory, start-up.
//
//	go run ./bench                       NF4, two CPU ranks with one thread each, with and without recomputation
//	go run ./bench --repetitions 5       more of the same
//	go run ./bench --only gofsdp         one side only
//
// The runs of the two alternate, so that a machine that slows down or is shared slows both. Before anything is printed,
// their losses are compared: figures of two programs that compute different things mean nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/gofsdp/gofsdp/bench/peer"
)

type options struct {
	Steps       int           `help:"Optimiser steps of a run." default:"5"`
	Repetitions int           `help:"Runs of each program and setting." default:"2"`
	Quant       string        `help:"Weights of the base model." enum:"nf4,none" default:"nf4"`
	Recompute   string        `help:"Activations: kept (no), recomputed (yes), or both one after the other." enum:"no,yes,both" default:"both"`
	Only        string        `help:"Run one program only: gofsdp or pytorch." enum:"gofsdp,pytorch,both" default:"both"`
	Model       string        `help:"Model folder (default: SmolLM2-135M-Instruct, downloaded once)." type:"existingdir"`
	Binary      string        `help:"The gofsdp to measure." default:"build/bin/gofsdp"`
	Out         string        `help:"Where all figures are written." default:"build/bench/results.json"`
	Timeout     time.Duration `help:"Longest time of a single run." default:"10m"`
}

func main() {
	var o options
	kong.Parse(&o, kong.Description("Compare gofsdp with PyTorch FSDP2 + PEFT + bitsandbytes on CPU ranks."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// ranks is fixed: the batches hold one row for each of two ranks.
const ranks = 2

func (o options) run(ctx context.Context) error {
	if o.Steps < 2 || o.Steps > 20 || o.Repetitions < 1 {
		return errors.New("2 to 20 steps, please (the first one warms up; there are batches for 20), and at least one repetition")
	}
	root, err := peer.Root()
	if err != nil {
		return err
	}
	programs, err := o.programs(ctx, root)
	if err != nil {
		return err
	}
	if o.Model == "" {
		if o.Model, err = peer.Model(ctx); err != nil {
			return err
		}
	}
	goldens := filepath.Join(root, "testdata", "goldens", "smollm2_train")
	results := results{Machine: peer.ThisMachine(), Date: time.Now().UTC().Truncate(time.Second), Ranks: ranks}
	for _, recompute := range []bool{false, true} {
		if skipped := map[bool]string{false: "yes", true: "no"}[recompute]; o.Recompute == skipped {
			continue
		}
		j := job{
			Model: o.Model, Batches: filepath.Join(goldens, "batches.safetensors"), LoRAInit: filepath.Join(goldens, "lora_A_init.safetensors"),
			Quant: o.Quant, Recompute: recompute, Steps: o.Steps, Ranks: ranks,
		}
		runs, err := o.alternate(ctx, programs, j)
		if err != nil {
			return err
		}
		results.Settings = append(results.Settings, setting{Quant: j.Quant, Recompute: j.Recompute, NumSteps: j.Steps, Runs: runs})
	}
	if err := results.write(o.Out); err != nil {
		return err
	}
	if err := results.compareLosses(); err != nil {
		return err
	}
	fmt.Print(results.markdown())
	return nil
}

func (o options) programs(ctx context.Context, root string) ([]program, error) {
	var programs []program
	if o.Only != "pytorch" {
		path, err := filepath.Abs(o.Binary)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("no gofsdp to measure: %w; run make build", err)
		}
		programs = append(programs, ours(path))
	}
	if o.Only != "gofsdp" {
		python, err := peer.Python(ctx, root, os.Stderr)
		if err != nil {
			return nil, err
		}
		programs = append(programs, pytorch(python, root))
	}
	return programs, nil
}

// alternate runs every program o.Repetitions times on the job. Who goes first changes each time.
func (o options) alternate(ctx context.Context, programs []program, j job) ([]run, error) {
	var runs []run
	for range o.Repetitions {
		for _, p := range programs {
			fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format(time.TimeOnly), p.name, j.title())
			limited, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("took longer than %s", o.Timeout))
			r, err := p.do(limited, j)
			cancel()
			if err != nil {
				return nil, err
			}
			runs = append(runs, r)
		}
		slices.Reverse(programs)
	}
	return runs, nil
}

func (j job) title() string { return title(j.Quant, j.Recompute) }

func title(quant string, recompute bool) string {
	words := map[string]string{"nf4": "NF4", "none": "fp32"}[quant]
	if recompute {
		return words + ", activations recomputed"
	}
	return words + ", activations kept"
}

// write puts the results into a file as JSON.
func (r results) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
