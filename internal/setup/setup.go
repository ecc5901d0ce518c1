// Package setup brings a machine to the point where gofsdp runs: it finds or downloads libtorch and builds the
// shim libgofsdp.so against it.
//
// It uses the standard library only and loads no shared library, because it runs before there is any. libtorch
// is the `torch` wheel of the Python package index (with two small NVIDIA wheels that its CPU library is linked
// to, and with CUDA all those that its METADATA names), pinned by SHA-256 and unpacked without its Python part into
//
//	<cache>/libtorch/<version>/{torch,nvidia}     cache: $GOFSDP_CACHE or <user cache>/gofsdp
//
// so that a second clone downloads nothing. $GOFSDP_TORCH_DIR names an installed libtorch instead. The shim is built in
// the clone, or, where the sources lie in Go's module cache, which is read-only, in
//
//	<cache>/build/gofsdp@<version>-torch<version>  and found through <cache>/lib/gofsdp@<version>/libgofsdp.so
//
// The result is written to <cache>/setup.json, where CMake finds it as well.
package setup

import (
	"context"
	"encoding/json"
	"errors"
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
	TorchVersion string    // of libtorch, such as 2.12 or 2.12.1; "" is the constant TorchVersion, and any in TorchDir
	Module       string    // root of gofsdp's sources; "" looks for it
	BuildDir     string    // where CMake builds; "" is <module>/build, or the cache if the module is read-only
	Cache        string    // "" is CacheDir()
	TorchDir     string    // an installed libtorch; "" is $GOFSDP_TORCH_DIR
	Wheels       string    // a folder of wheels to use instead of the package index
	CUDA         CUDA      // "" is CUDAAuto
	KeepWheels   bool      // keep the downloaded wheels
	Werror       bool      // C++ warnings are errors
	ASan         bool      // build with AddressSanitizer
	Jobs         int       // parallel compilers; 0 is what CPUs and memory allow
	Out          io.Writer // progress; nil is os.Stdout

	anyVersion bool // no version was asked for

	pip    []string // replaces python3 -m pip in tests
	wheels []wheel  // replaces the pinned wheels in tests
}

// Run sets up libtorch and the shim, and says where they are. It may be called as often as one likes, and from
// several processes at once: what is in place is not done again. Cancelling ctx stops it; what was half done is
// invisible to the next run.
func Run(ctx context.Context, o Options) (State, error) {
	state, err := o.run(ctx)
	if err != nil {
		return State{}, fmt.Errorf("setup: %w", err)
	}
	return state, nil
}

func (o *Options) run(ctx context.Context) (State, error) {
	if err := o.fill(ctx); err != nil {
		return State{}, err
	}
	if err := o.makeCache(); err != nil {
		return State{}, err
	}
	if err := checkTools(ctx, buildTools()); err != nil {
		return State{}, err
	}
	state, err := o.findTorch(ctx)
	if err != nil {
		return State{}, err
	}
	if state.Library, err = o.build(ctx, state); err != nil {
		return State{}, diskError(err)
	}
	// A library in a folder of somebody's choice, or one for another libtorch, is not the one that programs find.
	if o.BuildDir == "" && !o.ASan {
		return state, state.write(o.Cache)
	}
	return state, nil
}

// Download is one file that Plan would fetch.
type Download struct {
	Name, Version, SHA256 string
	Bytes                 int64
}

// Plan returns what Run would download: nothing where libtorch is in place.
func Plan(ctx context.Context, o Options) ([]Download, error) {
	list, err := o.plan(ctx)
	if err != nil {
		return nil, fmt.Errorf("setup: %w", err)
	}
	return list, nil
}

func (o *Options) plan(ctx context.Context) ([]Download, error) {
	if err := o.fill(ctx); err != nil {
		return nil, err
	}
	if _, ok, err := o.installedTorch(ctx); ok || err != nil {
		return nil, err
	}
	cuda := o.wantsCUDA()
	if _, ok := o.cached(cuda); ok {
		return nil, nil
	}
	wheels, err := o.chooseWheels(ctx, cuda)
	if err != nil {
		return nil, err
	}
	var list []Download
	for _, w := range wheels {
		list = append(list, Download{Name: w.Name, Version: w.Version, SHA256: w.SHA256, Bytes: w.Size})
	}
	return list, nil
}

