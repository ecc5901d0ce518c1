package fsdp_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
)

// lookup reads "key: value" lines; names lack their prefix.
func lookup(lines string) func(string) (string, bool) {
	values := map[string]string{}
	for line := range strings.SplitSeq(lines, "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			values["fsdp_"+strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return func(key string) (string, bool) {
		v, ok := values[key]
		return v, ok
	}
}

func TestParseOptions(t *testing.T) {
	parse := func(lines string) fsdp.Config {
		c, err := fsdp.ParseOptions(lookup(lines))
		require.NoError(t, err, lines)
		return c
	}
	require.Equal(t, fsdp.Config{}, parse(""))
	require.Equal(t, fsdp.Config{}, parse("auto_wrap_policy: TRANSFORMER_BASED_WRAP\nbackward_prefetch: BACKWARD_PRE\nforward_prefetch: true\nreshard_after_forward: FULL_SHARD"))
	c := parse(`sharding_strategy: 5
		offload_params: True
		backward_prefetch: NO_PREFETCH
		forward_prefetch: false
		limit_all_gathers: true
		sync_module_states: true`)
	require.Equal(t, fsdp.Config{
		Strategy: fsdp.HybridShardZeRO2, Offload: fsdp.Offload{Params: true}, SyncModuleStates: true,
		Prefetch: fsdp.Prefetch{Backward: fsdp.BackwardNone, NoForward: true, Limit: 2},
	}, c)
	require.Equal(t, fsdp.Config{Strategy: fsdp.ShardGradOp}, parse("version: 1\nreshard_after_forward: SHARD_GRAD_OP"))
	require.Equal(t, fsdp.Config{}, parse("version: 2\nreshard_after_forward: true"))
	require.Equal(t, fsdp.Config{Reshard: fsdp.ReshardAfterBackward}, parse("version: 2\nreshard_after_forward: false"))
	require.Equal(t, fsdp.Config{ReshardSize: 4}, parse("version: 2\nreshard_after_forward: 4"))

	for lines, want := range map[string][]string{
		"transformer_layer_cls_to_wrap: Layer, Other":           {"layers.0", "layers.1", ""},
		"auto_wrap_policy: NO_WRAP":                             {""},
		"auto_wrap_policy: SIZE_BASED_WRAP":                     {""},
		"auto_wrap_policy: SIZE_BASED_WRAP\nmin_num_params: 50": {"embed", "layers.0", "layers.1", "head", ""},
	} {
		m, err := fsdp.Wrap(initLM(false), dist.NewSingle(), parse(lines))
		require.NoError(t, err)
		require.Equal(t, want, m.Units(), lines)
	}
	m, err := fsdp.Wrap(initLM(false), dist.NewSingle(), parse(`ignored_modules: layers\..*\.big|embed`))
	require.NoError(t, err)
	var names []string
	for s := range m.Shards() {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"layers.0.small.weight", "layers.1.small.weight", "norm.weight", "norm.bias", "head.weight"}, names)

	for lines, want := range map[string]string{
		"version: 3":                                            `fsdp_version: "3": want 1 or 2`,
		"sharding_strategy: FULL":                               `fsdp_sharding_strategy: fsdp: sharding strategy "FULL"`,
		"reshard_after_forward: true":                           "with fsdp_version 1 it is a sharding strategy",
		"version: 2\nreshard_after_forward: FULL_SHARD":         "want true, false or a number of ranks (with fsdp_version 2)",
		"sharding_strategy: 1\nreshard_after_forward: 2":        "give one of them",
		"offload_params: maybe":                                 `fsdp_offload_params: "maybe": want true or false`,
		"auto_wrap_policy: BIG_WRAP":                            "want TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP",
		"auto_wrap_policy: SIZE_BASED_WRAP\nmin_num_params: -1": "want a number of parameters",
		"backward_prefetch: BACKWARD":                           "want BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH",
		"ignored_modules: (":                                    "fsdp_ignored_modules: error parsing regexp",
	} {
		_, err := fsdp.ParseOptions(lookup(lines))
		require.ErrorContains(t, err, want, lines)
	}
}
