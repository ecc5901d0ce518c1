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
	return out.String()
}
