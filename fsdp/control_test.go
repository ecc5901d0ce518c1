package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// TestCollectiveCounts are the numbers of the reference implementation, for three layers and the root: in a step without
// accumulation and in one of three micro-batches.
func TestCollectiveCounts(t *testing.T) {
	const blocks = 3
	for _, c := range []struct {
		name    string
		config  fsdp.Config
		mesh    bool
		phase   fsdp.Phase // of all micro-batches but the last
		micro   int64
		gathers int64 // all-gathers, reduce-scatters, all-reduces
		scatter int64
		sums    int64
	}{
		{"default", fsdp.Config{}, false, fsdp.Phase{}, 1, 2*blocks + 1, blocks + 1, 0},
		{"reshard root", fsdp.Config{Reshard: fsdp.ReshardAfterForward}, false, fsdp.Phase{}, 1, 2*blocks + 2, blocks + 1, 0},
		{"keep", fsdp.Config{Strategy: fsdp.ShardGradOp}, false, fsdp.Phase{}, 1, blocks + 1, blocks + 1, 0},
		{"smaller", fsdp.Config{ReshardSize: 2}, false, fsdp.Phase{}, 1, 2*blocks + 1, blocks + 1, 0},
		{"no shard", fsdp.Config{Strategy: fsdp.NoShard}, false, fsdp.Phase{}, 1, 0, 0, blocks + 1},
		{"hybrid", fsdp.Config{Strategy: fsdp.HybridShard}, true, fsdp.Phase{}, 1, 2*blocks + 1, blocks + 1, blocks + 1},
		{"accumulate", fsdp.Config{}, false, fsdp.Phase{NoSync: true}, 3, 3 * (2*blocks + 1), blocks + 1, 0},
		{"accumulate, keep", fsdp.Config{Strategy: fsdp.ShardGradOp}, false, fsdp.Phase{NoSync: true}, 3, 3 * (blocks + 1), blocks + 1, 0},
		{"accumulate, keep unsharded", fsdp.Config{Strategy: fsdp.ShardGradOp}, false, fsdp.Phase{NoSync: true, KeepUnsharded: true}, 3, blocks + 1, blocks + 1, 0},
		{"reduce always", fsdp.Config{}, false, fsdp.Phase{NotLast: true}, 3, 3 * (2*blocks + 1), 3 * (blocks + 1), 0},
		{"hybrid, accumulate", fsdp.Config{Strategy: fsdp.HybridShard}, true, fsdp.Phase{NoSync: true}, 3, 3 * (2*blocks + 1), blocks + 1, blocks + 1},
		{"hybrid, all-reduce once", fsdp.Config{Strategy: fsdp.HybridShard}, true, fsdp.Phase{NoAllReduce: true}, 3, 3 * (2*blocks + 1), 3 * (blocks + 1), blocks + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			ref := newChain(blocks)
			for rank := range 4 {
				for micro := range c.micro {
					require.NoError(t, ref.step(t.Context(), rank, int(micro)))
				}
			}
			ranktest.Run(t, 4, func(ctx context.Context, g dist.Group) error {
				n := newChain(blocks)
				c := c
				c.config.Units = fsdp.ByType[*lookLayer]()
				var m *fsdp.Model
				counted := dist.Counted(g)
				mesh, err := dist.NewMesh(ctx, counted, []int{2, 2}, []string{"replicate", "shard"})
				if err != nil {
					return err
				}
				defer mesh.Close(ctx)
				if c.mesh {
					m, err = fsdp.WrapMesh(ctx, n, mesh, c.config)
				} else {
					m, err = fsdp.Wrap(n, counted, c.config)
				}
				if err != nil {
					return err
				}
				err = m.During(c.phase, func() error {
					for i := range c.micro - 1 {
						if err := n.step(ctx, g.Rank(), int(i)); err != nil {
							return err
						}
					}
					return nil
				})
				if err = errors.Join(err, n.step(ctx, g.Rank(), int(c.micro-1))); err != nil {
					return err
				}
				counts := counted.Counts()
				k := m.Counters()
				for _, f := range []struct {
					what      string
					got, want int64
				}{
					{"all-gathers", k.AllGathers.Load(), c.gathers}, {"reduce-scatters", k.ReduceScatters.Load(), c.scatter},
					{"all-reduces", k.AllReduces.Load(), c.sums},
					{"counted all-gathers", counts.Of(dist.OpAllGather).Calls, c.gathers},
					{"counted reduce-scatters", counts.Of(dist.OpReduceScatter).Calls, c.scatter},
					{"counted all-reduces", counts.Of(dist.OpAllReduce).Calls, c.sums},
				} {
					if f.got != f.want {
						return fmt.Errorf("%d %s, want %d", f.got, f.what, f.want)
					}
				}
				var sum fsdp.UnitStats
				for _, u := range m.Stats() {
					sum.AllGather.Calls += u.AllGather.Calls
					sum.AllGather.Bytes += u.AllGather.Bytes
					sum.ReduceScatter.Bytes += u.ReduceScatter.Bytes
					sum.AllReduce.Bytes += u.AllReduce.Bytes
				}
				bytes := sum.AllGather.Bytes + sum.ReduceScatter.Bytes + sum.AllReduce.Bytes
				if all := counts.Total(nil).Bytes; sum.AllGather.Calls != c.gathers || bytes != all || bytes != k.Bytes.Load() {
					return fmt.Errorf("units count %+v, the group %d bytes, the model %d", sum, all, k.Bytes.Load())
				}
				for i, p := range nn.NamedParams(n) {
					want := nn.Params(ref)[i].Tensor().Grad().DivScalar(4)
					if err := compare(p.Name, p.Param.Tensor().Grad(), want, m.ShardGroup()); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// FC-38: freezing after wrap takes parameters out of the reduction, and unfreezing puts them back; gradients of frozen
// parameters are nil. Reduce-scatters move trainable elements, and one number for each parameter, only.
func TestFreezingAfterWrap(t *testing.T) {
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		n := newChain(3)
		m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()})
		if err != nil {
			return err
		}
		var before int64
		reduced := func() (elements int64) {
			for _, u := range m.Stats() {
				elements += u.ReduceScatter.Bytes / 8
			}
			before, elements = elements, elements-before
			return elements
		}
		const weight = 2*3*5 + 2 // 5 rows on 2 ranks are padded to 6
		for i, c := range []struct {
			frozen []int
			want   int64
		}{{nil, 4*weight + 2*3 + 2}, {[]int{0, 1}, 2*weight + 2*3 + 2}, {[]int{0, 1, 2}, weight + 2*3 + 2}, {[]int{1}, 3*weight + 2*3 + 2}} {
			m.ZeroGrad()
			for _, l := range n.Layers {
				l.W.SetTrainable(true)
			}
			for _, k := range c.frozen {
				n.Layers[k].W.SetTrainable(false)
				n.Layers[k].W.Tensor().SetGrad(nil)
			}
			if err := n.step(ctx, g.Rank(), i); err != nil {
				return err
			}
			if got := reduced(); got != c.want {
				return fmt.Errorf("frozen %v: %d elements were reduced, want %d", c.frozen, got, c.want)
			}
			ref := newChain(3)
			for _, k := range c.frozen {
				ref.Layers[k].W.SetTrainable(false)
			}
			for rank := range 2 {
				if err := ref.step(ctx, rank, i); err != nil {
					return err
				}
			}
			for i, p := range nn.NamedParams(n) {
				want := nn.Params(ref)[i].Tensor().Grad()
				if want != nil {
					want = want.DivScalar(2)
				}
				if err := compare(p.Name, p.Param.Tensor().Grad(), want, g); err != nil {
					return fmt.Errorf("frozen %v: %w", c.frozen, err)
				}
			}
			torch.NoGrad(func() { // an iteration without gradients in between
				s := torch.NewScope(nil)
				defer s.Close()
				nn.Run(n, &nn.Call{Context: ctx, Scope: s}, s.Own(torch.Ones(torch.Float64, 1, 5)))
			})
		}
		return nil
	})
}

// FC-41: a panic inside forward, or a failing collective, and then a clean step.
func TestRecoveryAfterAPanic(t *testing.T) {
	for _, inBackward := range []bool{false, true} {
		ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
			n, clean := newChain(4), newChain(4)
			m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()})
			if err != nil {
				return err
			}
			if _, err := fsdp.Wrap(clean, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()}); err != nil {
				return err
			}
			mine := errors.New("mine")
			fail := func(c *nn.Call, x *torch.Tensor) {
				if inBackward {
					x.RegisterHook(func(*torch.Tensor) (*torch.Tensor, error) { return nil, mine })
					return
				}
				panic(mine)
			}
			n.Layers[2].look = func(_ *lookLayer, c *nn.Call, x *torch.Tensor) { fail(c, x) }
			func() {
				defer func() {
					if v := recover(); v != nil {
						err = v.(error)
					}
				}()
				err = n.step(ctx, g.Rank(), 0)
			}()
			if !errors.Is(err, mine) {
				return fmt.Errorf("got %v", err)
			}
			n.Layers[2].look = nil
			if !inBackward {
				if err := n.step(ctx, g.Rank(), 0); err == nil {
					return errors.New("a forward after a failed one needs Reset")
				}
			}
			m.Reset(ctx)
			m.ZeroGrad()
			if err := errors.Join(n.step(ctx, g.Rank(), 0), clean.step(ctx, g.Rank(), 0)); err != nil {
				return err
			}
			for i, p := range nn.NamedParams(n) {
				want := nn.Params(clean)[i].Tensor().Grad()
				if got := p.Param.Tensor().Grad(); !got.Equal(want) {
					return fmt.Errorf("%s: the gradient differs from that of a clean run", p.Name)
				}
			}
			return nil
		})
	}
}

