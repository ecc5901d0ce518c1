package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/gofsdp/gofsdp/accelerate"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/sft"
	"golang.org/x/term"
)

// sftCmd is `gofsdp sft`: one rank of a training run. `gofsdp launch` and other launchers start several.
type sftCmd struct {
	sft.Config `embed:""`
}

// Run trains. A run that was asked to stop saves a checkpoint first and counts as a success.
func (c *sftCmd) Run(ctx context.Context, command *kong.Context) error {
	env, err := dist.FromEnv()
	if err != nil {
		return err
	}
	if err = c.train(ctx, env, command); err != nil {
		if report := env.WriteErrorFile(err); report != nil {
			fmt.Fprintln(os.Stderr, "gofsdp:", report)
		}
	}
	return err
}

func (c *sftCmd) train(ctx context.Context, env dist.Env, command *kong.Context) error {
	launcher, unknown, err := accelerate.FromEnviron(os.Environ())
	if err != nil {
		return err
	}
	if env.Rank == 0 && len(unknown) > 0 {
		fmt.Fprintf(os.Stderr, "gofsdp: sft: no effect: %s\n", strings.Join(unknown, ", "))
	}
	_, err = sft.Run(ctx, c.Config, sft.RunOptions{
		Env: env, Out: os.Stdout, Terminal: term.IsTerminal(int(os.Stdout.Fd())),
		Launcher: launcher, Given: func(flag string) bool { return written(command, flag) },
	})
	return err
}

// written tells whether a flag is on the command line, or in the settings file that stands there.
func written(command *kong.Context, flag string) bool {
	return slices.ContainsFunc(command.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == flag })
}
