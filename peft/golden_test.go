package peft_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

var cases = []string{"lora_all_r8", "lora_qv_bias", "lora_rslora", "lora_rank_pattern"}

// caseMeta is a case of peft/meta.json.
type caseMeta struct {
	Losses    []float64 `json:"losses"`
	Norms     []float64 `json:"grad_norms_before_clip"`
	LossAfter float64   `json:"loss_after10"`
	Trainable int64     `json:"trainable"`
}

// step runs forward and backward on the golden batch and gives the mean loss.
func step(m *llama.Model, batch *llamatest.Tensors) float64 {
	s := torch.NewScope(nil)
	defer s.Close()
	out := nn.Run(m, &nn.Call{Scope: s, Training: true}, llama.Input{
		IDs: batch.Get("input_ids").In(s), Labels: batch.Get("labels").In(s), LossScale: 1.0 / 159,
	})
	out.Loss.Backward()
	return out.Loss.Item()
}

func logits(m *llama.Model, batch *llamatest.Tensors, s *torch.Scope) (all *torch.Tensor) {
	torch.NoGrad(func() {
		all = nn.Run(m, &nn.Call{Scope: s}, llama.Input{IDs: batch.Get("input_ids").In(s), Logits: true}).Logits
	})
	return all
}

// valid is the part of a (batch, tokens, …) golden that carries meaning: row 1 is padded from position 70.
func valid(x *torch.Tensor) *torch.Tensor {
	return torch.Cat(0, x.Select(0, 0), x.Select(0, 1).Narrow(0, 0, 70))
}

func TestGoldenLoRA(t *testing.T) {
	var meta map[string]caseMeta
	llamatest.JSON(t, &meta, "peft", "meta.json")
	batch := llamatest.Open(t, "tiny", "plain", "forward.safetensors")
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			want, golden := meta[name], llamatest.Open(t, "peft", name, "golden.safetensors")
			m := llamatest.Model(t, "tiny", "plain")
			adapter, err := peft.LoadAdapter(llamatest.Golden("peft", name, "adapter_init"), m, peft.Options{})
			require.NoError(t, err)
			trainable := int64(0)
			for _, p := range nn.Params(m) {
				if p.Trainable() {
					trainable += p.Tensor().Numel()
				}
			}
			require.Equal(t, want.Trainable, trainable)
			s := torch.NewScope(nil)
			defer s.Close()
			diff := llamatest.Near(t, valid(golden.Get("logits")), valid(logits(m, batch, s)), 2e-5, "logits")

			opt := llamatest.NewAdamW(m, llamatest.AdamW{LR: 2e-3, WeightDecay: 0.01, Clip: 1})
			worst, gradient := 0.0, 0.0
			for i, loss := range want.Losses {
				got := step(m, batch)
				if i == 0 {
					gradient = requireGradients(t, adapter, golden)
				}
				norm := opt.Step()
				require.InDelta(t, loss, got, 2e-5, "loss of step %d", i)
				require.InEpsilon(t, want.Norms[i], norm, 2e-4, "gradient norm of step %d", i)
				worst = max(worst, math.Abs(loss-got))
			}
			after := llamatest.Open(t, "peft", name, "adapter_after10", peft.WeightsName)
			moved := 0.0
			for _, l := range adapter.Layers {
				key := "base_model.model." + l.Name
				moved = max(moved, llamatest.Near(t, after.Get(key+".lora_A.weight"), l.A.Tensor(), 2e-5, l.Name))
				moved = max(moved, llamatest.Near(t, after.Get(key+".lora_B.weight"), l.B.Tensor(), 2e-5, l.Name))
			}
			llamatest.Near(t, valid(golden.Get("logits_after10")), valid(logits(m, batch, s)), 5e-5, "logits after training")

			m = llamatest.Model(t, "tiny", "plain")
			adapter, err = peft.LoadAdapter(llamatest.Golden("peft", name, "adapter_after10"), m, peft.Options{})
			require.NoError(t, err)
			require.NoError(t, adapter.Merge(m))
			llamatest.Near(t, valid(golden.Get("logits_after10_merged")), valid(logits(m, batch, s)), 5e-5, "merged logits")
			merged := llamatest.Open(t, "peft", name, "merged_weights_layer1.safetensors")
			params := nn.NamedParams(m)
			for _, key := range merged.Names() {
				i := slices.IndexFunc(params, func(n nn.Named) bool { return n.Name == key })
				require.GreaterOrEqual(t, i, 0, key)
				llamatest.Near(t, merged.Get(key), params[i].Param.Tensor(), 1e-6, key)
			}
			t.Logf("logits differ by at most %.2g, gradients by %.2g of the largest, losses by %.2g, adapters by %.2g", diff, gradient, worst, moved)
		})
	}
}

