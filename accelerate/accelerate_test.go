package accelerate_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/accelerate"
	"github.com/stretchr/testify/require"
)

// What `accelerate config` wrote for QLoRA with FSDP on one machine with two GPUs.
const qlora = `compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: true
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: false
machine_rank: 0
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
`

func TestParse(t *testing.T) {
	c, err := accelerate.Parse([]byte(qlora))
	require.NoError(t, err)
	require.Equal(t, "FSDP", c.DistributedType)
	require.Equal(t, 2, c.NumProcesses)
	require.Equal(t, 1, c.NumMachines)
	require.Equal(t, "no", c.MixedPrecision)
	require.Len(t, c.FSDP, 9)
	require.Equal(t, accelerate.Option{Key: "fsdp_auto_wrap_policy", Value: "TRANSFORMER_BASED_WRAP"}, c.FSDP[0])
	offload, ok := c.FSDPOption("offload_params")
	require.True(t, ok)
	require.Equal(t, "True", offload)
	_, ok = c.FSDPOption("fsdp_min_num_params")
	require.False(t, ok)
	require.Equal(t, []string{
		"ACCELERATE_MIXED_PRECISION=no", "ACCELERATE_USE_FSDP=True", "FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP",
		"FSDP_BACKWARD_PREFETCH=BACKWARD_PRE", "FSDP_CPU_RAM_EFFICIENT_LOADING=True", "FSDP_FORWARD_PREFETCH=False",
		"FSDP_OFFLOAD_PARAMS=True", "FSDP_SHARDING_STRATEGY=FULL_SHARD", "FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT",
		"FSDP_SYNC_MODULE_STATES=True", "FSDP_USE_ORIG_PARAMS=False",
	}, c.Environ())
}

func TestParseSpellings(t *testing.T) {
	for text, check := range map[string]func(*testing.T, *accelerate.Config){
		"": func(t *testing.T, c *accelerate.Config) { require.Equal(t, &accelerate.Config{}, c) },
		"# only a comment\n": func(t *testing.T, c *accelerate.Config) {
			require.Equal(t, &accelerate.Config{}, c)
		},
		"num_processes: 4": func(t *testing.T, c *accelerate.Config) { require.Equal(t, 4, c.NumProcesses) },
		"mixed_precision: no\ndistributed_type: NO": func(t *testing.T, c *accelerate.Config) {
			require.Equal(t, "no", c.MixedPrecision)
			require.Equal(t, "NO", c.DistributedType)
		},
		"mixed_precision: false": func(t *testing.T, c *accelerate.Config) { require.Equal(t, "no", c.MixedPrecision) },
		"mixed_precision: BF16":  func(t *testing.T, c *accelerate.Config) { require.Equal(t, "bf16", c.MixedPrecision) },
		"fp16: true":             func(t *testing.T, c *accelerate.Config) { require.Equal(t, "fp16", c.MixedPrecision) },
		"num_processes: -1":      func(t *testing.T, c *accelerate.Config) { require.Zero(t, c.NumProcesses) },
		"gpu_ids: 0, 1\nuse_cpu: yes\ndebug: on": func(t *testing.T, c *accelerate.Config) {
			require.Equal(t, []string{"ACCELERATE_USE_CPU=True", "ACCELERATE_DEBUG_MODE=true", "CUDA_VISIBLE_DEVICES=0,1"}, c.Environ())
		},
		"gpu_ids: all":                        func(t *testing.T, c *accelerate.Config) { require.Empty(t, c.Environ()) },
		"gpu_ids: [2, 3]":                     func(t *testing.T, c *accelerate.Config) { require.Equal(t, "2,3", c.GPUIDs) },
		"main_process_ip: null\nfp16: null":   func(t *testing.T, c *accelerate.Config) { require.Empty(t, c.MainProcessIP) },
		"deepspeed_config: {}\nfp8_config: ~": func(t *testing.T, c *accelerate.Config) {},
		"dynamo_config:\n  dynamo_backend: 'no'\ndynamo_backend: 'NO'": func(t *testing.T, c *accelerate.Config) {},
		"num_machines: 2\nmachine_rank: 1\nmain_process_ip: 10.0.0.1\nmain_process_port: 29501\nnum_processes: 16": func(t *testing.T, c *accelerate.Config) {
			require.Equal(t, accelerate.Config{NumProcesses: 16, NumMachines: 2, MachineRank: 1, MainProcessIP: "10.0.0.1", MainProcessPort: 29501}, *c)
		},
		`fsdp_config:
  version: 2
  reshard_after_forward: no
  state_dict_type: 3
  sharding_strategy: 2
  min_num_params: 1e8
  transformer_layer_cls_to_wrap: [LlamaDecoderLayer, MistralDecoderLayer]
  backward_prefetch_policy: backward_pre
  ignored_modules: null`: func(t *testing.T, c *accelerate.Config) {
			require.Equal(t, []string{"ACCELERATE_USE_FSDP=True", "FSDP_VERSION=2", "FSDP_RESHARD_AFTER_FORWARD=False",
				"FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT", "FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP", "FSDP_MIN_NUM_PARAMS=100000000",
				"FSDP_TRANSFORMER_CLS_TO_WRAP=LlamaDecoderLayer,MistralDecoderLayer", "FSDP_BACKWARD_PREFETCH=BACKWARD_PRE"}, c.Environ())
		},
		"fsdp_config: {fsdp_reshard_after_forward: SHARD_GRAD_OP}": func(t *testing.T, c *accelerate.Config) {
			v, _ := c.FSDPOption("reshard_after_forward")
			require.Equal(t, "SHARD_GRAD_OP", v)
		},
	} {
		t.Run(text, func(t *testing.T) {
			c, err := accelerate.Parse([]byte(text))
			require.NoError(t, err)
			check(t, c)
		})
	}
}

