package setup

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A download that was cut off is made again, whatever it left behind.
func TestInterruptedDownloadIsMadeAgain(t *testing.T) {
	o, index, _ := fixture(t)
	good := o.pip
	// The network breaks after a part of torch.
	o.pip = []string{"sh", "-c", `[ "$1" = --version ] && { echo pip; exit 0; }
while [ "$1" != --dest ]; do shift; done
head -c 100 ` + index + `/torch-*.whl > "$2"/torch-2.13.0-py3-none-any.whl; echo "ERROR: Connection broken" >&2; exit 2`, "pip"}
	_, err := o.findTorch(t.Context())
	require.ErrorContains(t, err, "check the network")
	require.NoDirExists(t, o.home())

	// And the next process is killed while pip runs and while it unpacks: nobody cleans up.
	for _, litter := range []string{"pip-killed/torch.whl", "libtorch/.unpack-killed/torch/lib/libc10.so", "libtorch/.unpack-killed-old/x"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(o.Cache, litter)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(o.Cache, litter), []byte("part"), 0o644))
	}
	o.pip = good
	state, err := o.findTorch(t.Context())
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(state.TorchDir, "lib/libtorch_cpu.so"))
	for _, pattern := range []string{"pip-*", "libtorch/.unpack-*", "download/*"} {
		left, err := filepath.Glob(filepath.Join(o.Cache, pattern))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// Cancelling the context ends pip, and leaves nothing that looks like a libtorch.
func TestCancellingEndsTheDownload(t *testing.T) {
	o, _, _ := fixture(t)
	o.pip = []string{"sh", "-c", `[ "$1" = --version ] && { echo pip; exit 0; }; exec sleep 60`, "pip"}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := o.findTorch(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(start), 20*time.Second)
	require.NoDirExists(t, o.home())
	unlock, err := lock(t.Context(), filepath.Join(o.Cache, "lock"), o.Out)
	require.NoError(t, err, "the lock is free again")
	unlock()
}

func TestCacheThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	for _, cache := range []string{filepath.Join(file, "cache"), "/proc/gofsdp"} {
		_, err := Run(t.Context(), Options{Module: t.TempDir(), Cache: cache, Out: os.Stderr})
		require.ErrorContains(t, err, "the cache folder cannot be written")
		require.ErrorContains(t, err, "set GOFSDP_CACHE")
	}
}

