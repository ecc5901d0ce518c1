package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"

	"github.com/gofsdp/gofsdp/internal/setup"
)

// embedVersion is the version under which the tests publish the sources.
var embedVersion = module.Version{Path: setup.ModulePath, Version: "v1.0.0-embedtest"}

// maxModuleZip bounds what every service that embeds gofsdp downloads. Test data has a go.mod of its own and stays out.
const maxModuleZip = 3 << 20

// zipFile is one file of the sources, as modzip wants it.
type zipFile struct{ root, path string }

func (f zipFile) Path() string                 { return f.path }
func (f zipFile) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join(f.root, f.path)) }
func (f zipFile) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(f.root, f.path)) }

// sources lists the files that a commit of this work copy would hold: what .gitignore and .dockerignore name is left out.
func sources(t *testing.T, root string) []modzip.File {
	var files []modzip.File
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (slices.Contains([]string{".git", "build", "runs", "shared"}, rel) || d.Name() == "__pycache__"):
			return filepath.SkipDir
		case d.Type().IsRegular() && rel != ".git" && filepath.Ext(rel) != ".test" && filepath.Ext(rel) != ".prof":
			files = append(files, zipFile{root, filepath.ToSlash(rel)})
		}
		return nil
	}))
	return files
}

// service is a module of somebody else's, in a home without anything: it gets gofsdp from a file GOPROXY.
type service struct {
	dir string
	env []string
	zip string // the module zip of gofsdp
}

const serviceMain = `package main

import (
	"fmt"
	"os"

	"github.com/gofsdp/gofsdp/torch"
)

func main() {
	if err := torch.LoadLibrary(); err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
	fmt.Println(torch.Ones(torch.Float32, 2, 2).Sum().Item())
}
`

func newService(t *testing.T) *service {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	base := t.TempDir()
	s := &service{dir: filepath.Join(base, "service")}

	// The proxy is a folder: list, info, mod and zip of one version.
	versions := filepath.Join(base, "proxy", filepath.FromSlash(setup.ModulePath), "@v")
	require.NoError(t, os.MkdirAll(versions, 0o755))
	write := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	write(filepath.Join(versions, "list"), embedVersion.Version+"\n")
	write(filepath.Join(versions, embedVersion.Version+".info"), fmt.Sprintf(`{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, embedVersion.Version))
	write(filepath.Join(versions, embedVersion.Version+".mod"), string(goMod))
	s.zip = filepath.Join(versions, embedVersion.Version+".zip")
	out, err := os.Create(s.zip)
	require.NoError(t, err)
	require.NoError(t, errors.Join(modzip.Create(out, embedVersion, sources(t, root)), out.Close()))

	// Other modules come from this machine's module cache. The compiler's cache is the one thing that is shared: it holds
	// the standard library.
	goEnv := func(name string) string {
		value, err := exec.Command("go", "env", name).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(value))
	}
	home := filepath.Join(base, "home")
	require.NoError(t, os.MkdirAll(home, 0o755))
	s.env = []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "GOCACHE=" + goEnv("GOCACHE"), "GOFLAGS=", "GOTOOLCHAIN=local", "GOWORK=off",
		"GOPROXY=file://" + filepath.Join(base, "proxy") + ",file://" + filepath.Join(goEnv("GOMODCACHE"), "cache/download") + "," + goEnv("GOPROXY"),
		"GOSUMDB=off", "GOENV=off", "OMP_NUM_THREADS=1",
	}
	t.Cleanup(func() { // the module cache is read-only
		_, err := s.run("go", "clean", "-modcache")
		require.NoError(t, err)
	})
	write(filepath.Join(s.dir, "main.go"), serviceMain)
	write(filepath.Join(s.dir, "go.mod"), "module example.org/service\n\ngo 1.26.0\n")
	s.must(t, "go", "get", setup.ModulePath+"/torch@"+embedVersion.Version)
	return s
}

// run runs a program in the service's folder and home, and returns what it printed.
func (s *service) run(program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (s *service) must(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := s.run(program, args...)
	require.NoError(t, err)
	return out
}

// A service that embeds gofsdp needs `go get` and nothing else to build, and hears at its start what is missing.
func TestEmbeddingBuildsWithNothingInstalled(t *testing.T) {
	s := newService(t)
	info, err := os.Stat(s.zip)
	require.NoError(t, err)
	t.Logf("module zip: %d bytes", info.Size())
	require.Less(t, info.Size(), int64(maxModuleZip), "large test data belongs into testdata/, which is a module of its own")

	root := strings.TrimSpace(s.must(t, "go", "list", "-m", "-f", "{{.Dir}}", setup.ModulePath))
	require.Equal(t, "gofsdp@"+embedVersion.Version, filepath.Base(root))
	for _, needed := range []string{"CMakeLists.txt", "cmake/FindLibtorch.cmake", "csrc/op.cc", "csrc/gloo_fwd/gloo/config.h", "internal/capi/gofsdp.h"} {
		require.FileExists(t, filepath.Join(root, needed))
	}
	require.NoDirExists(t, filepath.Join(root, "testdata"))

	s.must(t, "go", "build", "-o", "service", ".")
	_, err = s.run("./service")
	for _, want := range []string{"exit status 1", "libgofsdp.so could not be loaded", "GOFSDP_LIB",
		"run `go run " + setup.ModulePath + "/cmd/gofsdp@" + embedVersion.Version + " setup`",
		"/home/.cache/gofsdp/lib/gofsdp@" + embedVersion.Version + "/libgofsdp.so: no such file"} {
		require.ErrorContains(t, err, want)
	}
}
