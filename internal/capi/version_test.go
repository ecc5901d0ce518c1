//go:build cgo

package capi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// compileLibrary makes a shared library of C source.
func compileLibrary(t *testing.T, path, source string, flags ...string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	cmd := exec.Command("cc", append(flags, "-shared", "-fPIC", "-x", "c", "-", "-o", path)...)
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// fakeTorch is a libtorch_cpu.so that tells a version. It has no SONAME, so that the real library does not bind to it.
func fakeTorch(t *testing.T, folder string, major, minor, patch uint64) {
	compileLibrary(t, filepath.Join(folder, torchLibrary),
		"unsigned long aoti_torch_abi_version(void) { return "+strconv.FormatUint(major<<56|minor<<48|patch<<40, 10)+"ul; }")
}

// fakeShim is a libgofsdp.so that was built for a version and searches in runpath.
func fakeShim(t *testing.T, path, version, runpath string) {
	compileLibrary(t, path, `__attribute__((used, section(".gofsdp.torch"))) const char version[] = "`+version+`";`,
		"-Wl,--enable-new-dtags,-rpath,"+runpath)
}

func TestLibraryForAnotherTorchIsNamed(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "")
	t.Setenv(ignoreVersionEnv, "")
	dir := t.TempDir()
	shim := filepath.Join(dir, "build", libraryName)
	fakeShim(t, shim, "2.13.0", filepath.Join(dir, "none")+":$ORIGIN/../torch")
	require.NoError(t, checkTorch(shim), "no libtorch there: the system's loader says so")

	fakeTorch(t, filepath.Join(dir, "torch"), 2, 13, 1)
	require.NoError(t, checkTorch(shim), "of the same minor release")
	link := filepath.Join(t.TempDir(), libraryName)
	require.NoError(t, os.Symlink(shim, link))

	fakeTorch(t, filepath.Join(dir, "other"), 2, 11, 0)
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(dir, "other"))
	for _, path := range []string{shim, link} {
		var mismatch *VersionError
		require.ErrorAs(t, checkTorch(path), &mismatch)
		require.Equal(t, VersionError{Library: path, Expected: "2.13.0", Torch: filepath.Join(dir, "other", torchLibrary), Found: "2.11.0"}, *mismatch)
		for _, want := range []string{"built for libtorch 2.13.0", "found libtorch 2.11.0", "gofsdp setup", ignoreVersionEnv + "=1"} {
			require.ErrorContains(t, mismatch, want)
		}
	}
	t.Setenv(ignoreVersionEnv, "1")
	require.NoError(t, checkTorch(shim))
	t.Setenv(ignoreVersionEnv, "")

	t.Setenv("LD_LIBRARY_PATH", "")
	require.NoError(t, checkTorch(link), "$ORIGIN is the folder of the file itself")

	compileLibrary(t, filepath.Join(dir, "old", torchLibrary), "")
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(dir, "old"))
	require.ErrorContains(t, checkTorch(shim), "found libtorch of an unknown version")

	require.NoError(t, os.MkdirAll(filepath.Join(dir, "broken"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broken", torchLibrary), []byte("text"), 0o644))
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(dir, "broken"))
	require.ErrorContains(t, checkTorch(shim), "built for libtorch 2.13.0: ")

	require.NoError(t, os.WriteFile(shim, []byte("no library"), 0o644))
	require.NoError(t, checkTorch(shim), "dlopen will say what it is")
}

func TestLibraryRunsWithTheTorchItWasBuiltFor(t *testing.T) {
	require.NoError(t, Load())
	text, err := Versions()
	require.NoError(t, err)
	first, _, _ := strings.Cut(text, "\n")
	require.Regexp(t, `^built 2\.\d+\.\d+, running 2\.\d+\.\d+$`, first)
	require.NoError(t, checkRunning(libraryName))
}

// A program that was built from a version of the module finds what was built for that version.
func TestCandidates(t *testing.T) {
	t.Setenv("GOFSDP_LIB", "")
	t.Setenv("GOFSDP_CACHE", "/cache")
	list := candidates()
	require.Contains(t, list, "/cache/lib/"+libraryName)
	require.Equal(t, libraryName, list[len(list)-1])
	t.Setenv("GOFSDP_LIB", "/one")
	require.Equal(t, []string{"/one"}, candidates())
}
