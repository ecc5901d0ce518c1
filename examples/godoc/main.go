// Command godoc writes training data about the Go standard library: train.jsonl and eval.jsonl, in chat format, made of
// the documentation in the Go installation on this machine.
//
//	go run ./examples/godoc --out godoc-data
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/examples/godoc/corpus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "godoc:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("godoc", flag.ContinueOnError)
	out := flags.String("out", "godoc-data", "`folder` for train.jsonl and eval.jsonl")
	goroot := flags.String("goroot", "", "Go installation to read; by default what go env GOROOT says")
	var opts corpus.Options
	flags.Float64Var(&opts.EvalFraction, "eval-fraction", 0.1, "share of the symbols that are held out")
	flags.IntVar(&opts.MaxAnswerChars, "max-answer-chars", 400, "longest answer")
	flags.IntVar(&opts.MaxRows, "max-rows", 0, "rows in both files together; 0 for all")
	flags.Uint64Var(&opts.Seed, "seed", 42, "seed of split, order and phrasing")
	if err := flags.Parse(args); err != nil {
		if err == flag.ErrHelp {
			return nil
		}
		return err
	}
	if *goroot == "" {
		stdout, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("go env GOROOT: %w (or name the installation with --goroot)", err)
		}
		*goroot = strings.TrimSpace(string(stdout))
	}
	symbols, err := corpus.Load(ctx, *goroot)
	if err != nil {
		return err
	}
	train, eval, err := corpus.Rows(symbols, opts)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o777); err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		rows []corpus.Row
	}{{"train.jsonl", train}, {"eval.jsonl", eval}} {
		path := filepath.Join(*out, file.name)
		if err := write(path, file.rows); err != nil {
			return err
		}
		fmt.Printf("%s: %d rows\n", path, len(file.rows))
	}
	return nil
}

// write puts the file in place only when it is whole.
func write(path string, rows []corpus.Row) error {
	content, err := corpus.JSONL(rows)
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, content, 0o666); err != nil {
		os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, path)
}
