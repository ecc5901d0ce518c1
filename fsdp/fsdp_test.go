package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
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

// block is tanh(x·Wᵀ + b)·F, with a frozen byte table and a parameter that some calls do not use.
type block struct {
	nn.Hooks
	W      *nn.Param `torch:"weight"`
	B      *nn.Param `torch:"bias"`
	Frozen *nn.Param `torch:"frozen"`
	Bytes  *nn.Param `torch:"bytes"`
	Extra  *nn.Param `torch:"extra"`

	useExtra func() bool
	fail     func() error
}

// everything makes the parity tests run all combinations: GOFSDP_LONG=1.
var everything = os.Getenv("GOFSDP_LONG") == "1"

func (b *block) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	if b.fail != nil {
		torch.Throw(b.fail())
	}
	y := x.Linear(b.W.In(c.Scope), b.B.In(c.Scope)).Tanh().Linear(b.Frozen.In(c.Scope), nil)
	y = y.Add(b.Bytes.In(c.Scope).To(torch.Float64).Sum().MulScalar(0.01))
	if b.useExtra != nil && b.useExtra() {
		y = y.Mul(b.Extra.In(c.Scope).Sum())
	}
	return y
}

type net struct {
	nn.Hooks
	In     *nn.Param `torch:"in"`
	Blocks []*block  `torch:"blocks"`
	twice  bool
}

func (n *net) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	x = x.Linear(n.In.In(c.Scope), nil)
	for _, b := range n.Blocks {
		x = nn.Run(b, c, x)
	}
	if n.twice {
		x = nn.Run(n.Blocks[0], c, x)
	}
	return x.Mul(x).Mean()
}

type shape struct{ dim, hidden, blocks int64 }

func newNet(s shape, inputTrainable bool) *net {
	g := torch.NewGenerator(7)
	param := func(trainable bool, shape ...int64) *nn.Param {
		return nn.NewParam(torch.Randn(g, torch.Float64, shape...).MulScalarInPlace(0.5), trainable)
	}
	n := &net{In: param(inputTrainable, s.dim, s.dim)}
	for range s.blocks {
		bytes := torch.FromSlice([]uint8{1, 2, 3, 250, 5, 6, 7})
		n.Blocks = append(n.Blocks, &block{
			W: param(true, s.hidden, s.dim), B: param(true, s.hidden), Frozen: param(false, s.dim, s.hidden),
			Bytes: nn.NewParam(bytes, false), Extra: param(true, 3),
		})
	}
	return n
}

func input(dim int64, rank, step int) *torch.Tensor {
	return torch.Randn(torch.NewGenerator(int64(100*step+rank)), torch.Float64, 3, dim)
}

func sgd(params []*nn.Param) {
	torch.NoGrad(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		for _, p := range params {
			if g := p.Tensor().In(s).Grad(); g != nil && g.Numel() > 0 {
				p.Tensor().AddInPlace(g, -0.1)
			}
		}
	})
}

type variant struct {
	name           string
	config         fsdp.Config
	twice          bool
	checkpoint     bool
	inputTrainable bool
	extra          func(rank int) bool // whether a rank uses the extra parameter of block 1
	accumulate     int
}

// reference trains without sharding: gradients are means over the ranks' batches.
func reference(v variant, s shape, size, steps int) (grads [][]*torch.Tensor, values [][]*torch.Tensor, norms []float64) {
	n := newNet(s, v.inputTrainable)
	n.twice = v.twice
	params := nn.NamedParams(n)
	for step := range steps {
		for _, p := range params {
			p.Param.Tensor().SetGrad(nil)
		}
		for rank := range size {
			for micro := range max(1, v.accumulate) {
				scope := torch.NewScope(nil)
				n.Blocks[min(1, len(n.Blocks)-1)].useExtra = func() bool { return v.extra != nil && v.extra(rank) }
				loss := nn.Run(n, &nn.Call{Scope: scope, Training: true}, scope.Own(input(s.dim, rank, 10*step+micro)))
				loss.DivScalar(float64(size)).Backward()
				scope.Close()
			}
		}
		var g, w []*torch.Tensor
		sum := 0.0
		for _, p := range params {
			grad := p.Param.Tensor().Grad()
			if grad != nil {
				grad = grad.Clone()
				sum += math.Pow(grad.Norm(2).Item(), 2)
			}
			g = append(g, grad)
		}
		sgd(nn.Params(n))
		for _, p := range params {
			w = append(w, p.Param.Tensor().Detach().Clone())
		}
		grads, values, norms = append(grads, g), append(values, w), append(norms, math.Sqrt(sum))
	}
	return grads, values, norms
}

