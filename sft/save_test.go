package sft_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/dcp"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/sft"
	"github.com/gofsdp/gofsdp/sft/metrics"
)

func weightsOf(t *testing.T, dir string) map[string][]byte {
	w, err := modelio.OpenWeights(dir)
	require.NoError(t, err)
	defer w.Close()
	all := map[string][]byte{}
	for _, name := range w.Names() {
		v, err := w.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, "BF16", v.DType)
		b, err := v.Bytes()
		require.NoError(t, err)
		all[name] = bytes.Clone(b)
	}
	return all
}

// A merge of sharded, quantised layers gives the bytes of a merge of the folders in one process.
func TestParityMergedAtAnyWorldSize(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	for _, use4bit := range []bool{true, false} {
		for _, size := range []int{1, 2, 3} {
			c := config(model, data, t.TempDir())
			c.MaxSteps, c.EvalStrategy, c.EvalOnStart, c.SaveStrategy, c.SaveMerged = 2, "no", false, "no", true
			c.Use4Bit, c.LoRATargets = use4bit, []string{"q_proj", "down_proj"} // the other layers are quantised only
			r, _ := run(t, size, c)
			o := peft.MergeOptions{}
			if use4bit {
				o.Quant = &quant.Config{DoubleQuant: true}
			}
			out := filepath.Join(t.TempDir(), "merged")
			require.NoError(t, peft.MergeFolder(t.Context(), model, r.Adapter, out, o))
			require.Equal(t, weightsOf(t, out), weightsOf(t, r.Model), "%d ranks", size)
			require.FileExists(t, filepath.Join(r.Model, "tokenizer.json"))
		}
	}
}

func TestResumeIsBitForBitHoweverSaved(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	whole := t.TempDir()
	c := config(model, data, whole)
	c.LoRADropout = 0.2
	run(t, 2, c)
	for _, v := range []struct {
		async  bool
		format string
	}{{true, "safetensors"}, {false, "dcp"}, {true, "dcp"}} {
		parts := t.TempDir()
		c.OutputDir, c.Resume, c.SaveAsync, c.SaveFormat = parts, "", v.async, v.format
		r, text := run(t, 2, c)
		require.Equal(t, filepath.Join(parts, "checkpoint-8"), r.Checkpoint)
		require.Contains(t, text, "checkpoint-4")
		require.Equal(t, v.format == "dcp", dcp.Is(filepath.Join(parts, "checkpoint-4", "optimizer_0")))
		require.NoError(t, os.RemoveAll(filepath.Join(parts, "checkpoint-8")))
		require.NoError(t, os.RemoveAll(filepath.Join(parts, "adapter")))
		c.Resume = "true"
		_, text = run(t, 2, c)
		require.Contains(t, text, "resumed from")
		require.Equal(t, adapterBytes(t, whole), adapterBytes(t, parts), "%+v", v)
	}
}

// A checkpoint that has no manifest of this program, as PyTorch leaves it, is gone on from at any number of ranks.
func TestResumeFromAnotherProgram(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	whole := t.TempDir()
	c := config(model, data, whole)
	c.SaveFormat, c.EvalStrategy, c.EvalOnStart = "dcp", "no", false
	c.DropLast = true // the last batch of an epoch depends on the number of ranks
	run(t, 2, c)
	want, _ := losses(t, whole)
	theirs := filepath.Join(whole, "checkpoint-4")
	require.NoError(t, os.Remove(filepath.Join(theirs, "checkpoint.json")))
	require.NoError(t, os.RemoveAll(filepath.Join(theirs, "rank_state")))
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "trainer_state.json"), []byte(`{"global_step": 4, "epoch": 0.4}`), 0o600))
	for _, v := range [][2]int{{2, 2}, {1, 4}, {4, 1}} {
		size := v[0]
		c.OutputDir, c.Resume, c.TrainBatchSize = t.TempDir(), theirs, v[1]
		_, text := run(t, size, c)
		require.Contains(t, text, "saved by another program")
		got, _ := losses(t, c.OutputDir)
		require.InDeltaSlice(t, want[4:], got, 1e-5, "%d ranks", size)
	}
}

