package fsdp_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// tower is layers of one large weight, the size of a decoder's, that compute next to nothing: on the meta device a model of any
// size can be counted.
type tower struct {
	nn.Hooks
	Embed  *nn.Param `torch:"embed"`
	Layers []*storey `torch:"layers"`
	Head   *nn.Param `torch:"head"`
}

type storey struct {
	nn.Hooks
	Frozen *nn.Param `torch:"frozen"`
	Up     *nn.Param `torch:"up"`
	Norm   *nn.Param `torch:"norm"`
}

func (l *storey) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	y := x.Linear(l.Up.In(c.Scope), nil).Narrow(1, 0, x.Size(1))
	return x.Add(y.Mul(l.Norm.In(c.Scope)))
}

func (t *tower) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	x = x.Linear(t.Embed.In(c.Scope), nil)
	for _, l := range t.Layers {
		x = nn.Run(l, c, x)
	}
	return x.Linear(t.Head.In(c.Scope), nil).Mean()
}

type towerSize struct{ width, inner, frozen, vocabulary, layers int64 }

func newTower(s towerSize, device torch.Device, dtype torch.DType) *tower {
	param := func(trainable bool, dtype torch.DType, shape ...int64) *nn.Param {
		t := torch.EmptyOn(device, dtype, shape...)
		if device == torch.CPU {
			t.Zero()
		}
		return nn.NewParam(t, trainable)
	}
	t := &tower{Embed: param(true, dtype, s.width, s.width), Head: param(true, dtype, s.vocabulary, s.width)}
	for range s.layers {
		t.Layers = append(t.Layers, &storey{
			Frozen: param(false, torch.Uint8, s.frozen), Up: param(true, dtype, s.inner, s.width), Norm: param(true, dtype, s.width),
		})
	}
	return t
}

// sum is what the formulas say about one step of one rank.
type sum struct {
	stored                    int64 // bytes of this rank's shards
	gathers, scatters, sums   int64
	gathered, scattered, summ int64 // bytes of whole tensors
}

func align(n int64) int64 { return (n + 63) / 64 * 64 }

// formula is the communication of one step: every unit is gathered twice but the root, and reduced once over its ranks and
// once over the replicas.
func formula(s towerSize, shards, replicas, direct int64, elem int64) sum {
	chunk := func(rows, row, elem int64) int64 { return (rows + shards - 1) / shards * row * elem }
	var f sum
	unit := func(times int64, chunks []int64, trainable int64, count int64) {
		rest, calls := int64(64), int64(0)
		for _, c := range chunks {
			if c*shards >= direct {
				f.gathered += times * c * shards
				f.stored += c
				calls++
			} else {
				rest += align(c)
			}
		}
		if rest > 64 {
			calls++
			f.gathered += times * rest * shards
			f.stored += rest
		}
		f.gathers += times * calls
		f.scatters++
		f.scattered += (trainable + count*elem) * shards
		if replicas > 1 {
			f.sums++
			f.summ += trainable + count*elem
		}
	}
	e, h := chunk(s.width, s.width, elem), chunk(s.vocabulary, s.width, elem)
	unit(1, []int64{e, h}, e+h, 2)
	for range s.layers {
		fr, up, norm := chunk(s.frozen, 1, 1), chunk(s.inner, s.width, elem), chunk(s.width, 1, elem)
		unit(2, []int64{fr, up, norm}, up+norm, 2)
	}
	return f
}

func oneStep(ctx context.Context, n *tower, width int64, device torch.Device, dtype torch.DType) error {
	return torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		x := s.Own(torch.EmptyOn(device, dtype, 1, width))
		if device == torch.CPU {
			x.Fill(1)
		}
		nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x).Backward()
	})
}

func measured(m *fsdp.Model, c dist.Counts) sum {
	var f sum
	for s := range m.Shards() {
		f.stored += s.Tensor.Numel() * s.Tensor.DType().Size()
	}
	ag, rs, ar := c.Of(dist.OpAllGather), c.Of(dist.OpReduceScatter), c.Of(dist.OpAllReduce)
	f.gathers, f.scatters, f.sums = ag.Calls, rs.Calls, ar.Calls
	f.gathered, f.scattered, f.summ = ag.Bytes, rs.Bytes, ar.Bytes
	return f
}

