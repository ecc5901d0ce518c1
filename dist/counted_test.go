package dist_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

// everyCollective runs one collective of each kind, and two in parts of the group, on whole tensors of 24 elements.
func everyCollective(ctx context.Context, g *dist.CountedGroup, d torch.Device) error {
	s := torch.NewScope(nil)
	defer s.Close()
	n := int64(24)
	whole, part := s.Own(torch.EmptyOn(d, torch.Float32, n)), s.Own(torch.EmptyOn(d, torch.Float32, n/int64(g.Size())))
	block := dist.WithLabel(ctx, "block")
	if err := errors.Join(
		dist.Wait(ctx)(g.AllGather(block, whole, part)),
		dist.Wait(ctx)(g.AllGather(block, whole, part)),
		dist.Wait(ctx)(g.AllGather(ctx, whole, part)),
		dist.Wait(ctx)(g.ReduceScatter(block, part, whole, dist.Sum)),
		dist.Wait(ctx)(g.AllReduce(ctx, whole, dist.Avg)),
		dist.Wait(ctx)(g.Broadcast(ctx, whole, 1)),
		g.Barrier(ctx),
	); err != nil {
		return err
	}
	if g.Size() != 4 {
		return nil
	}
	m, err := dist.NewMesh(ctx, g, []int{2, 2}, []string{"replicate", "shard"})
	if err != nil {
		return err
	}
	replicate, _ := m.Sub("replicate")
	shard, _ := m.Sub("shard")
	return errors.Join(
		dist.Wait(ctx)(replicate.AllReduce(block, part, dist.Sum)),
		dist.Wait(ctx)(shard.Broadcast(block, part, 0)),
		m.Close(ctx))
}

func withoutTime(c dist.Counts) dist.Counts {
	for i := range c {
		c[i].Wait = 0
	}
	return c
}

func TestCountsOfGlooAndFakeAgree(t *testing.T) {
	for _, size := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			var mu sync.Mutex
			real := make([]dist.Counts, size)
			ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
				c := dist.Counted(g)
				if err := everyCollective(ctx, c, torch.CPU); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				real[g.Rank()] = withoutTime(c.Counts())
				return nil
			})
			for rank := range size {
				for _, d := range []torch.Device{torch.CPU, torch.Meta} {
					fake, err := dist.NewFake(rank, size)
					require.NoError(t, err)
					c := dist.Counted(fake)
					require.NoError(t, everyCollective(t.Context(), c, d))
					require.Equal(t, real[rank], withoutTime(c.Counts()), "rank %d on %v", rank, d)
				}
			}
			require.NotEqual(t, real[0], real[1], "the root of a broadcast sends, and receives nothing")
		})
	}
}

func TestCounts(t *testing.T) {
	fake, err := dist.NewFake(2, 4)
	require.NoError(t, err)
	g := dist.Counted(fake)
	require.Equal(t, dist.Group(fake), g.Unwrap())
	require.NoError(t, everyCollective(t.Context(), g, torch.CPU))
	first := withoutTime(g.Counts())
	require.Equal(t, dist.Counts{
		{dist.CountKey{Op: dist.OpAllGather}, dist.Count{Calls: 1, Elements: 24, Bytes: 96, Sent: 72, Received: 72}},
		{dist.CountKey{Op: dist.OpAllGather, Label: "block"}, dist.Count{Calls: 2, Elements: 48, Bytes: 192, Sent: 144, Received: 144}},
		{dist.CountKey{Op: dist.OpAllReduce}, dist.Count{Calls: 1, Elements: 24, Bytes: 96, Sent: 144, Received: 144}},
		{dist.CountKey{Op: dist.OpBarrier}, dist.Count{Calls: 1}},
		{dist.CountKey{Op: dist.OpBroadcast}, dist.Count{Calls: 1, Elements: 24, Bytes: 96, Sent: 96, Received: 96}},
		{dist.CountKey{Op: dist.OpReduceScatter, Label: "block"}, dist.Count{Calls: 1, Elements: 24, Bytes: 96, Sent: 72, Received: 72}},
		{dist.CountKey{Group: "replicate", Op: dist.OpAllReduce, Label: "block"}, dist.Count{Calls: 1, Elements: 6, Bytes: 24, Sent: 24, Received: 24}},
		{dist.CountKey{Group: "shard", Op: dist.OpBroadcast, Label: "block"}, dist.Count{Calls: 1, Elements: 6, Bytes: 24, Sent: 24}},
	}, first)
	require.Equal(t, int64(3), first.Of(dist.OpAllGather).Calls)
	require.Equal(t, int64(4), first.Total(func(k dist.CountKey) bool { return k.Group == "" && k.Label == "" }).Calls)
	require.Equal(t, int64(9), first.Total(nil).Calls)

	require.NoError(t, g.Barrier(t.Context()))
	require.Equal(t, dist.Counts{{dist.CountKey{Op: dist.OpBarrier}, dist.Count{Calls: 1}}}, withoutTime(g.Counts()).Since(first))

	// What does not start is not counted.
	x := torch.Ones(torch.Float32, 3)
	_, err = g.AllGather(t.Context(), x, x)
	require.Error(t, err)
	x.Free()
	_, err = g.AllReduce(t.Context(), x, dist.Sum)
	require.Error(t, err)
	require.Len(t, g.Counts(), len(first))
}

