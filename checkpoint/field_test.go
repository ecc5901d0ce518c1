package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

// Cases that users of other programs have reported.

// The newest checkpoint is the one with the highest number, not the last in the alphabet (9000 before 10000).
func TestNewestByNumber(t *testing.T) {
	root := t.TempDir()
	for _, step := range []int{9, 10, 100} {
		saveAt(t, root, step, 1, fsdp.ShardRows, SaveOptions{})
	}
	require.NoError(t, os.Mkdir(filepath.Join(root, "checkpoint-best"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "checkpoint-200"), nil, 0o600))
	_, step, err := Latest(root)
	require.NoError(t, err)
	require.Equal(t, 100, step)
	list, err := List(root)
	require.NoError(t, err)
	require.Len(t, list, 3)
}

// Rows that do not divide by the ranks, and ranks without any (6 rows over 4 ranks are 2, 2, 2 and 0).
func TestRowsThatDoNotDivide(t *testing.T) {
	var list []tensor
	for _, rows := range []int64{1, 5, 6, 7, 17} {
		list = append(list, tensor{fmt.Sprintf("rows.%d", rows), torch.Float32, []int64{rows, 3}})
	}
	for _, format := range []Format{Safetensors, DCP} {
		for _, size := range []int{1, 3, 4, 8} {
			root := t.TempDir()
			ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
				_, err := Save(ctx, g, root, 1, Snapshot{Model: entries(list, fsdp.ShardRows, g, 1, true)}, SaveOptions{Format: format})
				return err
			})
			for _, later := range []int{1, 2, 3, 4, 8} {
				ranktest.Run(t, later, func(ctx context.Context, g dist.Group) error {
					c, err := Open(filepath.Join(root, "checkpoint-1"))
					if err != nil {
						return err
					}
					defer c.Close()
					got := entries(list, fsdp.ShardRows, g, 1, false)
					return errors.Join(c.Load(ctx, Model, got), same(list, got, 1))
				})
			}
		}
	}
}

// Ranks that list their tensors in different orders (maps) save the same checkpoint.
func TestOrderOfEntriesDoesNotMatter(t *testing.T) {
	root := t.TempDir()
	ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
		s := snapshot(fsdp.ShardRows, g, 1)
		random := rand.New(rand.NewPCG(1, uint64(g.Rank())))
		for _, list := range [][]Entry{s.Model, s.Optimizer} {
			random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		_, err := Save(ctx, g, root, 1, s, SaveOptions{})
		return err
	})
	loadAt(t, filepath.Join(root, "checkpoint-1"), 1, 2, fsdp.ShardRows)
}

// Save on one rank only ends with an error when the time is over, and leaves nothing.
func TestSaveOnOneRankOnly(t *testing.T) {
	root := t.TempDir()
	var got error
	_ = ranktest.Ranks(t.Context(), 2, func(ctx context.Context, g dist.Group) error {
		if g.Rank() == 1 {
			<-ctx.Done() // until rank 0 has failed
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, got = Save(ctx, g, root, 1, snapshot(fsdp.ShardRows, g, 1), SaveOptions{})
		return got
	})
	require.ErrorIs(t, got, errLost)
	require.ErrorIs(t, got, context.DeadlineExceeded)
	requireOnly(t, root)
}

// A transposed weight is saved as its contiguous copy would be.
func TestTransposedWeight(t *testing.T) {
	w := torch.Randn(nil, torch.Float32, 4, 6)
	for _, format := range []Format{Safetensors, DCP} {
		dir, err := Save(t.Context(), dist.NewSingle(), t.TempDir(), 1, Snapshot{Model: []Entry{Whole("w", w.Transpose(0, 1))}}, SaveOptions{Format: format})
		require.NoError(t, err)
		c, err := Open(dir)
		require.NoError(t, err)
		got := torch.Zeros(torch.Float32, 6, 4)
		require.NoError(t, c.Load(t.Context(), Model, []Entry{Whole("w", got)}))
		require.Equal(t, w.Transpose(0, 1).Contiguous().Bytes(), got.Bytes())
		require.NoError(t, c.Close())
	}
}