func requireGradients(t *testing.T, adapter *peft.Adapter, golden *llamatest.Tensors) (worst float64) {
	for _, l := range adapter.Layers {
		key := "grad.base_model.model." + l.Name
		for part, p := range map[string]*nn.Param{".lora_A": l.A, ".lora_B": l.B} {
			g := p.Tensor().Grad()
			diff, size := llamatest.MaxDiff(g, golden.Get(key+part+".default.weight"))
			require.LessOrEqual(t, diff, 1e-5*size, l.Name+part)
			worst = max(worst, diff/size)
		}
	}
	return worst
}

func TestGoldenQLoRA(t *testing.T) {
	var want caseMeta
	llamatest.JSON(t, &want, "bnb", "tiny_plain_nf4", "meta.json")
	batch := llamatest.Open(t, "tiny", "plain", "forward.safetensors")
	golden := llamatest.Open(t, "bnb", "tiny_plain_nf4", "golden.safetensors")
	for _, checkpoint := range []bool{false, true} {
		var adapter *peft.Adapter
		m := llamatest.Load(t, llamatest.Golden("tiny", "plain"), llama.Options{}, func(m *llama.Model) {
			_, err := quant.Quantize(m, quant.Config{DoubleQuant: true}, nil)
			require.NoError(t, err)
			adapter, err = peft.LoadAdapter(llamatest.Golden("peft", "lora_all_r8", "adapter_init"), m, peft.Options{})
			require.NoError(t, err)
		})
		for _, l := range m.Decoder.Layers {
			l.SetCheckpoint(checkpoint)
		}
		opt := llamatest.NewAdamW(m, llamatest.AdamW{LR: 2e-3, WeightDecay: 0.01, Clip: 1})
		worst := 0.0
		for i, loss := range want.Losses {
			got := step(m, batch)
			if i == 0 {
				requireGradients(t, adapter, golden)
			}
			norm := opt.Step()
			require.InDelta(t, loss, got, 2e-5, "loss of step %d", i)
			require.InEpsilon(t, want.Norms[i], norm, 2e-4, "gradient norm of step %d", i)
			worst = max(worst, math.Abs(loss-got))
		}
		t.Logf("checkpointing %v: losses differ by at most %.2g", checkpoint, worst)
	}
}

// A folder that was read and saved again holds the same files.
func TestGoldenSave(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			from := llamatest.Golden("peft", name, "adapter_init")
			m := llamatest.Model(t, "tiny", "plain")
			adapter, err := peft.LoadAdapter(from, m, peft.Options{})
			require.NoError(t, err)
			dir := filepath.Join(t.TempDir(), "adapter")
			require.NoError(t, adapter.Save(t.Context(), dir, peft.SaveOptions{}))

			read := func(dir string) (v map[string]any) {
				data, err := os.ReadFile(filepath.Join(dir, peft.ConfigName))
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(data, &v))
				return v
			}
			require.Equal(t, read(from), read(dir))
			want := llamatest.OpenFile(t, filepath.Join(from, peft.WeightsName))
			got := llamatest.OpenFile(t, filepath.Join(dir, peft.WeightsName))
			require.ElementsMatch(t, want.Names(), got.Names())
			for _, key := range want.Names() {
				require.Equal(t, want.Get(key).Bytes(), got.Get(key).Bytes(), key)
			}
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, entries, 2, "no temporary file is left")
		})
	}
}

func TestGoldenConfigRefusesWhatIsMissing(t *testing.T) {
	for name, key := range map[string]string{"dora_all_r8": "use_dora", "lora_modules_to_save": "modules_to_save"} {
		_, err := peft.ReadConfig(llamatest.Golden("peft", name, "adapter_init"))
		require.ErrorIs(t, err, peft.ErrUnsupported)
		require.ErrorContains(t, err, key)
	}
}

func TestNewAdapterConfigHasTheKeysOfPEFT(t *testing.T) {
	m := llamatest.Model(t, "tiny", "plain")
	adapter, err := peft.Apply(m, peft.Config{R: 4, TargetModules: peft.AllLinear}, peft.Options{})
	require.NoError(t, err)
	data, err := json.Marshal(adapter.Config)
	require.NoError(t, err)
	var got, want map[string]any
	require.NoError(t, json.Unmarshal(data, &got))
	llamatest.JSON(t, &want, "peft", "lora_all_r8", "adapter_init", peft.ConfigName)
	for key := range want {
		require.Contains(t, got, key)
	}
	require.Len(t, got, len(want))
	require.ElementsMatch(t, want["target_modules"], got["target_modules"])
	require.Contains(t, string(data), `"lora_dropout":0.0`)
}

