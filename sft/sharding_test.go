package sft_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/accelerate"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/sft"
	"github.com/gofsdp/gofsdp/torch"
)

// launched runs sft.Run on ranks that a launcher told about a YAML file, as `accelerate launch` and `gofsdp launch` do.
// local is the number of ranks per machine.
func launched(t testing.TB, size, local int, c sft.Config, yaml string, given ...string) (text string, errs []error) {
	t.Helper()
	file, err := accelerate.Parse([]byte(yaml))
	require.NoError(t, err, yaml)
	launcher, unknown, err := accelerate.FromEnviron(file.Environ())
	require.NoError(t, err, yaml)
	require.Empty(t, unknown)
	_, text, errs = ranksWith(t, size, func(int) sft.Config { return c }, nil, func(o *sft.RunOptions) {
		o.Launcher, o.Env.LocalWorldSize = launcher, local
		o.Given = func(flag string) bool { return strings.Contains(strings.Join(given, " ")+" ", flag+" ") }
	})
	return text, errs
}

func shortConfig(model, data, out string) sft.Config {
	c := config(model, data, out)
	c.MaxSteps, c.EvalStrategy, c.EvalOnStart, c.SaveStrategy = 4, "no", false, "no"
	return c
}

// Every option of an Accelerate file that only says where things are, and when, leaves the losses as they are.
func TestParityFSDPOptions(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	plain := t.TempDir()
	_, text := run(t, 2, shortConfig(model, data, plain))
	require.NotContains(t, text, "sharding:")
	wantLoss, wantNorm := losses(t, plain)
	require.Len(t, wantLoss, 4)
	for options, want := range map[string]string{
		"fsdp_sharding_strategy: FULL_SHARD":                                "sharding: FULL_SHARD over 2 ranks, in 4 units; mixed precision: no",
		"fsdp_sharding_strategy: SHARD_GRAD_OP":                             "sharding: SHARD_GRAD_OP over 2 ranks",
		"fsdp_sharding_strategy: NO_SHARD":                                  "sharding: NO_SHARD over 1 rank, 2 copies",
		"fsdp_sharding_strategy: HYBRID_SHARD":                              "sharding: HYBRID_SHARD over 2 ranks",
		"fsdp_reshard_after_forward: FULL_SHARD":                            "sharding: FULL_SHARD",
		"fsdp_version: 2, fsdp_reshard_after_forward: false":                "sharding: FULL_SHARD over 2 ranks, in 4 units, gathered from forward to backward",
		"fsdp_version: 2, fsdp_reshard_after_forward: 2":                    "after forward over 2 ranks",
		"fsdp_offload_params: true":                                         "fsdp_offload_params: this run is on CPUs",
		"fsdp_auto_wrap_policy: NO_WRAP":                                    "in 1 unit;",
		"fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1000": "units",
		"fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP":                     "in 4 units",
		"fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer":                 "in 4 units",
		"fsdp_backward_prefetch: BACKWARD_POST, fsdp_forward_prefetch: true":                                                   "sharding: FULL_SHARD",
		"fsdp_backward_prefetch: NO_PREFETCH, fsdp_forward_prefetch: false, fsdp_limit_all_gathers: true":                      "sharding: FULL_SHARD",
		"fsdp_sync_module_states: true, fsdp_cpu_ram_efficient_loading: true, fsdp_use_orig_params: false":                     "fsdp_sync_module_states, fsdp_cpu_ram_efficient_loading: every rank reads its own rows",
		"fsdp_state_dict_type: FULL_STATE_DICT":                                                                                "FULL_STATE_DICT: checkpoints are sharded all the same",
		"fsdp_version: 2, fsdp_activation_checkpointing: true, fsdp_activation_checkpointing_offload: true":                    "fsdp_activation_checkpointing_offload: this run is on CPUs",
		"fsdp_ignored_modules: 'model\\.layers\\.0\\.(self_attn|mlp)\\..*_proj\\.base_layer|model\\.layers\\.1\\..*layernorm'": "sharding: FULL_SHARD",
	} {
		t.Run(options, func(t *testing.T) {
			out := t.TempDir()
			text, errs := launched(t, 2, 2, shortConfig(model, data, out), "fsdp_config: {"+options+"}")
			require.NoError(t, errors.Join(errs...))
			require.Contains(t, text, want)
			loss, norm := losses(t, out)
			require.InDeltaSlice(t, wantLoss, loss, 1e-5)
			require.InEpsilonSlice(t, wantNorm, norm, 1e-4)
		})
	}
}