func chunkOf(t *torch.Tensor, rank, size int) *torch.Tensor {
	lo, hi := fsdp.ShardRows(t.Size(0), rank, size)
	return t.Narrow(0, lo, hi-lo)
}

func TestParityWithUnshardedTraining(t *testing.T) {
	units := fsdp.ByType[*block]()
	variants := []variant{
		{name: "units", config: fsdp.Config{Units: units}, inputTrainable: true},
		{name: "frozen first layer", config: fsdp.Config{Units: units}},
		{name: "root only", config: fsdp.Config{}, inputTrainable: true},
		{name: "keep until backward", config: fsdp.Config{Units: units, Reshard: fsdp.ReshardAfterBackward}},
		{name: "reshard root, no prefetch", config: fsdp.Config{Units: units, Reshard: fsdp.ReshardAfterForward, Prefetch: fsdp.Prefetch{Depth: -1}}, inputTrainable: true},
		{name: "direct", config: fsdp.Config{Units: units, DirectBytes: 64}, inputTrainable: true},
		{name: "used twice", config: fsdp.Config{Units: units}, twice: true, inputTrainable: true},
		{name: "checkpointed", config: fsdp.Config{Units: units}, checkpoint: true},
		{name: "checkpointed, used twice", config: fsdp.Config{Units: units, Prefetch: fsdp.Prefetch{Depth: 2}}, checkpoint: true, twice: true, inputTrainable: true},
		{name: "extra on one rank", config: fsdp.Config{Units: units}, extra: func(r int) bool { return r == 0 }},
		{name: "extra on all ranks", config: fsdp.Config{Units: units}, extra: func(int) bool { return true }},
		{name: "accumulation", config: fsdp.Config{Units: units}, accumulate: 3},
	}
	shapes := []shape{{16, 15, 2}, {7, 3, 2}, {5, 17, 3}, {4, 1, 1}}
	const steps = 4
	for _, size := range []int{1, 2, 3, 4, 7} {
		t.Run(fmt.Sprintf("%d ranks", size), func(t *testing.T) {
			type expected struct {
				grads, values [][]*torch.Tensor
				norms         []float64
			}
			want := map[string]expected{}
			use := func(i, j int) bool { // at 7 ranks a third of the other variants
				return size < 7 || variants[i].name == "units" || (i+j+size)%3 == 0 || everything
			}
			key := func(v variant, s shape) string { return fmt.Sprint(v.name, s) }
			for i, v := range variants {
				for j, s := range shapes {
					if use(i, j) {
						grads, values, norms := reference(v, s, size, steps)
						want[key(v, s)] = expected{grads, values, norms}
					}
				}
			}
			ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
				for i, v := range variants {
					for j, s := range shapes {
						if w, ok := want[key(v, s)]; ok && use(i, j) {
							if err := train(ctx, g, v, s, w.grads, w.values, w.norms); err != nil {
								return fmt.Errorf("%s, %v: %w", v.name, s, err)
							}
						}
					}
				}
				return nil
			})
		})
	}
}

