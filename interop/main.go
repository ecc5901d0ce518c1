// Command interop checks that files cross between gofsdp and the libraries that its users have: transformers, PEFT and
// torch.distributed.checkpoint, in both directions.
//
//	make interop
//
// It has three parts: gofsdp writes (write.go), Python reads that and writes its own (check.py), gofsdp reads those
// (read.go). A training run moves between gofsdp and PyTorch's FSDP2 and back (torch.go, fsdp.py). Values must agree, not only load. The Python packages are installed once per user (scripts/peers-venv).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/gofsdp/gofsdp/bench/peer"
	"github.com/gofsdp/gofsdp/torch"
)

type options struct {
	Binary string `help:"The gofsdp to check." default:"build/bin/gofsdp"`
	Keep   string `help:"Write the files into this folder and keep them (default: a temporary folder)."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Description("Check that files cross between gofsdp and transformers, PEFT and PyTorch."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	runtime.LockOSThread() // libtorch keeps pools per thread
	if err := torch.LoadLibrary(); err != nil {
		return err
	}
	root, err := peer.Root()
	if err != nil {
		return err
	}
	python, err := peer.Python(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	dir := o.Keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "gofsdp-interop-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return err
	}
	s := &session{
		goldens: filepath.Join(root, "testdata", "goldens"), binary: binary,
		ours: filepath.Join(dir, "ours"), theirs: filepath.Join(dir, "theirs"),
	}
	for _, folder := range []string{s.ours, s.theirs} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}

	s.check(ctx, "gofsdp convert writes a model folder", s.writeModel)
	s.check(ctx, "gofsdp writes adapters", s.writeAdapters)
	s.check(ctx, "gofsdp writes a checkpoint on two ranks", s.writeCheckpoint)
	s.check(ctx, "gofsdp writes a checkpoint in PyTorch's format on two ranks", s.writeTorchCheckpoint)
	s.check(ctx, "gofsdp sft fine-tunes a tiny model on two ranks", s.trainTiny)
	if len(s.failed) > 0 {
		return errors.Join(s.failed...)
	}
	// The Python part prints its own checks.
	for _, script := range []string{"check.py", "fsdp.py"} {
		reader := peer.Command(ctx, python, filepath.Join(root, "interop", script), "--goldens", s.goldens, "--ours", s.ours, "--theirs", s.theirs)
		reader.Stdout, reader.Stderr = os.Stdout, os.Stderr
		reader.Env = append(os.Environ(), "HF_HUB_OFFLINE=1")
		if err := reader.Run(); err != nil {
			s.failed = append(s.failed, fmt.Errorf("%s: %w", script, err))
		}
	}
	s.check(ctx, "gofsdp goes on from a checkpoint of FSDP2 at 1, 2 and 3 ranks", s.readTorchCheckpoint)
	s.check(ctx, "gofsdp loads models of transformers", s.readModels)
	s.check(ctx, "gofsdp loads adapters of PEFT", s.readAdapters)
	s.check(ctx, "gofsdp loads a tokenizer of transformers", s.readTokenizer)
	return errors.Join(s.failed...)
}

// session is one run: its folders and what failed so far.
type session struct {
	goldens, binary string
	ours, theirs    string // what gofsdp and Python write
	failed          []error
}

// check runs one check and prints how it went. libtorch's panics become its error.
func (s *session) check(ctx context.Context, name string, f func(context.Context) error) {
	start := time.Now()
	var err error
	if caught := torch.Try(func() { err = f(ctx) }); caught != nil {
		err = caught
	}
	if err != nil {
		s.failed = append(s.failed, fmt.Errorf("%s: %w", name, err))
		fmt.Printf("FAIL  %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok    %s (%.1f s)\n", name, time.Since(start).Seconds())
}
