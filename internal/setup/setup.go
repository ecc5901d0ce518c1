// Package setup brings a machine to the point where gofsdp runs: it finds or downloads libtorch and builds the
// shim libgofsdp.so against it.
//
// It uses the standard library only and loads no shared library, because it runs before there is any. libtorch
// is the `torch` wheel of the Python package index (with two small NVIDIA wheels that its CPU library is linked
// to), pinned by SHA-256 and unpacked without its Python part into
//
//	<cache>/libtorch/<version>/{torch,nvidia}     cache: $GOFSDP_CACHE or <user cache>/gofsdp
//
// so that a second clone downloads nothing. $GOFSDP_TORCH_DIR names an installed libtorch instead. The result is
// written to <cache>/setup.json, where CMake finds it as well.
package setup

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// CUDA says whether libtorch's CUDA libraries are wanted.
type CUDA string

// The values of CUDA.
const (
	CUDAAuto CUDA = "auto" // where an NVIDIA driver is found; also the zero value
	CUDAOn   CUDA = "on"
	CUDAOff  CUDA = "off"
)

// Options configures Run. The zero value sets up the module around the working directory.
type Options struct {
	Module     string    // root of gofsdp's sources; "" looks for it
	BuildDir   string    // where CMake builds; "" is <module>/build, or the cache if the module is read-only
	Cache      string    // "" is CacheDir()
	TorchDir   string    // an installed libtorch; "" is $GOFSDP_TORCH_DIR
	Wheels     string    // a folder of wheels to use instead of the package index
	CUDA       CUDA      // "" is CUDAAuto
	KeepWheels bool      // keep the downloaded wheels
	Werror     bool      // C++ warnings are errors
	ASan       bool      // build with AddressSanitizer
	Jobs       int       // parallel compilers; 0 is what CPUs and memory allow
	Out        io.Writer // progress; nil is os.Stdout

	pip    []string // replaces python3 -m pip in tests
	wheels []wheel  // replaces the pinned wheels in tests
}

// Run sets up libtorch and the shim, and says where they are. It may be called as often as one likes, and from
// several processes at once: what is in place is not done again. Cancelling ctx stops it; what was half done is
// invisible to the next run.
func Run(ctx context.Context, o Options) (State, error) {
	if err := o.fill(); err != nil {
		return State{}, fmt.Errorf("setup: %w", err)
	}
	if err := checkTools(ctx, buildTools()); err != nil {
		return State{}, fmt.Errorf("setup: %w", err)
	}
	state, err := o.findTorch(ctx)
	if err != nil {
		return State{}, fmt.Errorf("setup: %w", err)
	}
	if state.Library, err = o.build(ctx, state); err != nil {
		return State{}, fmt.Errorf("setup: %w", err)
	}
	// A sanitized library cannot be loaded into a Go program: it must not become the one that is found.
	if !o.ASan {
		if err := state.write(o.Cache); err != nil {
			return State{}, fmt.Errorf("setup: %w", err)
		}
	}
	return state, nil
}

func (o *Options) fill() (err error) {
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.Cache == "" {
		if o.Cache, err = CacheDir(); err != nil {
			return err
		}
	}
	if o.TorchDir == "" {
		o.TorchDir = os.Getenv("GOFSDP_TORCH_DIR")
	}
	if o.Module == "" {
		if o.Module, err = moduleRoot(); err != nil {
			return err
		}
	}
	for _, path := range []*string{&o.Module, &o.Cache} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	switch o.CUDA {
	case "":
		o.CUDA = CUDAAuto
	case CUDAAuto, CUDAOn, CUDAOff:
	default:
		return fmt.Errorf("cuda=%q: want auto, on or off", o.CUDA)
	}
	if o.pip == nil {
		o.pip = []string{"python3", "-m", "pip"}
	}
	return nil
}

// findTorch returns the libtorch to build against: the one that was named, on a GPU machine the one that Python
// has, the one in the cache, or one that it downloads into the cache.
func (o *Options) findTorch(ctx context.Context) (State, error) {
	if o.TorchDir != "" {
		state, err := inspectTorch(o.TorchDir)
		if err != nil {
			return State{}, fmt.Errorf("GOFSDP_TORCH_DIR: %w", err)
		}
		if o.CUDA == CUDAOn && !state.CUDA {
			return State{}, fmt.Errorf("GOFSDP_TORCH_DIR: %s has no lib/libtorch_cuda.so, and CUDA was asked for", state.TorchDir)
		}
		return state, nil
	}
	cuda := o.CUDA == CUDAOn || o.CUDA == CUDAAuto && HasNVIDIADriver()
	if cuda && o.wheels == nil {
		if state, ok := pythonTorch(ctx); ok && state.CUDA {
			fmt.Fprintf(o.Out, "using the libtorch %s of python3: %s\n", state.TorchVersion, state.TorchDir)
			return state, nil
		}
	}
	return o.cachedTorch(ctx, cuda)
}

// cachedTorch returns the cache's libtorch, downloading it if need be under a lock.
func (o *Options) cachedTorch(ctx context.Context, cuda bool) (State, error) {
	home := filepath.Join(o.Cache, "libtorch", TorchVersion)
	usable := func() (State, bool) {
		state, err := inspectTorch(filepath.Join(home, "torch"))
		return state, err == nil && (!cuda || state.CUDA)
	}
	if state, ok := usable(); ok {
		return state, nil
	}
	unlock, err := lock(ctx, filepath.Join(o.Cache, "lock"), o.Out)
	if err != nil {
		return State{}, err
	}
	defer unlock()
	if state, ok := usable(); ok { // another process was faster
		return state, nil
	}
	wheels := o.wheels
	if wheels == nil {
		if wheels, err = pinnedWheels(cuda); err != nil {
			return State{}, err
		}
	}
	if err := o.install(ctx, wheels, home, cuda); err != nil {
		return State{}, err
	}
	return inspectTorch(filepath.Join(home, "torch"))
}
