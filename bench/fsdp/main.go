// Command fsdp measures what package fsdp itself costs: over plain training of SmolLM2-135M at one rank, where nothing is
// communicated, and per layer and per parameter of models that compute next to nothing.
//
//	go run ./bench/fsdp                 all of it, about two minutes
//	go run ./bench/fsdp --only scaling  the small models only
//
// Figures are CPU seconds of the process, all threads and ranks together, so that what else the machine does counts little.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/gofsdp/gofsdp/bench/peer"
	"github.com/gofsdp/gofsdp/torch"
)

type options struct {
	Only   string        `help:"One part: overhead or scaling." enum:"overhead,scaling,all" default:"all"`
	Steps  int           `help:"Steps of SmolLM2 with and without sharding, in turn." default:"6"`
	Tokens int64         `help:"Length of SmolLM2's sequences." default:"512"`
	Budget time.Duration `help:"Time for each small model." default:"1s"`
	Model  string        `help:"Model folder (default: SmolLM2-135M-Instruct, downloaded once)." type:"existingdir"`
	Out    string        `help:"Where all figures are written." default:"build/bench/fsdp.json"`
}

func main() {
	var o options
	kong.Parse(&o, kong.Description("Measure the cost of package fsdp itself."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench/fsdp:", err)
		os.Exit(1)
	}
}

// results are all figures.
type results struct {
	Machine  peer.Machine `json:"machine"`
	Date     time.Time    `json:"date"`
	Overhead *overhead    `json:"overhead,omitempty"`
	Layers   []point      `json:"layers,omitempty"`     // one parameter per layer
	PerUnit  []point      `json:"parameters,omitempty"` // eight layers
}

func (o options) run(ctx context.Context) error {
	runtime.LockOSThread()
	if o.Steps < 2 || o.Tokens < 1 || o.Budget <= 0 {
		return fmt.Errorf("%d steps of %d tokens, %v for each small model: two steps, one token and some time are the least", o.Steps, o.Tokens, o.Budget)
	}
	if err := torch.LoadLibrary(); err != nil {
		return err
	}
	torch.SetNumThreads(1)
	r := results{Machine: peer.ThisMachine(), Date: time.Now().UTC().Truncate(time.Second)}
	var err error
	if o.Only != "overhead" {
		if r.Layers, err = byLayers(ctx, o.Budget, []int{2, 4, 8, 16, 32, 64, 128}); err != nil {
			return err
		}
		if r.PerUnit, err = byParameters(ctx, o.Budget, []int{1, 2, 4, 8, 16, 32}); err != nil {
			return err
		}
	}
	if o.Only != "scaling" {
		if o.Model == "" {
			if o.Model, err = peer.Model(ctx); err != nil {
				return err
			}
		}
		if r.Overhead, err = measureOverhead(ctx, o.Model, o.Tokens, o.Steps); err != nil {
			return err
		}
	}
	if err := r.write(o.Out); err != nil {
		return err
	}
	fmt.Print(r.markdown())
	return nil
}

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

func (r results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d cores; one thread per rank; CPU time, medians.\n", r.Machine.CPU, r.Machine.Cores)
	if v := r.Overhead; v != nil {
		fmt.Fprintf(&b, "\n| SmolLM2-135M, NF4, %d tokens, one rank | plain | sharded | overhead |\n|---|---:|---:|---:|\n", v.Tokens)
		fmt.Fprintf(&b, "| forward and backward (s) | %.3f | %.3f | %+.2f %% |\n", peer.Median(v.Plain), peer.Median(v.Sharded), 100*v.overhead())
	}
	for _, t := range []struct {
		title  string
		points []point
	}{{"layers of one parameter", r.Layers}, {"parameters in each of eight layers", r.PerUnit}} {
		if len(t.points) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n| %s | plain (us) | 1 rank (us) | 2 ranks (us each) | own cost at 1 rank, each (us) | at 2 ranks, each (us) |\n|---:|---:|---:|---:|---:|---:|\n", t.title)
		for _, p := range t.points {
			fmt.Fprintf(&b, "| %d | %.0f | %.0f | %.0f | %.1f | %.1f |\n", p.N, p.Plain, p.One, p.Two, (p.One-p.Plain)/float64(p.Parameters), (p.Two-p.Plain)/float64(p.Parameters))
		}
	}
	return b.String()
}

// cpuTime is what the process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
