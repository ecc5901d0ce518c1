package setup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// build configures and builds the shim, and returns the path of libgofsdp.so. Where everything is up to date,
// this takes a moment.
func (o *Options) build(ctx context.Context, torch State) (string, error) {
	dir, err := o.buildDir(torch)
	if err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(dir, ".gofsdp-setup.lock"), o.Out)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := o.forgetMoved(dir); err != nil {
		return "", err
	}

	configure := []string{"-S", o.Module, "-B", dir, "-DGOFSDP_TORCH_DIR=" + torch.TorchDir}
	fromCache := strings.HasPrefix(dir, o.Cache+string(filepath.Separator))
	if fromCache {
		configure = append(configure, "-DGOFSDP_TESTS=OFF")
	}
	if o.Werror {
		configure = append(configure, "-DGOFSDP_WERROR=ON")
	}
	if o.ASan {
		configure = append(configure, "-DGOFSDP_ASAN=ON")
	}
	if err := o.cmake(ctx, configure...); err != nil {
		return "", err
	}
	if err := o.cmake(ctx, "--build", dir, "-j", fmt.Sprint(o.jobs())); err != nil {
		return "", err
	}
	library := filepath.Join(dir, "libgofsdp.so")
	if _, err := os.Stat(library); err != nil {
		return "", fmt.Errorf("cmake built no library: %w", err)
	}
	if fromCache && o.BuildDir == "" && !o.ASan {
		return library, o.publish(library)
	}
	return library, nil
}

// buildDir chooses where to build: in the sources, or, if those are read-only as in Go's module cache, in our cache
// under a name that tells the versions of the module and of libtorch.
func (o *Options) buildDir(torch State) (string, error) {
	if o.BuildDir != "" {
		return filepath.Abs(o.BuildDir)
	}
	name := filepath.Base(o.Module)
	if !strings.Contains(name, "@") {
		dir := filepath.Join(o.Module, "build")
		if os.MkdirAll(dir, 0o755) == nil && syscall.Access(dir, 2) == nil { // W_OK
			return dir, nil
		}
		name += fmt.Sprintf("-%x", sha256.Sum256([]byte(o.Module)))[:9]
	}
	return filepath.Join(o.Cache, "build", name+"-torch"+torch.TorchVersion), nil
}

// publish makes a library that was built in the cache the one that programs find: those with this version of the module,
// and those that do not know theirs.
func (o *Options) publish(library string) error {
	lib := filepath.Join(o.Cache, "lib")
	for _, dir := range []string{filepath.Join(lib, filepath.Base(o.Module)), lib} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		temp := filepath.Join(dir, fmt.Sprintf(".libgofsdp-%d.so", os.Getpid()))
		_ = os.Remove(temp) // left by a process of this number that was killed
		if err := os.Symlink(library, temp); err != nil {
			return err
		}
		if err := os.Rename(temp, filepath.Join(dir, "libgofsdp.so")); err != nil {
			return err
		}
	}
	return nil
}

// forgetMoved removes CMake's memory of a build folder that was copied here from elsewhere: CMake refuses it.
func (o *Options) forgetMoved(dir string) error {
	cache := filepath.Join(dir, "CMakeCache.txt")
	data, err := os.ReadFile(cache)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	home := regexp.MustCompile(`(?m)^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$`).FindSubmatch(data)
	here := regexp.MustCompile(`(?m)^CMAKE_CACHEFILE_DIR:INTERNAL=(.*)$`).FindSubmatch(data)
	if home != nil && string(home[1]) == o.Module && here != nil && string(here[1]) == dir {
		return nil
	}
	return errors.Join(os.Remove(cache), os.RemoveAll(filepath.Join(dir, "CMakeFiles")))
}

// cmake runs CMake and shows what it compiles; its whole output appears only if it fails.
func (o *Options) cmake(ctx context.Context, args ...string) error {
	var output lockedBuffer
	cmd := exec.CommandContext(ctx, "cmake", args...)
	cmd.Stdout = io.MultiWriter(&lineFilter{out: o.Out, keep: keepCMakeLine}, &output)
	cmd.Stderr = &output
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("cmake %s: %w\n%s", strings.Join(args, " "), err, tail(output.String(), 60))
	}
	return nil
}

// lockedBuffer collects a program's output and error output, which exec copies in two goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is what was written; the program must have ended.
func (b *lockedBuffer) String() string { return b.buf.String() }

func keepCMakeLine(line string) bool {
	return strings.Contains(line, "Building") || strings.Contains(line, "Linking") || strings.HasPrefix(line, "-- libtorch")
}

// jobs is the number of compilers: a file that includes ATen takes up to 1.5 GB.
func (o *Options) jobs() int {
	if o.Jobs > 0 {
		return o.Jobs
	}
	jobs := runtime.NumCPU()
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int
		if _, rest, ok := strings.Cut(string(data), "MemAvailable:"); ok {
			if _, err := fmt.Sscan(rest, &kb); err == nil {
				jobs = min(jobs, kb/1_500_000)
			}
		}
	}
	return max(jobs, 1)
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(len(all)-lines, 0):], "\n")
}
