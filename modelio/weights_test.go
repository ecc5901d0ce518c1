package modelio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

func TestOpenGoldenFolder(t *testing.T) {
	m, err := Open(goldens + "tiny/tied")
	require.NoError(t, err)
	defer m.Close()
	require.True(t, m.Config.TieWordEmbeddings)
	require.False(t, m.Weights.Has("lm_head.weight"))
	require.NoError(t, m.Weights.checkShapes(m.Config))
	v, err := m.Weights.Tensor("model.layers.1.mlp.up_proj.weight")
	require.NoError(t, err)
	require.Equal(t, []int64{172, 64}, v.Shape)
	require.Equal(t, int64(64), v.RowLen())
	require.Equal(t, int64(172*64), v.NumElements())
	all, err := v.Bytes()
	require.NoError(t, err)
	part, err := v.Rows(7, 9)
	require.NoError(t, err)
	require.Equal(t, all[7*256:9*256], part)
	values := make([]float32, 128)
	require.NoError(t, v.ReadFloat32(values, 7, 9))
	require.Equal(t, math.Float32frombits(binary.LittleEndian.Uint32(part)), values[0])
	require.NoError(t, v.Release(0, 172))
	_, err = v.Rows(7, 173)
	require.ErrorContains(t, err, "rows [7:173] are out of range")
	require.ErrorContains(t, v.ReadFloat32(values, 0, 1), "have 64 elements, dst has 128")
	_, err = m.Weights.Tensor("lm_head.weight")
	require.ErrorContains(t, err, `holds no tensor "lm_head.weight"`)
}

// sharded copies a golden's weights into shards.
func sharded(t *testing.T, dir string, maxBytes int64) *Weights {
	w, err := OpenWeights(goldens + "tiny/plain")
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	var specs []safetensors.Spec
	for _, name := range w.Names() {
		v, err := w.Tensor(name)
		require.NoError(t, err)
		specs = append(specs, safetensors.Spec{Name: name, DType: v.DType, Shape: v.Shape})
	}
	out, err := CreateWeights(dir, specs, maxBytes)
	require.NoError(t, err)
	defer out.Abort()
	for _, s := range specs {
		v, err := w.Tensor(s.Name)
		require.NoError(t, err)
		data, err := v.Bytes()
		require.NoError(t, err)
		require.ErrorContains(t, out.Write(s.Name, data[1:]), "bytes, got")
		require.NoError(t, out.WriteAt(s.Name, 4, data[4:]))
		require.NoError(t, out.WriteAt(s.Name, 0, data[:4]))
	}
	require.NoError(t, out.Commit())
	return w
}

func TestShardsRoundTrip(t *testing.T) {
	dir := t.TempDir()
	want := sharded(t, dir, 100_000)
	files, err := filepath.Glob(filepath.Join(dir, "model-*-of-*.safetensors"))
	require.NoError(t, err)
	require.Greater(t, len(files), 3)
	require.FileExists(t, filepath.Join(dir, fmt.Sprintf("model-00001-of-%05d.safetensors", len(files))))
	got, err := OpenWeights(dir)
	require.NoError(t, err)
	defer got.Close()
	require.Equal(t, want.Names(), got.Names())
	total := int64(0)
	for _, name := range want.Names() {
		a, err := want.Tensor(name)
		require.NoError(t, err)
		b, err := got.Tensor(name)
		require.NoError(t, err)
		x, err := a.Bytes()
		require.NoError(t, err)
		y, err := b.Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(x, y), name)
		total += int64(len(x))
	}
	index, err := os.ReadFile(filepath.Join(dir, IndexName))
	require.NoError(t, err)
	require.Contains(t, string(index), fmt.Sprintf(`"total_size": %d`, total))

	// Writing one file into the same folder drops the index, so that no reader is misled.
	sharded(t, dir, 0)
	require.NoFileExists(t, filepath.Join(dir, IndexName))
	require.FileExists(t, filepath.Join(dir, WeightsName))
	sharded(t, dir, 100_000)
	require.NoFileExists(t, filepath.Join(dir, WeightsName))
}

func TestOpenWeightsRefuses(t *testing.T) {
	dir := t.TempDir()
	check := func(want string) {
		t.Helper()
		_, err := OpenWeights(dir)
		require.ErrorContains(t, err, want)
	}
	index := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, IndexName), []byte(text), 0o600))
	}
	check("has neither model.safetensors nor model.safetensors.index.json")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pytorch_model.bin"), nil, 0o600))
	check("pytorch_model.bin: this is no file of torch.save")
	index("{\n}")
	check("weight_map is missing or empty")
	index("{\n,}")
	check("line 2 column 1")
	index(`{"weight_map": {"a": "../x.safetensors"}}`)
	check(`which is not in the folder`)
	index(`{"weight_map": {"a": "x.safetensors"}}`)
	check("x.safetensors: no such file")
	w, err := safetensors.Create(filepath.Join(dir, "x.safetensors"), []safetensors.Spec{{Name: "b", DType: "U8", Shape: []int64{2}}}, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write("b", []byte{1, 2}))
	require.NoError(t, w.Commit())
	check(`names x.safetensors: it holds no tensor "a"`)
	require.NoError(t, os.Truncate(filepath.Join(dir, "x.safetensors"), 65))
	check("x.safetensors: byte 65: the file ends after")

	_, err = Open(filepath.Join(dir, "x.safetensors"))
	require.ErrorContains(t, err, "neither a folder nor a .gguf file")
	_, err = Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestCreateWeightsRefuses(t *testing.T) {
	dir := t.TempDir()
	spec := safetensors.Spec{Name: "a", DType: "U8", Shape: []int64{2}}
	_, err := CreateWeights(dir, []safetensors.Spec{spec, spec}, 1)
	require.ErrorContains(t, err, `"a" is given twice`)
	w, err := CreateWeights(dir, []safetensors.Spec{spec, {Name: "b", DType: "U8", Shape: []int64{1}}}, 1)
	require.NoError(t, err)
	require.Equal(t, int64(3), w.TotalBytes())
	require.ErrorContains(t, w.Write("c", nil), `no tensor "c"`)
	require.ErrorContains(t, w.WriteAt("c", 0, nil), `no tensor "c"`)
	require.NoError(t, w.Write("a", []byte{1, 2}))
	require.ErrorContains(t, w.Commit(), `"b" has not been written`)
	require.NoFileExists(t, filepath.Join(dir, IndexName), "the index is the last file to appear")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NotContains(t, e.Name(), ".tmp-")
	}
}

