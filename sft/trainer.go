package sft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// ErrNotFinite is the reason of a run that ended because its gradients held a NaN or an infinity.
var ErrNotFinite = errors.New("the gradients are not finite")

// ErrStopped is the reason of an evaluation that some rank asked to end early.
var ErrStopped = errors.New("stopped")

// Trainer makes optimiser steps. Its fields are the parts of a run; services that bring their own loop use Step.
type Trainer struct {
	Model     *llama.Model
	Sharded   *fsdp.Model // Model wrapped with Config.DivideFactor 1
	Optimizer optim.Optimizer
	Schedule  func(step int) float64 // factor on the learning rate; nil is constant
	// MaxGradNorm clips gradients; 0 does not.
	MaxGradNorm float64
	// Generator is this rank's source of dropout masks.
	Generator *torch.Generator

	step int
}

// StepResult is what one optimiser step did. All ranks see the same.
type StepResult struct {
	Step     int     // the number of steps done, from 1
	Loss     float64 // mean over the targets of all ranks, in nats
	GradNorm float64 // before clipping
	LR       float64
	Targets  int64 // tokens that counted in the loss, on all ranks
	Tokens   int64 // tokens without padding, on all ranks
	Stop     bool  // some rank asked to stop
	Duration time.Duration
}

// StepsDone is the number of optimiser steps so far.
func (t *Trainer) StepsDone() int { return t.step }

