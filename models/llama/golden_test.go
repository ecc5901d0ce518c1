package llama_test

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

var tinyModels = []string{"plain", "rope_llama3", "tied"}

// valid is the part of a (batch, tokens, …) golden that carries meaning: row 1 is padded from position 70.
func valid(x *torch.Tensor) *torch.Tensor {
	return torch.Cat(0, x.Select(0, 0), x.Select(0, 1).Narrow(0, 0, 70))
}

func TestGoldenTinyForward(t *testing.T) {
	for _, name := range tinyModels {
		t.Run(name, func(t *testing.T) {
			m := llamatest.Model(t, "tiny", name)
			want := llamatest.Open(t, "tiny", name, "forward.safetensors")
			step := torch.NewScope(nil)
			defer step.Close()
			var out llama.Output
			torch.NoGrad(func() {
				out = nn.Run(m, &nn.Call{Scope: step}, llama.Input{
					IDs: step.Own(want.Get("input_ids")), Labels: want.Get("labels").In(step), Logits: true, HiddenStates: true,
				})
			})
			diff := llamatest.Near(t, valid(want.Get("logits")), valid(out.Logits), 2e-5, "logits")
			require.Len(t, out.HiddenStates, 3)
			for i, h := range out.HiddenStates {
				llamatest.Near(t, valid(want.Get("hidden."+string(rune('0'+i)))), valid(h), 2e-5, "hidden states")
			}
			loss := out.Loss.Item() / float64(out.Count)
			require.InDelta(t, want.Get("loss").Item(), loss, 2e-6)
			require.EqualValues(t, 90+69, out.Count)
			t.Logf("logits differ by at most %.2g", diff)
		})
	}
}

func TestGoldenTinyGradients(t *testing.T) {
	for _, name := range tinyModels {
		t.Run(name, func(t *testing.T) {
			m := llamatest.Model(t, "tiny", name)
			batch := llamatest.Open(t, "tiny", name, "forward.safetensors")
			want := llamatest.Open(t, "tiny", name, "grads.safetensors")
			plain := gradients(t, m, batch)
			worst := 0.0
			for _, n := range nn.NamedParams(m) {
				diff, size := llamatest.MaxDiff(plain[n.Name], want.Get(n.Name))
				require.LessOrEqual(t, diff, 1e-5*size, n.Name)
				worst = max(worst, diff/size)
			}
			t.Logf("gradients differ by at most %.2g of the largest", worst)
			for _, layer := range m.Decoder.Layers {
				layer.SetCheckpoint(true)
			}
			for key, g := range gradients(t, m, batch) {
				require.True(t, g.Equal(plain[key]), "%s changes with activation checkpointing", key)
			}
		})
	}
}

// gradients runs forward and backward and takes the gradients off the parameters.
func gradients(t *testing.T, m *llama.Model, batch *llamatest.Tensors) map[string]*torch.Tensor {
	require.NoError(t, torch.Try(func() { backward(m, batch) }))
	out := map[string]*torch.Tensor{}
	for _, n := range nn.NamedParams(m) {
		out[n.Name] = n.Param.Tensor().Grad()
		n.Param.Tensor().SetGrad(nil)
	}
	return out
}

// backward gives the mean loss.
func backward(m *llama.Model, batch *llamatest.Tensors) float64 {
	step := torch.NewScope(nil)
	defer step.Close()
	labels := batch.Get("labels")
	out := nn.Run(m, &nn.Call{Scope: step, Training: true}, llama.Input{
		IDs: batch.Get("input_ids").In(step), Labels: labels.In(step), LossScale: 1.0 / 159,
	})
	out.Loss.Backward()
	return out.Loss.Item()
}

