package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// mlp is two linear layers with a scale that only the root owns.
type mlp struct {
	nn.Hooks
	First  *nn.Linear `torch:"first"`
	Second *nn.Linear `torch:"second"`
	Scale  *nn.Param  `torch:"scale"`
}

func (m *mlp) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	x = nn.Run(m.First, c, x).Tanh()
	x = nn.Run(m.Second, c, x).Mul(m.Scale.In(c.Scope))
	return x.Mul(x).Mean()
}

// sizes are the shapes of the reference implementation's tests: uneven, and with fewer rows than ranks.
var sizes = [][3]int64{{16, 15, 8}, {7, 15, 3}, {16, 17, 8}}

func newMLP(s [3]int64) *mlp {
	m := &mlp{
		First:  nn.NewLinear(s[0], s[1], true, torch.Float64, torch.CPU),
		Second: nn.NewLinear(s[1], s[2], true, torch.Float64, torch.CPU),
		Scale:  nn.NewParam(torch.Ones(torch.Float64, s[2]), true),
	}
	nn.ResetParameters(m, torch.NewGenerator(3))
	return m
}

// mode is how a model is trained.
type mode struct {
	name       string
	accumulate int
	checkpoint bool
	reentrant  bool
	offload    bool
}

func (o mode) set(m *mlp) {
	for _, l := range []*nn.Linear{m.First, m.Second} {
		l.SetCheckpoint(o.checkpoint)
		l.SetCheckpointReentrant(o.reentrant)
	}
}

var modes = []mode{
	{name: "plain", accumulate: 1},
	{name: "checkpointed", accumulate: 1, checkpoint: true},
	{name: "re-entrant", accumulate: 2, checkpoint: true, reentrant: true},
	{name: "accumulated", accumulate: 3},
	{name: "offloaded", accumulate: 1, offload: true},
}

const trainSteps = 10

func batch(s [3]int64, rank, step, micro int) *torch.Tensor {
	return torch.Randn(torch.NewGenerator(int64(1000*step+10*micro+rank)), torch.Float64, 3, s[0]).SetRequiresGrad(true)
}

func lossOf(ctx context.Context, m *mlp, x *torch.Tensor) *torch.Tensor {
	return nn.Run(m, &nn.Call{Context: ctx, Scope: x.Scope(), Training: true}, x)
}

// whole is what unsharded training gives after a step.
type whole struct {
	grads, values []*torch.Tensor
	norm          float64
}

func trainWhole(s [3]int64, ranks, accumulate int) []whole {
	m := newMLP(s)
	var steps []whole
	for step := range trainSteps {
		for rank := range ranks {
			for micro := range accumulate {
				scope := torch.NewScope(nil)
				lossOf(context.Background(), m, scope.Own(batch(s, rank, step, micro))).DivScalar(float64(ranks)).Backward()
				scope.Close()
			}
		}
		var w whole
		for _, p := range nn.Params(m) {
			g := p.Tensor().Grad()
			w.grads = append(w.grads, g.Clone())
			w.norm += math.Pow(g.Norm(2).Item(), 2)
		}
		w.norm = math.Sqrt(w.norm)
		sgd(nn.Params(m))
		for _, p := range nn.Params(m) {
			w.values = append(w.values, p.Tensor().Detach().Clone())
			p.Tensor().SetGrad(nil)
		}
		steps = append(steps, w)
	}
	return steps
}