// Step makes one optimiser step from the micro-batches of this rank. It is a collective: every rank calls it with the
// same number of micro-batches. stop asks all ranks to stop after this step; the request travels in the all-reduce of
// the gradient norm. After an error the step was not made, and the model is as before.
func (t *Trainer) Step(ctx context.Context, batches []data.Batch, stop bool) (r StepResult, err error) {
	begin := time.Now()
	defer func() {
		if err != nil {
			t.Sharded.Reset(ctx)
			t.Sharded.ZeroGrad()
			err = fmt.Errorf("sft: rank %d: step %d: %w", t.Sharded.Group().Rank(), t.step+1, err)
		}
	}()
	targets, tokens, err := t.count(ctx, batches)
	if err != nil {
		return r, err
	}
	if targets == 0 {
		return r, data.ErrNoLabels
	}
	lossSum := 0.0
	micro := func(b data.Batch) error {
		loss, err := t.forwardBackward(ctx, b, 1/float64(targets))
		lossSum += loss
		return err
	}
	last := len(batches) - 1
	err = t.Sharded.Accumulate(func() error {
		for _, b := range batches[:last] {
			if err := micro(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	if err := micro(batches[last]); err != nil {
		return r, err
	}
	stops := float64(0)
	if stop {
		stops = 1
	}
	norm, err := t.Sharded.ClipGradNorm(ctx, t.MaxGradNorm, &lossSum, &stops)
	if err != nil {
		return r, err
	}
	if math.IsNaN(norm) || math.IsInf(norm, 0) { // the same on every rank
		return r, fmt.Errorf("%w: norm %v, loss %v: lower learning_rate, or look for bad rows in the data", ErrNotFinite, norm, lossSum)
	}
	if t.Schedule != nil {
		t.Optimizer.ScaleLR(t.Schedule(t.step))
	}
	if err := torch.Try(t.Optimizer.Step); err != nil {
		return r, err
	}
	t.Sharded.ZeroGrad()
	t.step++
	return StepResult{
		Step: t.step, Loss: lossSum, GradNorm: norm, LR: t.Optimizer.LR(), Targets: targets, Tokens: tokens,
		Stop: stops > 0, Duration: time.Since(begin),
	}, nil
}

// count adds the targets and tokens of the micro-batches up over all ranks: the loss is the mean over all of them, so
// that ranks and micro-batches with many targets weigh more.
func (t *Trainer) count(ctx context.Context, batches []data.Batch) (targets, tokens int64, err error) {
	if len(batches) == 0 {
		return 0, 0, errors.New("no micro-batches")
	}
	for _, b := range batches {
		targets += int64(b.LossTokens())
		for _, n := range b.Lengths {
			tokens += int64(n)
		}
	}
	sums, err := sumOverRanks(ctx, t.Sharded.Group(), float64(targets), float64(tokens))
	if err != nil {
		return 0, 0, err
	}
	return int64(sums[0]), int64(sums[1]), nil
}

func (t *Trainer) forwardBackward(ctx context.Context, b data.Batch, scale float64) (loss float64, err error) {
	err = torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		c := &nn.Call{Context: ctx, Scope: s, Training: true, Generator: t.Generator}
		out := nn.Run(t.Model, c, input(s, b, scale))
		loss = out.Loss.Item()
		out.Loss.Backward()
	})
	return loss, err
}

// input makes the model's input of a batch.
func input(s *torch.Scope, b data.Batch, scale float64) llama.Input {
	shape := []int64{int64(b.B), int64(b.T)}
	in := llama.Input{
		IDs: s.Own(torch.FromSlice(b.IDs, shape...)), Labels: s.Own(torch.FromSlice(b.Labels, shape...)), LossScale: scale,
	}
	if b.PaddingFree() {
		in.CuSeqlens = b.CuSeqlens
		in.Positions = s.Own(torch.FromSlice(b.PositionIDs, shape...))
	}
	return in
}

// EvaluateOptions are what Evaluate may be given; the zero value works.
type EvaluateOptions struct {
	Stop     func() bool    // asked before every batch, and agreed on by all ranks; all give one or none does
	Progress func(done int) // called after every batch
}

// Evaluate computes the mean loss over the targets of all batches of all ranks, without dropout. It is a collective:
// every rank must have the same number of batches; a rank that has run out brings empty ones. When Stop answers true on
// any rank, all give up before the next batch, with ErrStopped.
func (t *Trainer) Evaluate(ctx context.Context, batches func(context.Context) (data.Batch, error), o EvaluateOptions) (loss float64, err error) {
	sum, targets := 0.0, 0.0
	for done := 0; ; done++ {
		if o.Stop != nil {
			if stop, err := anyRank(ctx, t.Sharded.Group(), o.Stop()); err != nil {
				return 0, fmt.Errorf("sft: evaluate: %w", err)
			} else if stop {
				return 0, fmt.Errorf("sft: evaluate: %w before batch %d", ErrStopped, done+1)
			}
		}
		b, err := batches(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("sft: evaluate: %w", err)
		}
		if b.B == 0 { // the others still have rows, and their layers are gathered from this rank too
			b = data.Batch{IDs: []int64{0, 0}, Labels: []int64{data.IgnoreIndex, data.IgnoreIndex}, B: 1, T: 2, Lengths: []int{2}}
		}
		err = torch.Try(func() {
			torch.NoGrad(func() {
				s := torch.NewScope(nil)
				defer s.Close()
				out := nn.Run(t.Model, &nn.Call{Context: ctx, Scope: s}, input(s, b, 1))
				sum += out.Loss.Item()
				targets += float64(out.Count)
			})
		})
		if err != nil {
			t.Sharded.Reset(ctx)
			return 0, fmt.Errorf("sft: rank %d: evaluate batch %d: %w", t.Sharded.Group().Rank(), done+1, err)
		}
		if o.Progress != nil {
			o.Progress(done + 1)
		}
	}
	sums, err := sumOverRanks(ctx, t.Sharded.Group(), sum, targets)
	if err != nil {
		return 0, fmt.Errorf("sft: evaluate: %w", err)
	}
	if sums[1] == 0 {
		return 0, fmt.Errorf("sft: evaluate: %w", data.ErrNoLabels)
	}
	return sums[0] / sums[1], nil
}

// sumOverRanks adds values up over the ranks.
func sumOverRanks(ctx context.Context, g dist.Group, values ...float64) ([]float64, error) {
	return reduceOverRanks(ctx, g, dist.Sum, values...)
}

// anyRank tells every rank whether yes is true on one of them.
func anyRank(ctx context.Context, g dist.Group, yes bool) (bool, error) {
	mine := 0.0
	if yes {
		mine = 1
	}
	most, err := reduceOverRanks(ctx, g, dist.Max, mine)
	return err == nil && most[0] > 0, err
}

func reduceOverRanks(ctx context.Context, g dist.Group, op dist.ReduceOp, values ...float64) (out []float64, err error) {
	err = torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		t := s.Own(torch.FromSlice(values))
		torch.Throw(dist.Wait(ctx)(g.AllReduce(ctx, t, op)))
		out = torch.Slice[float64](t)
	})
	return out, err
}
