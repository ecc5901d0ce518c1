// Command gofsdp sets up, launches and runs fine-tuning with gofsdp.
//
//	gofsdp setup                                  download libtorch, build the shim
//	gofsdp doctor                                 say what is there and what is missing
//	gofsdp launch --num_processes 2 sft …         run a command of this program on two ranks
//	gofsdp launch --config_file fsdp.yaml -- prog …
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
)

// cli lists the commands.
type cli struct {
	Setup  setupCmd  `cmd:"" help:"Download libtorch and build the shim libgofsdp.so."`
	Doctor doctorCmd `cmd:"" help:"Report what is installed and what is missing."`
	Launch launchCmd `cmd:"" help:"Start a program on several ranks."`
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

	parser, err := kong.New(&cli{}, kong.Name("gofsdp"), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Description("Fine-tune large language models on as many GPUs as it takes, or on CPUs."))
	if err != nil {
		return report(err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
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
	return report(command.Run())
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