func TestFullDisk(t *testing.T) {
	require.NoError(t, checkDisk(t.TempDir(), 1))
	err := checkDisk(t.TempDir(), math.MaxUint64)
	require.ErrorContains(t, err, "set GOFSDP_CACHE to a folder on another disk")
	err = diskError(fmt.Errorf("unpack torch.whl: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}))
	require.ErrorContains(t, err, "free some space")
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, diskError(nil))
}

func TestTorchVersions(t *testing.T) {
	for asked, want := range map[string]string{"": TorchVersion, "2.11": "2.11.0", "2.12": "2.12.1", "2.12.0": "2.12.0", "2.13.0": "2.13.0"} {
		got, err := fullVersion(asked)
		require.NoError(t, err, asked)
		require.Equal(t, want, got)
	}
	for asked, want := range map[string]string{
		"2.10": "gofsdp supports 2.11 to 2.13", "2.14.0": "libtorch 2.14.0 was asked for", "x": "want one such as",
		"../2.13.0": "want one such as", "2.13.0.1": "three numbers", "2": "supports",
	} {
		_, err := fullVersion(asked)
		require.ErrorContains(t, err, want, asked)
	}
	t.Setenv(IgnoreVersionEnv, "1")
	got, err := fullVersion("2.14.0")
	require.NoError(t, err)
	require.Equal(t, "2.14.0", got)
}

// The version that was asked for is the one that is used, or the error names both.
func TestAskedVersionAndInstalledOne(t *testing.T) {
	o, _, _ := fixture(t)
	installed, err := o.findTorch(t.Context())
	require.NoError(t, err)

	mine := Options{Module: o.Module, Cache: t.TempDir(), TorchDir: installed.TorchDir, TorchVersion: "2.12", Out: o.Out}
	require.NoError(t, mine.fill(t.Context()))
	_, err = mine.findTorch(t.Context())
	require.ErrorContains(t, err, "libtorch 2.12.1 was asked for")
	require.ErrorContains(t, err, "has 2.13.0")
	mine.TorchVersion = "2.13.0"
	state, err := mine.findTorch(t.Context())
	require.NoError(t, err)
	require.Equal(t, installed, State{TorchDir: state.TorchDir, TorchVersion: state.TorchVersion})

	// Each version has a folder of its own in the cache.
	o.TorchVersion = "2.12.1"
	require.Equal(t, filepath.Join(o.Cache, "libtorch/2.12.1"), o.home())
	list, err := Plan(t.Context(), Options{Module: o.Module, Cache: o.Cache, TorchVersion: "2.12", CUDA: CUDAOff, Out: o.Out})
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, "2.12.1", list[0].Version)
	list, err = Plan(t.Context(), Options{Module: o.Module, Cache: o.Cache, CUDA: CUDAOff, Out: o.Out})
	require.NoError(t, err)
	require.Empty(t, list, "it is there")
	list, err = Plan(t.Context(), Options{Module: o.Module, Cache: o.Cache, CUDA: CUDAOn, Out: o.Out})
	require.NoError(t, err)
	require.Len(t, list, 16, "what is there has no CUDA")
}

// A folder with libtorch_cuda.so that lacks NVIDIA's libraries will not do for CUDA.
func TestCUDANeedsItsWheels(t *testing.T) {
	o, _, _ := fixture(t)
	o.CUDA = CUDAOn
	state, err := o.findTorch(t.Context())
	require.NoError(t, err)
	require.True(t, state.CUDA)
	for _, note := range []string{"{", `{"cuda": false}`} {
		require.NoError(t, os.WriteFile(filepath.Join(o.home(), installedFile), []byte(note), 0o644))
		state, ok := o.cached(true)
		require.False(t, ok)
		require.False(t, state.CUDA)
		_, ok = o.cached(false)
		require.True(t, ok)
	}
}

// Sources that cannot be written to, such as a module in Go's cache or a mounted image, are built in the cache.
func TestReadOnlySourcesAreBuiltInTheCache(t *testing.T) {
	o, _, _ := fixture(t)
	require.NoError(t, os.WriteFile(filepath.Join(o.Module, "build"), []byte("a file is in the way"), 0o644))
	dir, err := o.buildDir(State{TorchVersion: "2.12.1"})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(o.Cache, "build"), filepath.Dir(dir))
	require.Regexp(t, `-[0-9a-f]{8}-torch2\.12\.1$`, dir)

	library := filepath.Join(dir, "libgofsdp.so")
	require.NoError(t, o.publish(library))
	require.NoError(t, o.publish(library), "once more")
	for _, link := range []string{"lib/libgofsdp.so", filepath.Join("lib", filepath.Base(o.Module), "libgofsdp.so")} {
		target, err := os.Readlink(filepath.Join(o.Cache, link))
		require.NoError(t, err)
		require.Equal(t, library, target)
	}
}

// Another set-up holds the lock: this one waits for it, and says so.
func TestSetUpWaitsForAnother(t *testing.T) {
	o, _, out := fixture(t)
	unlock, err := lock(t.Context(), filepath.Join(o.Cache, "lock"), o.Out)
	require.NoError(t, err)
	time.AfterFunc(300*time.Millisecond, unlock)
	_, err = o.findTorch(t.Context())
	require.NoError(t, err)
	require.Contains(t, out.String(), fmt.Sprintf("waiting for another set-up (process %d) to finish", os.Getpid()))
}
