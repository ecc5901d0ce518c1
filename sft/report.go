package sft

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/atomicfile"
	"github.com/gofsdp/gofsdp/sft/curve"
	"github.com/gofsdp/gofsdp/sft/metrics"
	"github.com/gofsdp/gofsdp/sft/progress"
)

// report tells a person, on rank 0, how the run goes: lines and a bar on out, numbers in the metrics file. On the other
// ranks it does nothing.
type report struct {
	o        RunOptions
	active   bool
	out      io.Writer
	bar      *progress.Reporter
	metrics  *metrics.Writer
	board    *metrics.TensorBoard
	loadedAt time.Time
}

func newReport(o RunOptions) *report {
	return &report{o: o, active: o.Env.Rank == 0, out: o.Out}
}

func (r *report) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if r.bar != nil {
		r.bar.Note(text)
		return
	}
	fmt.Fprintln(r.out, text)
}

func (r *report) dataset(name, path string, s data.Stats) {
	r.line("%s data: %s rows, %s tokens, %s of them targets  (%s)", name, progress.Thousands(float64(s.Rows-s.Dropped)),
		progress.Thousands(float64(s.Tokens)), progress.Thousands(float64(s.Loss)), relative(path))
	if s.Dropped > 0 || s.Truncated > 0 {
		r.line("  %d rows dropped (no target left), %d cut (longest had %d tokens)", s.Dropped, s.Truncated, s.LongestBefore)
	}
}

// loading shows how many parameters are loaded, on a terminal.
func (r *report) loading(done, total int) {
	if !r.active || !r.o.Terminal {
		return
	}
	if done == total {
		fmt.Fprint(r.out, "\r\033[K")
	} else if time.Since(r.loadedAt) > 100*time.Millisecond {
		r.loadedAt = time.Now()
		fmt.Fprintf(r.out, "\rloading the model: %d of %d parameters\033[K", done, total)
	}
}

func (r *report) model(b *Built, g dist.Group) {
	trainable, all, bytes := int64(0), int64(0), int64(0)
	for s := range b.Sharded.Shards() {
		n := int64(1)
		for _, d := range s.Shape {
			n *= d
		}
		all += n
		if s.Param.Trainable() {
			trainable += n
		}
		bytes += s.Tensor.Numel() * s.Tensor.DType().Size()
	}
	r.line("model: %d layers, %s of %s stored values trainable; %s per rank, %d ranks",
		len(b.Model.Decoder.Layers), progress.Thousands(float64(trainable)), progress.Thousands(float64(all)), progress.Bytes(bytes), g.Size())
}

// sharding says what was asked for, where anything was.
func (r *report) sharding(s *sharding, b *Built) {
	if s.asked {
		ranks := b.Sharded.ShardGroup().Size()
		text := fmt.Sprintf("sharding: %v over %s", s.config.Strategy, count(ranks, "rank"))
		if n := b.Sharded.Group().Size() / ranks; n > 1 {
			text += ", " + count(n, "copy")
		}
		text += ", in " + count(len(b.Sharded.Units()), "unit")
		switch {
		case s.config.Reshard == fsdp.ReshardAfterBackward:
			text += ", gathered from forward to backward"
		case s.config.ReshardSize > 0:
			text += fmt.Sprintf(", after forward over %s", count(s.config.ReshardSize, "rank"))
		}
		r.line("%s; mixed precision: %s", text, s.mixedPrecision())
	}
	for _, note := range s.notes {
		r.line("  %s", note)
	}
}

// count is a number of things in words.
func count(n int, thing string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(thing, "y"):
		thing = strings.TrimSuffix(thing, "y") + "ies"
	default:
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}

// open starts the bar and the metrics file.
func (r *report) open(c *Config, steps int) (err error) {
	if !r.active {
		return nil
	}
	if r.metrics, err = metrics.Open(c.metricsPath()); err != nil {
		return fmt.Errorf("sft: %w", err)
	}
	if c.TensorBoard {
		if r.board, err = metrics.OpenTensorBoard(filepath.Join(c.OutputDir, "runs")); err != nil {
			return fmt.Errorf("sft: %w", err)
		}
	}
	r.bar = progress.New(r.out, r.o.Terminal, steps, "train").Every(c.LoggingSteps, 30*time.Second)
	return nil
}

