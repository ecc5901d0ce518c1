package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/sft"
	"golang.org/x/term"
)

// sftCmd is `gofsdp sft`: one rank of a training run. `gofsdp launch` and other launchers start several.
type sftCmd struct {
	sft.Config `embed:""`
}

// Run trains. A run that was asked to stop saves a checkpoint first and counts as a success.
func (c *sftCmd) Run(ctx context.Context) error {
	env, err := dist.FromEnv()
	if err != nil {
		return err
	}
	if env.Rank == 0 {
		if names := withoutEffect(os.Getenv); len(names) > 0 {
			fmt.Fprintf(os.Stderr, "gofsdp: sft: no effect yet: %s\n", strings.Join(names, ", "))
		}
	}
	_, err = sft.Run(ctx, c.Config, sft.RunOptions{Env: env, Out: os.Stdout, Terminal: term.IsTerminal(int(os.Stdout.Fd()))})
	if err != nil {
		if report := env.WriteErrorFile(err); report != nil {
			fmt.Fprintln(os.Stderr, "gofsdp:", report)
		}
	}
	return err
}

// launcherSettings are what launchers hand over in the environment, with the values that describe what sft does.
var launcherSettings = []struct {
	name string
	same []string // in lower case
}{
	{"ACCELERATE_MIXED_PRECISION", []string{"no"}},
	{"FSDP_OFFLOAD_PARAMS", []string{"false"}},
	{"FSDP_SHARDING_STRATEGY", []string{"full_shard", "1"}},
	{"FSDP_RESHARD_AFTER_FORWARD", []string{"true", "full_shard"}},
	{"FSDP_AUTO_WRAP_POLICY", []string{"transformer_based_wrap"}},
	{"FSDP_TRANSFORMER_CLS_TO_WRAP", []string{"llamadecoderlayer"}},
	{"FSDP_STATE_DICT_TYPE", []string{"sharded_state_dict"}},
}

// withoutEffect lists the settings of a launcher that sft does not follow, as NAME=value.
func withoutEffect(getenv func(string) string) []string {
	var names []string
	for _, s := range launcherSettings {
		if value := getenv(s.name); value != "" && !slices.Contains(s.same, strings.ToLower(value)) {
			names = append(names, s.name+"="+value)
		}
	}
	return names
}
