package modelio

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/modelio/gguf"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

const tinyGGUF = "../testdata/gguf/tiny_llama.gguf"

func TestOpenGGUFGolden(t *testing.T) {
	m, err := Open(tinyGGUF)
	require.NoError(t, err)
	defer m.Close()
	c := m.Config
	require.Equal(t, "LlamaForCausalLM", c.Architecture)
	require.Equal(t, [8]int{280, 32, 64, 2, 4, 2, 8, 131072}, [8]int{c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers,
		c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim, c.MaxPositionEmbeddings})
	require.Equal(t, 1e-5, c.RMSNormEps)
	require.Equal(t, Rope{Type: "llama3", Theta: 500000, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositionEmbeddings: 8192}, c.Rope)
	require.True(t, c.AttentionBias)
	require.False(t, c.MLPBias)
	require.False(t, c.TieWordEmbeddings)
	require.Equal(t, 278, *c.BOSTokenID)
	require.Equal(t, []int{279}, c.EOSTokenIDs)
	require.Nil(t, c.PadTokenID)

	ref, err := safetensors.Open("../testdata/gguf/tiny_llama.safetensors")
	require.NoError(t, err)
	defer ref.Close()
	names := m.Weights.Names()
	var inOrder []string
	for _, p := range c.TensorShapes() {
		inOrder = append(inOrder, p.Name)
	}
	require.Equal(t, inOrder, names, "the order of the model, whatever the file's")
	slices.Sort(names)
	require.Equal(t, ref.Names(), names)
	for _, name := range names {
		want, err := ref.Tensor(name)
		require.NoError(t, err)
		v, err := m.Weights.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, want.Shape, v.Shape)
		require.Equal(t, "F32", v.DType)
		got, err := v.Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(want.Data, got), "%s differs", name)
		for lo := int64(0); lo+3 <= v.NumRows(); lo += 2 {
			got, err := v.Rows(lo, lo+3)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want.Rows(lo, lo+3), got), "%s rows %d..", name, lo)
			require.NoError(t, v.Release(lo, lo+3))
		}
	}
}

// patch replaces bytes of the tiny file, of equal length, everywhere.
func patch(t *testing.T, old, new string) string {
	data, err := os.ReadFile(tinyGGUF)
	require.NoError(t, err)
	require.Len(t, new, len(old))
	require.Contains(t, string(data), old)
	path := filepath.Join(t.TempDir(), "patched.gguf")
	require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(data, []byte(old), []byte(new)), 0o600))
	return path
}

func uint32KV(key string, v uint32) string {
	b := append([]byte(key), 4, 0, 0, 0)
	return string(binary.LittleEndian.AppendUint32(b, v))
}

func TestOpenGGUFRefuses(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"\x05\x00\x00\x00\x00\x00\x00\x00llama", "\x05\x00\x00\x00\x00\x00\x00\x00qwen2", `GGUF architecture "qwen2" is not supported`},
		{"blk.1.attn_q.weight", "blk.1.attn_x.weight", `tensor "blk.1.attn_x.weight" has no place`},
		{"blk.1.attn_q.weight", "blk.3.attn_q.weight", `parameter "model.layers.1.self_attn.q_proj.weight" is missing`},
		{"blk.1.attn_q.weight", "blk.01attn_q.weight", "has no place"},
		{"token_embd.weight", "token_embX.weight", `no tensor "token_embd.weight"`},
		{uint32KV("llama.block_count", 2), uint32KV("llama.block_count", 1), `"model.layers.1.self_attn.q_proj.weight" has no place in the configuration`},
		{uint32KV("llama.block_count", 2), uint32KV("llama.block_count", 1<<30), "has 1073741824 layers"},
		{uint32KV("llama.feed_forward_length", 64), uint32KV("llama.feed_forward_length", 65), "has shape [64 32], the configuration needs [65 32]"},
		{uint32KV("llama.attention.head_count", 4), uint32KV("llama.attention.head_count", 0), "num_attention_heads is 0"},
		{uint32KV("llama.attention.head_count", 4), uint32KV("llama.attention.head_count", 6), "for 6 heads"},
		{"llama.block_count", "llama.block_coins", `"llama.block_count": no such key`},
		{"\x00\x24\xf4\x48", "\x00\x00\x20\x41", "does not hold the factors of Llama 3"}, // theta 500000 -> 10
	} {
		path := patch(t, c.old, c.new)
		_, err := Open(path)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, path)
	}
	m, err := Open(patch(t, "rope_freqs.weight", "blk.9.freqs.xxxxx"))
	require.Error(t, err)
	require.Nil(t, m)
}

func TestMapGGUFName(t *testing.T) {
	for name, want := range map[string]string{
		"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight",
		"blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight", "blk.12.ffn_norm.weight": "model.layers.12.post_attention_layernorm.weight",
		"blk.7.attn_k.bias": "model.layers.7.self_attn.k_proj.bias", "rope_freqs.weight": "",
	} {
		p, ok := mapGGUFName(name)
		require.True(t, ok, name)
		require.Equal(t, want, p.name)
	}
	for _, name := range []string{"", "blk", "blk.", "blk.0", "blk.x.attn_q.weight", "blk.-1.attn_q.weight", "blk.0.attn_q", "blk.0.attn_q.scale", "blk.99999999999.attn_q.weight"} {
		_, ok := mapGGUFName(name)
		require.False(t, ok, name)
	}
}

func FuzzOpenGGUF(f *testing.F) {
	data, err := os.ReadFile(tinyGGUF)
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse("fuzz.gguf", data)
		if err != nil {
			return
		}
		m, err := fromGGUF(file)
		if err != nil {
			return
		}
		for _, name := range m.Weights.Names() {
			v, err := m.Weights.Tensor(name)
			require.NoError(t, err)
			_, _ = v.Bytes()
		}
	})
}