func TestParseFaults(t *testing.T) {
	for text, wants := range map[string]string{
		"num_procesess: 2":                                                "line 1, column 1: num_procesess: unknown key; did you mean num_processes?",
		"debug: false\nnonsense_of_mine: 2":                               "line 2, column 1: nonsense_of_mine: unknown key",
		"fsdp_config:\n  fsdp_offload_param: true":                        "line 2, column 3: fsdp_config.fsdp_offload_param: unknown key; did you mean fsdp_offload_params?",
		"num_processes: two":                                              `line 1, column 16: num_processes: "two" is not a whole number`,
		"num_processes: 1.5":                                              "not a whole number",
		"num_processes: [1, {a: b}]":                                      "want a value",
		"num_processes: -2":                                               "num_processes: -2",
		"use_cpu: perhaps":                                                "neither true nor false",
		"distributed_type: DEEPSPEED":                                     `"DEEPSPEED" is none of NO, MULTI_CPU, MULTI_GPU, FSDP`,
		"compute_environment: AMAZON_SAGEMAKER":                           "compute_environment",
		"deepspeed_config:\n  zero_stage: 3":                              "deepspeed_config: gofsdp does not do DeepSpeed",
		"dynamo_backend: INDUCTOR":                                        "torch.compile",
		"mixed_precision: fp8":                                            `mixed_precision: "fp8"`,
		"rdzv_backend: c10d":                                              "torchrun --no-python",
		"tpu_use_cluster: true":                                           "TPU",
		"num_machines: 2":                                                 "main_process_ip",
		"machine_rank: 1":                                                 "machine_rank: 1 is not in 0",
		"main_process_port: 70000":                                        "not a port",
		"fsdp_config: {fsdp_version: 3}":                                  `"3" is none of 1, 2`,
		"fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_WRAP}":          "none of TRANSFORMER_BASED_WRAP",
		"fsdp_config: {fsdp_state_dict_type: 4}":                          `"4" is none of`,
		"fsdp_config: {offload_params: true, fsdp_offload_params: false}": "with and without its prefix",
		"fsdp_config: {fsdp_sync_module_states: false, fsdp_cpu_ram_efficient_loading: true}":                     "without weights",
		"fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: FULL_SHARD}":                                  "with 2 it is true, false or a number of ranks",
		"fsdp_config: {fsdp_reshard_after_forward: true}":                                                         "is for fsdp_version 2",
		"fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_reshard_after_forward: NO_SHARD}":                 "contradict each other",
		"fsdp_config: {fsdp_version: 2, fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_reshard_after_forward: true}": "contradict each other",
		"fsdp_config: {fsdp_activation_checkpointing_offload: true}":                                              "needs fsdp_activation_checkpointing",
		"fsdp_config: true":                    "want a mapping",
		"- a\n- b":                             "want a mapping",
		"debug: true\n---\ndebug: false":       "more than one YAML document",
		"a: [":                                 "malformed YAML",
		"num_processes: 2\nnum_processes: 3\n": "num_processes",
	} {
		t.Run(text, func(t *testing.T) {
			_, err := accelerate.Parse([]byte(text))
			require.ErrorContains(t, err, wants)
		})
	}
	_, err := accelerate.Parse([]byte("num_procesess: 2\nuse_cpu: perhaps"))
	require.ErrorContains(t, err, "num_procesess")
	require.ErrorContains(t, err, "use_cpu", "all faults at once")
	var fault *accelerate.Error
	require.True(t, errors.As(err, &fault))
	require.Equal(t, 1, fault.Line)
}

