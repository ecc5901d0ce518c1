// Package convert turns GGUF files into model folders in the Hugging Face layout, which transformers, PEFT and vLLM
// load: configuration, weights and tokenizer.
package convert

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/gguf"
	"github.com/gofsdp/gofsdp/modelio/internal/float"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// Options are the settings of Convert; the zero value works.
type Options struct {
	DType         string                  // dtype of the weights: "bf16" (also ""), "f16" or "f32"
	MaxShardBytes int64                   // size of a weights file; 0: modelio.DefaultMaxShardBytes
	Progress      func(done, total int64) // called with the bytes of weights written; nil: not called
}

// chunkElements bounds the memory of a conversion: this many elements are held at a time (a single longer row
// excepted).
const chunkElements = 1 << 20

// target is a dtype to convert to.
type target struct {
	name  string // safetensors' name
	torch string // PyTorch's name
	size  int64
	put   func(dst []byte, src []float32)
}

var targets = map[string]target{
	"bf16": {"BF16", "bfloat16", 2, func(dst []byte, src []float32) {
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], float.ToBF16(x))
		}
	}},
	"f16": {"F16", "float16", 2, func(dst []byte, src []float32) {
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], float.ToF16(x))
		}
	}},
	"f32": {"F32", "float32", 4, func(dst []byte, src []float32) {
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	}},
}

// Convert writes the model in the GGUF file at ggufPath into the folder outDir, which must not exist or be empty. The
// weights are streamed in pieces, so the memory needed does not grow with the model. The folder appears when it is
// complete; after an error or a cancelled context nothing is left of it.
func Convert(ctx context.Context, ggufPath, outDir string, o Options) error {
	if err := run(ctx, ggufPath, outDir, o); err != nil {
		return fmt.Errorf("convert %s: %w", ggufPath, err)
	}
	return nil
}

func run(ctx context.Context, ggufPath, outDir string, o Options) (err error) {
	if o.DType == "" {
		o.DType = "bf16"
	}
	to, ok := targets[o.DType]
	if !ok {
		return fmt.Errorf("dtype %q is not known (have bf16, f16, f32)", o.DType)
	}
	f, err := gguf.Open(ggufPath)
	if err != nil {
		return err
	}
	defer f.Close()
	files, err := TokenizerFiles(f)
	if err != nil {
		return err
	}
	m, err := modelio.Open(ggufPath)
	if err != nil {
		return err
	}
	defer m.Close()
	m.Config.DType = to.torch

	folder, err := modelio.CreateFolder(outDir)
	if err != nil {
		return err
	}
	defer folder.Abort()
	tmp := folder.Dir()
	if err := writeWeights(ctx, tmp, m, to, o); err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"tokenizer.json", files.TokenizerJSON}, {"tokenizer_config.json", files.TokenizerConfig},
		{"special_tokens_map.json", files.SpecialTokensMap}, {"chat_template.jinja", files.ChatTemplate},
		{"generation_config.json", generationConfig(m.Config)},
	} {
		if len(file.data) == 0 {
			continue
		}
		if err := atomicfile.Write(filepath.Join(tmp, file.name), file.data); err != nil {
			return err
		}
	}
	if err := modelio.WriteConfig(tmp, m.Config); err != nil {
		return err
	}
	return folder.Commit()
}

func generationConfig(c *modelio.Config) []byte {
	out := map[string]any{"bos_token_id": c.BOSTokenID, "eos_token_id": modelio.EOSValue(c.EOSTokenIDs)}
	if c.PadTokenID != nil {
		out["pad_token_id"] = c.PadTokenID
	}
	data, _ := json.MarshalIndent(out, "", "  ") // numbers only: cannot fail
	return append(data, '\n')
}

func writeWeights(ctx context.Context, dir string, m *modelio.Model, to target, o Options) error {
	var specs []safetensors.Spec
	var views []modelio.View
	for _, name := range m.Weights.Names() {
		v, err := m.Weights.Tensor(name)
		if err != nil {
			return err
		}
		views = append(views, v)
		specs = append(specs, safetensors.Spec{Name: name, DType: to.name, Shape: v.Shape})
	}
	w, err := modelio.CreateWeights(dir, specs, o.MaxShardBytes)
	if err != nil {
		return err
	}
	defer w.Abort()
	var values []float32
	var encoded []byte
	done := int64(0)
	for _, v := range views {
		step := max(1, chunkElements/max(1, v.RowLen()))
		for lo := int64(0); lo < v.NumRows(); lo += step {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			hi := min(lo+step, v.NumRows())
			n := (hi - lo) * v.RowLen()
			if int64(cap(values)) < n {
				values, encoded = make([]float32, n), make([]byte, n*to.size)
			}
			if err := v.ReadFloat32(values[:n], lo, hi); err != nil {
				return err
			}
			to.put(encoded, values[:n])
			if err := w.WriteAt(v.Name, lo*v.RowLen()*to.size, encoded[:n*to.size]); err != nil {
				return err
			}
			if err := v.Release(lo, hi); err != nil {
				return err
			}
			done += n * to.size
			if o.Progress != nil {
				o.Progress(done, w.TotalBytes())
			}
		}
	}
	return w.Commit()
}