func TestBestCheckpoint(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	// What training unlearns: the longer, the worse.
	row := `{"messages":[{"role":"user","content":"QXJ?"},{"role":"assistant","content":"~~ ZZ }{ %% QQ XX"}]}` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(data, "eval.jsonl"), []byte(strings.Repeat(row, 4)), 0o600))
	for _, async := range []bool{false, true} {
		out := t.TempDir()
		c := config(model, data, out)
		c.LRSchedulerType, c.LearningRate, c.WarmupSteps = "constant", 0.05, 0
		c.MaxSteps, c.SaveSteps, c.EvalSteps, c.EvalOnStart, c.SaveTotalLimit = 8, 1, 1, false, 1
		c.LoadBest, c.SaveAsync = true, async
		_, text := run(t, 2, c)
		events, err := metrics.ReadFile(filepath.Join(out, "metrics.jsonl"))
		require.NoError(t, err)
		best, least := 0, 0.0
		for _, e := range events {
			if loss := e.Values[metrics.Loss]; e.Kind == metrics.Eval && (best == 0 || loss < least) {
				best, least = e.Step, loss
			}
		}
		require.NotZero(t, best)
		require.Less(t, best, 8, "the last step is the best: the test proves nothing")
		name := "checkpoint-" + strconv.Itoa(best)
		require.Contains(t, text, "the result is that of")
		folders, err := filepath.Glob(filepath.Join(out, "checkpoint-*"))
		require.NoError(t, err)
		require.ElementsMatch(t, []string{filepath.Join(out, name), filepath.Join(out, "checkpoint-8")}, folders)

		ckpt, err := checkpoint.Open(filepath.Join(out, name))
		require.NoError(t, err)
		defer ckpt.Close()
		merged := filepath.Join(t.TempDir(), "whole")
		require.NoError(t, ckpt.Export(t.Context(), checkpoint.Model, merged, checkpoint.ExportOptions{}))
		adapter, err := safetensors.Open(filepath.Join(out, "adapter", peft.WeightsName))
		require.NoError(t, err)
		defer adapter.Close()
		stored, err := safetensors.Open(filepath.Join(merged, modelio.WeightsName))
		require.NoError(t, err)
		defer stored.Close()
		require.Len(t, adapter.Names(), len(stored.Names()))
		for key, v := range adapter.All() {
			w, err := stored.Tensor(strings.TrimPrefix(key, "base_model.model."))
			require.NoError(t, err)
			require.True(t, bytes.Equal(v.Data, w.Data), key)
		}
	}
}

func TestSavingSettingsAreChecked(t *testing.T) {
	for want, edit := range map[string]func(c *sft.Config){
		"eval_strategy and save_strategy alike": func(c *sft.Config) { c.LoadBest, c.SaveStrategy = true, "epoch" },
		"a multiple of eval_steps":              func(c *sft.Config) { c.LoadBest, c.EvalSteps, c.SaveSteps = true, 3, 4 },
		"lower is better":                       func(c *sft.Config) { c.GreaterBetter = true },
		"save_format is":                        func(c *sft.Config) { c.SaveFormat = "pt" },
		"there is no adapter to merge":          func(c *sft.Config) { c.SaveMerged, c.UseLoRA, c.Use4Bit = true, false, false },
		"save_total_limit is -1":                func(c *sft.Config) { c.SaveTotalLimit = -1 },
	} {
		c := config("model", "data", "out")
		edit(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}

// An adapter of another rank, or for other layers, is refused before anything changes, and the message has both sides.
func TestResumeRefusesAnotherAdapter(t *testing.T) {
	model, data, out := tinyModel(t), tinyData(t), t.TempDir()
	c := config(model, data, out)
	c.MaxSteps, c.EvalStrategy, c.EvalOnStart, c.SaveSteps = 1, "no", false, 1
	run(t, 1, c)
	for want, edit := range map[string]func(c *sft.Config){
		"lora_A.weight\" is F32[8 32] here, F32[4 32] in": func(c *sft.Config) { c.LoRAR = 8 },
		"is unexpected: nothing here has that name":       func(c *sft.Config) { c.LoRATargets = []string{"q_proj"} },
	} {
		other := c
		other.Resume, other.MaxSteps = "true", 2
		edit(&other)
		_, _, errs := ranks(t, 1, func(int) sft.Config { return other }, nil)
		require.ErrorContains(t, errs[0], want)
		require.ErrorContains(t, errs[0], "checkpoint-1")
	}
}
