package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
)

// Training goes on and changes every tensor while the save runs: the checkpoint holds what they were at Start.
func TestSaveInTheBackground(t *testing.T) {
	for _, format := range []Format{Safetensors, DCP} {
		root := t.TempDir()
		ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
			saver := &Saver{Group: g, Root: root, Options: SaveOptions{TotalLimit: 2, Format: format}}
			for step := 1; step <= 4; step++ {
				s := snapshot(backwards, g, step)
				finished, err := saver.Start(ctx, step, s)
				if err != nil {
					return err
				}
				want := ""
				if step > 1 {
					want = filepath.Join(root, folderName(step-1))
				}
				if finished != want {
					return fmt.Errorf("step %d: %q is finished, want %q", step, finished, want)
				}
				for _, e := range append(s.Model, s.Optimizer...) {
					e.Tensor.Zero()
				}
				if err := g.Barrier(ctx); err != nil { // the group is free for training
					return err
				}
			}
			finished, err := saver.Wait(ctx)
			if err != nil || finished != filepath.Join(root, folderName(4)) || saver.Busy() {
				return fmt.Errorf("finished %q: %w", finished, err)
			}
			finished, err = saver.Wait(ctx)
			if err != nil || finished != "" {
				return fmt.Errorf("a second Wait: %q, %w", finished, err)
			}
			return nil
		})
		requireOnly(t, root, "checkpoint-3", "checkpoint-4")
		loadAt(t, filepath.Join(root, "checkpoint-3"), 3, 2, fsdp.ShardRows)
		loadAt(t, filepath.Join(root, "checkpoint-4"), 4, 3, fsdp.ShardRows)
	}
}

// A fault in the background comes out on all ranks at the next call, and the older checkpoint stays.
func TestFullDiskInTheBackground(t *testing.T) {
	root := t.TempDir()
	dir := saveAt(t, root, 1, 2, fsdp.ShardRows, SaveOptions{})
	for full := range 2 {
		out, err := child(t, fmt.Sprintf("rank %d over the limit in the background", full), root).Output()
		require.NoError(t, err, "%s", out)
		requireOnly(t, root, "checkpoint-1")
		loadAt(t, dir, 1, 2, fsdp.ShardRows)
	}
}

func TestMissingNoteOfARank(t *testing.T) {
	root := t.TempDir()
	b := &background{w: newSaver(t.Context(), dist.NewSingle(), root, 1, Snapshot{}, SaveOptions{})}
	require.NoError(t, os.Mkdir(b.w.tmp, 0o700))
	_, err := b.collect(20 * time.Millisecond)
	require.ErrorContains(t, err, "rank 0 has not written its files after 20ms")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	b.w.ctx = ctx
	_, err = b.collect(time.Hour)
	require.ErrorContains(t, err, "stopped")
}

func TestGiveUpWaiting(t *testing.T) {
	root := t.TempDir()
	saver := &Saver{Group: dist.NewSingle(), Root: root}
	_, err := saver.Start(t.Context(), 1, snapshot(replicated, saver.Group, 1))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	finished, err := saver.Wait(ctx)
	if err == nil { // it was quicker
		require.Equal(t, filepath.Join(root, "checkpoint-1"), finished)
		return
	}
	require.ErrorIs(t, err, context.Canceled)
}

// A run that ends with an error lets its save end, without the other ranks.
func TestSettle(t *testing.T) {
	root := t.TempDir()
	saver := &Saver{Group: dist.NewSingle(), Root: root}
	require.NoError(t, saver.Settle(t.Context()))
	_, err := saver.Start(t.Context(), 1, snapshot(replicated, saver.Group, 1))
	require.NoError(t, err)
	require.NoError(t, saver.Settle(t.Context()))
	loadAt(t, filepath.Join(root, "checkpoint-1"), 1, 1, replicated)
}
