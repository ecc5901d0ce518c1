package setup

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const versionHeader = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 13\n#define TORCH_VERSION_PATCH 0\n"

// torchFiles is the least that is a libtorch.
func torchFiles() map[string]string {
	return map[string]string{
		"torch/include/ATen/ATen.h":                           "",
		"torch/include/torch/headeronly/version.h":            versionHeader,
		"torch/lib/libtorch_cpu.so":                           "cpu",
		"torch/lib/libc10.so":                                 "c10",
		"torch/lib/libtorch_cuda.so":                          "cuda",
		"torch/lib/libtorch_python.so":                        "python",
		"torch/__init__.py":                                   "import this",
		"torchgen/packaged/ATen/native/native_functions.yaml": "[]",
		"torchgen/gen.py":                                     "pass",
	}
}

// makeWheel writes a wheel into dir and pins it.
func makeWheel(t *testing.T, dir, name, version string, files map[string]string) wheel {
	t.Helper()
	var buf bytes.Buffer
	archive := zip.NewWriter(&buf)
	for path, text := range files {
		w, err := archive.Create(path)
		require.NoError(t, err)
		_, err = w.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	file := strings.ReplaceAll(name, "-", "_") + "-" + version + "-py3-none-any.whl"
	require.NoError(t, os.WriteFile(filepath.Join(dir, file), buf.Bytes(), 0o644))
	sum := sha256.Sum256(buf.Bytes())
	return wheel{Name: name, Version: version, SHA256: hex.EncodeToString(sum[:]), Size: int64(buf.Len())}
}

// fakePip is a program that "downloads" the wheels of a folder, and counts its runs in that folder.
func fakePip(t *testing.T, wheels string) []string {
	script := `[ "$1" = --version ] && { echo "pip 99"; exit 0; }
echo run >> ` + wheels + `/runs
while [ "$1" != --dest ]; do shift; done
echo "  Downloading a wheel (1 MB)"
cp ` + wheels + `/*.whl "$2"`
	return []string{"sh", "-c", script, "pip"}
}

// fixture is a cache without libtorch, and an index that has it.
func fixture(t *testing.T) (o Options, index string, out *bytes.Buffer) {
	index = t.TempDir()
	out = &bytes.Buffer{}
	o = Options{Module: t.TempDir(), Cache: filepath.Join(t.TempDir(), "cache"), CUDA: CUDAOff, Out: out, pip: fakePip(t, index)}
	o.wheels = []wheel{
		makeWheel(t, index, "torch", TorchVersion, torchFiles()),
		makeWheel(t, index, "nvidia-cuda-runtime", "13.0.96", map[string]string{
			"nvidia/cu13/lib/libcudart.so.13": "cudart", "nvidia/cu13/lib/libcudart_static.a": "static",
			"nvidia/cu13/lib/libnvperf_host.so": "perf", "nvidia/cu13/include/cuda.h": "h"}),
	}
	t.Setenv("GOFSDP_TORCH_DIR", "")
	require.NoError(t, o.fill(t.Context()))
	return o, index, out
}

func tree(t *testing.T, dir string) []string {
	var files []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			files = append(files, rel)
		}
		return err
	}))
	return files
}

