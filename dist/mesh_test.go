package dist_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

// sumOfRanks reduces the world's rank numbers over g.
func sumOfRanks(ctx context.Context, g, world dist.Group, op dist.ReduceOp) (float64, error) {
	t := torch.FromSlice([]float64{float64(world.Rank())})
	defer t.Free()
	if err := dist.Wait(ctx)(g.AllReduce(ctx, t, op)); err != nil {
		return 0, err
	}
	return t.Item(), nil
}

func TestMeshConnectsTheRanksOfEveryDimension(t *testing.T) {
	ranktest.Run(t, 6, func(ctx context.Context, world dist.Group) error {
		m, err := dist.NewMesh(ctx, world, []int{2, 3}, []string{"replicate", "shard"})
		if err != nil {
			return err
		}
		r := world.Rank()
		if c := m.Coordinate(); c[0] != r/3 || c[1] != r%3 {
			return fmt.Errorf("coordinates %v", c)
		}
		for name, want := range map[string]struct{ size, rank, sum, min, max int }{
			"replicate": {2, r / 3, r%3 + r%3 + 3, r % 3, r%3 + 3},
			"shard":     {3, r % 3, 9*(r/3) + 3, r / 3 * 3, r/3*3 + 2},
		} {
			g, err := m.Sub(name)
			if err != nil {
				return err
			}
			if g.Size() != want.size || g.Rank() != want.rank {
				return fmt.Errorf("%s: rank %d of %d", name, g.Rank(), g.Size())
			}
		}
		// In a fixed order: every rank must start the same collectives.
		for _, name := range m.Names() {
			g, _ := m.Sub(name)
			first, stride := r/3*3, 1
			if name == "replicate" {
				first, stride = r%3, 3
			}
			n := g.Size()
			last := first + (n-1)*stride
			for op, want := range []float64{float64(n*(first+last)) / 2, float64(first+last) / 2, float64(first), float64(last)} {
				got, err := sumOfRanks(ctx, g, world, dist.ReduceOp(op))
				if err != nil {
					return err
				}
				if got != want {
					return fmt.Errorf("%s: reduction %d is %v, want %v", name, op, got, want)
				}
			}
		}
		if _, err := m.Sub("tp"); err == nil {
			return errors.New("a dimension that does not exist was found")
		}
		return m.Close(ctx)
	})
}

// A part is split again, as an integer reshard_after_forward does, and a mesh is made twice.
func TestMeshOverAPart(t *testing.T) {
	ranktest.Run(t, 8, func(ctx context.Context, world dist.Group) error {
		for range 2 {
			m, err := dist.NewMesh(ctx, world, []int{2, 4}, []string{"replicate", "shard"})
			if err != nil {
				return err
			}
			shard, err := m.Sub("shard")
			if err != nil {
				return err
			}
			inner, err := dist.NewMesh(ctx, shard, []int{2, 2, 1}, []string{"outer", "inner", "one"})
			if err != nil {
				return err
			}
			for i, want := range []int{(world.Rank()/4)*8 + 2*(world.Rank()%2) + 2, world.Rank()/2*4 + 1, world.Rank()} {
				g, err := inner.Sub(inner.Names()[i])
				if err != nil {
					return err
				}
				if got, err := sumOfRanks(ctx, g, world, dist.Sum); err != nil || got != float64(want) {
					return fmt.Errorf("dimension %d: %v, want %d (%v)", i, got, want, err)
				}
			}
			if err := errors.Join(inner.Close(ctx), m.Close(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestMeshOfOneDimensionIsTheWorld(t *testing.T) {
	world := dist.NewSingle()
	m, err := dist.NewMesh(t.Context(), world, []int{1}, []string{"shard"})
	require.NoError(t, err)
	g, err := m.Sub("shard")
	require.NoError(t, err)
	require.Equal(t, dist.Group(world), g)
	require.Equal(t, world, m.World())
	require.Equal(t, []int{1}, m.Dims())
	require.NoError(t, m.Close(t.Context()))
}

func TestMeshRefusesWrongShapes(t *testing.T) {
	ranktest.Run(t, 4, func(ctx context.Context, world dist.Group) error {
		for _, c := range []struct {
			dims  []int
			names []string
		}{
			{nil, nil}, {[]int{4}, nil}, {[]int{2, 2}, []string{"a"}}, {[]int{3, 2}, []string{"a", "b"}}, {[]int{2}, []string{"a"}},
			{[]int{2, 2}, []string{"a", "a"}}, {[]int{2, 2}, []string{"a", ""}}, {[]int{0, 4}, []string{"a", "b"}},
			{[]int{-2, -2}, []string{"a", "b"}}, {[]int{8}, []string{"a"}},
		} {
			if _, err := dist.NewMesh(ctx, world, c.dims, c.names); err == nil {
				return fmt.Errorf("%v %q was accepted", c.dims, c.names)
			}
		}
		for _, ranks := range [][]int{nil, {(world.Rank() + 1) % 4}, {world.Rank(), world.Rank()}, {world.Rank(), 4}, {-1, world.Rank()}} {
			if _, err := world.(dist.Splitter).Split(ctx, "part", ranks); err == nil {
				return fmt.Errorf("%v was accepted", ranks)
			}
		}
		return nil
	})
}
