package main

import (
	"bytes"
	"context"
	"encoding/json"
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
func (j job) args() []string {
	args := []string{"--model", j.Model, "--batches", j.Batches, "--lora-init", j.LoRAInit,
		"--quant", j.Quant, "--steps", strconv.Itoa(j.Steps)}
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

// step is what rank 0 reports of one optimiser step.
type step struct {
	Step     int     `json:"step"`
	Loss     float64 `json:"loss"` // mean over the ranks
	GradNorm float64 `json:"grad_norm"`
	Wall     float64 `json:"t"`     // seconds
	CPU      float64 `json:"cpu_s"` // seconds in all threads of the process
}

// rankEnd is what every rank reports at its end.
type rankEnd struct {
	Rank             int     `json:"rank"`
	PeakRSS          float64 `json:"peak_rss_mib"`
	StartToFirstStep float64 `json:"start_to_first_step_s"` // launch to end of the first step
}

// run is the report of one run.
type run struct {
	Program string    `json:"program"`
	Steps   []step    `json:"steps"`
	Ranks   []rankEnd `json:"ranks"` // in the order of ranks
}

// do runs the program and reads its report. Where it fails, the error holds the end of what it printed.
func (p program) do(ctx context.Context, j job) (run, error) {
	argv := append(p.argv(j.Ranks), j.args()...)
	cmd := peer.Command(ctx, argv[0], argv[1:]...)
	var report, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &report, &log
	// One thread per rank: the ranks are the parallelism that is compared.
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "HF_HUB_OFFLINE=1",
		"GOFSDP_START_UNIX_NS="+strconv.FormatInt(time.Now().UnixNano(), 10))
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return run{}, fmt.Errorf("%s: %w\n%s", p.name, err, tail(log.Bytes(), 4000))
	}
	r, err := parse(report.Bytes(), j)
	if err != nil {
		return run{}, fmt.Errorf("%s: its report: %w", p.name, err)
	}
	r.Program = p.name
	return r, nil
}

// parse reads JSON lines: one per step, and one per rank at the end. The launcher may put the rank before a line, and
// libraries may print other lines.
func parse(report []byte, j job) (run, error) {
	r := run{Ranks: make([]rankEnd, j.Ranks)}
	for line := range bytes.Lines(report) {
		_, object, found := bytes.Cut(line, []byte("{"))
		if !found {
			continue
		}
		var row struct {
			Step *int     `json:"step"`
			Peak *float64 `json:"peak_rss_mib"`
			step
			rankEnd
		}
		if err := json.Unmarshal(append([]byte("{"), object...), &row); err != nil {
			return run{}, fmt.Errorf("%w in %q", err, line)
		}
		switch {
		case row.Step != nil:
			row.step.Step = *row.Step
			r.Steps = append(r.Steps, row.step)
		case row.Peak != nil && row.Rank >= 0 && row.Rank < j.Ranks:
			row.PeakRSS = *row.Peak
			r.Ranks[row.Rank] = row.rankEnd
		}
	}
	return r, r.check(j)
}

// check tells an incomplete report.
func (r run) check(j job) error {
	if len(r.Steps) != j.Steps {
		return fmt.Errorf("%d steps, want %d", len(r.Steps), j.Steps)
	}
	for i, s := range r.Steps {
		if s.Step != i || s.Wall <= 0 || s.CPU <= 0 {
			return fmt.Errorf("step %d is %+v", i, s)
		}
	}
	for i, end := range r.Ranks {
		if end.Rank != i || end.PeakRSS <= 0 || end.StartToFirstStep <= 0 {
			return fmt.Errorf("the end of rank %d is %+v", i, end)
		}
	}
	return nil
}

func tail(text []byte, n int) []byte {
	return text[max(0, len(text)-n):]
}
