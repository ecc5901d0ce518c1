package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// chain is layers of one weight each; route says which run, and in which the output is used.
type chain struct {
	nn.Hooks
	Embed  *nn.Param `torch:"embed"`
	Layers []*lookLayer
	Tail   *nn.Param `torch:"tail"`
	route  []int
	unused map[int]bool // run, but their output is thrown away
}

func (n *chain) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	x = x.Linear(n.Embed.In(c.Scope), nil)
	for _, i := range n.route {
		y := nn.Run(n.Layers[i], c, x)
		if !n.unused[i] {
			x = y.Tanh()
		}
	}
	x = x.Mul(n.Tail.In(c.Scope))
	return x.Mul(x).Sum()
}

func newChain(layers int) *chain {
	g := torch.NewGenerator(11)
	weight := func(shape ...int64) *nn.Param { return nn.NewParam(torch.Randn(g, torch.Float64, shape...), true) }
	n := &chain{Embed: weight(5, 5), Tail: weight(5)}
	for i := range layers {
		n.Layers = append(n.Layers, &lookLayer{W: weight(5, 5)})
		n.route = append(n.route, i)
	}
	return n
}

// recorder collects events of every rank.
type recorder struct {
	mu     sync.Mutex
	events map[string][]string
}

func (r *recorder) trace(key string, kinds ...string) func(event, unit string) {
	return func(event, unit string) {
		if !slices.Contains(kinds, event) {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.events == nil {
			r.events = map[string][]string{}
		}
		r.events[key] = append(r.events[key], event+" "+unit)
	}
}

func (n *chain) step(ctx context.Context, rank, step int) error {
	return torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		x := s.Own(torch.Randn(torch.NewGenerator(int64(10*step+rank)), torch.Float64, 2, 5))
		nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x).Backward()
	})
}

// unshardedGrads are the mean gradients over ranks that take routes of their own; nil where nobody used the parameter.
func unshardedGrads(layers int, set func(n *chain, rank int), ranks int) []*torch.Tensor {
	sum := newChain(layers)
	params := nn.Params(sum)
	for rank := range ranks {
		n := newChain(layers)
		set(n, rank)
		if err := n.step(context.Background(), rank, 0); err != nil {
			panic(err)
		}
		for i, p := range nn.Params(n) {
			g := p.Tensor().Grad()
			if g == nil {
				continue
			}
			g = g.DivScalar(float64(ranks))
			if before := params[i].Tensor().Grad(); before != nil {
				g = g.Add(before)
			}
			params[i].Tensor().SetGrad(g)
		}
	}
	var list []*torch.Tensor
	for _, p := range params {
		list = append(list, p.Tensor().Grad())
	}
	return list
}

// FC-40: ranks take branches of their own. Nothing hangs, and the gradients are those of one process.
func TestBranchesOfSingleRanks(t *testing.T) {
	const layers = 4
	for name, set := range map[string]func(n *chain, rank int){
		"a layer left out by rank 1": func(n *chain, rank int) {
			if rank == 1 {
				n.route = []int{0, 2, 3}
			}
		},
		"different layers": func(n *chain, rank int) { n.route = [][]int{{0, 1}, {2, 3}, {}}[rank] },
		"left out by all":  func(n *chain, _ int) { n.route = []int{0, 3} },
		"unused outputs": func(n *chain, rank int) {
			n.unused = []map[int]bool{{1: true, 2: true}, {}, {3: true}}[rank]
		},
		"both": func(n *chain, rank int) {
			n.route = [][]int{{0, 1, 2, 3}, {1, 3}, {0, 2, 3}}[rank]
			n.unused = []map[int]bool{{1: true, 2: true}, {3: true}, {}}[rank]
		},
	} {
		for _, prefetch := range []fsdp.Prefetch{{}, {Depth: 2}, {Depth: -1}, {Backward: fsdp.BackwardPost}, {Backward: fsdp.BackwardNone}} {
			t.Run(fmt.Sprintf("%s/%+v", name, prefetch), func(t *testing.T) {
				want := unshardedGrads(layers, set, 3)
				ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
					n := newChain(layers)
					m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer](), Prefetch: prefetch, Branches: true, CheckOrder: true})
					if err != nil {
						return err
					}
					for range 2 {
						m.ZeroGrad()
						n.route = newChain(layers).route
						set(n, g.Rank())
						if err := n.step(ctx, g.Rank(), 0); err != nil {
							return err
						}
						for i, p := range nn.NamedParams(n) {
							if err := compare(p.Name, p.Param.Tensor().Grad(), want[i], g); err != nil {
								return err
							}
						}
						torch.NoGrad(func() { // a forward alone, with another route
							n.route = n.route[g.Rank()%(len(n.route)+1):]
							s := torch.NewScope(nil)
							defer s.Close()
							nn.Run(n, &nn.Call{Context: ctx, Scope: s}, s.Own(torch.Ones(torch.Float64, 1, 5)))
						})
					}
					return nil
				})
			})
		}
	}
}

