package modelio

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/gofsdp/gofsdp/modelio/gguf"
)

// metadata reads a GGUF file's hyper-parameters; the first fault stays.
type metadata struct {
	f   *gguf.File
	err error
}

func (m *metadata) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// uint reads a whole number. Absent keys give def; a negative def makes the key necessary.
func (m *metadata) uint(key string, def int) int {
	v, err := m.f.Uint(key)
	switch {
	case errors.Is(err, gguf.ErrNoKey) && def >= 0:
		return def
	case err != nil:
		m.fail(err)
	case v > math.MaxInt32:
		m.fail(fmt.Errorf("metadata %q is %d: too large", key, v))
	}
	return int(v)
}

// float reads a number. A float32 is given the shortest decimal that rounds to it: 1e-5, not 9.999999747378752e-06.
func (m *metadata) float(key string, def float64) float64 {
	v, err := m.f.Float(key)
	if errors.Is(err, gguf.ErrNoKey) && !math.IsNaN(def) {
		return def
	}
	if err != nil {
		m.fail(err)
		return 0
	}
	return shortest(v)
}

func shortest(v float64) float64 {
	if float64(float32(v)) != v {
		return v
	}
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', -1, 32), 64)
	if err != nil {
		return v
	}
	return short
}

func (m *metadata) token(key string) *int {
	if _, ok := m.f.Value(key); !ok {
		return nil
	}
	id := m.uint(key, -1)
	return &id
}

// ConfigFromGGUF makes the configuration of a GGUF file of the Llama family. Sizes that the weights show are taken
// from them. Scaled rotary embeddings of Llama 3 are recognised by the factors that the file stores for them.
func ConfigFromGGUF(f *gguf.File) (*Config, error) {
	arch, err := f.Str("general.architecture")
	if err != nil {
		return nil, err
	}
	if arch != "llama" {
		return nil, fmt.Errorf("GGUF architecture %q is not supported (supported: llama)", arch)
	}
	m := &metadata{f: f}
	if n := m.uint("split.count", 1); n > 1 {
		return nil, fmt.Errorf("the file is one of %d parts: merge them with `llama-gguf-split --merge` first", n)
	}
	if n := m.uint("llama.expert_count", 0); n > 0 {
		return nil, fmt.Errorf("mixtures of experts (%d experts) are not supported", n)
	}
	embed, err := f.Tensor("token_embd.weight")
	if err != nil {
		return nil, err
	}
	c := &Config{
		Architecture: "LlamaForCausalLM", ModelType: "llama", HiddenAct: "silu",
		VocabSize:             int(embed.Rows()),
		HiddenSize:            m.uint("llama.embedding_length", -1),
		IntermediateSize:      m.uint("llama.feed_forward_length", -1),
		NumHiddenLayers:       m.uint("llama.block_count", -1),
		NumAttentionHeads:     m.uint("llama.attention.head_count", -1),
		MaxPositionEmbeddings: m.uint("llama.context_length", -1),
		RMSNormEps:            m.float("llama.attention.layer_norm_rms_epsilon", math.NaN()),
		AttentionBias:         f.Has("blk.0.attn_q.bias"),
		MLPBias:               f.Has("blk.0.ffn_up.bias"),
		TieWordEmbeddings:     !f.Has("output.weight"),
		BOSTokenID:            m.token("tokenizer.ggml.bos_token_id"),
		PadTokenID:            m.token("tokenizer.ggml.padding_token_id"),
		DType:                 "float32",
		Extra: map[string]json.RawMessage{
			"attention_dropout": json.RawMessage("0.0"),
			"initializer_range": json.RawMessage("0.02"),
			"use_cache":         json.RawMessage("true"),
		},
	}
	if eos := m.token("tokenizer.ggml.eos_token_id"); eos != nil {
		c.EOSTokenIDs = []int{*eos}
	}
	c.NumKeyValueHeads = m.uint("llama.attention.head_count_kv", c.NumAttentionHeads)
	if c.NumAttentionHeads > 0 {
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	c.HeadDim = m.uint("llama.rope.dimension_count", c.HeadDim)
	c.HeadDim = m.uint("llama.attention.key_length", c.HeadDim)
	c.Rope = m.rope(c.HeadDim)
	if m.err != nil {
		return nil, m.err
	}
	return c, c.Validate()
}

func (m *metadata) rope(headDim int) Rope {
	r := Rope{Type: "default", Theta: m.float("llama.rope.freq_base", 10000)}
	if t, err := m.f.Tensor("rope_freqs.weight"); err == nil {
		if err := r.fromFactors(t, headDim); err != nil {
			m.fail(err)
		}
		return r
	}
	kind, err := m.f.Str("llama.rope.scaling.type")
	if errors.Is(err, gguf.ErrNoKey) || kind == "none" {
		return r
	}
	if err != nil {
		m.fail(err)
		return r
	}
	if kind != "linear" && kind != "yarn" {
		m.fail(fmt.Errorf("rope scaling %q is not supported (supported: none, linear, yarn)", kind))
		return r
	}
	r.Type = kind
	r.Factor = m.float("llama.rope.scaling.factor", math.NaN())
	r.OriginalMaxPositionEmbeddings = m.uint("llama.rope.scaling.original_context_length", 0)
	return r
}

// fromFactors recovers the parameters of Llama 3's rotary scaling from the factors that divide each frequency. Every
// published model has the same bounds, so the factor alone is open; the result must reproduce all factors.
func (r *Rope) fromFactors(t gguf.Tensor, headDim int) error {
	if t.NumElements() != int64(headDim/2) {
		return fmt.Errorf("tensor %q has %d factors, head_dim %d needs %d", t.Name, t.NumElements(), headDim, headDim/2)
	}
	factors := make([]float32, t.NumElements())
	if err := t.Dequantize(factors, 0, t.Rows()); err != nil {
		return err
	}
	guess := Rope{Type: "llama3", Theta: r.Theta, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositionEmbeddings: 8192}
	for _, x := range factors {
		guess.Factor = max(guess.Factor, shortest(float64(x)))
	}
	for i, x := range factors {
		if want := guess.llama3Factor(i, headDim); math.Abs(float64(x)-want) > 1e-3*want {
			return fmt.Errorf("tensor %q does not hold the factors of Llama 3 (factor %g, bounds 1 and 4, 8192 positions): "+
				"number %d is %g, expected %g", t.Name, guess.Factor, i, x, want)
		}
	}
	if guess.Factor > 1 {
		*r = guess
	}
	return nil
}

// llama3Factor gives the number that divides frequency i of a head: 1 for short wavelengths, Factor for long ones, and
// a blend between.
func (r *Rope) llama3Factor(i, headDim int) float64 {
	wavelength := 2 * math.Pi * math.Pow(r.Theta, float64(2*i)/float64(headDim))
	turns := float64(r.OriginalMaxPositionEmbeddings) / wavelength
	switch {
	case turns > r.HighFreqFactor:
		return 1
	case turns < r.LowFreqFactor:
		return r.Factor
	}
	smooth := (turns - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
	return 1 / ((1-smooth)/r.Factor + smooth)
}