// One process is a rank of 1,024, and of a mesh of 128 x 8, with a model of 70 billion parameters on the meta device: the
// number and bytes of its collectives are what the formulas say. Fake groups and real ones of a small model agree.
func TestScale(t *testing.T) {
	const elem = 2
	large := towerSize{width: 8192, inner: 104_448, frozen: 8192, vocabulary: 32_000, layers: 80}
	numel := large.width*(large.width+large.vocabulary) + large.layers*(large.inner*large.width+large.width+large.frozen)
	require.InDelta(t, 70e9, numel, 2e9)
	for _, c := range []struct{ shards, replicas int64 }{{1024, 1}, {8, 128}} {
		fake, err := dist.NewFake(int(c.shards*c.replicas)-1, int(c.shards*c.replicas))
		require.NoError(t, err)
		g := dist.Counted(fake)
		n := newTower(large, torch.Meta, torch.BFloat16)
		config := fsdp.Config{Units: fsdp.ByType[*storey](), Device: torch.Meta}
		var m *fsdp.Model
		if c.replicas == 1 {
			m, err = fsdp.Wrap(n, g, config)
		} else {
			mesh, err := dist.NewMesh(t.Context(), g, []int{int(c.replicas), int(c.shards)}, []string{"replicate", "shard"})
			require.NoError(t, err)
			m, err = fsdp.WrapMesh(t.Context(), n, mesh, config)
			require.NoError(t, err)
		}
		require.NoError(t, err)
		require.NoError(t, oneStep(t.Context(), n, large.width, torch.Meta, torch.BFloat16))
		got, want := measured(m, g.Counts()), formula(large, c.shards, c.replicas, 8<<20, elem)
		require.LessOrEqual(t, got.stored, want.stored)
		require.GreaterOrEqual(t, got.stored*101, want.stored*100, "what is stored beside the shards is less than 1 %")
		got.stored, want.stored = 0, 0
		require.Equal(t, want, got)
	}
	small := towerSize{width: 6, inner: 7, frozen: 5, vocabulary: 9, layers: 3}
	for _, ranks := range []int{2, 3, 4} {
		run := func(ctx context.Context, group dist.Group) (sum, error) {
			g := dist.Counted(group)
			n := newTower(small, torch.CPU, torch.BFloat16)
			m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*storey](), DirectBytes: 64})
			if err != nil {
				return sum{}, err
			}
			err = oneStep(ctx, n, small.width, torch.CPU, torch.BFloat16)
			return measured(m, g.Counts()), err
		}
		ranktest.Run(t, ranks, func(ctx context.Context, g dist.Group) error {
			fake, err := dist.NewFake(g.Rank(), ranks)
			if err != nil {
				return err
			}
			got, err := run(ctx, g)
			if err != nil {
				return err
			}
			pretended, err := run(ctx, fake)
			if err != nil {
				return err
			}
			want := formula(small, int64(ranks), 1, 64, elem)
			want.stored = got.stored
			if got != want || pretended != want {
				return fmt.Errorf("real %+v, fake %+v, formula %+v", got, pretended, want)
			}
			return nil
		})
	}
}

// TestMemory holds the bounds of the reference implementation (fp32, two ranks): sharding needs one block beside the
// shards, forward three blocks and what no block holds, backward the sharded gradients besides.
func TestMemory(t *testing.T) {
	fake, err := dist.NewFake(0, 2)
	require.NoError(t, err)
	const elem, slack = 4, 1 << 20
	s := towerSize{width: 512, inner: 2048, frozen: 8, vocabulary: 64, layers: 6}
	block := (s.inner*s.width + s.width) * elem
	rest := (s.width*s.width + s.vocabulary*s.width) * elem
	sharded := (s.layers*block + rest) / 2
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, c := range map[string]struct {
		config   fsdp.Config
		forward  int64
		backward int64
	}{
		"default": {fsdp.Config{}, 3*block + rest, 3*block + rest + sharded},
		"direct":  {fsdp.Config{DirectBytes: 1 << 20}, 2*block + rest, 3*block + rest + sharded},
		"keep":    {fsdp.Config{Reshard: fsdp.ReshardAfterBackward}, s.layers*block + rest + block, s.layers*block + rest + 2*block + sharded},
	} {
		settle()
		base := torch.MemoryStats().LiveBytes
		n := newTower(s, torch.CPU, torch.Float32)
		whole := torch.MemoryStats().LiveBytes - base
		require.InDelta(t, 2*sharded, whole, slack)
		torch.ResetPeak()
		c.config.Units = fsdp.ByType[*storey]()
		m, err := fsdp.Wrap(n, fake, c.config)
		require.NoError(t, err)
		require.NoError(t, m.Load())
		require.LessOrEqual(t, torch.MemoryStats().LiveBytes-base, sharded+slack, name)
		for range 2 {
			torch.ResetPeak()
			require.NoError(t, torch.Try(func() {
				torch.NoGrad(func() { require.NoError(t, oneForward(n, s.width)) })
			}))
			require.LessOrEqual(t, torch.MemoryStats().PeakBytes-base, sharded+3*block+rest+slack, "%s: forward without gradients", name)
			torch.ResetPeak()
			scope := torch.NewScope(nil)
			loss := nn.Run(n, &nn.Call{Scope: scope, Training: true}, scope.Own(torch.Ones(torch.Float32, 1, s.width)))
			require.LessOrEqual(t, torch.MemoryStats().PeakBytes-base, sharded+c.forward+slack, "%s: forward", name)
			torch.ResetPeak()
			loss.Backward()
			require.LessOrEqual(t, torch.MemoryStats().PeakBytes-base, sharded+c.backward+slack, "%s: backward", name)
			scope.Close()
			require.LessOrEqual(t, torch.MemoryStats().LiveBytes-base, 2*sharded+slack, "%s: after backward", name)
			m.ZeroGrad()
		}
	}
}

// settle waits for the collector to free what earlier tests left behind.
func settle() {
	for before := int64(-1); before != torch.MemoryStats().LiveBytes; {
		before = torch.MemoryStats().LiveBytes
		runtime.GC()
		time.Sleep(30 * time.Millisecond)
	}
}

func oneForward(n *tower, width int64) error {
	return torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		nn.Run(n, &nn.Call{Scope: s}, s.Own(torch.Ones(torch.Float32, 1, width)))
	})
}
