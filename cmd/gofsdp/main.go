// Command gofsdp sets up, launches and runs fine-tuning with gofsdp.
//
//	gofsdp setup                                  download libtorch, build the shim
//	gofsdp doctor                                 say what is there and what is missing
//	gofsdp convert smollm2 DIR                    make a model folder of a GGUF file
//	gofsdp sft --model_name_or_path DIR …         fine-tune on one rank
//	gofsdp merge BASE ADAPTER OUT                 merge an adapter into its base model
//	gofsdp merge-weights CHECKPOINT OUT           join the shards of a checkpoint
//	gofsdp launch --num_processes 2 sft …         run a command of this program on two ranks
//	gofsdp launch --config_file fsdp.yaml -- prog …
//	gofsdp generate --model_name_or_path DIR …    answer a question with a model and its adapter
//
// Each command is a struct in a file of its own with a Run method, listed in cli.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/gofsdp/gofsdp/internal/setup"
	"github.com/gofsdp/gofsdp/torch"
)

// cli lists the commands.
type cli struct {
	Setup        setupCmd        `cmd:"" help:"Download libtorch and build the shim libgofsdp.so."`
	Doctor       doctorCmd       `cmd:"" help:"Report what is installed and what is missing."`
	Convert      convertCmd      `cmd:"" help:"Turn a GGUF file into a model folder."`
	Sft          sftCmd          `cmd:"" settings:"" help:"Fine-tune a model on conversations or texts. A first argument FILE.json or FILE.yaml stands for the flags in it."`
	Merge        mergeCmd        `cmd:"" help:"Merge an adapter into its base model."`
	MergeWeights mergeWeightsCmd `cmd:"" name:"merge-weights" help:"Join the shards of a checkpoint into one model folder."`
	Generate     generateCmd     `cmd:"" help:"Answer a prompt with a model, and an adapter if there is one."`
	Launch       launchCmd       `cmd:"" help:"Start a program on several ranks."`
	Fixed        fixedCmd        `cmd:"" name:"fixed-steps" hidden:"" help:"Optimiser steps on given batches, for benchmarks."`
}

func main() {
	os.Exit(run(os.Args[1:]))
}

// run parses the arguments and runs the command; its result is the exit status.
func run(args []string) int {
	// The first signal cancels the command, which may save its work; the second one ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	parser, err := newParser()
	if err != nil {
		return report(err)
	}
	command, err := parse(parser, args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "gofsdp: %v (see gofsdp --help)\n", err)
		return 2
	}
	command.BindTo(ctx, (*context.Context)(nil))
	var names commandNames
	for _, node := range parser.Model.Children {
		names = append(names, node.Name)
	}
	command.Bind(names)
	command.Bind(command)
	return report(execute(command))
}

// execute runs the command; the failure of an operator that nothing below made an error of is the command's.
func execute(command *kong.Context) (err error) {
	defer torch.Catch(&err)
	return command.Run()
}

func newParser() (*kong.Kong, error) {
	return kong.New(&cli{}, kong.Name("gofsdp"), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"torch_version": setup.TorchVersion},
		kong.Description("Fine-tune large language models, sharded over several processes."))
}

// parse reads the command line, in kong's spelling or in the one of Hugging Face's programs.
func parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	if len(args) == 0 {
		args = []string{"--help"}
	}
	for _, command := range parser.Model.Children {
		if command.Name == args[0] {
			rest, err := newFlagSet(command).rewrite(args[1:])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", command.Name, err)
			}
			args = append([]string{command.Name}, rest...)
		}
	}
	return parser.Parse(args)
}

// report prints an error and returns the exit status that it asks for.
func report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "gofsdp:", err)
	if exit := (interface{ ExitCode() int })(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if errors.Is(err, context.Canceled) {
		return 128 + int(syscall.SIGINT)
	}
	return 1
}
