package main

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/stretchr/testify/require"
)

const goldens = "../../testdata/goldens"

func TestMerge(t *testing.T) {
	base, adapter := filepath.Join(goldens, "tiny/plain"), filepath.Join(goldens, "peft/lora_all_r8/adapter_after10")
	out := filepath.Join(t.TempDir(), "merged")
	require.Zero(t, run([]string{"merge", base, adapter, out, "--max_shard_size", "100KB"}))
	m, err := modelio.Open(out)
	require.NoError(t, err)
	require.Equal(t, "bfloat16", m.Config.DType)
	require.NoError(t, m.Close())
	require.Equal(t, 1, run([]string{"merge", base, adapter, out}), "the folder is not empty")
	out = filepath.Join(t.TempDir(), "merged")
	require.Zero(t, run([]string{"merge", base, adapter, out, "--dtype", "f32", "--use_4bit_quantization", "--use_nested_quant"}))
	require.Equal(t, 1, run([]string{"merge", base, base, filepath.Join(t.TempDir(), "x")}))
}

// Every spelling of a checkpoint's place is understood, also the one that other programs refuse.
func TestMergeWeights(t *testing.T) {
	base, err := modelio.OpenWeights(filepath.Join(goldens, "tiny/plain"))
	require.NoError(t, err)
	defer base.Close()
	for _, format := range []checkpoint.Format{checkpoint.Safetensors, checkpoint.DCP} {
		root := t.TempDir()
		ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
			var list, states []checkpoint.Entry
			for _, name := range base.Names() {
				v, err := base.Tensor(name)
				if err != nil {
					return err
				}
				lo, hi := fsdp.ShardRows(v.Shape[0], g.Rank(), g.Size())
				data, err := v.Rows(lo, hi)
				if err != nil {
					return err
				}
				shape := append([]int64{hi - lo}, v.Shape[1:]...)
				e := checkpoint.Entry{Name: name, Tensor: torch.FromBytes(torch.Float32, data, shape...), Shape: v.Shape, Lo: lo, Hi: hi}
				list = append(list, e)
				e.Name += ".exp_avg"
				states = append(states, e)
			}
			for step := 1; step <= 2; step++ {
				if _, err := checkpoint.Save(ctx, g, root, step, checkpoint.Snapshot{Model: list, Optimizer: states}, checkpoint.SaveOptions{Format: format}); err != nil {
					return err
				}
			}
			return nil
		})
		newest := filepath.Join(root, "checkpoint-2")
		model, optimizer := filepath.Join(newest, "model"), filepath.Join(newest, "optimizer")
		if format == checkpoint.DCP {
			model, optimizer = filepath.Join(newest, "pytorch_model_fsdp_0"), filepath.Join(newest, "optimizer_0")
		}
		for _, dir := range []string{root, newest, model} {
			out := filepath.Join(t.TempDir(), "whole")
			require.Zero(t, run([]string{"merge-weights", dir, out, "--dtype", "keep", "--model_name_or_path", filepath.Join(goldens, "tiny/plain")}), dir)
			m, err := modelio.Open(out)
			require.NoError(t, err)
			for _, name := range base.Names() {
				want, err := base.Tensor(name)
				require.NoError(t, err)
				got, err := m.Weights.Tensor(name)
				require.NoError(t, err)
				a, err := want.Bytes()
				require.NoError(t, err)
				b, err := got.Bytes()
				require.NoError(t, err)
				require.Equal(t, a, b, name)
			}
			require.NoError(t, m.Close())
		}
		out := filepath.Join(t.TempDir(), "states")
		require.Zero(t, run([]string{"merge-weights", optimizer, out}))
		w, err := modelio.OpenWeights(out)
		require.NoError(t, err)
		v, err := w.Tensor("model.norm.weight.exp_avg")
		require.NoError(t, err)
		require.Equal(t, "F32", v.DType, "states are kept as they are")
		require.NoError(t, w.Close())

		out = filepath.Join(t.TempDir(), "narrow")
		require.Zero(t, run([]string{"merge-weights", newest, out, "--remove_checkpoint_dir", "--max_shard_size", "100KB"}))
		require.NoDirExists(t, newest)
		require.FileExists(t, filepath.Join(out, modelio.IndexName))
		w, err = modelio.OpenWeights(out)
		require.NoError(t, err)
		v, err = w.Tensor("model.norm.weight")
		require.NoError(t, err)
		require.Equal(t, "BF16", v.DType)
		require.NoError(t, w.Close())
		require.Equal(t, 1, run([]string{"merge-weights", root, out}), "the folder is not empty")
	}
	require.Equal(t, 1, run([]string{"merge-weights", t.TempDir(), filepath.Join(t.TempDir(), "out")}))
	require.Equal(t, 1, run([]string{"merge-weights", "absent", filepath.Join(t.TempDir(), "out")}))
}