// Hybrid strategies shard inside a machine and replicate between machines; the losses are those of as many ranks that share
// everything, and a checkpoint of one serves the other.
func TestParityHybridShard(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	plain := t.TempDir()
	c := shortConfig(model, data, plain)
	c.SaveStrategy, c.SaveSteps = "steps", 2
	run(t, 4, c)
	wantLoss, _ := losses(t, plain)
	for _, strategy := range []string{"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"} {
		c.OutputDir, c.Resume = t.TempDir(), ""
		yaml := "fsdp_config: {fsdp_sharding_strategy: " + strategy + "}"
		text, errs := launched(t, 4, 2, c, yaml)
		require.NoError(t, errors.Join(errs...))
		require.Contains(t, text, "over 2 ranks, 2 copies")
		loss, _ := losses(t, c.OutputDir)
		require.InDeltaSlice(t, wantLoss, loss, 1e-5)
		c.Resume = filepath.Join(plain, "checkpoint-2")
		_, errs = launched(t, 4, 2, c, yaml)
		require.NoError(t, errors.Join(errs...))
		loss, _ = losses(t, c.OutputDir)
		require.InDeltaSlice(t, wantLoss[2:], loss[len(loss)-2:], 1e-5)
	}
	_, errs := launched(t, 4, 3, c, "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}")
	for _, err := range errs {
		require.ErrorContains(t, err, "HYBRID_SHARD needs as many ranks on every machine")
	}
}

// The result is whole, whatever the strategy: the merged model of adapters on 4-bit weights, and a model trained as a whole.
func TestParityResultOfStrategies(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	for _, lora := range []bool{true, false} {
		var want map[string][]float32
		for _, strategy := range []string{"FULL_SHARD", "NO_SHARD", "HYBRID_SHARD"} {
			c := shortConfig(model, data, t.TempDir())
			c.MaxSteps, c.LearningRate, c.UseLoRA, c.Use4Bit, c.SaveMerged = 2, 1e-3, lora, lora, lora
			_, errs := launched(t, 4, 2, c, "fsdp_config: {fsdp_sharding_strategy: "+strategy+"}")
			require.NoError(t, errors.Join(errs...))
			w, err := modelio.OpenWeights(filepath.Join(c.OutputDir, "model"))
			require.NoError(t, err)
			cfg, err := modelio.ReadConfig(model)
			require.NoError(t, err)
			require.NoError(t, w.Check(cfg))
			got := map[string][]float32{}
			for _, s := range cfg.TensorShapes() {
				view, err := w.Tensor(s.Name)
				require.NoError(t, err)
				rows, err := view.Rows(0, s.Shape[0])
				require.NoError(t, err)
				got[s.Name] = torch.Slice[float32](torch.FromBytes(torch.BFloat16, rows, s.Shape...).To(torch.Float32))
			}
			require.NoError(t, w.Close())
			if want == nil {
				want = got
			}
			for _, s := range cfg.TensorShapes() {
				require.InDeltaSlice(t, want[s.Name], got[s.Name], 0.01, "%s of %s", s.Name, strategy)
			}
		}
	}
}

// bf16 changes what is computed a little; the weights that are trained stay fp32.
func TestMixedPrecisionBF16(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	plain := t.TempDir()
	c := shortConfig(model, data, plain)
	run(t, 2, c)
	want, _ := losses(t, plain)
	for _, flag := range []bool{false, true} {
		c.OutputDir, c.BF16 = t.TempDir(), flag
		yaml := "mixed_precision: bf16"
		if flag {
			yaml = "mixed_precision: fp16" // the flag wins
		}
		text, errs := launched(t, 2, 2, c, yaml)
		require.NoError(t, errors.Join(errs...))
		require.Contains(t, text, "mixed precision: bf16")
		got, _ := losses(t, c.OutputDir)
		require.InDeltaSlice(t, want, got, 0.05)
		require.NotEqual(t, want, got)
	}
	c.OutputDir, c.BF16 = t.TempDir(), false
	_, errs := launched(t, 2, 2, c, "mixed_precision: bf16", "bf16") // the flag is off
	require.NoError(t, errors.Join(errs...))
	got, _ := losses(t, c.OutputDir)
	require.Equal(t, want, got)

	// The whole model.
	c.UseLoRA, c.Use4Bit, c.LearningRate, c.OutputDir = false, false, 1e-4, t.TempDir()
	run(t, 2, c)
	want, _ = losses(t, c.OutputDir)
	c.BF16, c.OutputDir = true, t.TempDir()
	run(t, 2, c)
	got, _ = losses(t, c.OutputDir)
	require.InDeltaSlice(t, want, got, 0.05)
	require.NotEqual(t, want, got)
}

// SHARDED_STATE_DICT makes checkpoints in the format of PyTorch's FSDP, unless a format is given.
func TestStateDictType(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	for given, folder := range map[string]string{"": "pytorch_model_fsdp_0", "save_format": "model"} {
		c := shortConfig(model, data, t.TempDir())
		c.SaveStrategy = "steps"
		_, errs := launched(t, 2, 2, c, "fsdp_config: {fsdp_state_dict_type: SHARDED_STATE_DICT}", given)
		require.NoError(t, errors.Join(errs...))
		require.DirExists(t, filepath.Join(c.OutputDir, "checkpoint-4", folder))
	}
}

