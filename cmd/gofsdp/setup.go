package main

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/setup"
)

// setupCmd is `gofsdp setup`.
type setupCmd struct {
	BuildDir   string     `help:"Folder to build in (default: build in the sources)."`
	TorchDir   string     `help:"An installed libtorch or torch package, instead of downloading one." env:"GOFSDP_TORCH_DIR"`
	Wheels     string     `help:"A folder with the wheels, instead of the package index." type:"existingdir"`
	CUDA       setup.CUDA `name:"cuda" help:"Get the CUDA libraries: auto (if there is a driver), on, off." enum:"auto,on,off" default:"auto"`
	KeepWheels bool       `help:"Keep the downloaded wheels."`
	Werror     bool       `help:"Treat C++ warnings as errors."`
	Asan       bool       `help:"Build with AddressSanitizer; give it a --build-dir of its own."`
	Jobs       int        `short:"j" help:"Compilers to run at once (default: what CPUs and memory allow)."`
}

// Run sets up and prints where things are.
func (c *setupCmd) Run(ctx context.Context) error {
	state, err := setup.Run(ctx, setup.Options{
		BuildDir: c.BuildDir, TorchDir: c.TorchDir, Wheels: c.Wheels, CUDA: c.CUDA,
		KeepWheels: c.KeepWheels, Werror: c.Werror, ASan: c.Asan, Jobs: c.Jobs,
	})
	if err != nil {
		return err
	}
	cuda := "CPU only"
	if state.CUDA {
		cuda = "with CUDA"
	}
	fmt.Printf("libtorch %s (%s): %s\nshim: %s\n", state.TorchVersion, cuda, state.TorchDir, state.Library)
	return nil
}