func TestDownloadsOnceAndUnpacksWhatIsNeeded(t *testing.T) {
	o, index, out := fixture(t)
	state, err := o.findTorch(t.Context())
	require.NoError(t, err)
	require.Equal(t, State{TorchDir: filepath.Join(o.Cache, "libtorch", TorchVersion, "torch"), TorchVersion: TorchVersion}, state)
	require.Equal(t, []string{
		"lock",
		"libtorch/2.13.0/nvidia/cu13/include/cuda.h",
		"libtorch/2.13.0/nvidia/cu13/lib/libcudart.so.13",
		"libtorch/2.13.0/torch/include/ATen/ATen.h",
		"libtorch/2.13.0/torch/include/torch/headeronly/version.h",
		"libtorch/2.13.0/torch/lib/libc10.so",
		"libtorch/2.13.0/torch/lib/libtorch_cpu.so",
		"libtorch/2.13.0/torchgen/packaged/ATen/native/native_functions.yaml",
		"libtorch/2.13.0/wheels.json",
	}, sortLockFirst(tree(t, o.Cache)), "no wheel, no temporary folder, no Python, no CUDA is left")
	require.Contains(t, out.String(), "Downloading a wheel")
	require.Contains(t, out.String(), "unpacking torch 2.13.0 (")

	again, err := o.findTorch(t.Context())
	require.NoError(t, err)
	require.Equal(t, state, again)
	runs, err := os.ReadFile(filepath.Join(index, "runs"))
	require.NoError(t, err)
	require.Equal(t, "run\n", string(runs))
}

func sortLockFirst(files []string) []string {
	out := []string{}
	for _, f := range files {
		if f == "lock" {
			out = append([]string{f}, out...)
		} else {
			out = append(out, f)
		}
	}
	return out
}