func trainSharded(ctx context.Context, f *fsdp.Model, m *mlp, s [3]int64, o mode, want []whole) error {
	shards := f.ShardGroup()
	for step := range trainSteps {
		f.ZeroGrad()
		micro := func(i int) error {
			return torch.Try(func() {
				scope := torch.NewScope(nil)
				defer scope.Close()
				x := scope.Own(batch(s, f.Group().Rank(), step, i))
				if o.offload {
					f.SaveOnCPU(func() { lossOf(ctx, m, x).Backward() })
				} else {
					lossOf(ctx, m, x).Backward()
				}
			})
		}
		err := f.Accumulate(func() error {
			for i := range o.accumulate - 1 {
				if err := micro(i); err != nil {
					return err
				}
			}
			return nil
		})
		if err = errors.Join(err, micro(o.accumulate-1)); err != nil {
			return err
		}
		norm, err := f.ClipGradNorm(ctx, 0)
		if err != nil {
			return err
		}
		if math.Abs(norm-want[step].norm) > 1e-10*want[step].norm {
			return fmt.Errorf("step %d: norm %v, want %v", step, norm, want[step].norm)
		}
		for i, n := range nn.NamedParams(m) {
			if err := compare(n.Name+" gradient", n.Param.Tensor().Grad(), want[step].grads[i], shards); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		sgd(nn.Params(m))
		for i, n := range nn.NamedParams(m) {
			if err := compare(n.Name, n.Param.Tensor(), want[step].values[i], shards); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
	}
	return nil
}

// FC-29: TestParityTenSteps is the oracle of the reference implementation: each rank's shards and their gradients are the chunks
// of the unsharded model's, for every strategy.
func TestParityTenSteps(t *testing.T) {
	linear := fsdp.ByType[*nn.Linear]()
	for _, ranks := range []int{2, 3, 4, 7} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			want := map[string][]whole{}
			key := func(s [3]int64, o mode) string { return fmt.Sprint(s, o.accumulate) }
			for _, s := range sizes {
				for _, o := range modes {
					if want[key(s, o)] == nil {
						want[key(s, o)] = trainWhole(s, ranks, o.accumulate)
					}
				}
			}
			configs := []fsdp.Config{
				{Strategy: fsdp.FullShard, Units: linear},
				{Strategy: fsdp.ShardGradOp, Units: linear},
				{Strategy: fsdp.NoShard, Units: linear},
			}
			if ranks == 4 {
				configs = append(configs,
					fsdp.Config{Strategy: fsdp.HybridShard, Units: linear, DirectBytes: 64},
					fsdp.Config{Strategy: fsdp.HybridShardZeRO2, Units: linear},
					fsdp.Config{Units: linear, ReshardSize: 2},
					fsdp.Config{Units: linear, ReshardSize: 2, DirectBytes: 64},
				)
			}
			ranktest.Run(t, ranks, func(ctx context.Context, g dist.Group) error {
				var mesh *dist.Mesh
				if ranks == 4 {
					var err error
					if mesh, err = dist.NewMesh(ctx, g, []int{2, 2}, []string{"replicate", "shard"}); err != nil {
						return err
					}
					defer mesh.Close(ctx)
				}
				for i, c := range configs {
					for j, s := range sizes {
						for k, o := range modes {
							if !everything && (i+j+k+ranks)%3 != 0 { // a third of all, and others for other numbers of ranks
								continue
							}
							if err := oneTraining(ctx, g, mesh, c, s, o, want[key(s, o)]); err != nil {
								return fmt.Errorf("%v, reshard size %d, %v, %s: %w", c.Strategy, c.ReshardSize, s, o.name, err)
							}
						}
					}
				}
				return nil
			})
		})
	}
}

func oneTraining(ctx context.Context, g dist.Group, mesh *dist.Mesh, c fsdp.Config, s [3]int64, o mode, want []whole) error {
	m := newMLP(s)
	o.set(m)
	c.Offload.Params = o.offload
	var f *fsdp.Model
	var err error
	if c.Strategy == fsdp.HybridShard || c.Strategy == fsdp.HybridShardZeRO2 {
		f, err = fsdp.WrapMesh(ctx, m, mesh, c)
	} else {
		f, err = fsdp.Wrap(m, g, c)
	}
	if err != nil {
		return err
	}
	return trainSharded(ctx, f, m, s, o, want)
}

