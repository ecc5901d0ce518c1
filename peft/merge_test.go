package peft_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

// requireSame compares a merged folder with a model merged in memory, bit for bit in dtype.
func requireSame(t *testing.T, m any, dir string, dtype torch.DType) {
	t.Helper()
	w, err := modelio.OpenWeights(dir)
	require.NoError(t, err)
	defer w.Close()
	params := nn.NamedParams(m)
	require.Len(t, w.Names(), len(params))
	for _, p := range params {
		v, err := w.Tensor(p.Name)
		require.NoError(t, err)
		require.Equal(t, dtype.Safetensors(), v.DType)
		got, err := v.Bytes()
		require.NoError(t, err)
		want := p.Param.Tensor().Detach().To(dtype)
		require.Equal(t, want.Bytes(), got, p.Name)
	}
}

func TestParityOfFoldersAndMemory(t *testing.T) {
	base := llamatest.Golden("tiny", "plain")
	for _, name := range cases {
		adapter := llamatest.Golden("peft", name, "adapter_after10")
		m := llamatest.Model(t, "tiny", "plain")
		a, err := peft.LoadAdapter(adapter, m, peft.Options{})
		require.NoError(t, err)
		require.NoError(t, a.Merge(m))
		for _, dtype := range []torch.DType{torch.Float32, torch.BFloat16} {
			out := filepath.Join(t.TempDir(), "merged")
			require.NoError(t, peft.MergeFolder(t.Context(), base, adapter, out, peft.MergeOptions{DType: dtype, MaxShardBytes: 100_000}))
			requireSame(t, m, out, dtype)
			require.FileExists(t, filepath.Join(out, modelio.IndexName))
			c, err := modelio.ReadConfig(out)
			require.NoError(t, err)
			require.Equal(t, dtype.String(), c.DType)
		}
		golden := llamatest.Open(t, "peft", name, "merged_weights_layer1.safetensors")
		out := filepath.Join(t.TempDir(), "merged")
		require.NoError(t, peft.MergeFolder(t.Context(), base, adapter, out, peft.MergeOptions{DType: torch.Float32}))
		f, err := safetensors.Open(filepath.Join(out, modelio.WeightsName))
		require.NoError(t, err)
		for _, key := range golden.Names() {
			v, err := f.Tensor(key)
			require.NoError(t, err)
			llamatest.Near(t, golden.Get(key), torch.FromBytes(torch.Float32, v.Data, v.Shape...), 1e-6, key)
		}
		require.NoError(t, f.Close())
	}
}

func TestParityOfFoldersAndMemoryInFourBits(t *testing.T) {
	base, adapter := llamatest.Golden("tiny", "plain"), llamatest.Golden("peft", "lora_qv_bias", "adapter_after10")
	for _, c := range []quant.Config{{}, {Type: quant.FP4}, {DoubleQuant: true}} {
		m := llamatest.Model(t, "tiny", "plain")
		_, err := quant.Quantize(m, c, nil)
		require.NoError(t, err)
		a, err := peft.LoadAdapter(adapter, m, peft.Options{})
		require.NoError(t, err)
		require.NoError(t, a.Merge(m))
		nn.ReplaceLinears(m, func(_ string, l nn.LinearLayer) nn.LinearLayer { // those without an adapter
			if q, ok := l.(*quant.Linear4bit); ok {
				dense, err := q.Dequantize(torch.Float32)
				require.NoError(t, err)
				return dense
			}
			return l
		})
		out := filepath.Join(t.TempDir(), "merged")
		require.NoError(t, peft.MergeFolder(t.Context(), base, adapter, out, peft.MergeOptions{DType: torch.Float32, Quant: &c}))
		requireSame(t, m, out, torch.Float32)
	}
}

func TestMergeFolderRefuses(t *testing.T) {
	base, adapter := llamatest.Golden("tiny", "plain"), llamatest.Golden("peft", "lora_all_r8", "adapter_after10")
	config, err := os.ReadFile(filepath.Join(adapter, peft.ConfigName))
	require.NoError(t, err)
	good, err := safetensors.Open(filepath.Join(adapter, peft.WeightsName))
	require.NoError(t, err)
	defer good.Close()
	const layer = "base_model.model.model.layers.0.self_attn.q_proj."
	spoil := func(edit func(name string, v safetensors.View) (string, safetensors.View)) string {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, peft.ConfigName), config, 0o600))
		var specs []safetensors.Spec
		data := map[string][]byte{}
		for name, v := range good.All() {
			name, v = edit(name, v)
			if name != "" {
				specs, data[name] = append(specs, safetensors.Spec{Name: name, DType: v.DType, Shape: v.Shape}), v.Data
			}
		}
		w, err := safetensors.Create(filepath.Join(dir, peft.WeightsName), specs, nil)
		require.NoError(t, err)
		for name, b := range data {
			require.NoError(t, w.Write(name, b))
		}
		require.NoError(t, w.Commit())
		return dir
	}
	for want, dir := range map[string]string{
		"for which the base model has no weight": spoil(func(name string, v safetensors.View) (string, safetensors.View) {
			return strings.Replace(name, "layers.0.self_attn.q_proj", "layers.9.self_attn.q_proj", 1), v
		}),
		"only one of": spoil(func(name string, v safetensors.View) (string, safetensors.View) {
			if name == layer+"lora_B.weight" {
				return "", v
			}
			return name, v
		}),
		`"` + layer + `lora_A.weight" with shape [0]`: spoil(func(name string, v safetensors.View) (string, safetensors.View) {
			if name == layer+"lora_A.weight" {
				v.Shape, v.Data = []int64{0}, nil
			}
			return name, v
		}),
		"does not target": spoil(func(name string, v safetensors.View) (string, safetensors.View) {
			return strings.Replace(name, "model.layers.0.self_attn.q_proj", "lm_head", 1), v
		}),
		"is no adapter folder": t.TempDir(),
	} {
		out := filepath.Join(t.TempDir(), "out")
		require.ErrorContains(t, peft.MergeFolder(t.Context(), base, dir, out, peft.MergeOptions{}), want)
		require.NoDirExists(t, out)
	}
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "thesis.txt"), nil, 0o600))
	require.ErrorContains(t, peft.MergeFolder(t.Context(), base, adapter, full, peft.MergeOptions{}), "is not empty")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := filepath.Join(t.TempDir(), "out")
	require.ErrorIs(t, peft.MergeFolder(ctx, base, adapter, out, peft.MergeOptions{}), context.Canceled)
	left, err := os.ReadDir(filepath.Dir(out))
	require.NoError(t, err)
	require.Empty(t, left)
}