func TestFakeFillsAsIfAllRanksWereAlike(t *testing.T) {
	ctx := t.Context()
	g, err := dist.NewFake(1, 3)
	require.NoError(t, err)
	in, out := torch.FromSlice([]float32{1, 2}), torch.Empty(torch.Float32, 6)
	require.NoError(t, dist.Wait(ctx)(g.AllGather(ctx, out, in)))
	require.Equal(t, []float32{1, 2, 1, 2, 1, 2}, torch.Slice[float32](out))
	whole := torch.FromSlice([]float32{1, 2, 3, 4, 5, 6})
	for op, want := range map[dist.ReduceOp][]float32{dist.Sum: {9, 12}, dist.Avg: {3, 4}, dist.Min: {3, 4}, dist.Max: {3, 4}} {
		require.NoError(t, dist.Wait(ctx)(g.ReduceScatter(ctx, in, whole, op)))
		require.Equal(t, want, torch.Slice[float32](in))
	}
	require.NoError(t, dist.Wait(ctx)(g.AllReduce(ctx, whole, dist.Sum)))
	require.NoError(t, dist.Wait(ctx)(g.Broadcast(ctx, whole, 0)))
	require.Equal(t, []float32{3, 6, 9, 12, 15, 18}, torch.Slice[float32](whole))

	_, err = g.Broadcast(ctx, in, 3)
	require.ErrorContains(t, err, "rank 1 of 3: broadcast")
	mine := errors.New("mine")
	g.Abort(mine)
	_, err = g.AllReduce(ctx, in, dist.Sum)
	require.ErrorIs(t, err, mine)
	require.ErrorIs(t, err, dist.ErrAborted)
	require.NoError(t, g.Close(ctx))
	for _, c := range [][2]int{{-1, 1}, {1, 1}, {0, 0}} {
		_, err := dist.NewFake(c[0], c[1])
		require.Error(t, err)
	}
}

// A rank of a mesh of 128 x 8 needs neither the other 1,023 ranks nor memory for the tensors.
func TestFakeMeshOfAThousandRanks(t *testing.T) {
	world, err := dist.NewFake(777, 1024)
	require.NoError(t, err)
	g := dist.Counted(world)
	m, err := dist.NewMesh(t.Context(), g, []int{128, 8}, []string{"replicate", "shard"})
	require.NoError(t, err)
	require.Equal(t, []int{97, 1}, m.Coordinate())
	shard, err := m.Sub("shard")
	require.NoError(t, err)
	require.Equal(t, 8, shard.Size())
	require.Equal(t, 1, shard.Rank())
	n := int64(70e9)
	s := torch.NewScope(nil)
	defer s.Close()
	whole, part := s.Own(torch.EmptyOn(torch.Meta, torch.BFloat16, n)), s.Own(torch.EmptyOn(torch.Meta, torch.BFloat16, n/8))
	require.NoError(t, dist.Wait(t.Context())(shard.AllGather(t.Context(), whole, part)))
	require.Equal(t, dist.Counts{{dist.CountKey{Group: "shard", Op: dist.OpAllGather}, dist.Count{Calls: 1, Elements: n, Bytes: 2 * n, Sent: 2 * n / 8 * 7, Received: 2 * n / 8 * 7}}},
		withoutTime(g.Counts()))
}

func BenchmarkCounted(b *testing.B) {
	fake, _ := dist.NewFake(0, 2)
	t := torch.EmptyOn(torch.Meta, torch.Float32, 4)
	for name, g := range map[string]dist.Group{"plain": fake, "counted": dist.Counted(fake)} {
		b.Run(name, func(b *testing.B) {
			ctx := dist.WithLabel(b.Context(), "layers.7")
			for b.Loop() {
				if err := dist.Wait(ctx)(g.AllReduce(ctx, t, dist.Sum)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