// FC-40: without Config.Branches an unused output is fine, and a unit that a rank leaves out is an error that names the
// units, on every rank, and no hang.
func TestRanksThatRunDifferentUnits(t *testing.T) {
	want := unshardedGrads(3, func(n *chain, rank int) { n.unused = map[int]bool{1: rank == 1} }, 2)
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		n := newChain(3)
		n.unused = map[int]bool{1: g.Rank() == 1}
		if _, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()}); err != nil {
			return err
		}
		if err := n.step(ctx, g.Rank(), 0); err != nil {
			return err
		}
		for i, p := range nn.NamedParams(n) {
			if err := compare(p.Name, p.Param.Tensor().Grad(), want[i], g); err != nil {
				return err
			}
		}
		return nil
	})
	var errs [2]error
	for _, check := range []bool{false, true} {
		ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
			n := newChain(3)
			if check { // without it, Gloo would end the process
				n.Layers[1].Table = nn.NewParam(torch.Ones(torch.Float64, 1000), false)
			}
			m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer](), CheckOrder: check})
			if err != nil {
				return err
			}
			if g.Rank() == 1 {
				n.route = []int{0, 2}
			}
			errs[g.Rank()] = n.step(ctx, g.Rank(), 0)
			m.Reset(ctx)
			n.route = []int{0, 1, 2}
			return n.step(ctx, g.Rank(), 0) // and on it goes
		})
		require.ErrorContains(t, errs[0], `unit "Layers.1": rank 1 gathers unit "Layers.2" at the same time`)
		require.ErrorContains(t, errs[1], `unit "Layers.2": rank 0 gathers unit "Layers.1" at the same time`)
	}

	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		n := newChain(2)
		m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer](), CheckOrder: true})
		if err != nil {
			return err
		}
		n.Layers[1].W.SetTrainable(g.Rank() == 0)
		errs[g.Rank()] = n.step(ctx, g.Rank(), 0)
		m.Reset(ctx)
		return nil
	})
	require.ErrorContains(t, errs[0], `run unit "Layers.1": rank 1 has other trainable parameters in it`)
}

