//go:build long

package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/setup"
)

// Two set-ups at once, from the read-only module cache into an empty home, build the shim once; the service then runs
// without being told where it is. libtorch is the one of this machine's set-up: it is not downloaded again.
func TestEmbeddingSetUpFromTheModuleCache(t *testing.T) {
	state, err := setup.ReadState("")
	require.NoError(t, err)
	s := newService(t)
	s.env = append(s.env, "GOFSDP_TORCH_DIR="+state.TorchDir)
	command := setup.ModulePath + "/cmd/gofsdp"
	s.must(t, "go", "install", command+"@"+embedVersion.Version)
	home := strings.TrimPrefix(s.env[0], "HOME=")
	installed := filepath.Join(home, "go/bin/gofsdp")
	plan := s.must(t, "go", "run", command+"@"+embedVersion.Version, "setup", "--dry-run")
	require.Contains(t, plan, "# 0 files")

	s.must(t, "go", "get", command) // go.sum then knows its dependencies, and the command needs no version
	var group sync.WaitGroup
	var out [2]string
	var errs [2]error
	commands := [2][]string{{"go", "run", command, "setup"}, {installed, "setup"}}
	for i, command := range commands {
		group.Go(func() { out[i], errs[i] = s.run(command[0], command[1:]...) })
	}
	group.Wait()
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	require.Equal(t, 1, strings.Count(out[0]+out[1], "Linking CXX shared library libgofsdp.so"), "%s\n%s", out[0], out[1])
	require.Contains(t, out[0]+out[1], "waiting for another set-up")

	shim := filepath.Join(home, ".cache/gofsdp/build/gofsdp@"+embedVersion.Version+"-torch"+state.TorchVersion, "libgofsdp.so")
	require.FileExists(t, shim)
	s.must(t, "go", "build", "-o", "service", ".")
	require.Equal(t, "4\n", s.must(t, "./service"))
	require.NoError(t, os.Remove(filepath.Join(home, ".cache/gofsdp/lib/libgofsdp.so")))
	require.Equal(t, "4\n", s.must(t, "./service"), "by its version alone")
	require.Contains(t, s.must(t, "go", "mod", "verify"), "all modules verified", "nothing was written into the module cache")

	// The installed command knows its version, wherever it runs.
	program := filepath.Join(s.dir, "service")
	s.dir = home
	require.Contains(t, s.must(t, installed, "setup"), "shim: "+shim)
	require.Equal(t, "4\n", s.must(t, program))
	require.Contains(t, s.must(t, installed, "doctor"), shim)
}

// A vendor folder holds Go packages only: set-up finds the C++ sources in the module cache.
func TestEmbeddingVendored(t *testing.T) {
	state, err := setup.ReadState("")
	require.NoError(t, err)
	s := newService(t)
	s.env = append(s.env, "GOFSDP_TORCH_DIR="+state.TorchDir)
	s.must(t, "go", "install", setup.ModulePath+"/cmd/gofsdp@"+embedVersion.Version)
	s.must(t, "go", "mod", "vendor")
	require.NoDirExists(t, filepath.Join(s.dir, "vendor", setup.ModulePath, "csrc"))
	s.must(t, "go", "build", ".")
	home := strings.TrimPrefix(s.env[0], "HOME=")
	require.Contains(t, s.must(t, filepath.Join(home, "go/bin/gofsdp"), "setup", "--dry-run"), "# 0 files")
}
