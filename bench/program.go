package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gofsdp/gofsdp/bench/peer"
)

// job is the work that both programs do.
type job struct {
	Model, Batches, LoRAInit string // paths
	Quant                    string // "nf4" or "none"
	Recompute                bool   // activations in the backward pass
	Steps, Ranks             int
}

// args are the flags of the job, which both programs have.
func (j job) args(out string) []string {
	args := []string{"--model", j.Model, "--batches", j.Batches, "--lora-init", j.LoRAInit,
		"--quant", j.Quant, "--steps", strconv.Itoa(j.Steps), "--json", out}
	if j.Recompute {
		args = append(args, "--gradient_checkpointing")
	}
	return args
}

// program is one way to do the job.
type program struct {
	name string
	argv func(ranks int) []string // the launcher and the program; the job's flags follow
}

// ours runs the binary at path under its own launcher.
func ours(path string) program {
	return program{"gofsdp", func(ranks int) []string {
		return []string{path, "launch", "--num_processes", strconv.Itoa(ranks), "--", "fixed-steps"}
	}}
}

// pytorch runs qlora_fsdp2.py under torchrun.
func pytorch(python, root string) program {
	return program{"PyTorch", func(ranks int) []string {
		return []string{python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", strconv.Itoa(ranks),
			filepath.Join(root, "bench", "peer", "qlora_fsdp2.py")}
	}}
}

// step is what a program reports of one optimiser step.
type step struct {
	Step     int     `json:"step"`
	Loss     float64 `json:"loss"` // mean over the ranks
	LossRank float64 `json:"loss_rank"`
	GradNorm float64 `json:"grad_norm"`
	Wall     float64 `json:"t"`     // seconds
	CPU      float64 `json:"cpu_s"` // seconds in all threads of rank 0
}

// run is what a program reports of one run.
type run struct {
	Program          string    `json:"program"`
	Steps            []step    `json:"steps"`
	PeakRSS          []float64 `json:"peak_rss_mib"`          // by rank
	StartToFirstStep float64   `json:"start_to_first_step_s"` // launch to end of the first step
}

// do runs the program and reads its report. Where it fails, the error holds the end of what it printed.
func (p program) do(ctx context.Context, j job) (run, error) {
	dir, err := os.MkdirTemp("", "gofsdp-bench-")
	if err != nil {
		return run{}, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "report.jsonl")

	argv := append(p.argv(j.Ranks), j.args(out)...)
	cmd := peer.Command(ctx, argv[0], argv[1:]...)
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	// One thread per rank: the ranks are the parallelism that is compared.
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "HF_HUB_OFFLINE=1",
		"GOFSDP_START_UNIX_NS="+strconv.FormatInt(time.Now().UnixNano(), 10))
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return run{}, fmt.Errorf("%s: %w\n%s", p.name, err, tail(printed.Bytes(), 4000))
	}
	report, err := os.ReadFile(out)
	if err != nil {
		return run{}, fmt.Errorf("%s: %w", p.name, err)
	}
	r, err := parse(report, j)
	if err != nil {
		return run{}, fmt.Errorf("%s: its report: %w", p.name, err)
	}
	r.Program = p.name
	return r, nil
}

// parse reads JSON lines: one per step, then one for the run.
func parse(report []byte, j job) (run, error) {
	var r run
	lines := bufio.NewScanner(bytes.NewReader(report))
	for n := 1; lines.Scan(); n++ {
		var kind struct {
			Step *int      `json:"step"`
			Peak []float64 `json:"peak_rss_mib"`
		}
		if err := json.Unmarshal(lines.Bytes(), &kind); err != nil {
			return run{}, fmt.Errorf("line %d: %w", n, err)
		}
		var err error
		switch {
		case kind.Step != nil:
			var s step
			err = json.Unmarshal(lines.Bytes(), &s)
			r.Steps = append(r.Steps, s)
		case kind.Peak != nil:
			err = json.Unmarshal(lines.Bytes(), &r)
		}
		if err != nil {
			return run{}, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return run{}, err
	}
	if len(r.Steps) != j.Steps || len(r.PeakRSS) != j.Ranks {
		return run{}, fmt.Errorf("%d steps and the memory of %d ranks, want %d and %d", len(r.Steps), len(r.PeakRSS), j.Steps, j.Ranks)
	}
	for i, s := range r.Steps {
		if s.Step != i || s.Wall <= 0 || s.CPU <= 0 {
			return run{}, fmt.Errorf("step %d is %+v", i, s)
		}
	}
	if r.StartToFirstStep <= 0 {
		return run{}, errors.New("no time of the first step")
	}
	return r, nil
}

func tail(text []byte, n int) []byte {
	return text[max(0, len(text)-n):]
}