func TestUnshardByHand(t *testing.T) {
	ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
		n := newChain(2)
		want := nn.Params(newChain(2))
		m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()})
		if err != nil {
			return err
		}
		if err := m.Unshard(ctx, "Layers.7"); err == nil {
			return errors.New("an unknown unit was accepted")
		}
		wait, err := m.UnshardAsync(ctx, "Layers.1") // before the first forward
		if err != nil {
			return err
		}
		if err := wait(ctx); err != nil {
			return err
		}
		if got := n.Layers[1].W.Tensor(); !got.Equal(want[2].Tensor()) {
			return errors.New("the gathered parameter differs")
		}
		if err := m.Reshard(ctx, "Layers.1"); err != nil {
			return err
		}
		if err := compare("shard", n.Layers[1].W.Tensor(), want[2].Tensor(), g); err != nil {
			return err
		}
		if err := errors.Join(m.Unshard(ctx, ""), m.Unshard(ctx, "Layers.0")); err != nil {
			return err
		}
		gathers := m.Counters().AllGathers.Load()
		if err := n.step(ctx, g.Rank(), 0); err != nil {
			return err
		}
		if got := m.Counters().AllGathers.Load() - gathers; got != 1+2 {
			return fmt.Errorf("%d all-gathers, want one in forward and two in backward", got)
		}
		return nil
	})
}

