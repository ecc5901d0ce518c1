package quant_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

// model is a linear layer that can be replaced.
type model struct {
	nn.Hooks
	Linear nn.LinearLayer `torch:"linear"`
}

// quantized quantises a weight that has values.
func quantized(t *testing.T, weight *torch.Tensor, c quant.Config) *quant.Linear4bit {
	shape := weight.Shape()
	if len(shape) == 1 {
		shape = []int64{1, shape[0]}
	}
	m := &model{Linear: &nn.Linear{Weight: nn.NewParam(weight.In(nil).Reshape(shape...).Clone(), false)}}
	n, err := quant.Quantize(m, c, nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return m.Linear.(*quant.Linear4bit)
}

func TestGoldenQuant4bit(t *testing.T) {
	f := llamatest.Open(t, "bnb", "quant4bit.safetensors")
	cases := 0
	for _, name := range f.Names() {
		key, ok := strings.CutSuffix(name, ".packed")
		if !ok {
			continue
		}
		part := strings.Split(key, "|") // tensor, type, block size, nesting, storage
		block, err := strconv.ParseInt(strings.TrimPrefix(part[2], "bs"), 10, 64)
		require.NoError(t, err)
		nested := part[3] == "nested"
		input := f.Get("in." + part[0])
		q := quantized(t, input, quant.Config{Type: part[1], BlockSize: block, DoubleQuant: nested})
		require.Equal(t, f.Get(name).Bytes(), q.Weight.Tensor().Bytes(), "%s: codes", key)
		absmax := key + ".absmax"
		require.Equal(t, f.Get(absmax).Bytes(), q.Absmax.Tensor().Bytes(), "%s: scales", key)
		if nested {
			require.Equal(t, f.Get(key+".nested_absmax").Bytes(), q.NestedAbsmax.Tensor().Bytes(), "%s: nested scales", key)
			require.Equal(t, f.Get(key+".offset").Bytes(), q.NestedOffset.Tensor().Bytes(), "%s: offset", key)
		}
		if f.Has(key + ".deq") {
			l, err := q.Dequantize(input.DType())
			require.NoError(t, err)
			require.Equal(t, f.Get(key+".deq").Bytes(), l.Weight.Tensor().Bytes(), "%s: dequantised", key)
		}
		cases++
	}
	require.Greater(t, cases, 20)
	t.Logf("%d cases", cases)
}

func TestGoldenLinear4bit(t *testing.T) {
	f := llamatest.Open(t, "bnb", "linear4bit_state.safetensors")
	q := quantized(t, f.Get("W"), quant.Config{DoubleQuant: true})
	for _, storage := range []string{"uint8", "bfloat16"} {
		require.Equal(t, f.Get(storage+".weight").Bytes(), q.Weight.Tensor().Bytes())
		require.Equal(t, f.Get(storage+".weight.absmax").Bytes(), q.Absmax.Tensor().Bytes())
		require.Equal(t, f.Get(storage+".weight.nested_absmax").Bytes(), q.NestedAbsmax.Tensor().Bytes())
		step := torch.NewScope(nil)
		defer step.Close()
		x := f.Get(storage + ".x").In(step).Detach().SetRequiresGrad(true)
		y := nn.Run(q, &nn.Call{Scope: step}, x)
		llamatest.Near(t, f.Get(storage+".y"), y, 2e-6, "output")
		y.Pow(2).Mean().Backward()
		llamatest.Near(t, f.Get(storage+".dx"), x.Grad(), 2e-8, "gradient of the input")
	}
}

func TestGoldenTinyModel(t *testing.T) {
	m := llamatest.Load(t, llamatest.Golden("tiny", "plain"), llama.Options{}, quantize(t))
	want := llamatest.Open(t, "bnb", "tiny_plain_nf4", "golden.safetensors")
	file := llamatest.Open(t, "bnb", "tiny_plain_nf4", "model.safetensors")
	layers := 0
	for _, l := range nn.Modules(m) {
		q, ok := l.Module.(*quant.Linear4bit)
		if !ok {
			continue
		}
		layers++
		require.Equal(t, file.Get(l.Name+".weight").Bytes(), q.Weight.Tensor().Bytes(), l.Name)
		require.Equal(t, file.Get(l.Name+".weight.absmax").Bytes(), q.Absmax.Tensor().Bytes(), l.Name)
		dense, err := q.Dequantize(torch.Float32)
		require.NoError(t, err)
		require.True(t, want.Get("deq."+l.Name+".weight").Equal(dense.Weight.Tensor()), l.Name)
	}
	require.Equal(t, 14, layers)
}

func quantize(t *testing.T) func(m *llama.Model) {
	return func(m *llama.Model) {
		_, err := quant.Quantize(m, quant.Config{DoubleQuant: true}, nil)
		require.NoError(t, err)
	}
}

// layerHash is what the golden file says about a layer.
type layerHash struct {
	Shape  []int64 `json:"shape"`
	Packed string  `json:"packed_sha256"`
	Absmax string  `json:"absmax8_sha256"`
	Nested string  `json:"nested_absmax_sha256"`
	Offset float64 `json:"offset"`
}

type nf4Meta struct {
	Loss   float64              `json:"loss"`
	Bytes  int                  `json:"quant_bytes"`
	Layers map[string]layerHash `json:"layers"`
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestGoldenSmolLM2(t *testing.T) {
	var meta nf4Meta
	llamatest.JSON(t, &meta, "smollm2_logits", "nf4_meta.json")
	m := llamatest.Load(t, llamatest.SmolLM2(t), llama.Options{DType: torch.Float32}, quantize(t))
	layers, bytes := 0, 0
	for _, l := range nn.Modules(m) {
		q, ok := l.Module.(*quant.Linear4bit)
		if !ok {
			continue
		}
		want, ok := meta.Layers[l.Name]
		require.True(t, ok, l.Name)
		layers++
		packed, absmax, nested := q.Weight.Tensor().Bytes(), q.Absmax.Tensor().Bytes(), q.NestedAbsmax.Tensor().Bytes()
		bytes += len(packed) + len(absmax) + len(nested)
		require.Equal(t, want.Packed, hash(packed), "%s: codes", l.Name)
		require.Equal(t, want.Absmax, hash(absmax), "%s: scales", l.Name)
		require.Equal(t, want.Nested, hash(nested), "%s: nested scales", l.Name)
		require.Equal(t, want.Offset, q.NestedOffset.Tensor().Item(), "%s: offset", l.Name)
	}
	require.Equal(t, 210, layers)
	require.Equal(t, meta.Bytes, bytes)

	want := llamatest.Open(t, "smollm2_logits", "nf4_fp32_compute.safetensors")
	step := torch.NewScope(nil)
	defer step.Close()
	ids := want.Get("input_ids").In(step).View(1, -1)
	torch.NoGrad(func() {
		out := nn.Run(m, &nn.Call{Scope: step}, llama.Input{IDs: ids, Labels: ids, Logits: true})
		require.InDelta(t, meta.Loss, out.Loss.Item()/float64(out.Count), 2e-5)
		diff := llamatest.Near(t, want.Get("top20_values"), out.Logits.Squeeze(0).Gather(1, want.Get("top20_indices").In(step)), 2e-4, "top 20 logits")
		t.Logf("%d layers equal; top 20 logits differ by at most %.2g, the loss by %.2g", layers, diff, out.Loss.Item()/float64(out.Count)-meta.Loss)
	})
}

// The bits must not depend on the vector instructions that libtorch picks.
func TestGoldenWithoutVectorInstructions(t *testing.T) {
	if os.Getenv("ATEN_CPU_CAPABILITY") == "default" {
		return // this is the inner run
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", "^TestGolden(Quant4bit|TinyModel)$")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "ATEN_CPU_CAPABILITY=") }), "ATEN_CPU_CAPABILITY=default")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