func TestCUDAReplacesACPUInstall(t *testing.T) {
	o, _, _ := fixture(t)
	o.KeepWheels = true
	_, err := o.findTorch(t.Context())
	require.NoError(t, err)
	o.CUDA = CUDAOn
	state, err := o.findTorch(t.Context())
	require.NoError(t, err)
	require.True(t, state.CUDA)
	require.FileExists(t, filepath.Join(state.TorchDir, "lib/libtorch_cuda.so"))
	entries, err := os.ReadDir(filepath.Join(o.Cache, "libtorch"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "the old one is gone")
	wheels, err := filepath.Glob(filepath.Join(o.Cache, "download", "*.whl"))
	require.NoError(t, err)
	require.Len(t, wheels, 2)
}

func TestConcurrentSetUpsDownloadOnce(t *testing.T) {
	o, index, _ := fixture(t)
	var group sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		mine := o
		mine.Out = &bytes.Buffer{}
		group.Go(func() { _, errs[i] = mine.findTorch(context.Background()) })
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	runs, err := os.ReadFile(filepath.Join(index, "runs"))
	require.NoError(t, err)
	require.Equal(t, "run\n", string(runs))
}

func TestFailuresLeaveNothingAndSayWhatToDo(t *testing.T) {
	pip := func(message string) []string {
		return []string{"sh", "-c", `[ "$1" = --version ] && { echo pip; exit 0; }; echo "` + message + `" >&2; exit 1`, "pip"}
	}
	for name, test := range map[string]struct {
		change func(o *Options, index string)
		want   string
	}{
		"hash": {func(o *Options, _ string) { o.wheels[0].SHA256 = strings.Repeat("0", 64) }, "has SHA-256"},
		"hash, found by pip": {func(o *Options, _ string) {
			o.pip = pip("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    torch==2.13.0 from file:///w.whl:\n" +
				"        Expected sha256 60fc\n             Got        1234")
		}, "torch==2.13.0 from file:///w.whl: Expected sha256 60fc Got        1234 (a download is not the pinned file"},
		"network": {func(o *Options, _ string) {
			o.pip = pip("ERROR: Max retries exceeded: Temporary failure in name resolution")
		}, "check the network"},
		"disk":    {func(o *Options, _ string) { o.pip = pip("ERROR: [Errno 28] No space left on device") }, "set GOFSDP_CACHE"},
		"version": {func(o *Options, _ string) { o.pip = pip("ERROR: No matching distribution found for torch") }, "does not have this file"},
		"no pip":  {func(o *Options, _ string) { o.pip = []string{"gofsdp-no-such-python"} }, "apt-get install -y python3 python3-pip"},
		"no file": {func(o *Options, index string) { os.Remove(filepath.Join(index, "torch-2.13.0-py3-none-any.whl")) }, "no file for torch==2.13.0"},
		"not a libtorch": {func(o *Options, index string) {
			o.wheels[0] = makeWheel(t, index, "torch", TorchVersion, map[string]string{"torch/include/a.h": ""})
		}, "no libtorch"},
		"not a wheel": {func(o *Options, index string) {
			require.NoError(t, os.WriteFile(filepath.Join(index, "torch-2.13.0-py3-none-any.whl"), []byte("text"), 0o644))
			sum := sha256.Sum256([]byte("text"))
			o.wheels[0].SHA256 = hex.EncodeToString(sum[:])
		}, "not a valid zip file"},
		"a path out of the folder": {func(o *Options, index string) {
			files := torchFiles()
			files["torch/include/../../../../evil.h"] = "x"
			o.wheels[0] = makeWheel(t, index, "torch", TorchVersion, files)
		}, "evil.h"},
	} {
		t.Run(name, func(t *testing.T) {
			o, index, _ := fixture(t)
			test.change(&o, index)
			_, err := o.findTorch(t.Context())
			require.ErrorContains(t, err, test.want)
			require.NoDirExists(t, filepath.Join(o.Cache, "libtorch", TorchVersion))
			left, err := filepath.Glob(filepath.Join(o.Cache, "libtorch", ".unpack-*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestCancelled(t *testing.T) {
	o, _, _ := fixture(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	_, err := o.cachedTorch(ctx, false)
	require.Error(t, err)
	require.NoDirExists(t, filepath.Join(o.Cache, "libtorch", TorchVersion))

	unlock, err := lock(t.Context(), filepath.Join(o.Cache, "lock"), o.Out)
	require.NoError(t, err)
	defer unlock()
	_, err = lock(ctx, filepath.Join(o.Cache, "lock"), o.Out)
	require.ErrorIs(t, err, cause)
}

func TestInspectTorch(t *testing.T) {
	install := func(files map[string]string) string {
		dir := t.TempDir()
		for path, text := range files {
			path = filepath.Join(dir, path)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		return filepath.Join(dir, "torch")
	}
	without := func(name string) map[string]string {
		files := torchFiles()
		delete(files, "torch/include/torch/headeronly/version.h")
		delete(files, name)
		return files
	}
	state, err := inspectTorch(install(torchFiles()))
	require.NoError(t, err)
	require.Equal(t, "2.13.0", state.TorchVersion)
	require.True(t, state.CUDA)

	for file, text := range map[string]string{
		"torch/include/torch/csrc/api/include/torch/version.h": strings.Replace(versionHeader, "13", "11", 1),
		"torch/version.py":    "from typing import Optional\n__version__ = '2.11.0+cu130'\n",
		"torch/build-version": "2.11.0+cpu\n",
	} {
		files := without("")
		files[file] = text
		state, err := inspectTorch(install(files))
		require.NoError(t, err, file)
		require.Equal(t, "2.11.0", state.TorchVersion, file)
	}
	for version, want := range map[string]string{"2.10.1": "supports 2.11 to 2.13", "2.14.0": "supports", "3.12.0": "supports", "": "does not tell"} {
		files := without("")
		files["torch/build-version"] = version
		_, err := inspectTorch(install(files))
		require.ErrorContains(t, err, want, version)
	}
	_, err = inspectTorch(install(without("torch/lib/libc10.so")))
	require.ErrorContains(t, err, "libc10.so")
}

func TestTorchDirIsUsedAndChecked(t *testing.T) {
	o, index, _ := fixture(t)
	o.TorchDir = t.TempDir()
	_, err := o.findTorch(t.Context())
	require.ErrorContains(t, err, "GOFSDP_TORCH_DIR")
	require.NoFileExists(t, filepath.Join(index, "runs"))
	o.CUDA = "maybe"
	require.ErrorContains(t, o.fill(t.Context()), "cuda")
}

func TestStateIsReadBack(t *testing.T) {
	t.Setenv("GOFSDP_CACHE", filepath.Join(t.TempDir(), "new"))
	_, err := ReadState("")
	require.ErrorIs(t, err, fs.ErrNotExist)
	cache, err := CacheDir()
	require.NoError(t, err)
	want := State{TorchDir: "/t", TorchVersion: "2.13.0", CUDA: true, Library: "/l"}
	require.NoError(t, want.write(cache))
	got, err := ReadState("")
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, os.WriteFile(filepath.Join(cache, "setup.json"), []byte("{"), 0o644))
	_, err = ReadState("")
	require.ErrorContains(t, err, "run gofsdp setup again")
}

func TestMissingToolsAreNamedTogether(t *testing.T) {
	missing := func(context.Context) (string, error) { return "", errors.New("not found in PATH") }
	err := checkTools(t.Context(), []Tool{
		{Name: "cmake", Purpose: "builds the shim", Apt: []string{"cmake"}, check: missing},
		{Name: "sh", check: func(context.Context) (string, error) { return "", nil }},
		{Name: "g++", Purpose: "compiles the shim", Apt: []string{"g++"}, check: missing},
	})
	require.ErrorContains(t, err, "cmake, which builds the shim: not found in PATH; g++, which")
	require.ErrorContains(t, err, "apt-get install -y cmake g++")
	for _, tool := range Tools(t.Context()) {
		require.NotEmpty(t, tool.Name)
	}
}

func TestProgressAndFilter(t *testing.T) {
	var out bytes.Buffer
	p := &progress{out: &out, label: "unpacking", tty: true}
	p.start(10)
	_, err := p.Write(make([]byte, 5))
	require.NoError(t, err)
	require.Contains(t, out.String(), "[===============               ]  50 %")
	_, err = p.Write(make([]byte, 5))
	require.NoError(t, err)
	p.finish()
	require.Contains(t, out.String(), "100 %\n")

	out.Reset()
	f := &lineFilter{out: &out, keep: keepCMakeLine}
	for _, part := range []string{"[ 1%] Buil", "ding CXX object a.o\n[ 2%] Built target a\n", "-- libtorch 2.13.0: d\n-- Done\n"} {
		_, err := f.Write([]byte(part))
		require.NoError(t, err)
	}
	require.Equal(t, "[ 1%] Building CXX object a.o\n-- libtorch 2.13.0: d\n", out.String())
	require.False(t, isTerminal(&out))
}

func TestBuildDirAndMovedBuild(t *testing.T) {
	o, _, _ := fixture(t)
	dir, err := o.buildDir(State{})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(o.Module, "build"), dir)

	cache := filepath.Join(dir, "CMakeCache.txt")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "CMakeFiles"), 0o755))
	write := func(home, here string) {
		require.NoError(t, os.WriteFile(cache, []byte("CMAKE_HOME_DIRECTORY:INTERNAL="+home+"\nCMAKE_CACHEFILE_DIR:INTERNAL="+here+"\n"), 0o644))
	}
	write(o.Module, dir)
	require.NoError(t, o.forgetMoved(dir))
	require.FileExists(t, cache)
	write("/elsewhere", dir)
	require.NoError(t, o.forgetMoved(dir))
	require.NoFileExists(t, cache)
	require.NoDirExists(t, filepath.Join(dir, "CMakeFiles"))

	o.Module = "/mod/github.com/gofsdp/gofsdp@v1.2.3"
	dir, err = o.buildDir(State{TorchVersion: "2.13.0"})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(o.Cache, "build", "gofsdp@v1.2.3-torch2.13.0"), dir)
}

func TestModuleRoot(t *testing.T) {
	root, err := moduleRoot(t.Context())
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "go.mod"))
	require.FileExists(t, filepath.Join(root, "CMakeLists.txt"))
	t.Chdir(t.TempDir())
	_, err = moduleRoot(t.Context())
	require.ErrorContains(t, err, "go get "+ModulePath)
}