func TestFSDPFlags(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	file := func(v map[string]any) string {
		path := filepath.Join(t.TempDir(), "fsdp.json")
		b, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, b, 0o666))
		return path
	}
	for want, change := range map[string]func(c *sft.Config){
		"sharding: SHARD_GRAD_OP over 2 ranks, in 4 units": func(c *sft.Config) { c.FSDP = []string{"shard_grad_op auto_wrap", "offload"} },
		"sharding: FULL_SHARD over 2 ranks, in 1 unit;": func(c *sft.Config) {
			c.FSDP, c.FSDPConfig = []string{"full_shard"}, file(map[string]any{"auto_wrap_policy": "NO_WRAP", "xla": false})
		},
		"in 4 units, gathered from forward to backward": func(c *sft.Config) {
			c.FSDP, c.FSDPConfig = []string{"true"}, file(map[string]any{"reshard_after_forward": false, "transformer_layer_cls_to_wrap": []string{"LlamaDecoderLayer"}})
		},
		"sharding: NO_SHARD over 1 rank, 2 copies": func(c *sft.Config) { c.FSDP = []string{"no_shard"} },
	} {
		c := shortConfig(model, data, t.TempDir())
		change(&c)
		text, errs := launched(t, 2, 2, c, "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD_ZERO2}")
		if c.FSDP[0] == "true" {
			text, errs = launched(t, 2, 2, c, "num_processes: 2")
		}
		require.NoError(t, errors.Join(errs...))
		require.Contains(t, text, want)
	}
}

func TestShardingFaults(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"min_num_param": 3}`), 0o666))
	ambiguous := filepath.Join(t.TempDir(), "ambiguous.json")
	require.NoError(t, os.WriteFile(ambiguous, []byte(`{"fsdp_reshard_after_forward": true}`), 0o666))
	for i, tc := range []struct {
		yaml, want string
		change     func(c *sft.Config)
		given      string
	}{
		{"fsdp_config: {fsdp_transformer_layer_cls_to_wrap: OPTDecoderLayer}", `the model has no class "OPTDecoderLayer"; it has LlamaDecoderLayer`, nil, ""},
		{"fsdp_config: {fsdp_state_dict_type: LOCAL_STATE_DICT}", "LOCAL_STATE_DICT is not done", nil, ""},
		{"fsdp_config: {fsdp_activation_checkpointing: true}", "gradient_checkpointing and fsdp_activation_checkpointing are both on", nil, "gradient_checkpointing"},
		{"fsdp_config: {fsdp_ignored_modules: 'model\\.layers\\.0'}", "which is trained: only frozen modules can be ignored", nil, ""},
		{"fsdp_config: {fsdp_ignored_modules: embed}", "save_merged and fsdp_ignored_modules exclude each other", func(c *sft.Config) { c.SaveMerged = true }, ""},
		{"fsdp_config: {fsdp_ignored_modules: '('}", "fsdp_ignored_modules: error parsing regexp", nil, ""},
		{"fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: 3}", "ReshardSize 3 does not divide the 2 ranks", nil, ""},
		{"mixed_precision: fp16", "mixed precision fp16 needs a GPU", nil, ""},
		{"", "mixed precision fp16 needs a GPU", func(c *sft.Config) { c.FP16 = true }, ""},
		{"", "bf16 and fp16 are both on", func(c *sft.Config) { c.FP16, c.BF16 = true, true }, ""},
		{"", `fsdp: "ful_shard" is none of full_shard, `, func(c *sft.Config) { c.FSDP = []string{"ful_shard"} }, ""},
		{"", "fsdp: full_shard and no_shard are both given", func(c *sft.Config) { c.FSDP = []string{"full_shard", "no_shard"} }, ""},
		{"", "min_num_param: unknown key; did you mean min_num_params?", func(c *sft.Config) { c.FSDPConfig = bad }, ""},
		{"", "no such file", func(c *sft.Config) { c.FSDPConfig = "/absent.json" }, ""},
		{"", "fsdp_sharding_strategy: SHARD_GRAD_OP and fsdp_reshard_after_forward: True contradict each other", func(c *sft.Config) {
			c.FSDP, c.FSDPConfig = []string{"shard_grad_op"}, ambiguous
		}, ""},
	} {
		t.Run(fmt.Sprint(i, " ", tc.yaml), func(t *testing.T) {
			c := shortConfig(model, data, t.TempDir())
			if tc.change != nil {
				tc.change(&c)
			}
			_, errs := launched(t, 2, 2, c, tc.yaml, tc.given)
			for _, err := range errs {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}

// A rank that fails while it loads does not leave the others waiting, in whichever group they are.
func TestHybridFaultReachesEveryRank(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	halved := tinyModel(t)
	weights, err := safetensors.Create(filepath.Join(halved, modelio.WeightsName), nil, nil)
	require.NoError(t, err)
	require.NoError(t, weights.Commit())
	begin := time.Now()
	_, _, errs := ranksWith(t, 4, func(rank int) sft.Config {
		c := shortConfig(model, data, filepath.Join(t.TempDir(), "out"))
		c.FSDP = []string{"hybrid_shard"}
		if rank == 3 {
			c.ModelNameOrPath = halved
		}
		return c
	}, nil, func(o *sft.RunOptions) { o.Env.LocalWorldSize = 2 })
	for rank, err := range errs {
		require.Error(t, err, "rank %d", rank)
	}
	require.Less(t, time.Since(begin), 20*time.Second)
}