func TestParseStrategy(t *testing.T) {
	for s, want := range map[string]fsdp.Strategy{
		"FULL_SHARD": fsdp.FullShard, "1": fsdp.FullShard, "shard_grad_op": fsdp.ShardGradOp, "2": fsdp.ShardGradOp,
		"NO_SHARD": fsdp.NoShard, "ShardingStrategy.NO_SHARD": fsdp.NoShard, "HYBRID_SHARD": fsdp.HybridShard, "4": fsdp.HybridShard,
		"HYBRID_SHARD_ZERO2": fsdp.HybridShardZeRO2, "_HYBRID_SHARD_ZERO2": fsdp.HybridShardZeRO2, "5": fsdp.HybridShardZeRO2,
	} {
		got, err := fsdp.ParseStrategy(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
		again, err := fsdp.ParseStrategy(got.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
	}
	for _, s := range []string{"", "0", "6", "FULL", "true"} {
		_, err := fsdp.ParseStrategy(s)
		require.ErrorContains(t, err, "want one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2", s)
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	fake, err := dist.NewFake(0, 6)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		config fsdp.Config
		want   string
	}{
		"no mesh":            {fsdp.Config{Strategy: fsdp.HybridShard}, "HYBRID_SHARD needs a mesh of two dimensions"},
		"strategy":           {fsdp.Config{Strategy: 9}, "Config.Strategy is 9"},
		"reshard":            {fsdp.Config{Reshard: 9}, "Config.Reshard is 9"},
		"both":               {fsdp.Config{Reshard: fsdp.ReshardAfterForward, ReshardSize: 2}, "both given"},
		"does not divide":    {fsdp.Config{ReshardSize: 4}, "4 does not divide the 6 ranks"},
		"negative":           {fsdp.Config{ReshardSize: -1}, "must not be negative"},
		"divide factor":      {fsdp.Config{DivideFactor: math.NaN()}, "DivideFactor is NaN"},
		"precision":          {fsdp.Config{Precision: fsdp.MixedPrecision{ReduceDType: torch.Int64}}, "MixedPrecision.ReduceDType is int64"},
		"prefetch":           {fsdp.Config{Prefetch: fsdp.Prefetch{Limit: -1}}, "Prefetch.Limit is -1"},
		"together, unknown":  {fsdp.Config{Together: [][]string{{"first", "third"}}}, `module "third": the model has no such module`},
		"together, twice":    {fsdp.Config{Together: [][]string{{"first"}, {"first"}}}, `module "first" twice`},
		"precision of units": {fsdp.Config{PerUnit: badPrecision}, "ParamDType is bool"},
	} {
		_, err := fsdp.Wrap(newMLP(sizes[0]), fake, c.config)
		require.ErrorContains(t, err, c.want, name)
	}
	mesh, err := dist.NewMesh(t.Context(), fake, []int{1, 2, 3}, []string{"a", "b", "c"})
	require.NoError(t, err)
	_, err = fsdp.WrapMesh(t.Context(), newMLP(sizes[0]), mesh, fsdp.Config{})
	require.ErrorContains(t, err, "the mesh has 3 dimensions")

	scalar := newMLP(sizes[0])
	scalar.Scale = nn.NewParam(torch.Scalar(torch.Float64, 1), true)
	_, err = fsdp.Wrap(scalar, fake, fsdp.Config{})
	require.ErrorContains(t, err, "make it a 1-D tensor of one element")
	strided := newMLP(sizes[0])
	strided.First.Weight = nn.NewParam(torch.Ones(torch.Float64, 16, 15).T(), true)
	_, err = fsdp.Wrap(strided, fake, fsdp.Config{})
	require.ErrorContains(t, err, "first.weight is not contiguous")
	twice := newMLP(sizes[0])
	_, err = fsdp.Wrap(twice, fake, fsdp.Config{})
	require.NoError(t, err)
	_, err = fsdp.Wrap(twice, fake, fsdp.Config{})
	require.ErrorContains(t, err, "already sharded")
}

func badPrecision(string, any) fsdp.UnitOptions {
	return fsdp.UnitOptions{Precision: &fsdp.MixedPrecision{ParamDType: torch.Bool}}
}

// FC-31: chunks of ceil(rows/ranks), the last ones short or empty.
func TestShardRows(t *testing.T) {
	for _, c := range []struct {
		rows int64
		size int
		want []int64
	}{
		{7, 4, []int64{2, 2, 2, 1}}, {5, 4, []int64{2, 2, 1, 0}}, {6, 4, []int64{2, 2, 2, 0}}, {4, 3, []int64{2, 2, 0}},
		{1, 3, []int64{1, 0, 0}}, {17, 4, []int64{5, 5, 5, 2}}, {32008, 3, []int64{10670, 10670, 10668}}, {0, 4, []int64{0, 0, 0, 0}},
	} {
		var got []int64
		for rank := range c.size {
			lo, hi := fsdp.ShardRows(c.rows, rank, c.size)
			got = append(got, hi-lo)
		}
		require.Equal(t, c.want, got)
	}
}
