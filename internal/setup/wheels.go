package setup

import (
	"context"
	_ "embed" // pins.json
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// wheel is one package to download. What we use of it does not depend on the Python version: the file is the one for
// Python 3.11, so that its hash is the same for everybody.
type wheel struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`           // bytes to download
	CUDA    bool   `json:"cuda,omitempty"` // needed for CUDA only
}

// cpuWheels begin the names of NVIDIA's wheels that machines without a GPU need too: libtorch_cpu.so is linked to libcudart
// and libcupti. Before CUDA 13 the names end with the version of CUDA.
var cpuWheels = []string{"nvidia-cuda-runtime", "nvidia-cuda-cupti"}

// pinsJSON holds, for each pinned version of torch and each architecture, the wheels that resolve found.
// `go generate ./internal/setup` writes it anew.
//
//go:generate go run ./pin -o pins.json
//go:embed pins.json
var pinsJSON []byte

// pins maps a version of torch to Go's name of an architecture to wheels.
var pins = sync.OnceValues(func() (map[string]map[string][]wheel, error) {
	var all map[string]map[string][]wheel
	if err := json.Unmarshal(pinsJSON, &all); err != nil {
		return nil, fmt.Errorf("pins.json: %w", err)
	}
	return all, nil
})

// PinnedVersions are the versions of torch whose wheels are pinned by their hashes, the oldest first.
func PinnedVersions() []string {
	all, err := pins()
	if err != nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(all), compareVersions)
}

// fullVersion completes a version such as 2.12 to the pinned one of that line, and checks that gofsdp supports it.
// "" is TorchVersion.
func fullVersion(version string) (string, error) {
	if version == "" {
		return TorchVersion, nil
	}
	full := version
	if strings.Count(version, ".") == 1 {
		for _, pinned := range PinnedVersions() {
			if strings.HasPrefix(pinned, version+".") {
				full = pinned
			}
		}
	}
	if !versionForm.MatchString(full) {
		return "", fmt.Errorf("torch version %q: want one such as %s", version, TorchVersion)
	}
	if err := checkSupported(full, "was asked for"); err != nil {
		return "", err
	}
	if strings.Count(full, ".") != 2 {
		return "", fmt.Errorf("torch version %q: want three numbers, such as %s; these are pinned: %s",
			version, TorchVersion, strings.Join(PinnedVersions(), ", "))
	}
	return full, nil
}

// chooseWheels returns the wheels of o.TorchVersion for this machine: the pinned ones, those that an earlier run noted, or
// those that it now finds in the index and notes.
func (o *Options) chooseWheels(ctx context.Context, cuda bool) ([]wheel, error) {
	all, err := o.allWheels(ctx)
	if err != nil || cuda {
		return all, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(w wheel) bool { return w.CUDA }), nil
}

func (o *Options) allWheels(ctx context.Context) ([]wheel, error) {
	if o.wheels != nil {
		return o.wheels, nil
	}
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("libtorch is downloaded on Linux only; set GOFSDP_TORCH_DIR to one that is installed")
	}
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil, fmt.Errorf("there is no libtorch for %s; set GOFSDP_TORCH_DIR to one that is installed", runtime.GOARCH)
	}
	pinned, err := pins()
	if err != nil {
		return nil, err
	}
	if wheels := pinned[o.TorchVersion][runtime.GOARCH]; wheels != nil {
		return wheels, nil
	}
	note := filepath.Join(o.Cache, "libtorch", o.TorchVersion+"-wheels.json")
	if data, err := os.ReadFile(note); err == nil {
		var wheels []wheel
		if err := json.Unmarshal(data, &wheels); err != nil {
			return nil, fmt.Errorf("%s: %w: remove it to look the wheels up again", note, err)
		}
		return wheels, nil
	}
	var from index = folderIndex(o.Wheels)
	if o.Wheels == "" {
		from = newWebIndex(ctx, o.pip)
	}
	fmt.Fprintf(o.Out, "libtorch %s is not pinned (%s are): its wheels are looked up, and their hashes noted in %s\n",
		o.TorchVersion, strings.Join(PinnedVersions(), ", "), note)
	wheels, err := resolve(ctx, from, o.TorchVersion, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return wheels, writeJSON(note, wheels)
}

// machineName is what Python and the kernel call an architecture of Go.
func machineName(goarch string) string {
	switch goarch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return goarch
}

// pipPlatforms lists the platform tags that the wheels carry: pip takes a list literally, it does not add the
// older ones by itself.
func pipPlatforms(goarch string) []string {
	arch := machineName(goarch)
	var tags []string
	for glibc := 28; glibc >= 5; glibc-- {
		tags = append(tags, fmt.Sprintf("manylinux_2_%d_%s", glibc, arch))
	}
	return append(tags, "manylinux2014_"+arch, "manylinux2010_"+arch, "manylinux1_"+arch)
}

// The libraries of the torch wheel that a machine without a GPU does not need.
var torchCUDALibraries = map[string]bool{
	"libtorch_cuda.so": true, "libtorch_cuda_linalg.so": true, "libtorch_nvshmem.so": true, "libcaffe2_nvrtc.so": true,
}

// wanted reports whether a file of a wheel is unpacked: headers, libraries and the operator schemas, no Python.
func wanted(name string, cuda bool) bool {
	switch {
	case strings.HasPrefix(name, "torch-") && strings.HasSuffix(name, ".dist-info/METADATA"):
		return true
	case strings.HasPrefix(name, "torch/include/"), strings.HasPrefix(name, "torch/share/cmake/"):
		return true
	case strings.HasPrefix(name, "torch/lib/"):
		base := path.Base(name)
		return strings.Contains(base, ".so") && base != "libtorch_python.so" && base != "libshm.so" &&
			(cuda || !torchCUDALibraries[base])
	case strings.HasPrefix(name, "torchgen/packaged/ATen/native/"):
		return strings.HasSuffix(name, ".yaml")
	case strings.HasPrefix(name, "nvidia/"):
		if strings.Contains(name, "/include/") {
			return true
		}
		// The profiler's host libraries are a hundred megabytes that only its own tools load.
		return strings.Contains(name, "/lib/") && strings.Contains(path.Base(name), ".so") &&
			(cuda || !strings.HasPrefix(path.Base(name), "libnvperf_"))
	}
	return false
}
