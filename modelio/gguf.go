package modelio

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/modelio/gguf"
)

// openGGUF presents a GGUF file of the Llama family under Hugging Face names.
func openGGUF(path string) (*Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("modelio: %w", err)
	}
	m, err := fromGGUF(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("modelio: %s: %w", path, err)
	}
	return m, nil
}

func fromGGUF(f *gguf.File) (*Model, error) {
	config, err := ConfigFromGGUF(f)
	if err != nil {
		return nil, err
	}
	w := &Weights{path: f.Path(), views: map[string]View{}, closers: []func() error{f.Close}}
	order := map[string]int{}
	for _, t := range f.Tensors() {
		m, ok := mapGGUFName(t.Name)
		if !ok {
			return nil, fmt.Errorf("tensor %q has no place in a %s", t.Name, config.Architecture)
		}
		if m.name == "" {
			continue
		}
		src := &quantised{t: t}
		if m.heads != nil {
			if src.headDim, err = rotaryHeadDim(t, m.heads(config)); err != nil {
				return nil, err
			}
		}
		order[m.name] = m.order
		w.names = append(w.names, m.name)
		w.views[m.name] = View{Name: m.name, DType: "F32", Shape: t.Shape, src: src}
	}
	slices.SortStableFunc(w.names, func(a, b string) int { return cmp.Compare(order[a], order[b]) })
	if err := w.checkShapes(config); err != nil {
		return nil, err
	}
	return &Model{Path: f.Path(), Config: config, Weights: w}, nil
}

// place says where a tensor of a GGUF file goes.
type place struct {
	name  string            // Hugging Face name; empty: the tensor is no weight
	order int               // position in the model
	heads func(*Config) int // for tensors with permuted rows: their number of heads
}

func queryHeads(c *Config) int { return c.NumAttentionHeads }
func keyHeads(c *Config) int   { return c.NumKeyValueHeads }

// blockParts maps the parts of a block in the order of the model.
var blockParts = []struct {
	gguf, hf string
	heads    func(*Config) int
}{
	{"attn_q", "self_attn.q_proj", queryHeads},
	{"attn_k", "self_attn.k_proj", keyHeads},
	{"attn_v", "self_attn.v_proj", nil},
	{"attn_output", "self_attn.o_proj", nil},
	{"ffn_gate", "mlp.gate_proj", nil},
	{"ffn_up", "mlp.up_proj", nil},
	{"ffn_down", "mlp.down_proj", nil},
	{"attn_norm", "input_layernorm", nil},
	{"ffn_norm", "post_attention_layernorm", nil},
}

func mapGGUFName(name string) (place, bool) {
	switch name {
	case "token_embd.weight":
		return place{name: "model.embed_tokens.weight", order: -1}, true
	case "output_norm.weight":
		return place{name: "model.norm.weight", order: math.MaxInt - 1}, true
	case "output.weight":
		return place{name: "lm_head.weight", order: math.MaxInt}, true
	case "rope_freqs.weight": // read with the configuration
		return place{}, true
	}
	rest, ok := strings.CutPrefix(name, "blk.")
	number, rest, ok2 := strings.Cut(rest, ".")
	part, kind, ok3 := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	if !ok || !ok2 || !ok3 || err != nil || layer < 0 || layer > 1<<20 || strconv.Itoa(layer) != number {
		return place{}, false
	}
	for i, p := range blockParts {
		if p.gguf == part && (kind == "weight" || kind == "bias") {
			order := (layer*len(blockParts) + i) * 2
			if kind == "bias" {
				order++
			}
			return place{"model.layers." + number + "." + p.hf + "." + kind, order, p.heads}, true
		}
	}
	return place{}, false
}

func rotaryHeadDim(t gguf.Tensor, heads int) (int64, error) {
	rows := int64(0)
	if len(t.Shape) > 0 {
		rows = t.Shape[0]
	}
	if rows == 0 || rows%(2*int64(heads)) != 0 {
		return 0, fmt.Errorf("tensor %q with shape %v does not hold pairs of rows for %d heads", t.Name, t.Shape, heads)
	}
	return rows / int64(heads), nil
}

// quantised is a tensor of a GGUF file.
//
// Rotary embeddings turn pairs of dimensions. GGUF stores the rows of Llama's query and key projections so that a
// pair lies side by side, the Hugging Face layout has the two halves of each head instead. With headDim set, rows are
// given in the latter order.
type quantised struct {
	t       gguf.Tensor
	headDim int64
}

// stored gives the row of the file that holds row r of the model.
func (q *quantised) stored(r int64) int64 {
	if q.headDim == 0 {
		return r
	}
	head, in := r/q.headDim, r%q.headDim
	half := q.headDim / 2
	return head*q.headDim + 2*(in%half) + in/half
}

// perRow gives the number of rows of the file (runs along the innermost dimension) in a row along dim 0.
func (q *quantised) perRow() int64 {
	n := int64(1)
	for i := 1; i < len(q.t.Shape)-1; i++ {
		n *= q.t.Shape[i]
	}
	return n
}

func (q *quantised) float32s(dst []float32, lo, hi int64) error {
	if len(q.t.Shape) < 2 {
		return q.vector(dst, lo, hi)
	}
	n := q.perRow()
	if q.headDim == 0 {
		return q.t.Dequantize(dst, lo*n, hi*n)
	}
	row := n * q.t.RowLen()
	for r := lo; r < hi; r++ {
		s := q.stored(r)
		if err := q.t.Dequantize(dst[(r-lo)*row:(r-lo+1)*row], s*n, (s+1)*n); err != nil {
			return err
		}
	}
	return nil
}

// vector reads elements of a one-dimensional tensor, which is a single row in the file.
func (q *quantised) vector(dst []float32, lo, hi int64) error {
	all := make([]float32, q.t.RowLen())
	if err := q.t.Dequantize(all, 0, 1); err != nil {
		return err
	}
	for r := lo; r < hi; r++ {
		dst[r-lo] = all[q.stored(r)]
	}
	return nil
}

func (q *quantised) rows(lo, hi int64) ([]byte, error) {
	row := q.perRow() * q.t.RowLen()
	if len(q.t.Shape) < 2 {
		row = 1
	}
	values := make([]float32, (hi-lo)*row)
	if err := q.float32s(values, lo, hi); err != nil {
		return nil, err
	}
	out := make([]byte, 4*len(values))
	for i, x := range values {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(x))
	}
	return out, nil
}

func (q *quantised) release(lo, hi int64) error {
	if len(q.t.Shape) < 2 {
		return q.t.Release(0, 1)
	}
	if q.headDim > 0 { // the rows of a head are mixed: whole heads only
		lo, hi = lo/q.headDim*q.headDim, (hi+q.headDim-1)/q.headDim*q.headDim
	}
	n := q.perRow()
	return q.t.Release(lo*n, hi*n)
}