func TestReadFloat32(t *testing.T) {
	dir := t.TempDir()
	out, err := CreateWeights(dir, []safetensors.Spec{
		{Name: "h", DType: "F16", Shape: []int64{2, 2}}, {Name: "b", DType: "BF16", Shape: []int64{3}}, {Name: "s", DType: "F32"},
		{Name: "i", DType: "I64", Shape: []int64{1}}, {Name: "n", DType: "F4", Shape: []int64{2, 1}},
	}, 0)
	require.NoError(t, err)
	for name, data := range map[string][]byte{"h": {0, 0x3c, 0, 0xc0, 1, 0, 0, 0x7c}, "b": {0x80, 0x3f, 0, 0xc0, 0x49, 0x40},
		"s": {0, 0, 0x40, 0x3f}, "i": make([]byte, 8), "n": {1}} {
		require.NoError(t, out.Write(name, data))
	}
	require.NoError(t, out.Commit())
	w, err := OpenWeights(dir)
	require.NoError(t, err)
	defer w.Close()
	read := func(name string, n int) []float32 {
		v, err := w.Tensor(name)
		require.NoError(t, err)
		dst := make([]float32, n)
		require.NoError(t, v.ReadFloat32(dst, 0, v.NumRows()))
		return dst
	}
	require.Equal(t, []float32{1, -2, 0x1p-24, float32(math.Inf(1))}, read("h", 4))
	require.Equal(t, []float32{1, -2, 3.140625}, read("b", 3))
	require.Equal(t, []float32{0.75}, read("s", 1))
	v, err := w.Tensor("i")
	require.NoError(t, err)
	require.ErrorContains(t, v.ReadFloat32(make([]float32, 1), 0, 1), "dtype I64, expected F32, F16 or BF16")
	v, err = w.Tensor("n")
	require.NoError(t, err)
	_, err = v.Rows(0, 1)
	require.ErrorContains(t, err, "not a whole number of bytes")
}

func TestOpenWeightsOfPyTorchGolden(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join("..", "testdata", "torch", "tensors.pt"))
	require.NoError(t, err)
	read := func(want ...string) {
		t.Helper()
		w, err := OpenWeights(dir)
		require.NoError(t, err)
		defer w.Close()
		require.Subset(t, w.Names(), want)
		v, err := w.Tensor("bfloat16")
		require.NoError(t, err)
		got := make([]float32, 3)
		require.NoError(t, v.ReadFloat32(got, 1, 2))
		require.Equal(t, []float32{4, 5, 6}, got)
		require.NoError(t, v.Release(0, 2))
		b, err := v.Rows(0, 1)
		require.NoError(t, err)
		require.Len(t, b, 6)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, PickleName), data, 0o600))
	read("float32", "bfloat16", "transposed")

	require.NoError(t, os.Rename(filepath.Join(dir, PickleName), filepath.Join(dir, "pytorch_model-00001-of-00001.bin")))
	index := func(name string) {
		text := `{"weight_map": {"` + name + `": "pytorch_model-00001-of-00001.bin"}}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, PickleIndexName), []byte(text), 0o600))
	}
	index("bfloat16")
	read("bfloat16")
	index("absent")
	_, err = OpenWeights(dir)
	require.ErrorContains(t, err, `it holds no tensor "absent"`)
}

func TestCheckRefusesAConfigurationOfAnotherModel(t *testing.T) {
	m, err := Open(goldens + "tiny/plain")
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.Weights.Check(m.Config))
	for want, change := range map[string]func(c *Config){
		"has 1099511627776 layers":                            func(c *Config) { c.NumHiddenLayers = 1 << 40 },
		`"model.layers.2.self_attn.q_proj.weight" is missing`: func(c *Config) { c.NumHiddenLayers = 3 },
		"in the configuration, which has 1 layers":            func(c *Config) { c.NumHiddenLayers = 1 },
		"the configuration needs [4611686018427387904 64]":    func(c *Config) { c.VocabSize = 1 << 62 },
		`"model.layers.0.self_attn.q_proj.bias" is missing`:   func(c *Config) { c.AttentionBias = true },
	} {
		c := *m.Config
		change(&c)
		err := m.Weights.Check(&c)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "tiny/plain do not fit config.json")
	}
}