// A module that runs three times in one forward, frozen or not, with calls that record nothing in between.
func TestModuleUsedInALoop(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		for _, checkpoint := range []string{"", "kept", "re-entrant"} {
			t.Run(fmt.Sprint(frozen, checkpoint), func(t *testing.T) {
				build := func() *chain {
					n := newChain(2)
					n.route = []int{0, 1, 0, 1, 0}
					n.Layers[0].W.SetTrainable(!frozen)
					for _, l := range n.Layers {
						l.SetCheckpoint(checkpoint != "")
						l.SetCheckpointReentrant(checkpoint == "re-entrant")
					}
					return n
				}
				ref := build()
				for rank := range 2 {
					require.NoError(t, ref.step(t.Context(), rank, 0))
				}
				ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
					n := build()
					m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer](), DivideFactor: 1})
					if err != nil {
						return err
					}
					for range 2 {
						m.ZeroGrad()
						if err := n.step(ctx, g.Rank(), 0); err != nil {
							return err
						}
						for i, p := range nn.NamedParams(n) {
							if err := compare(p.Name, p.Param.Tensor().Grad(), nn.Params(ref)[i].Tensor().Grad(), g); err != nil {
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

// FC-55: a rank whose batch has no rows takes part all the same, and counts nothing. Settings of single units hold: one keeps
// its parameters from forward to backward, and an embedding is not gathered for backward.
func TestEmptyBatchAndUnitOptions(t *testing.T) {
	step := func(ctx context.Context, n *chain, rank int) error {
		return torch.Try(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			rows := int64(2)
			if rank == 1 {
				rows = 0
			}
			x := s.Own(torch.Randn(torch.NewGenerator(int64(rank)), torch.Float64, rows, 5))
			nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x).Backward()
		})
	}
	ref := newChain(3)
	for rank := range 3 {
		require.NoError(t, step(t.Context(), ref, rank))
	}
	ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
		n := newChain(3)
		m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer](), DivideFactor: 1,
			PerUnit: func(name string, _ any) fsdp.UnitOptions {
				if name == "Layers.1" {
					return fsdp.UnitOptions{Reshard: fsdp.ReshardAfterBackward}
				}
				return fsdp.UnitOptions{}
			}})
		if err != nil {
			return err
		}
		if err := step(ctx, n, g.Rank()); err != nil {
			return err
		}
		for i, p := range nn.NamedParams(n) {
			if err := compare(p.Name, p.Param.Tensor().Grad(), nn.Params(ref)[i].Tensor().Grad(), g); err != nil {
				return err
			}
		}
		if got := m.Counters().AllGathers.Load(); got != 4+2 {
			return fmt.Errorf("%d all-gathers", got)
		}
		return nil
	})

	// An embedding is looked up by index: its backward does not read it.
	ids := torch.FromSlice([]int64{1, 2, 3, 4})
	lookup := func(ctx context.Context, m *lm) error {
		return torch.Try(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			nn.Run(m, &nn.Call{Context: ctx, Scope: s, Training: true}, ids.In(s)).Backward()
		})
	}
	model := initLM(false)
	require.NoError(t, lookup(t.Context(), model))
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		m := initLM(false)
		f, err := fsdp.Wrap(m, g, fsdp.Config{Units: fsdp.ByType[*nn.Embedding](), Reshard: fsdp.ReshardAfterForward,
			PerUnit: func(name string, _ any) fsdp.UnitOptions { return fsdp.UnitOptions{NoBackwardUnshard: name == "embed"} }})
		if err != nil {
			return err
		}
		if err := lookup(ctx, m); err != nil {
			return err
		}
		for _, u := range f.Stats() {
			if want := map[string]int64{"embed": 1, "": 2}[u.Unit]; u.AllGather.Calls != want {
				return fmt.Errorf("unit %q: %d all-gathers, want %d", u.Unit, u.AllGather.Calls, want)
			}
		}
		return compare("embedding's gradient", m.Embed.Weight.Tensor().Grad(), model.Embed.Weight.Tensor().Grad(), g)
	})
}