func (r *report) close() {
	if r.bar != nil {
		r.bar.Done()
		r.bar = nil
	}
	if r.metrics != nil {
		_ = r.metrics.Close()
		r.metrics = nil
	}
	if r.board != nil {
		_ = r.board.Close()
		r.board = nil
	}
}

func (r *report) log(e metrics.Event) {
	if r.metrics == nil {
		return
	}
	e.Time = time.Now()
	if err := r.metrics.Log(e); err != nil {
		r.line("metrics are not written any more: %v", err)
		r.metrics = nil
		return
	}
	if r.board != nil {
		_ = r.board.Log(e)
	}
}

func (r *report) step(s StepResult, epoch float64) {
	if !r.active {
		return
	}
	rate := float64(s.Tokens) / s.Duration.Seconds()
	peak := PeakRSS()
	r.bar.Step(progress.Stats{
		Step: s.Step, Epoch: epoch, Loss: s.Loss, LR: s.LR, GradNorm: s.GradNorm, TokensPerSec: rate, PeakBytes: peak,
	})
	r.log(metrics.Event{Kind: metrics.Train, Step: s.Step, Epoch: epoch, Values: map[string]float64{
		metrics.Loss: s.Loss, metrics.LearningRate: s.LR, metrics.GradNorm: s.GradNorm, metrics.TokensPerSec: rate,
		metrics.PeakBytes: float64(peak),
	}})
}

func (r *report) evaluating(done, total int) {
	if r.active && r.o.Terminal && done < total {
		fmt.Fprintf(r.out, "\revaluating: batch %d of %d\033[K", done, total)
	} else if r.active && r.o.Terminal {
		fmt.Fprint(r.out, "\r\033[K")
	}
}

func (r *report) evaluated(step int, epoch, loss float64) {
	if !r.active {
		return
	}
	r.line("eval  step %d  loss %.4f", step, loss)
	r.log(metrics.Event{Kind: metrics.Eval, Step: step, Epoch: epoch, Values: map[string]float64{metrics.Loss: loss}})
}

func (r *report) saved(dir string) { r.line("saved %s", relative(dir)) }

// summary draws the curve, writes summary.json and tells where everything is.
func (r *report) summary(c *Config, result *Result) error {
	r.close()
	switch err := curve.Save(c.curvePath(), c.metricsPath(), curve.Options{}); {
	case err == nil:
		result.Curve = c.curvePath()
	case !errors.Is(err, curve.ErrEmpty):
		return fmt.Errorf("sft: draw the learning curve: %w", err)
	}
	text, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return fmt.Errorf("sft: %w", err)
	}
	if err := atomicfile.Write(c.summaryPath(), append(text, '\n')); err != nil {
		return fmt.Errorf("sft: %w", err)
	}
	r.print(result)
	return nil
}

func (r *report) print(s *Result) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(r.out, "  %-15s %s\n", name, fmt.Sprintf(format, args...))
	}
	if s.Stopped {
		fmt.Fprintf(r.out, "\nstopped after step %d; go on with --resume_from_checkpoint true\n", s.Steps)
	} else {
		fmt.Fprintf(r.out, "\ndone: %d steps in %s\n", s.Steps, time.Duration(s.TrainSeconds*float64(time.Second)).Round(time.Second))
	}
	if s.EvalBefore != nil && s.EvalAfter != nil {
		row("eval loss", "%.4f before, %.4f after (%+.4f)", *s.EvalBefore, *s.EvalAfter, *s.EvalAfter-*s.EvalBefore)
	} else if s.EvalAfter != nil {
		row("eval loss", "%.4f", *s.EvalAfter)
	}
	row("last train loss", "%.4f", s.TrainLoss)
	row("speed", "%s tokens/s", progress.Thousands(s.TokensPerSec))
	var peaks []string
	for _, p := range s.PeakRSSBytes {
		peaks = append(peaks, progress.Bytes(p))
	}
	row("peak memory", "%s (per rank)", strings.Join(peaks, ", "))
	for _, f := range []struct{ name, path string }{
		{"adapter", s.Adapter}, {"model", s.Model}, {"checkpoint", s.Checkpoint}, {"metrics", s.Metrics}, {"learning curve", s.Curve},
	} {
		if f.path != "" {
			row(f.name, "%s", relative(f.path))
		}
	}
}

// PeakRSS is the most memory that this process has had resident, in bytes; 0 where the system does not tell.
func PeakRSS() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}

func envInt(name string) int {
	n, _ := strconv.Atoi(os.Getenv(name))
	return n
}