// TestGoldenTinyTraining makes the reference's ten steps. After them, Adam has divided by |g|: where g is near 0, rounding
// decides how far one element moves, the reference's as much as ours. So the reference's steps in fp64 are the measure of
// norms and parameters: ours in fp32 may be no further from them than twice what the reference in fp32 is.
func TestGoldenTinyTraining(t *testing.T) {
	for _, name := range tinyModels {
		t.Run(name, func(t *testing.T) {
			var meta struct {
				AdamW tinyRun `json:"adamw"`
			}
			var exact tinyRun
			llamatest.JSON(t, &meta, "tiny", name, "meta.json")
			llamatest.JSON(t, &exact, "tiny", name, "fp64.json")
			m := llamatest.Model(t, "tiny", name)
			batch := llamatest.Open(t, "tiny", name, "forward.safetensors")
			opt := llamatest.NewAdamW(m, llamatest.AdamW{LR: 3e-3, Beta2: 0.95, WeightDecay: 0.1, Clip: 1})
			loss, norm, theirNorm := 0.0, 0.0, 0.0
			for i, want := range meta.AdamW.Losses {
				got := backward(m, batch)
				require.InDelta(t, want, got, 2e-5, "loss of step %d", i)
				loss = max(loss, math.Abs(got-want))
				n := opt.Step()
				require.InEpsilon(t, meta.AdamW.Norms[i], n, 2e-4, "gradient norm of step %d", i)
				norm = max(norm, math.Abs(n/exact.Norms[i]-1))
				theirNorm = max(theirNorm, math.Abs(meta.AdamW.Norms[i]/exact.Norms[i]-1))
			}
			require.InDelta(t, meta.AdamW.LossAfter, backward(m, batch), 2e-5)
			params := llamatest.Open(t, "tiny", name, "params_after10_fp64.safetensors")
			reference := llamatest.Open(t, "tiny", name, "params_after10.safetensors")
			param, theirParam, mean := 0.0, 0.0, 0.0
			for _, n := range nn.NamedParams(m) {
				ours, _ := llamatest.MaxDiff(n.Param.Tensor(), params.Get(n.Name))
				theirs, _ := llamatest.MaxDiff(reference.Get(n.Name), params.Get(n.Name))
				param, theirParam = max(param, ours), max(theirParam, theirs)
				mean = max(mean, llamatest.MeanDiff(n.Param.Tensor(), reference.Get(n.Name)))
			}
			t.Logf("losses differ by at most %.2g; from fp64: norms by %.2g (reference %.2g), parameters by %.2g (reference %.2g)",
				loss, norm, theirNorm, param, theirParam)
			require.LessOrEqual(t, norm, max(2*theirNorm, 1e-5))
			require.LessOrEqual(t, param, 2*theirParam)
			require.LessOrEqual(t, mean, 2e-6)
		})
	}
}

type tinyRun struct {
	Losses    []float64 `json:"losses"`
	Norms     []float64 `json:"grad_norms_before_clip"`
	LossAfter float64   `json:"loss_after"`
}

func TestTrainingKeepsTheTensorCountFlat(t *testing.T) {
	m := llamatest.Model(t, "tiny", "plain")
	for _, layer := range m.Decoder.Layers {
		layer.SetCheckpoint(true)
	}
	batch := llamatest.Open(t, "tiny", "plain", "forward.safetensors")
	opt := llamatest.NewAdamW(m, llamatest.AdamW{LR: 1e-3, Clip: 1})
	labels, ids := batch.Get("labels"), batch.Get("input_ids")
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var first torch.Memory
	for i := range 5 {
		step := torch.NewScope(nil)
		out := nn.Run(m, &nn.Call{Scope: step, Training: true}, llama.Input{IDs: ids.In(step), Labels: labels.In(step)})
		out.Loss.Backward()
		step.Close()
		opt.Step()
		if now := torch.MemoryStats(); i == 1 {
			first = now
		} else if i > 1 {
			require.Equal(t, first.LiveTensors, now.LiveTensors, "live tensors after step %d", i)
			require.Equal(t, first.LiveBytes, now.LiveBytes, "live bytes after step %d", i)
		}
	}
}