// What `accelerate launch` exports for a file of version 1 that gives the class to wrap and SHARD_GRAD_OP: everything else at the
// defaults of its command line.
var exported = []string{
	"ACCELERATE_MIXED_PRECISION=bf16", "ACCELERATE_USE_FSDP=true", "FSDP_VERSION=1", "FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
	"FSDP_RESHARD_AFTER_FORWARD=true", "FSDP_OFFLOAD_PARAMS=false", "FSDP_MIN_NUM_PARAMS=100000000",
	"FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP=LlamaDecoderLayer", "FSDP_FORWARD_PREFETCH=false",
	"FSDP_USE_ORIG_PARAMS=true", "FSDP_CPU_RAM_EFFICIENT_LOADING=true", "FSDP_SYNC_MODULE_STATES=true",
	"FSDP_ACTIVATION_CHECKPOINTING=false", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=false", "PATH=/bin", "FSDP_FUTURE=1",
}

func TestFromEnviron(t *testing.T) {
	c, unknown, err := accelerate.FromEnviron(exported)
	require.NoError(t, err)
	require.Equal(t, []string{"FSDP_FUTURE=1"}, unknown)
	require.Equal(t, "bf16", c.MixedPrecision)
	strategy, _ := c.FSDPOption("sharding_strategy")
	require.Equal(t, "SHARD_GRAD_OP", strategy)
	_, ok := c.FSDPOption("reshard_after_forward")
	require.False(t, ok, "a default of version 2")
	kinds, _ := c.FSDPOption("transformer_layer_cls_to_wrap")
	require.Equal(t, "LlamaDecoderLayer", kinds)

	for _, test := range []struct {
		version, strategy, reshard string
		want                       accelerate.Option
	}{
		{"2", "FULL_SHARD", "false", accelerate.Option{Key: "fsdp_reshard_after_forward", Value: "False"}},
		{"2", "SHARD_GRAD_OP", "true", accelerate.Option{Key: "fsdp_sharding_strategy", Value: "SHARD_GRAD_OP"}},
		{"1", "FULL_SHARD", "shard_grad_op", accelerate.Option{Key: "fsdp_reshard_after_forward", Value: "SHARD_GRAD_OP"}},
		{"1", "4", "full_shard", accelerate.Option{Key: "fsdp_sharding_strategy", Value: "HYBRID_SHARD"}},
	} {
		c, _, err := accelerate.FromEnviron([]string{"ACCELERATE_USE_FSDP=1", "FSDP_VERSION=" + test.version,
			"FSDP_SHARDING_STRATEGY=" + test.strategy, "FSDP_RESHARD_AFTER_FORWARD=" + test.reshard})
		require.NoError(t, err)
		require.Equal(t, []accelerate.Option{test.want, {Key: "fsdp_version", Value: test.version}}, c.FSDP)
	}

	c, unknown, err = accelerate.FromEnviron([]string{"FSDP_OFFLOAD_PARAMS=maybe", "FSDP_X=1"})
	require.NoError(t, err, "without ACCELERATE_USE_FSDP the options mean nothing")
	require.Empty(t, unknown)
	require.Equal(t, &accelerate.Config{}, c)
	c, _, err = accelerate.FromEnviron([]string{"ACCELERATE_USE_FSDP=true", "FSDP_IGNORED_MODULES=None", "FSDP_STATE_DICT_TYPE="})
	require.NoError(t, err)
	require.Empty(t, c.FSDP)

	for entry, want := range map[string]string{
		"FSDP_OFFLOAD_PARAMS=maybe":       `accelerate: FSDP_OFFLOAD_PARAMS: "maybe" is neither true nor false`,
		"FSDP_STATE_DICT_TYPE=HALF":       "FSDP_STATE_DICT_TYPE: \"HALF\" is none of",
		"FSDP_MIN_NUM_PARAMS=x":           `"x" is not a whole number`,
		"ACCELERATE_MIXED_PRECISION=fp8":  `mixed_precision: "fp8"`,
		"ACCELERATE_USE_DEEPSPEED=true":   "does not do DeepSpeed",
		"ACCELERATE_USE_MEGATRON_LM=true": "does not do Megatron-LM",
	} {
		_, _, err := accelerate.FromEnviron([]string{"ACCELERATE_USE_FSDP=True", entry})
		require.ErrorContains(t, err, want)
	}
}

