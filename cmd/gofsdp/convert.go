package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/convert"
	"github.com/gofsdp/gofsdp/modelio/fetch"
	"github.com/gofsdp/gofsdp/sft/progress"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// smollm2 is the name of the model that convert can download.
const smollm2 = "smollm2"

// convertCmd is `gofsdp convert`.
type convertCmd struct {
	Source       string   `arg:"" name:"src" help:"A GGUF file, or smollm2: SmolLM2-135M-Instruct, downloaded once into the user's cache."`
	Out          string   `arg:"" name:"out" help:"The model folder to write, in the Hugging Face layout."`
	DType        string   `name:"dtype" enum:"bf16,f16,f32" default:"bf16" help:"Type of the weights: bf16, f16 or f32."`
	MaxShardSize byteSize `name:"max_shard_size" default:"5GB" help:"Largest weights file, such as 500MB or 2GiB."`
	Force        bool     `name:"force" help:"Replace a model folder that is there already."`
}

// Run writes the folder.
func (c *convertCmd) Run(ctx context.Context) error {
	state, err := describeFolder(c.Out)
	if err != nil {
		return err
	}
	if state != "" && !c.Force {
		fmt.Printf("%s is there already (%s); --force writes it again\n", c.Out, state)
		return nil
	}
	show := newMeter(os.Stderr, term.IsTerminal(int(os.Stderr.Fd())))
	defer show.close()
	source := c.Source
	if _, err := os.Stat(source); errors.Is(err, fs.ErrNotExist) {
		if source != smollm2 {
			return fmt.Errorf("convert: there is no file %s; give a GGUF file, or %s", source, smollm2)
		}
		if source, err = fetch.SmolLM2(ctx, "", show.at); err != nil {
			return err
		}
	}
	target := c.Out
	if state != "" { // the old folder stays until the new one is complete
		target = filepath.Clean(c.Out) + ".new"
		if err := os.RemoveAll(target); err != nil {
			return err
		}
	}
	err = convert.Convert(ctx, source, target, convert.Options{
		DType: c.DType, MaxShardBytes: int64(c.MaxShardSize), Progress: func(done, total int64) { show.at("convert", done, total) },
	})
	if err != nil {
		return err
	}
	if target != c.Out {
		if err := errors.Join(os.RemoveAll(c.Out), os.Rename(target, c.Out)); err != nil {
			return fmt.Errorf("convert: replace %s: %w", c.Out, err)
		}
	}
	show.close()
	if state, err = describeFolder(c.Out); err != nil {
		return err
	}
	fmt.Printf("wrote %s (%s)\n", c.Out, state)
	return nil
}

// describeFolder says in words which model is in a folder; "" if the folder is absent or empty. A folder with anything
// else is an error: it would be in the way.
func describeFolder(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("convert: %w", err)
	}
	m, err := modelio.Open(dir)
	if err != nil {
		return "", fmt.Errorf("convert: %s is not empty, and no complete model: %w", dir, err)
	}
	defer m.Close()
	size := int64(0)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && strings.HasSuffix(entry.Name(), ".safetensors") {
			size += info.Size()
		}
	}
	return fmt.Sprintf("%d layers, %s, %s", m.Config.NumHiddenLayers, m.Config.DType, progress.Bytes(size)), nil
}

// byteSize is a number of bytes, written as transformers does: 5GB, 500MB (powers of 1000), 2GiB (powers of 1024).
type byteSize int64

// UnmarshalText reads a size.
func (b *byteSize) UnmarshalText(text []byte) error {
	s := strings.ToUpper(strings.TrimSpace(string(text)))
	unit := 1.0
	for _, u := range []struct {
		suffix string
		size   float64
	}{{"GIB", 1 << 30}, {"MIB", 1 << 20}, {"KIB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}} {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n*unit >= 1) || n*unit > 1<<62 {
		return fmt.Errorf("%q is not a size such as 5GB or 500MB", text)
	}
	*b = byteSize(n * unit)
	return nil
}

// meter shows how far the steps of a job are, in bytes: a bar on a terminal, a line per step elsewhere.
type meter struct {
	out      io.Writer
	terminal bool
	step     string
	bar      *progressbar.ProgressBar
}

func newMeter(out io.Writer, terminal bool) *meter { return &meter{out: out, terminal: terminal} }

// at reports a position; another step than before begins a new bar.
func (m *meter) at(step string, done, total int64) {
	if step != m.step {
		m.close()
		m.step = step
		if m.terminal {
			m.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(m.out), progressbar.OptionSetDescription(fmt.Sprintf("%-9s", step)),
				progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100*time.Millisecond),
				progressbar.OptionClearOnFinish())
		} else {
			fmt.Fprintf(m.out, "%s (%s)\n", step, progress.Bytes(total))
		}
	}
	if m.bar != nil {
		_ = m.bar.Set64(done)
	}
}

// close ends the running step.
func (m *meter) close() {
	if m.bar != nil {
		_ = m.bar.Clear()
	}
	m.bar, m.step = nil, ""
}
