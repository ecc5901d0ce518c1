package setup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// ModulePath is the Go module that holds the C++ sources.
const ModulePath = "github.com/gofsdp/gofsdp"

// TorchVersion is the libtorch that is downloaded.
const TorchVersion = "2.13.0"

// The versions of libtorch that gofsdp is built and tested against: [minMinor, maxMinor] of major version 2.
const minMinor, maxMinor = 11, 13

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

func (s State) write(cache string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(cache, "setup-*.json")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(append(data, '\n'))
	if err := errors.Join(err, temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), filepath.Join(cache, "setup.json"))
}

// moduleRoot finds gofsdp's sources: upwards from the working directory, or as a dependency of the module there.
func moduleRoot() (string, error) {
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
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", ModulePath).Output()
	if root := strings.TrimSpace(string(out)); err == nil && root != "" {
		return root, nil
	}
	return "", fmt.Errorf("the sources of %s are not around %s and no dependency of its module; "+
		"run this in a clone, or in a module after go get %s", ModulePath, dir, ModulePath)
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
	parts := strings.Split(version, ".")
	minor, err := strconv.Atoi(parts[1])
	if parts[0] != "2" || err != nil || minor < minMinor || minor > maxMinor {
		return State{}, fmt.Errorf("libtorch %s in %s: gofsdp supports 2.%d to 2.%d", version, dir, minMinor, maxMinor)
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
