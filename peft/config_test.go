package peft_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/stretchr/testify/require"
)

func TestConfigNamesTheFault(t *testing.T) {
	for text, want := range map[string]string{
		`{"r": "eight"}`:                                               "r: ",
		`{"r": 8, "target_modules": null}`:                             "target_modules is empty",
		`{"target_modules": ["q_proj"], "lora_dropout": 1.5}`:          "lora_dropout is 1.5",
		`{"target_modules": ["q_proj"], "bias": "all"}`:                `bias "all" is not supported`,
		`{"target_modules": ["q_proj"], "peft_type": "IA3"}`:           `peft_type "IA3" is not supported`,
		`{"target_modules": ["q_proj"], "init_lora_weights": "pissa"}`: "init_lora_weights pissa is not supported",
		`{"target_modules": ["q_proj"], "rank_pattern": {"q": 2.5}}`:   `rank_pattern: "q" has rank 2.5`,
		`{"target_modules": ["q_proj"], "layers_to_transform": "all"}`: "layers_to_transform: expected numbers",
		`{`: "unexpected end",
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, peft.ConfigName), []byte(text), 0o644))
		_, err := peft.ReadConfig(dir)
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, dir)
	}
	_, err := peft.ReadConfig(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestTargetsMatchAsInPEFT(t *testing.T) {
	for _, c := range []struct {
		config peft.Config
		want   []string
	}{
		{peft.Config{TargetModules: peft.AllLinear}, []string{"0.q", "0.k", "0.v", "0.o", "0.gate", "0.up", "0.down", "1.q", "1.k", "1.v", "1.o", "1.gate", "1.up", "1.down"}},
		{peft.Config{TargetModules: peft.Targets("q_proj", "mlp.up_proj")}, []string{"0.q", "0.up", "1.q", "1.up"}},
		{peft.Config{TargetModules: peft.Modules{Regexp: `.*\.0\..*(q|v)_proj`}}, []string{"0.q", "0.v"}},
		{peft.Config{TargetModules: peft.AllLinear, ExcludeModules: peft.Targets("gate_proj", "up_proj", "down_proj"), LayersToTransform: []int{1}}, []string{"1.q", "1.k", "1.v", "1.o"}},
		{peft.Config{TargetModules: peft.Targets("model.layers.1.self_attn.o_proj")}, []string{"1.o"}},
	} {
		a, err := peft.Apply(llamatest.Model(t, "tiny", "plain"), c.config, peft.Options{})
		require.NoError(t, err)
		var got []string
		for _, l := range a.Layers {
			var layer, part, name string
			parts := splitName(l.Name)
			layer, part, name = parts[2], parts[3], parts[4]
			require.Contains(t, []string{"self_attn", "mlp"}, part)
			got = append(got, layer+"."+name[:len(name)-len("_proj")])
		}
		require.Equal(t, c.want, got)
	}
	_, err := peft.Apply(llamatest.Model(t, "tiny", "plain"), peft.Config{TargetModules: peft.Modules{Regexp: `(`}}, peft.Options{})
	require.ErrorContains(t, err, `regular expression "("`)
}

func splitName(name string) (parts []string) {
	start := 0
	for i := range name {
		if name[i] == '.' {
			parts = append(parts, name[start:i])
			start = i + 1
		}
	}
	return append(parts, name[start:])
}

func TestLoadAdapterRefuses(t *testing.T) {
	from := llamatest.Golden("peft", "lora_all_r8", "adapter_init")
	c, err := peft.ReadConfig(from)
	require.NoError(t, err)
	save := func(c peft.Config) string {
		dir := t.TempDir()
		text, err := json.Marshal(c)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, peft.ConfigName), text, 0o644))
		data, err := os.ReadFile(filepath.Join(from, peft.WeightsName))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, peft.WeightsName), data, 0o644))
		return dir
	}
	other := c
	other.R = 4
	m := llamatest.Model(t, "tiny", "plain")
	_, err = peft.LoadAdapter(save(other), m, peft.Options{})
	require.ErrorContains(t, err, "has shape [8 64], the adapter has [4 64]")
	other = c
	other.TargetModules = peft.Targets("q_proj")
	_, err = peft.LoadAdapter(save(other), m, peft.Options{})
	require.ErrorContains(t, err, "for which the model has no adapter")
	_, err = peft.LoadAdapter(from, m, peft.Options{})
	require.NoError(t, err, "a failed load leaves the model as it was")
}

func FuzzConfig(f *testing.F) {
	for _, name := range []string{"lora_all_r8", "lora_rank_pattern", "dora_all_r8"} {
		data, err := os.ReadFile(llamatest.Golden("peft", name, "adapter_init", peft.ConfigName))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"rank_pattern": {"a": 1, "a": 2}, "layers_to_transform": 3, "layers_pattern": ["h"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c, again peft.Config
		if json.Unmarshal(data, &c) != nil {
			return
		}
		text, err := json.Marshal(c)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &again))
		second, err := json.Marshal(again)
		require.NoError(t, err)
		require.JSONEq(t, string(text), string(second))
	})
}
