// Package peer gives what gofsdp is compared with: a Python that has PyTorch, PEFT, bitsandbytes and transformers at fixed
// versions, and a small real model. Both are made once per user, from the package index.
package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/convert"
	"github.com/gofsdp/gofsdp/modelio/fetch"
)

// Python gives the path of a Python interpreter with the peers' packages in it: the one in GOFSDP_PEERS_PYTHON, or the
// one that scripts/peers-venv, in the repository at root, makes. What the script says while it installs goes to log.
func Python(ctx context.Context, root string, log io.Writer) (string, error) {
	if python := os.Getenv("GOFSDP_PEERS_PYTHON"); python != "" {
		return python, nil
	}
	var path bytes.Buffer
	script := Command(ctx, filepath.Join(root, "scripts", "peers-venv"))
	script.Stdout, script.Stderr = &path, log
	if err := script.Run(); err != nil {
		return "", fmt.Errorf("the peers' virtual environment: %s: %w", script.Path, err)
	}
	return strings.TrimSpace(path.String()), nil
}

// Model gives a folder that holds SmolLM2-135M-Instruct in bf16, and makes it if it is not there.
func Model(ctx context.Context) (string, error) {
	models, err := fetch.DefaultDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(models, "SmolLM2-135M-Instruct-bf16")
	if complete(dir) {
		return dir, nil
	}
	gguf, err := fetch.SmolLM2(ctx, models, nil)
	if err != nil {
		return "", err
	}
	// Convert renames a complete folder into place; another program may have done so in the meantime.
	if err := convert.Convert(ctx, gguf, dir, convert.Options{}); err != nil && !complete(dir) {
		return "", err
	}
	return dir, nil
}

func complete(dir string) bool {
	m, err := modelio.Open(dir)
	if err != nil {
		return false
	}
	return m.Close() == nil
}

// Root gives the repository's folder, which is the working directory or one above it.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "testdata", "goldens", "README.md")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside a clone of gofsdp: no testdata/goldens here or above")
		}
		dir = parent
	}
}

// Command is a program in a process group of its own, so that the end of ctx ends its children (ranks) as well.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}
