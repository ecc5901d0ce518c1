package modelio

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// fields takes the keys of a JSON object one by one; what remains is unknown. The first fault stays.
type fields struct {
	raw map[string]json.RawMessage
	err error
}

// take decodes a key into dst and removes it. It tells whether the key was there and not null.
func (f *fields) take(key string, dst any) bool {
	raw, ok := f.raw[key]
	delete(f.raw, key)
	if !ok || isNull(raw) || f.err != nil {
		return false
	}
	if err := json.Unmarshal(raw, dst); err != nil {
		f.err = fmt.Errorf("%s: %w", key, err)
		return false
	}
	return true
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(raw, []byte("null")) }

// UnmarshalJSON reads either spelling.
func (c *Config) UnmarshalJSON(data []byte) error {
	f := &fields{}
	if err := json.Unmarshal(data, &f.raw); err != nil {
		return err
	}
	*c = Config{HiddenAct: "silu", MaxPositionEmbeddings: 2048, RMSNormEps: 1e-6, ModelType: "llama"}
	var architectures []string
	f.take("architectures", &architectures)
	f.take("model_type", &c.ModelType)
	switch {
	case len(architectures) > 0:
		c.Architecture = architectures[0]
	case c.ModelType == "llama":
		c.Architecture = "LlamaForCausalLM"
	default:
		c.Architecture = c.ModelType
	}
	for _, n := range c.counts() {
		f.take(n.key, n.value)
	}
	if c.NumKeyValueHeads == 0 {
		c.NumKeyValueHeads = c.NumAttentionHeads
	}
	if c.HeadDim == 0 && c.NumAttentionHeads > 0 {
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	f.take("rms_norm_eps", &c.RMSNormEps)
	f.take("hidden_act", &c.HiddenAct)
	f.take("attention_bias", &c.AttentionBias)
	f.take("mlp_bias", &c.MLPBias)
	f.take("tie_word_embeddings", &c.TieWordEmbeddings)
	c.tokenIDs(f)
	c.rope(f)
	if f.take("torch_dtype", &c.DType) {
		c.classic = true
	}
	f.take("dtype", &c.DType)
	c.DType = strings.TrimPrefix(c.DType, "torch.")
	c.Extra = f.raw
	return f.err
}

// count is a whole number of the file and its field.
type count struct {
	key   string
	value *int
}

// counts pairs the keys of sizes with their fields.
func (c *Config) counts() []count {
	return []count{
		{"vocab_size", &c.VocabSize}, {"hidden_size", &c.HiddenSize}, {"intermediate_size", &c.IntermediateSize},
		{"num_hidden_layers", &c.NumHiddenLayers}, {"num_attention_heads", &c.NumAttentionHeads},
		{"num_key_value_heads", &c.NumKeyValueHeads}, {"head_dim", &c.HeadDim},
		{"max_position_embeddings", &c.MaxPositionEmbeddings},
	}
}

// tokenIDs reads the special tokens; transformers' Llama has the ids 1 and 2 where the file says nothing.
func (c *Config) tokenIDs(f *fields) {
	one := 1
	if raw, ok := f.raw["bos_token_id"]; !ok || !isNull(raw) {
		c.BOSTokenID = &one
	}
	f.take("bos_token_id", &c.BOSTokenID)
	f.take("pad_token_id", &c.PadTokenID)
	raw, ok := f.raw["eos_token_id"]
	switch {
	case !ok:
		c.EOSTokenIDs = []int{2}
	case len(raw) > 0 && raw[0] == '[':
		f.take("eos_token_id", &c.EOSTokenIDs)
	default:
		var id int
		if f.take("eos_token_id", &id) {
			c.EOSTokenIDs = []int{id}
		}
	}
}

func (c *Config) rope(f *fields) {
	r := &c.Rope
	*r = Rope{Type: "default", Theta: 10000}
	if f.take("rope_theta", &r.Theta) {
		c.classic = true
	}
	var inner fields
	if f.take("rope_scaling", &inner.raw) {
		c.classic = true
		r.read(&inner, f, "rope_scaling")
	}
	inner = fields{}
	if f.take("rope_parameters", &inner.raw) {
		c.v5 = true
		r.read(&inner, f, "rope_parameters")
	}
}

// read takes the members of a rope object, whose type is called rope_type or, in old files, type.
func (r *Rope) read(in, outer *fields, key string) {
	in.take("type", &r.Type)
	in.take("rope_type", &r.Type)
	in.take("rope_theta", &r.Theta)
	in.take("factor", &r.Factor)
	in.take("low_freq_factor", &r.LowFreqFactor)
	in.take("high_freq_factor", &r.HighFreqFactor)
	in.take("original_max_position_embeddings", &r.OriginalMaxPositionEmbeddings)
	if len(in.raw) > 0 {
		r.Extra = in.raw
	}
	if in.err != nil && outer.err == nil {
		outer.err = fmt.Errorf("%s: %w", key, in.err)
	}
}

// MarshalJSON writes the configuration, sorted by key.
func (c *Config) MarshalJSON() ([]byte, error) {
	out := make(map[string]any, len(c.Extra)+24)
	for key, raw := range c.Extra {
		out[key] = raw
	}
	out["architectures"] = []string{c.Architecture}
	out["model_type"] = c.ModelType
	for _, n := range c.counts() {
		out[n.key] = *n.value
	}
	out["rms_norm_eps"] = number(c.RMSNormEps)
	out["hidden_act"] = c.HiddenAct
	out["attention_bias"] = c.AttentionBias
	out["mlp_bias"] = c.MLPBias
	out["tie_word_embeddings"] = c.TieWordEmbeddings
	out["bos_token_id"] = c.BOSTokenID
	out["pad_token_id"] = c.PadTokenID
	out["eos_token_id"] = EOSValue(c.EOSTokenIDs)
	v5, classic := c.v5, c.classic
	if !v5 && !classic {
		v5, classic = true, true
	}
	if v5 {
		p := c.Rope.object()
		p["rope_theta"] = number(c.Rope.Theta)
		out["rope_parameters"] = p
		if c.DType != "" {
			out["dtype"] = c.DType
		}
	}
	if classic {
		out["rope_theta"] = number(c.Rope.Theta)
		out["rope_scaling"] = nil
		if c.Rope.Type != "default" {
			out["rope_scaling"] = c.Rope.object()
		}
		if c.DType != "" {
			out["torch_dtype"] = c.DType
		}
	}
	return json.Marshal(out)
}

func (r *Rope) object() map[string]any {
	p := map[string]any{"rope_type": r.Type}
	for _, key := range slices.Sorted(maps.Keys(r.Extra)) {
		p[key] = r.Extra[key]
	}
	for _, n := range []struct {
		key   string
		value float64
	}{{"factor", r.Factor}, {"low_freq_factor", r.LowFreqFactor}, {"high_freq_factor", r.HighFreqFactor}} {
		if n.value != 0 {
			p[n.key] = number(n.value)
		}
	}
	if r.OriginalMaxPositionEmbeddings != 0 {
		p["original_max_position_embeddings"] = r.OriginalMaxPositionEmbeddings
	}
	return p
}

// EOSValue gives end-of-sequence ids the form that JSON files have: null, a number or a list.
func EOSValue(ids []int) any {
	switch len(ids) {
	case 0:
		return nil
	case 1:
		return ids[0]
	}
	return ids
}

// number writes a float as Python does: always with a point or an exponent. Strict readers tell 10000 from 10000.0.
type number float64

// MarshalJSON writes the shortest form that reads back the same.
func (n number) MarshalJSON() ([]byte, error) {
	text := strconv.FormatFloat(float64(n), 'g', -1, 64)
	if a := float64(n); a >= 1e-4 && a < 1e16 || a <= -1e-4 && a > -1e16 || a == 0 {
		text = strconv.FormatFloat(a, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
	}
	if strings.ContainsAny(text, "NI") {
		return nil, fmt.Errorf("%s has no JSON form", text)
	}
	return []byte(text), nil
}