func TestApplyStartsFromTheBaseModel(t *testing.T) {
	batch := llamatest.Open(t, "tiny", "plain", "forward.safetensors")
	m := llamatest.Model(t, "tiny", "plain")
	s := torch.NewScope(nil)
	defer s.Close()
	before := logits(m, batch, s)
	adapter, err := peft.Apply(m, peft.Config{R: 64, TargetModules: peft.Targets("q_proj")}, peft.Options{Generator: torch.NewGenerator(3)})
	require.NoError(t, err)
	llamatest.Near(t, before, logits(m, batch, s), 1e-6, "logits")
	require.Len(t, adapter.Layers, 2)
	a := s.Own(adapter.Layers[0].A.Tensor().Detach())
	bound := 1 / math.Sqrt(64)
	require.LessOrEqual(t, a.Abs().Max().Item(), bound)
	require.InDelta(t, bound/math.Sqrt(3), a.Pow(2).Mean().Sqrt().Item(), 0.01)
	for _, n := range nn.NamedParams(m) {
		require.Equal(t, strings.Contains(n.Name, "lora_"), n.Param.Trainable(), n.Name)
		require.Equal(t, n.Param.Trainable(), n.Param.Tensor().RequiresGrad(), n.Name)
	}

	_, err = peft.Apply(m, peft.Config{TargetModules: peft.Targets("q_proj", "qproj")}, peft.Options{})
	require.ErrorContains(t, err, "has an adapter already")
	_, err = peft.Apply(llamatest.Model(t, "tiny", "plain"), peft.Config{TargetModules: peft.Targets("q_proj", "qproj")}, peft.Options{})
	require.ErrorContains(t, err, `"qproj" names no linear layer; the model has q_proj, k_proj`)
}

// Dropout draws from the call's generator, and a recomputed layer draws the same mask.
func TestParityDropout(t *testing.T) {
	batch := llamatest.Open(t, "tiny", "plain", "forward.safetensors")
	run := func(checkpoint bool, p float64) (float64, map[string][]float32) {
		m := llamatest.Model(t, "tiny", "plain")
		dir := llamatest.Golden("peft", "lora_all_r8", "adapter_init")
		c, err := peft.ReadConfig(dir)
		require.NoError(t, err)
		c.LoRADropout = p
		adapter, err := peft.Apply(m, c, peft.Options{})
		require.NoError(t, err)
		require.NoError(t, adapter.LoadWeights(dir))
		for _, l := range m.Decoder.Layers {
			l.SetCheckpoint(checkpoint)
		}
		s := torch.NewScope(nil)
		defer s.Close()
		call := &nn.Call{Scope: s, Training: true, Generator: torch.NewGenerator(5)}
		out := nn.Run(m, call, llama.Input{IDs: batch.Get("input_ids").In(s), Labels: batch.Get("labels").In(s)})
		out.Loss.Backward()
		grads := map[string][]float32{}
		for _, l := range adapter.Layers {
			grads[l.Name+".A"] = torch.Slice[float32](l.A.Tensor().Grad())
			grads[l.Name+".B"] = torch.Slice[float32](l.B.Tensor().Grad())
		}
		return out.Loss.Item(), grads
	}
	loss, grads := run(false, 0.3)
	again, recomputed := run(true, 0.3)
	require.Equal(t, loss, again)
	require.Equal(t, grads, recomputed)
	fused, _ := run(false, 0)
	require.NotEqual(t, fused, loss)
	composed, _ := run(false, 1e-12)
	require.InEpsilon(t, fused, composed, 1e-6)
}

// A bf16 model with quantised weights and fp32 adapters computes in bf16, stays close to fp32, and leaks nothing.
func TestHalfPrecisionQLoRA(t *testing.T) {
	batch := llamatest.Open(t, "tiny", "plain", "forward.safetensors")
	var meta caseMeta
	llamatest.JSON(t, &meta, "bnb", "tiny_plain_nf4", "meta.json")
	m := llamatest.Load(t, llamatest.Golden("tiny", "plain"), llama.Options{DType: torch.BFloat16}, func(m *llama.Model) {
		_, err := quant.Quantize(m, quant.Config{DoubleQuant: true}, nil)
		require.NoError(t, err)
		_, err = peft.LoadAdapter(llamatest.Golden("peft", "lora_all_r8", "adapter_init"), m, peft.Options{})
		require.NoError(t, err)
	})
	for _, l := range m.Decoder.Layers {
		l.SetCheckpoint(true)
	}
	opt := llamatest.NewAdamW(m, llamatest.AdamW{LR: 2e-3, WeightDecay: 0.01, Clip: 1})
	ids, labels := batch.Get("input_ids"), batch.Get("labels")
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var live torch.Memory
	for i, want := range meta.Losses {
		s := torch.NewScope(nil)
		out := nn.Run(m, &nn.Call{Scope: s, Training: true}, llama.Input{IDs: ids.In(s), Labels: labels.In(s), LossScale: 1.0 / 159})
		out.Loss.Backward()
		require.InDelta(t, want, out.Loss.Item(), 0.03)
		s.Close()
		opt.Step()
		if now := torch.MemoryStats(); i == 1 {
			live = now
		} else if i > 1 {
			require.Equal(t, live.LiveTensors, now.LiveTensors, "live tensors after step %d", i)
			require.Equal(t, live.LiveBytes, now.LiveBytes, "live bytes after step %d", i)
		}
	}
	for _, n := range nn.NamedParams(m) {
		if n.Param.Trainable() {
			require.Equal(t, torch.Float32, n.Param.Tensor().DType(), n.Name)
		}
	}
}
