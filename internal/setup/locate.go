package setup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
)

// ModulePath is the Go module that holds the C++ sources.
const ModulePath = "github.com/gofsdp/gofsdp"

// TorchVersion is the libtorch that is downloaded unless another one is asked for.
const TorchVersion = "2.13.0"

// The versions of libtorch that gofsdp is built and tested against: [minMinor, maxMinor] of major version 2.
const minMinor, maxMinor = 11, 13

// IgnoreVersionEnv names the environment variable that, set to 1, lets a libtorch pass whose version is not the expected
// one. internal/capi and cmake/FindLibtorch.cmake know it too.
const IgnoreVersionEnv = "GOFSDP_IGNORE_TORCH_VERSION"

// checkSupported says which versions are expected and which was found, unless IgnoreVersionEnv is set.
func checkSupported(version, where string) error {
	parts := strings.Split(version, ".")
	if len(parts) >= 2 && parts[0] == "2" {
		if minor, err := strconv.Atoi(parts[1]); err == nil && minMinor <= minor && minor <= maxMinor {
			return nil
		}
	}
	if os.Getenv(IgnoreVersionEnv) == "1" {
		return nil
	}
	return fmt.Errorf("libtorch %s %s: gofsdp supports 2.%d to 2.%d; set %s=1 to try it all the same",
		version, where, minMinor, maxMinor, IgnoreVersionEnv)
}

// State is where things are, as the last set-up left it; it is kept in <cache>/setup.json.
type State struct {
	TorchDir     string `json:"torch_dir"`     // folder with libtorch's include/ and lib/
	TorchVersion string `json:"torch_version"` // such as 2.13.0
	CUDA         bool   `json:"cuda"`          // libtorch_cuda.so is there
	Library      string `json:"library"`       // libgofsdp.so
}

// CacheDir returns $GOFSDP_CACHE, or gofsdp in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("GOFSDP_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w; set GOFSDP_CACHE", err)
	}
	return filepath.Join(dir, "gofsdp"), nil
}

// ReadState returns what the last set-up with this cache folder ("" is CacheDir()) wrote. Its error is
// fs.ErrNotExist where there was none.
func ReadState(cache string) (State, error) {
	if cache == "" {
		var err error
		if cache, err = CacheDir(); err != nil {
			return State{}, err
		}
	}
	path := filepath.Join(cache, "setup.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return State{}, err
	}
	var state State
	if err := json.Unmarshal(data, &state); err != nil {
		return State{}, fmt.Errorf("%s: %w; run gofsdp setup again", path, err)
	}
	return state, nil
}

func (s State) write(cache string) error { return writeJSON(filepath.Join(cache, "setup.json"), s) }

// writeJSON writes a file that others see whole or not at all, and makes its folder.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(data, '\n')); err != nil {
		f.Abort()
		return err
	}
	return f.Commit()
}

// moduleRoot finds gofsdp's sources: upwards from the working directory, as a dependency of the module there, or, for a
// program that `go install` built, by the version that it carries.
func moduleRoot(ctx context.Context) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	line := regexp.MustCompile(`(?m)^module\s+` + regexp.QuoteMeta(ModulePath) + `\s*$`)
	for up := dir; ; up = filepath.Dir(up) {
		if data, err := os.ReadFile(filepath.Join(up, "go.mod")); err == nil && line.Match(data) {
			return up, nil
		}
		if up == filepath.Dir(up) {
			break
		}
	}
	// Not from a vendor folder: that one holds packages of Go only. Where go.mod names the module but the module cache lacks
	// it, the second command fetches it.
	if root := goModuleDir(ctx, "list", "-mod=readonly", "-m", "-json", ModulePath); root != "" {
		return root, nil
	}
	if root := goModuleDir(ctx, "mod", "download", "-json", ModulePath); root != "" {
		return root, nil
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Path == ModulePath && strings.HasPrefix(info.Main.Version, "v") {
		if root := goModuleDir(ctx, "mod", "download", "-json", ModulePath+"@"+info.Main.Version); root != "" {
			return root, nil
		}
	}
	return "", fmt.Errorf("the sources of %s are not around %s and no dependency of its module; "+
		"run this in a clone, or in a module after go get %s", ModulePath, dir, ModulePath)
}

// goModuleDir runs a go command that describes a module in JSON, and returns its folder or "".
func goModuleDir(ctx context.Context, args ...string) string {
	out, err := exec.CommandContext(ctx, "go", args...).Output()
	if err != nil {
		return ""
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return ""
	}
	return module.Dir
}

// inspectTorch reads the version of the libtorch in dir: a Python installation's torch folder or an unpacked
// libtorch. It is an error if something is missing, or the version is none that gofsdp supports.
func inspectTorch(dir string) (State, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return State{}, err
	}
	for _, file := range []string{"lib/libtorch_cpu.so", "lib/libc10.so", "include/ATen/ATen.h"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			return State{}, fmt.Errorf("%s is no libtorch: %w", dir, err)
		}
	}
	version, err := torchVersion(dir)
	if err != nil {
		return State{}, err
	}
	if err := checkSupported(version, "in "+dir); err != nil {
		return State{}, err
	}
	_, err = os.Stat(filepath.Join(dir, "lib/libtorch_cuda.so"))
	return State{TorchDir: dir, TorchVersion: version, CUDA: err == nil}, nil
}

// torchVersion reads major.minor.patch from whichever of its version files a libtorch has.
func torchVersion(dir string) (string, error) {
	define := regexp.MustCompile(`define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)`)
	for _, header := range []string{
		"include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h",
	} {
		data, err := os.ReadFile(filepath.Join(dir, header))
		if err != nil {
			continue
		}
		if found := define.FindAllSubmatch(data, -1); len(found) == 3 {
			return fmt.Sprintf("%s.%s.%s", found[0][1], found[1][1], found[2][1]), nil
		}
	}
	number := regexp.MustCompile(`(?m)(?:^|__version__ = ')(\d+\.\d+\.\d+)`)
	for _, file := range []string{"version.py", "build-version"} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			continue
		}
		if found := number.FindSubmatch(data); found != nil {
			return string(found[1]), nil
		}
	}
	return "", fmt.Errorf("%s does not tell its version (no torch/version.h, version.py or build-version)", dir)
}

// HasNVIDIADriver reports whether the kernel has an NVIDIA driver loaded.
func HasNVIDIADriver() bool {
	for _, path := range []string{"/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// pythonTorch returns the libtorch of python3's torch package if gofsdp supports it. It does not import torch.
func pythonTorch(ctx context.Context) (State, bool) {
	out, err := exec.CommandContext(ctx, "python3", "-c",
		`import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")`).Output()
	dir := string(bytes.TrimSpace(out))
	if err != nil || dir == "" {
		return State{}, false
	}
	state, err := inspectTorch(dir)
	return state, err == nil
}