// TestOrderOfEvents is the order of the reference implementation, and of FSDP1's modes of prefetching.
func TestOrderOfEvents(t *testing.T) {
	const u, p = "unshard ", "post-backward "
	l := func(i int) string { return fmt.Sprintf("Layers.%d", i) }
	forward := []string{u, u + l(0), u + l(1), u + l(2)}
	for name, c := range map[string]struct {
		config fsdp.Config
		set    func(m *fsdp.Model) error
		want   []string
	}{
		"default": {want: append(slices.Clone(forward), u+l(2), u+l(1), p+l(2), u+l(0), p+l(1), p+l(0), p)},
		"depth 2": {config: fsdp.Config{Prefetch: fsdp.Prefetch{Depth: 2}},
			want: append(slices.Clone(forward), u+l(2), u+l(1), u+l(0), p+l(2), p+l(1), p+l(0), p)},
		"none": {config: fsdp.Config{Prefetch: fsdp.Prefetch{Backward: fsdp.BackwardNone}},
			want: append(slices.Clone(forward), u+l(2), p+l(2), u+l(1), p+l(1), u+l(0), p+l(0), p)},
		"post": {config: fsdp.Config{Prefetch: fsdp.Prefetch{Backward: fsdp.BackwardPost}},
			want: append(slices.Clone(forward), u+l(2), p+l(2), u+l(1), p+l(1), u+l(0), p+l(0), p)},
		"keep": {config: fsdp.Config{Reshard: fsdp.ReshardAfterBackward}, want: append(slices.Clone(forward), p+l(2), p+l(1), p+l(0), p)},
		"root too": {config: fsdp.Config{Reshard: fsdp.ReshardAfterForward},
			want: append(slices.Clone(forward), u, u+l(2), u+l(1), p+l(2), u+l(0), p+l(1), p+l(0), p)},
		"limit": {config: fsdp.Config{Prefetch: fsdp.Prefetch{Depth: 3, Limit: 1}},
			want: append(slices.Clone(forward), u+l(2), u+l(1), p+l(2), u+l(0), p+l(1), p+l(0), p)},
		"explicit": {set: func(m *fsdp.Model) error {
			return errors.Join(m.SetForwardPrefetch(l(0), l(2), l(1)), m.SetBackwardPrefetch("", l(0), l(2)), m.SetBackwardPrefetch(l(2), l(1)))
		}, want: []string{u, u + l(0), u + l(2), u + l(1), u + l(0), u + l(2), u + l(1), p + l(2), p + l(1), p + l(0), p}},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
				n := newChain(3)
				c := c
				c.config.Units = fsdp.ByType[*lookLayer]()
				trace := r.trace(fmt.Sprint(g.Rank()), "unshard", "post-backward")
				c.config.Trace = func(event, unit string) {
					if event == "post-backward" || unit != "" || g.Rank() == 0 {
						trace(event, unit)
					}
				}
				m, err := fsdp.Wrap(n, g, c.config)
				if err != nil {
					return err
				}
				if c.set != nil {
					if err := c.set(m); err != nil {
						return err
					}
				}
				return n.step(ctx, g.Rank(), 0)
			})
			require.Equal(t, c.want, r.events["0"])
			require.Len(t, r.events["1"], len(r.events["0"])-len(slices.DeleteFunc(slices.Clone(c.want), func(e string) bool { return e != u })))
		})
	}
}

// Several forwards before one backward, in one loss or in losses of their own, in either order; with a forward without
// gradients in between; and a forward whose backward never comes.
func TestSeveralForwardsBeforeBackward(t *testing.T) {
	run := func(ctx context.Context, n *chain, rank int, how string) error {
		return torch.Try(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			forward := func(i int) *torch.Tensor {
				x := s.Own(torch.Randn(torch.NewGenerator(int64(10*i+rank)), torch.Float64, 2, 5))
				return nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x)
			}
			if how == "abandoned" {
				forward(7)
			}
			a := forward(0)
			torch.NoGrad(func() { forward(5) })
			b := forward(1)
			switch how {
			case "joined":
				a.Mul(b).Backward()
			case "in order":
				a.Backward()
				b.Backward()
			default:
				b.Backward()
				a.Backward()
			}
		})
	}
	for _, how := range []string{"joined", "in order", "reversed", "abandoned"} {
		for _, checkpoint := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/checkpoint %v", how, checkpoint), func(t *testing.T) {
				ref := newChain(3)
				for rank := range 2 {
					require.NoError(t, run(t.Context(), ref, rank, how))
				}
				var want []*torch.Tensor
				for _, p := range nn.Params(ref) {
					want = append(want, p.Tensor().Grad().DivScalar(2))
				}
				ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
					n := newChain(3)
					for _, l := range n.Layers {
						l.SetCheckpoint(checkpoint)
					}
					m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()})
					if err != nil {
						return err
					}
					for range 2 {
						m.ZeroGrad()
						if err := run(ctx, n, g.Rank(), how); err != nil {
							return err
						}
						for i, p := range nn.NamedParams(n) {
							if err := compare(p.Name, p.Param.Tensor().Grad(), want[i], g); err != nil {
								return err
							}
						}
					}
					return nil
				})
			})
		}
	}
}