func train(ctx context.Context, g dist.Group, v variant, s shape, grads, values [][]*torch.Tensor, norms []float64) error {
	n := newNet(s, v.inputTrainable)
	n.twice = v.twice
	n.Blocks[min(1, len(n.Blocks)-1)].useExtra = func() bool { return v.extra != nil && v.extra(g.Rank()) }
	for _, b := range n.Blocks {
		b.SetCheckpoint(v.checkpoint)
	}
	params := nn.NamedParams(n)
	m, err := fsdp.Wrap(n, g, v.config)
	if err != nil {
		return err
	}
	for step := range grads {
		m.ZeroGrad()
		micro := func(i int) error {
			scope := torch.NewScope(nil)
			defer scope.Close()
			return torch.Try(func() {
				x := scope.Own(input(s.dim, g.Rank(), 10*step+i))
				nn.Run(n, &nn.Call{Context: ctx, Scope: scope, Training: true}, x).Backward()
			})
		}
		last := max(1, v.accumulate) - 1
		err := m.Accumulate(func() error {
			for i := range last {
				if err := micro(i); err != nil {
					return err
				}
			}
			return nil
		})
		if err = errors.Join(err, micro(last)); err != nil {
			return err
		}
		carried := float64(g.Rank())
		norm, err := m.ClipGradNorm(ctx, 0, &carried)
		if err != nil {
			return err
		}
		if math.Abs(norm-norms[step]) > 1e-10*norms[step] || carried != float64(g.Size()*(g.Size()-1)/2) {
			return fmt.Errorf("step %d: norm %v, want %v; carried %v", step, norm, norms[step], carried)
		}
		for i, p := range params {
			if err := compare(p.Name+" gradient", p.Param.Tensor().Grad(), grads[step][i], g); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		sgd(nn.Params(n))
		for i, p := range params {
			if err := compare(p.Name, p.Param.Tensor(), values[step][i], g); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
	}
	full, err := m.FullTensor(ctx, "blocks.0.weight")
	if err != nil {
		return err
	}
	if !slices.Equal(full.Shape(), values[0][1].Shape()) || !full.AllClose(values[len(values)-1][1], 1e-9, 1e-12) {
		return errors.New("the gathered parameter differs")
	}
	return nil
}

func compare(what string, got, whole *torch.Tensor, g dist.Group) error {
	if whole == nil || got == nil {
		if got != whole && (whole != nil || got != nil) {
			return fmt.Errorf("%s: nil in one of the runs (sharded %v, unsharded %v)", what, got, whole)
		}
		return nil
	}
	want := chunkOf(whole, g.Rank(), g.Size())
	if !slices.Equal(got.Shape(), want.Shape()) {
		return fmt.Errorf("%s: shape %v, want %v", what, got.Shape(), want.Shape())
	}
	if want.Numel() > 0 && !got.To(torch.Float64).AllClose(want.To(torch.Float64), 1e-9, 1e-12) {
		return fmt.Errorf("%s differs by %v", what, got.Sub(want).Abs().Max().Item())
	}
	return nil
}

func TestCollectiveCountsAndOrder(t *testing.T) {
	var mu sync.Mutex
	events := map[int][]string{}
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		n := newNet(shape{8, 8, 3}, true)
		m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*block](), Trace: func(e, u string) {
			mu.Lock()
			defer mu.Unlock()
			if e == "unshard" || e == "post-backward" {
				events[g.Rank()] = append(events[g.Rank()], e+" "+u)
			}
		}})
		if err != nil {
			return err
		}
		scope := torch.NewScope(nil)
		defer scope.Close()
		nn.Run(n, &nn.Call{Context: ctx, Scope: scope, Training: true}, scope.Own(input(8, g.Rank(), 0))).Backward()
		c := m.Counters()
		if ag, rs := c.AllGathers.Load(), c.ReduceScatters.Load(); ag != 4+3 || rs != 4 {
			return fmt.Errorf("%d all-gathers, %d reduce-scatters", ag, rs)
		}
		return nil
	})
	// As fully_shard with three layers: backward gathers the next unit before it reduces the last one.
	want := []string{
		"unshard ", "unshard blocks.0", "unshard blocks.1", "unshard blocks.2",
		"unshard blocks.2", "unshard blocks.1", "post-backward blocks.2", "unshard blocks.0",
		"post-backward blocks.1", "post-backward blocks.0", "post-backward ",
	}
	require.Equal(t, want, events[0])
	require.Equal(t, want, events[1])
}

func TestLoadFromMeta(t *testing.T) {
	ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
		whole := newNet(shape{7, 5, 2}, true)
		n := newNet(shape{7, 5, 2}, true)
		for _, p := range nn.Params(n) {
			p.SetTensor(torch.EmptyOn(torch.Meta, p.Tensor().DType(), p.Shape()...))
		}
		m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*block]()})
		if err != nil {
			return err
		}
		if err := m.Load(); err == nil {
			return errors.New("meta parameters were accepted")
		}
		for i, p := range nn.Params(n) {
			lo, hi := p.Rows()
			p.SetTensor(nn.Params(whole)[i].Tensor().Detach().Narrow(0, lo, hi-lo).Clone())
		}
		scope := torch.NewScope(nil)
		defer scope.Close()
		x := scope.Own(input(7, 0, 0))
		want := nn.Run(whole, &nn.Call{Scope: scope}, x).Item()
		got := nn.Run(n, &nn.Call{Context: ctx, Scope: scope}, x).Item()
		if math.Abs(want-got) > 1e-12 {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

func TestTiedAcrossUnitsIsRefused(t *testing.T) {
	n := newNet(shape{4, 4, 2}, true)
	n.Blocks[1].W = n.Blocks[0].W
	_, err := fsdp.Wrap(n, dist.NewSingle(), fsdp.Config{Units: fsdp.ByType[*block]()})
	require.ErrorContains(t, err, "blocks.0.weight")
	require.ErrorContains(t, err, "must be in one unit")
	n = newNet(shape{4, 4, 2}, true)
	n.In = n.Blocks[0].W
	_, err = fsdp.Wrap(n, dist.NewSingle(), fsdp.Config{Units: fsdp.ByType[*block]()})
	require.ErrorContains(t, err, "outside the unit")
}

func TestRecoveryAfterAnErrorInForward(t *testing.T) {
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		n := newNet(shape{6, 6, 3}, true)
		m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*block]()})
		if err != nil {
			return err
		}
		mine := errors.New("mine")
		step := func() (loss float64, err error) {
			scope := torch.NewScope(nil)
			defer scope.Close()
			err = torch.Try(func() {
				l := nn.Run(n, &nn.Call{Context: ctx, Scope: scope, Training: true}, scope.Own(input(6, 0, 0)))
				loss = l.Item()
				l.Backward()
			})
			return loss, err
		}
		before, err := step()
		if err != nil {
			return err
		}
		n.Blocks[1].fail = func() error { return mine }
		if _, err := step(); !errors.Is(err, mine) {
			return fmt.Errorf("got %v", err)
		}
		n.Blocks[1].fail = nil
		m.Reset(ctx)
		after, err := step()
		if err != nil || after != before {
			return fmt.Errorf("loss %v, was %v: %w", after, before, err)
		}
		return nil
	})
}