func (o *Options) fill(ctx context.Context) (err error) {
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
		if o.Module, err = moduleRoot(ctx); err != nil {
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
	o.anyVersion = o.TorchVersion == ""
	if o.TorchVersion, err = fullVersion(o.TorchVersion); err != nil {
		return err
	}
	if o.pip == nil {
		o.pip = defaultPip()
	}
	return nil
}

// makeCache makes the cache folder, and a file in it to see that it can be written.
func (o *Options) makeCache() error {
	err := os.MkdirAll(o.Cache, 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(o.Cache, ".try-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("the cache folder cannot be written: %w; set GOFSDP_CACHE to one that can", err)
	}
	return nil
}

func (o *Options) wantsCUDA() bool {
	return o.CUDA == CUDAOn || o.CUDA == CUDAAuto && HasNVIDIADriver()
}

// findTorch returns the libtorch to build against: the one that was named, on a GPU machine the one that Python
// has, the one in the cache, or one that it downloads into the cache.
func (o *Options) findTorch(ctx context.Context) (State, error) {
	if state, ok, err := o.installedTorch(ctx); ok || err != nil {
		return state, err
	}
	return o.cachedTorch(ctx, o.wantsCUDA())
}

// installedTorch returns a libtorch outside of the cache, if there is one to be used.
func (o *Options) installedTorch(ctx context.Context) (state State, ok bool, err error) {
	if o.TorchDir != "" {
		state, err := inspectTorch(o.TorchDir)
		if err != nil {
			return State{}, false, fmt.Errorf("GOFSDP_TORCH_DIR: %w", err)
		}
		if o.CUDA == CUDAOn && !state.CUDA {
			return State{}, false, fmt.Errorf("GOFSDP_TORCH_DIR: %s has no lib/libtorch_cuda.so, and CUDA was asked for", state.TorchDir)
		}
		if !o.anyVersion && state.TorchVersion != o.TorchVersion {
			return State{}, false, fmt.Errorf("GOFSDP_TORCH_DIR: libtorch %s was asked for, and %s has %s", o.TorchVersion, state.TorchDir, state.TorchVersion)
		}
		return state, true, nil
	}
	if o.wantsCUDA() && o.wheels == nil {
		if state, ok := pythonTorch(ctx); ok && state.CUDA && (o.anyVersion || state.TorchVersion == o.TorchVersion) {
			fmt.Fprintf(o.Out, "using the libtorch %s of python3: %s\n", state.TorchVersion, state.TorchDir)
			return state, true, nil
		}
	}
	return State{}, false, nil
}

// home is where the cache has libtorch.
func (o *Options) home() string { return filepath.Join(o.Cache, "libtorch", o.TorchVersion) }

// cached returns the cache's libtorch. With cuda it must have come with NVIDIA's wheels: install notes those.
func (o *Options) cached(cuda bool) (State, bool) {
	state, err := inspectTorch(filepath.Join(o.home(), "torch"))
	if err != nil {
		return State{}, false
	}
	var list installed
	if data, err := os.ReadFile(filepath.Join(o.home(), installedFile)); err == nil {
		_ = json.Unmarshal(data, &list) // a damaged note is none
	}
	state.CUDA = state.CUDA && list.CUDA
	return state, state.CUDA || !cuda
}

// installed is the note that install leaves about what is in a folder.
type installed struct {
	CUDA   bool    `json:"cuda"`
	Wheels []wheel `json:"wheels"`
}

const installedFile = "wheels.json"

// cachedTorch returns the cache's libtorch, downloading it if need be under a lock.
func (o *Options) cachedTorch(ctx context.Context, cuda bool) (State, error) {
	if state, ok := o.cached(cuda); ok {
		return state, nil
	}
	unlock, err := lock(ctx, filepath.Join(o.Cache, "lock"), o.Out)
	if err != nil {
		return State{}, err
	}
	defer unlock()
	if state, ok := o.cached(cuda); ok { // another process was faster
		return state, nil
	}
	o.removeLitter()
	wheels, err := o.chooseWheels(ctx, cuda)
	if err != nil {
		return State{}, err
	}
	if err := o.install(ctx, wheels, cuda); err != nil {
		return State{}, err
	}
	state, ok := o.cached(cuda)
	if !ok {
		return State{}, fmt.Errorf("what was unpacked to %s has no lib/libtorch_cuda.so, and CUDA was asked for", o.home())
	}
	return state, nil
}

// removeLitter removes the temporary folders of set-ups that were killed. The caller holds the lock, so nobody uses them.
func (o *Options) removeLitter() {
	for _, pattern := range []string{"pip-*", "libtorch/.unpack-*"} {
		found, _ := filepath.Glob(filepath.Join(o.Cache, pattern))
		for _, dir := range found {
			os.RemoveAll(dir)
		}
	}
}
