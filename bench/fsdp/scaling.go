package main

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gofsdp/gofsdp/bench/peer"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// point is the cost of a forward and a backward of one small model, in microseconds of CPU time per rank.
type point struct {
	N          int     `json:"n"`
	Parameters int     `json:"parameters"`
	Plain      float64 `json:"plain_us"`
	One        float64 `json:"one_rank_us"`
	Two        float64 `json:"two_ranks_us"`
}

// width is that of all weights: so small that they compute next to nothing.
const width = 8

// stack is layers that are units of their own.
type stack struct {
	nn.Hooks
	Layers []*layer `torch:"layers"`
}

// layer multiplies by one weight after the other.
type layer struct {
	nn.Hooks
	Weights []*nn.Param `torch:"weights"`
}

func (l *layer) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	for _, w := range l.Weights {
		x = x.Linear(w.In(c.Scope), nil)
	}
	return x
}

func (m *stack) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	for _, l := range m.Layers {
		x = nn.Run(l, c, x)
	}
	return x.Sum()
}

func newStack(layers, parameters int) *stack {
	m := &stack{}
	for range layers {
		l := &layer{}
		for range parameters {
			w := torch.Empty(torch.Float32, width, width)
			w.Fill(1.0 / width)
			l.Weights = append(l.Weights, nn.NewParam(w, true))
		}
		m.Layers = append(m.Layers, l)
	}
	return m
}

// byLayers measures stacks of layers with one parameter each.
func byLayers(ctx context.Context, budget time.Duration, sizes []int) (points []point, err error) {
	for _, n := range sizes {
		p, err := measure(ctx, budget, n, 1)
		if err != nil {
			return nil, err
		}
		p.N = n
		points = append(points, p)
	}
	return points, nil
}

// byParameters measures stacks of eight layers.
func byParameters(ctx context.Context, budget time.Duration, sizes []int) (points []point, err error) {
	for _, n := range sizes {
		p, err := measure(ctx, budget, 8, n)
		if err != nil {
			return nil, err
		}
		p.N = n
		points = append(points, p)
	}
	return points, nil
}

// measure gives each of the three ways a third of the budget.
func measure(ctx context.Context, budget time.Duration, layers, parameters int) (point, error) {
	p := point{Parameters: layers * parameters}
	var err error
	if p.Plain, err = train(ctx, budget/3, 0, layers, parameters); err != nil {
		return p, err
	}
	if p.One, err = train(ctx, budget/3, 1, layers, parameters); err != nil {
		return p, err
	}
	p.Two, err = train(ctx, budget/3, 2, layers, parameters)
	return p, err
}

// train makes steps, on so many ranks (goroutines; 0: without sharding), until the budget is used up, and gives the median
// of the microseconds of a step and rank.
func train(ctx context.Context, budget time.Duration, ranks, layers, parameters int) (float64, error) {
	if ranks < 2 {
		return rank(ctx, budget, nil, ranks == 1, layers, parameters)
	}
	store, err := dist.NewHashStore()
	if err != nil {
		return 0, err
	}
	figures := make([]float64, ranks)
	group, ctx := errgroup.WithContext(ctx)
	for r := range ranks {
		group.Go(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			g, err := dist.NewGloo(ctx, store, r, ranks, dist.GlooConfig{Timeout: time.Minute})
			if err != nil {
				return err
			}
			defer g.Close(ctx)
			if figures[r], err = rank(ctx, budget, g, true, layers, parameters); err != nil {
				return err
			}
			return g.Barrier(ctx)
		})
	}
	err = group.Wait()
	return figures[0] / float64(ranks), err // the process's time is that of all ranks
}

// batch is the number of steps that are measured together.
const batch = 5

func rank(ctx context.Context, budget time.Duration, g dist.Group, shard bool, layers, parameters int) (float64, error) {
	n := newStack(layers, parameters)
	if g == nil {
		g = dist.NewSingle()
	}
	var m *fsdp.Model
	if shard {
		var err error
		if m, err = fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*layer]()}); err != nil {
			return 0, err
		}
	}
	var figures []float64
	err := torch.Try(func() {
		begin := time.Now()
		for more := true; more; {
			cpu := cpuTime()
			for range batch {
				s := torch.NewScope(nil)
				x := s.Own(torch.Ones(torch.Float32, 1, width))
				nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x).Backward()
				if m != nil {
					m.ZeroGrad()
				} else {
					for _, l := range n.Layers {
						for _, w := range l.Weights {
							w.Tensor().SetGrad(nil)
						}
					}
				}
				s.Close()
			}
			figures = append(figures, float64((cpuTime()-cpu).Microseconds())/batch)
			more = time.Since(begin) < budget || len(figures) < 3
			if g.Size() > 1 { // the ranks agree, on what the first one says
				vote := torch.FromSlice([]float32{map[bool]float32{true: 1}[more]})
				torch.Throw(dist.Wait(ctx)(g.Broadcast(ctx, vote, 0)))
				more = torch.Slice[float32](vote)[0] != 0
				vote.Free()
			}
		}
	})
	if err != nil {
		return 0, err
	}
	return peer.Median(figures[1:]), nil
}