// Steps of every kind leave no tensor behind, without the help of Go's collector.
func TestStepsLeaveNothingBehind(t *testing.T) {
	fake, err := dist.NewFake(1, 4)
	require.NoError(t, err)
	units := fsdp.ByType[*block]()
	half := fsdp.MixedPrecision{ParamDType: torch.Float32, ReduceDType: torch.Float64, OutputDType: torch.Float64}
	for name, c := range map[string]struct {
		group  dist.Group
		mesh   bool
		config fsdp.Config
		phase  fsdp.Phase
	}{
		"one rank":         {group: dist.NewSingle()},
		"one rank, cast":   {group: dist.NewSingle(), config: fsdp.Config{Precision: half}},
		"full shard":       {group: fake},
		"direct":           {group: fake, config: fsdp.Config{DirectBytes: 64}},
		"cast":             {group: fake, config: fsdp.Config{Precision: half}},
		"cast, accumulate": {group: fake, config: fsdp.Config{Precision: half, DirectBytes: 64}, phase: fsdp.Phase{NoSync: true}},
		"keep":             {group: fake, config: fsdp.Config{Strategy: fsdp.ShardGradOp}, phase: fsdp.Phase{KeepUnsharded: true}},
		"no shard":         {group: fake, config: fsdp.Config{Strategy: fsdp.NoShard}, phase: fsdp.Phase{NotLast: true}},
		"hybrid":           {mesh: true, config: fsdp.Config{Strategy: fsdp.HybridShard}, phase: fsdp.Phase{NoAllReduce: true}},
		"smaller":          {group: fake, config: fsdp.Config{ReshardSize: 2, DirectBytes: 64, CheckOrder: true}},
		"branches":         {group: fake, config: fsdp.Config{Branches: true}},
	} {
		n := newNet(shape{6, 6, 3}, true)
		for _, b := range n.Blocks {
			b.SetCheckpoint(true)
		}
		c.config.Units = units
		var m *fsdp.Model
		if c.mesh {
			mesh, err := dist.NewMesh(t.Context(), fake, []int{2, 2}, []string{"replicate", "shard"})
			require.NoError(t, err)
			m, err = fsdp.WrapMesh(t.Context(), n, mesh, c.config)
			require.NoError(t, err, name)
		} else {
			m, err = fsdp.Wrap(n, c.group, c.config)
			require.NoError(t, err, name)
		}
		run := func() {
			scope := torch.NewScope(nil)
			defer scope.Close()
			nn.Run(n, &nn.Call{Scope: scope, Training: true}, scope.Own(input(6, 0, 0))).Backward()
		}
		step := func() {
			require.NoError(t, m.During(c.phase, func() error { run(); return nil }))
			run()
			_, err := m.ClipGradNorm(t.Context(), 1)
			require.NoError(t, err)
			sgd(nn.Params(n))
			m.ZeroGrad()
			torch.NoGrad(func() {
				scope := torch.NewScope(nil)
				defer scope.Close()
				nn.Run(n, &nn.Call{Scope: scope}, scope.Own(input(6, 0, 0)))
			})
			m.Reset(t.Context())
		}
		step()
		step()
		settle()
		before := torch.MemoryStats()
		percent := debug.SetGCPercent(-1)
		for range 20 {
			step()
		}
		after := torch.MemoryStats()
		debug.SetGCPercent(percent)
		require.Equal(t, before.LiveBytes, after.LiveBytes, name)
		require.NoError(t, m.Close(t.Context()))
	}
}
