package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/tokenizer"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// tolerance of logits, which are around 1: both sides compute in fp32 and add in another order.
const tolerance = 2e-5

// loaded is a model without shards.
type loaded struct{ model *llama.Model }

func (s *session) loadModel(ctx context.Context, dir string) (*loaded, error) {
	files, err := modelio.Open(dir)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	m, err := llama.New(files.Config, llama.Options{DType: torch.Float32})
	if err != nil {
		return nil, err
	}
	return &loaded{m}, llama.Load(ctx, m, files.Weights, llama.LoadOptions{})
}

func (l *loaded) free() {
	for _, p := range nn.Params(l.model) {
		p.Tensor().Free()
	}
}

// promptLen tokens of the golden batch are in both of its rows; what follows is padding in one.
const promptLen = 64

// logits runs the model on the first promptLen tokens of the golden batch.
func (s *session) logits(m *llama.Model) (data []byte, shape []int64, err error) {
	file, err := safetensors.Open(filepath.Join(s.goldens, "tiny", "plain", "forward.safetensors"))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	view, err := file.Tensor("input_ids")
	if err != nil {
		return nil, nil, err
	}
	err = torch.Try(func() {
		torch.NoGrad(func() {
			scope := torch.NewScope(nil)
			defer scope.Close()
			ids := scope.Own(torch.FromBytes(torch.Int32, view.Data, view.Shape...)).Narrow(1, 0, promptLen).To(torch.Int64)
			out := nn.Run(m, &nn.Call{Scope: scope}, llama.Input{IDs: ids, Logits: true})
			data, shape = out.Logits.Bytes(), out.Logits.Shape()
		})
	})
	return data, shape, err
}

// compareLogits runs the model and compares with the tensor logits in a file.
func (s *session) compareLogits(m *llama.Model, path string) error {
	got, shape, err := s.logits(m)
	if err != nil {
		return err
	}
	file, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	want, err := file.Tensor("logits")
	if err != nil {
		return err
	}
	if want.DType != "F32" || !slices.Equal(want.Shape, shape) {
		return fmt.Errorf("logits are F32 %v, in %s %s %v", shape, path, want.DType, want.Shape)
	}
	for i := 0; i < len(got); i += 4 {
		a, b := float64(float32At(got[i:])), float64(float32At(want.Data[i:]))
		// Written so that NaN fails.
		if !(math.Abs(a-b) <= tolerance*max(1, math.Abs(b))) {
			return fmt.Errorf("logit %d is %v, in %s %v", i/4, a, path, b)
		}
	}
	return nil
}

func float32At(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

// readModels loads the folders that transformers saved (in several files, with tied embeddings, with scaled RoPE).
func (s *session) readModels(ctx context.Context) error {
	return each(filepath.Join(s.theirs, "models"), func(dir string) error {
		m, err := s.loadModel(ctx, dir)
		if err != nil {
			return err
		}
		defer m.free()
		return s.compareLogits(m.model, filepath.Join(dir, "expected", "logits.safetensors"))
	})
}

// readAdapters loads the adapters that PEFT saved.
func (s *session) readAdapters(ctx context.Context) error {
	return each(filepath.Join(s.theirs, "adapters"), func(dir string) error {
		m, err := s.loadModel(ctx, filepath.Join(s.goldens, "tiny", "plain"))
		if err != nil {
			return err
		}
		defer m.free()
		if _, err := peft.LoadAdapter(dir, m.model, peft.Options{}); err != nil {
			return err
		}
		return s.compareLogits(m.model, filepath.Join(dir, "expected", "logits.safetensors"))
	})
}

// readTokenizer loads the tokenizer that transformers saved again after loading ours.
func (s *session) readTokenizer(context.Context) error {
	tok, err := tokenizer.Load(filepath.Join(s.theirs, "tokenizer"))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.goldens, "tokenizer", "strings.json"))
	if err != nil {
		return err
	}
	var golden struct {
		Strings []struct {
			Text string  `json:"text"`
			IDs  []int32 `json:"ids"`
		} `json:"strings"`
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		return err
	}
	for _, c := range golden.Strings {
		ids, err := tok.Encode(c.Text, tokenizer.EncodeOptions{})
		if err != nil {
			return err
		}
		if !slices.Equal(ids, c.IDs) {
			return fmt.Errorf("%q becomes %v, want %v", c.Text, ids, c.IDs)
		}
	}
	return nil
}

// each calls f for every folder in dir, of which there must be some.
func each(dir string, f func(dir string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return fmt.Errorf("%s is empty", dir)
	}
	for _, entry := range entries {
		if err := f(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("%s: %w", entry.Name(), err)
		}
	}
	return nil
}
