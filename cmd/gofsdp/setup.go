package main

import (
	"context"
	"fmt"
	"os"

	"github.com/gofsdp/gofsdp/internal/setup"
)

// setupCmd is `gofsdp setup`.
type setupCmd struct {
	TorchVersion string     `help:"Version of libtorch, such as 2.12 or 2.12.1 (default: ${torch_version})." env:"GOFSDP_TORCH_VERSION"`
	BuildDir     string     `help:"Folder to build in (default: build in the sources). Programs find what is there by GOFSDP_LIB."`
	TorchDir     string     `help:"An installed libtorch or torch package, instead of downloading one." env:"GOFSDP_TORCH_DIR"`
	Wheels       string     `help:"A folder with the wheels, instead of the package index." type:"existingdir"`
	CUDA         setup.CUDA `name:"cuda" help:"Get the CUDA libraries: auto (if there is a driver), on, off. --cuda alone is on." enum:"auto,on,off" default:"auto" alone:"on"`
	DryRun       bool       `help:"Only say what would be downloaded."`
	KeepWheels   bool       `help:"Keep the downloaded wheels."`
	Werror       bool       `help:"Treat C++ warnings as errors."`
	Asan         bool       `help:"Build with AddressSanitizer; give it a --build-dir of its own."`
	Jobs         int        `short:"j" help:"Compilers to run at once (default: what CPUs and memory allow)."`
}

// Run sets up and prints where things are.
func (c *setupCmd) Run(ctx context.Context) error {
	options := setup.Options{
		TorchVersion: c.TorchVersion, BuildDir: c.BuildDir, TorchDir: c.TorchDir, Wheels: c.Wheels, CUDA: c.CUDA,
		KeepWheels: c.KeepWheels, Werror: c.Werror, ASan: c.Asan, Jobs: c.Jobs,
	}
	if c.DryRun {
		return printPlan(ctx, options)
	}
	state, err := setup.Run(ctx, options)
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

// printPlan lists the files that set-up would download, in the form of pip's requirements, and their sizes.
func printPlan(ctx context.Context, options setup.Options) error {
	options.Out = os.Stderr // standard output is a file of requirements
	list, err := setup.Plan(ctx, options)
	if err != nil {
		return err
	}
	var total int64
	for _, d := range list {
		fmt.Printf("%s==%s --hash=sha256:%s # %.1f MB\n", d.Name, d.Version, d.SHA256, float64(d.Bytes)/1e6)
		total += d.Bytes
	}
	fmt.Printf("# %d files, %.1f MB to download\n", len(list), float64(total)/1e6)
	return nil
}