// What a file says reaches the ranks as it was.
func TestEnvironRoundTrip(t *testing.T) {
	c, err := accelerate.Parse([]byte(qlora))
	require.NoError(t, err)
	back, unknown, err := accelerate.FromEnviron(c.Environ())
	require.NoError(t, err)
	require.Empty(t, unknown)
	require.ElementsMatch(t, c.FSDP, back.FSDP)
}

func TestParseFSDP(t *testing.T) {
	c, err := accelerate.ParseFSDP([]byte(`{"transformer_layer_cls_to_wrap": ["A", "B"], "fsdp_min_num_params": 0, "cpu_offload": true,
		"xla": false, "reshard_after_forward": 4}`))
	require.NoError(t, err)
	require.Equal(t, []accelerate.Option{{Key: "fsdp_transformer_layer_cls_to_wrap", Value: "A,B"}, {Key: "fsdp_min_num_params", Value: "0"},
		{Key: "fsdp_offload_params", Value: "True"}, {Key: "fsdp_reshard_after_forward", Value: "4"}, {Key: "fsdp_version", Value: "2"}}, c.FSDP)
	for text, want := range map[string]string{
		`{"xla": true}`:           "gofsdp does not do XLA",
		`{"offload_param": true}`: "did you mean offload_params?",
		`[1]`:                     "want a mapping",
		`{"cpu_offload": true, "offload_params": false}`: "is there twice",
	} {
		_, err := accelerate.ParseFSDP([]byte(text))
		require.ErrorContains(t, err, want)
	}
}

func TestOverride(t *testing.T) {
	a := []accelerate.Option{{Key: "fsdp_sharding_strategy", Value: "NO_SHARD"}, {Key: "fsdp_offload_params", Value: "True"}}
	b := []accelerate.Option{{Key: "fsdp_reshard_after_forward", Value: "True"}, {Key: "fsdp_version", Value: "2"}}
	require.Equal(t, []accelerate.Option{a[1], b[0], b[1]}, accelerate.Override(a, b))
	require.Equal(t, a, accelerate.Override(a, nil))
}

func TestLoadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fsdp.yaml")
	_, err := accelerate.Load(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("use_cpuu: true"), 0o644))
	_, err = accelerate.Load(path)
	require.ErrorContains(t, err, path+": line 1")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(qlora))
	f.Add([]byte("fsdp_config:\n  - a\nnum_processes: &a 1\nmachine_rank: *a"))
	f.Add([]byte("? [a]\n: {b: !!x c}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := accelerate.Parse(data)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := accelerate.FromEnviron(c.Environ()); err != nil {
			t.Fatal(err)
		}
		for _, entry := range c.Environ() {
			if !strings.Contains(entry, "=") {
				t.Fatalf("%q", entry)
			}
		}
	})
}
