package main

import (
	"context"
	"fmt"
	"os"

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
	_, err = sft.Run(ctx, c.Config, sft.RunOptions{Env: env, Out: os.Stdout, Terminal: term.IsTerminal(int(os.Stdout.Fd()))})
	if err != nil {
		if report := env.WriteErrorFile(err); report != nil {
			fmt.Fprintln(os.Stderr, "gofsdp:", report)
		}
	}
	return err
}