func TestGoldenRope(t *testing.T) {
	for _, name := range tinyModels {
		t.Run(name, func(t *testing.T) {
			want := llamatest.Open(t, "tiny", name, "forward.safetensors")
			for _, file := range []string{"config.json", "config_classic.json"} {
				inverse, cos, sin := llama.RopeOf(t, llamatest.Golden("tiny", name, file), 100)
				require.Equal(t, torch.Slice[float32](want.Get("inv_freq")), inverse)
				llamatest.Near(t, want.Get("rope_cos"), cos, 0, "cos")
				llamatest.Near(t, want.Get("rope_sin"), sin, 0, "sin")
			}
		})
	}
}

func TestGoldenPackedRow(t *testing.T) {
	m := llamatest.Model(t, "tiny", "plain")
	want := llamatest.Open(t, "packing", "packed_equivalence_tiny_plain.safetensors")
	var meta struct {
		Loss float64 `json:"loss_packed_first_token_of_each_segment_masked"`
	}
	llamatest.JSON(t, &meta, "packing", "packed_equivalence_meta.json")
	cu := []int32{0, 20, 27, 40}
	step := torch.NewScope(nil)
	defer step.Close()
	ids, positions := want.Get("input_ids").In(step), want.Get("position_ids").In(step)
	for _, in := range []llama.Input{
		{IDs: ids.View(1, 40), Labels: ids.View(1, 40)},
		{IDs: ids.View(1, 40), Labels: ids.View(1, 40), Positions: positions.View(1, 40)},
	} {
		in.CuSeqlens, in.Logits = cu, true
		out := nn.Run(m, &nn.Call{Scope: step}, in)
		llamatest.Near(t, want.Get("logits_separate"), out.Logits.Squeeze(0), 2e-5, "logits")
		require.InDelta(t, meta.Loss, out.Loss.Item()/float64(out.Count), 5e-6)
		require.EqualValues(t, 37, out.Count, "the first token of a sequence is no target")
	}

	// Two rows of twenty tokens; the second holds two sequences.
	in := llama.Input{IDs: ids.View(2, 20), CuSeqlens: []int32{0, 20, 27, 40}, Logits: true}
	out := nn.Run(m, &nn.Call{Scope: step}, in)
	llamatest.Near(t, want.Get("logits_separate"), out.Logits.Reshape(40, 256), 2e-5, "two packed rows")
}

func TestParityPackedGradients(t *testing.T) {
	m := llamatest.Model(t, "tiny", "plain")
	ids := make([]int64, 40)
	for i := range ids {
		ids[i] = int64(3 + i*7%250)
	}
	run := func(inputs ...llama.Input) map[string]*torch.Tensor {
		step := torch.NewScope(nil)
		defer step.Close()
		for _, in := range inputs {
			in.IDs = step.Own(in.IDs)
			in.Labels = in.IDs
			nn.Run(m, &nn.Call{Scope: step, Training: true}, in).Loss.Backward()
		}
		out := map[string]*torch.Tensor{}
		for _, n := range nn.NamedParams(m) {
			out[n.Name] = n.Param.Tensor().Grad()
			n.Param.Tensor().SetGrad(nil)
		}
		return out
	}
	packed := run(llama.Input{IDs: torch.FromSlice(ids, 1, 40), CuSeqlens: []int32{0, 20, 27, 40}})
	apart := run(
		llama.Input{IDs: torch.FromSlice(ids[:20], 1, 20)},
		llama.Input{IDs: torch.FromSlice(ids[20:27], 1, 7)},
		llama.Input{IDs: torch.FromSlice(ids[27:], 1, 13)},
	)
	for _, n := range nn.NamedParams(m) {
		diff, size := llamatest.MaxDiff(packed[n.Name], apart[n.Name])
		require.LessOrEqual(t, diff, 1e-5*size, n.Name)
	}
}
