package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/cli.md")

// docs/cli.md is made of the structs that define the flags: go test ./cmd/gofsdp -run TestCLIDocs -update
func TestCLIDocs(t *testing.T) {
	const path = "../../docs/cli.md"
	parser, err := newParser()
	require.NoError(t, err)
	want := cliDocs(parser.Model)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "flags have changed: run the test with -update")
}

const cliIntro = `# The gofsdp command

<!-- Made by go test ./cmd/gofsdp -run TestCLIDocs -update from the structs in cmd/gofsdp and sft. -->

Flags have the names that Accelerate, TRL and PEFT gave them, and may be written as people are used to:

- ` + "`--max_steps 40`, `--max-steps 40` and `--max_steps=40`" + ` mean the same.
- A switch is on with ` + "`--packing` or `--packing true`, off with `--packing false` or `--no_packing`." + `
- A list is ` + "`--lora_target_modules q_proj v_proj` or `q_proj,v_proj`" + `.
- ` + "`gofsdp sft settings.yaml …`" + ` (or .json) takes flags from a flat file; flags after it win.
- An unknown flag or key is an error that names the nearest one.

A command ends with status 0 on success, also when ` + "`sft`" + ` was asked to stop (SIGINT, SIGTERM) and saved a checkpoint; 1 on
failure; 2 when the command line is wrong. A second signal ends the program at once. Where ` + "`TORCHELASTIC_ERROR_FILE`" + ` names a
file, a rank leaves the reason of its failure there.
`

func cliDocs(model *kong.Application) string {
	var out strings.Builder
	out.WriteString(cliIntro)
	for _, command := range model.Children {
		if command.Hidden {
			continue
		}
		fmt.Fprintf(&out, "\n## gofsdp %s\n\n%s\n", command.Name, command.Help)
		if len(command.Positional) > 0 {
			out.WriteString("\n")
		}
		for _, argument := range command.Positional {
			fmt.Fprintf(&out, "- `%s`: %s\n", argument.Summary(), argument.Help)
		}
		if len(command.Flags) > 0 {
			out.WriteString("\n| flag | default | |\n|---|---|---|\n")
		}
		for _, f := range command.Flags {
			if f.Hidden {
				continue
			}
			names := "`--" + f.Name + "`"
			for _, alias := range f.Aliases {
				names += ", `--" + alias + "`"
			}
			value := f.Default
			switch {
			case f.Required:
				value = "required"
			case value != "":
				value = "`" + value + "`"
			case f.IsBool():
				value = "off"
			case f.Target.CanInt() || f.Target.CanUint() || f.Target.CanFloat():
				value = "`0`"
			}
			fmt.Fprintf(&out, "| %s | %s | %s |\n", names, value, strings.ReplaceAll(f.Help, "|", `\|`))
		}
	}
	out.WriteString(cliAccelerate)
	return out.String()
}

const cliAccelerate = `
## Accelerate's settings

` + "`gofsdp sft`" + ` follows mixed precision and ` + "`fsdp_config`" + ` of an Accelerate file, whether ` + "`gofsdp launch --config_file`" + ` or
` + "`accelerate launch --config_file … --no_python gofsdp sft`" + ` starts it: both hand them over in variables (` + "`FSDP_*`" + `). ` + "`--fsdp`" + `,
` + "`--fsdp_config`, `--bf16` and `--fp16`" + ` go before them. A key that Accelerate does not know, a class that the model does not have, and
settings that contradict each other are errors. A key that is not there changes nothing.

| key | |
|---|---|
| ` + "`mixed_precision`" + ` | ` + "`no` or `bf16`" + `: weights that are trained stay fp32, and gradients are summed in fp32. ` + "`fp16`" + ` needs a GPU. |
| ` + "`fsdp_version`" + ` | 1 (default) or 2: what ` + "`fsdp_reshard_after_forward`" + ` means. With 2, the prefetch keys have no effect: one unit is gathered ahead, both ways. |
| ` + "`fsdp_sharding_strategy`" + ` | FULL_SHARD, SHARD_GRAD_OP, NO_SHARD; HYBRID_SHARD and HYBRID_SHARD_ZERO2 shard over the ranks of a machine and replicate over machines. |
| ` + "`fsdp_reshard_after_forward`" + ` | Version 1: a strategy. Version 2: true, false, or a number of neighbouring ranks to shard over after forward. |
| ` + "`fsdp_offload_params`, `fsdp_activation_checkpointing_offload`" + ` | Accepted: without a GPU everything is in host memory. |
| ` + "`fsdp_auto_wrap_policy`" + ` | TRANSFORMER_BASED_WRAP (default: every decoder layer, or the classes of ` + "`fsdp_transformer_layer_cls_to_wrap`" + `), SIZE_BASED_WRAP with ` + "`fsdp_min_num_params`" + `, NO_WRAP. |
| ` + "`fsdp_backward_prefetch`, `fsdp_forward_prefetch`, `fsdp_limit_all_gathers`" + ` | As in PyTorch's FSDP1. |
| ` + "`fsdp_state_dict_type`" + ` | SHARDED_STATE_DICT: checkpoints in PyTorch's own format, unless ` + "`--save_format`" + ` says otherwise. FULL_STATE_DICT: checkpoints are sharded all the same. LOCAL_STATE_DICT is refused. |
| ` + "`fsdp_cpu_ram_efficient_loading`, `fsdp_sync_module_states`" + ` | Accepted: every rank reads its own rows of the weights and nothing else. |
| ` + "`fsdp_activation_checkpointing`" + ` | The same as ` + "`--gradient_checkpointing`" + `; to write both is an error. |
| ` + "`fsdp_ignored_modules`" + ` | A regular expression for names of modules that stay whole on every rank; they must be frozen. |
| ` + "`fsdp_use_orig_params`" + ` | Accepted: parameters always keep their own names and need not be alike. |
`
