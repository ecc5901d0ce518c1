package modelio

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const goldens = "../testdata/goldens/"

func TestConfigGoldenBothSpellings(t *testing.T) {
	for _, name := range []string{"plain", "rope_llama3", "tied"} {
		read := func(file string) (*Config, []byte) {
			data, err := os.ReadFile(filepath.Join(goldens, "tiny", name, file))
			require.NoError(t, err)
			c, err := ParseConfig(data)
			require.NoError(t, err)
			// What is written says the same as what was read.
			again, err := json.Marshal(c)
			require.NoError(t, err)
			require.JSONEq(t, string(data), string(again), "%s/%s", name, file)
			return c, data
		}
		v5, _ := read("config.json")
		classic, _ := read("config_classic.json")
		require.True(t, v5.v5 && !v5.classic)
		require.True(t, classic.classic && !classic.v5)
		v5.v5, classic.classic = false, false
		require.Equal(t, v5, classic)
	}
	c, err := ReadConfig(goldens + "tiny/rope_llama3")
	require.NoError(t, err)
	require.Equal(t, Rope{Type: "llama3", Theta: 500000, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositionEmbeddings: 64}, c.Rope)
	one := 1
	require.Equal(t, &one, c.BOSTokenID)
	require.Equal(t, []int{2}, c.EOSTokenIDs)
	require.Nil(t, c.PadTokenID)
	require.Equal(t, "float32", c.DType)
	require.Equal(t, [8]int{256, 64, 172, 2, 4, 2, 16, 512}, [8]int{c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers,
		c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim, c.MaxPositionEmbeddings})
	require.Equal(t, json.RawMessage("0.1"), c.Extra["initializer_range"])
}

func TestConfigGoldenKeepsQuantization(t *testing.T) {
	c, err := ReadConfig(goldens + "bnb/tiny_plain_nf4")
	require.NoError(t, err)
	dir := t.TempDir()
	c.MaxPositionEmbeddings = 1024
	require.NoError(t, WriteConfig(dir, c))
	again, err := ReadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, 1024, again.MaxPositionEmbeddings)
	require.JSONEq(t, string(c.Extra["quantization_config"]), string(again.Extra["quantization_config"]))
	text, err := os.ReadFile(filepath.Join(dir, ConfigName))
	require.NoError(t, err)
	require.Contains(t, string(text), "\"rope_theta\": 10000.0")
	require.Contains(t, string(text), "\"rms_norm_eps\": 1e-05")
}

const minimal = `"hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 9`

func TestConfigDefaults(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type": "llama", ` + minimal + `}`))
	require.NoError(t, err)
	one := 1
	require.Equal(t, &Config{Architecture: "LlamaForCausalLM", ModelType: "llama", VocabSize: 9, HiddenSize: 64, IntermediateSize: 100,
		NumHiddenLayers: 1, NumAttentionHeads: 4, NumKeyValueHeads: 4, HeadDim: 16, MaxPositionEmbeddings: 2048, RMSNormEps: 1e-6,
		HiddenAct: "silu", Rope: Rope{Type: "default", Theta: 10000}, BOSTokenID: &one, EOSTokenIDs: []int{2},
		Extra: map[string]json.RawMessage{}}, c)

	c, err = ParseConfig([]byte(`{"architectures": ["LlamaForCausalLM"], "torch_dtype": "torch.float16", "head_dim": null, "bos_token_id": null,
		"eos_token_id": [128001, 128008], "pad_token_id": 5, "rope_scaling": {"type": "linear", "factor": 2}, ` + minimal + `}`))
	require.NoError(t, err)
	require.Nil(t, c.BOSTokenID)
	require.Equal(t, []int{128001, 128008}, c.EOSTokenIDs)
	require.Equal(t, 5, *c.PadTokenID)
	require.Equal(t, "float16", c.DType)
	require.Equal(t, Rope{Type: "linear", Theta: 10000, Factor: 2}, c.Rope)
}

func TestConfigNewHasBothSpellings(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type": "llama", ` + minimal + `}`))
	require.NoError(t, err)
	c.Rope = Rope{Type: "llama3", Theta: 500000, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositionEmbeddings: 8192}
	c.DType, c.EOSTokenIDs = "bfloat16", nil
	data, err := json.Marshal(c)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(data, &m))
	require.Equal(t, "bfloat16", m["dtype"])
	require.Equal(t, "bfloat16", m["torch_dtype"])
	require.Equal(t, 500000.0, m["rope_theta"])
	require.Equal(t, "llama3", m["rope_scaling"].(map[string]any)["rope_type"])
	require.Equal(t, 500000.0, m["rope_parameters"].(map[string]any)["rope_theta"])
	require.Nil(t, m["eos_token_id"])
}

func TestConfigRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}`, `architecture "MambaForCausalLM" is not supported (supported: LlamaForCausalLM)`},
		{`{"model_type": "t5"}`, `architecture "t5" is not supported`},
		{"{\n  \"model_type\": \"llama\",\n  oops}", "line 3 column 3"},
		{`{"model_type": "llama"}`, "vocab_size is 0 or missing"},
		{`{"model_type": "llama", "vocab_size": "many"}`, "vocab_size: json"},
		{`{"model_type": "llama", ` + minimal + `, "num_key_value_heads": 3}`, "4 is not a multiple of num_key_value_heads 3"},
		{`{"model_type": "llama", ` + minimal + `, "head_dim": 15}`, "head_dim 15 is odd"},
		{`{"model_type": "llama", ` + minimal + `, "rms_norm_eps": 0}`, "rms_norm_eps is 0"},
		{`{"model_type": "llama", ` + minimal + `, "rope_theta": -1}`, "rope_theta is -1"},
		{`{"model_type": "llama", ` + minimal + `, "rope_scaling": {"rope_type": "llama3", "factor": 8}}`, "original_max_position_embeddings"},
		{`{"model_type": "llama", ` + minimal + `, "rope_parameters": {"rope_type": "linear"}}`, "positive factor"},
		{`{"model_type": "llama", ` + minimal + `, "rope_parameters": {"rope_theta": "x"}}`, "rope_parameters: rope_theta"},
		{`[]`, "cannot unmarshal array"},
	} {
		_, err := ParseConfig([]byte(c.text))
		require.ErrorContains(t, err, c.want)
	}
	_, err := ReadConfig(t.TempDir())
	require.ErrorContains(t, err, "is no model folder")
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"model_type": "llama", ` + minimal + `}`))
	f.Add([]byte(`{"architectures": [], "eos_token_id": [1, 2], "rope_parameters": {"rope_theta": 1e400}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(c)
		require.NoError(t, err)
		again, err := ParseConfig(text)
		require.NoError(t, err)
		twice, err := json.Marshal(again)
		require.NoError(t, err)
		require.JSONEq(t, string(text), string(twice))
	})
}
