package modelio

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// TensorShape is a parameter of a model.
type TensorShape struct {
	Name  string
	Shape []int64
}

// TensorShapes lists the parameters that a model of this configuration has, in the order of the model. With tied
// embeddings there is no lm_head.weight.
func (c *Config) TensorShapes() []TensorShape {
	hidden, mlp := int64(c.HiddenSize), int64(c.IntermediateSize)
	q, kv := int64(c.NumAttentionHeads)*int64(c.HeadDim), int64(c.NumKeyValueHeads)*int64(c.HeadDim)
	out := []TensorShape{{"model.embed_tokens.weight", []int64{int64(c.VocabSize), hidden}}}
	for layer := range c.NumHiddenLayers {
		prefix := "model.layers." + strconv.Itoa(layer) + "."
		linear := func(name string, rows, columns int64, bias bool) {
			out = append(out, TensorShape{prefix + name + ".weight", []int64{rows, columns}})
			if bias {
				out = append(out, TensorShape{prefix + name + ".bias", []int64{rows}})
			}
		}
		linear("self_attn.q_proj", q, hidden, c.AttentionBias)
		linear("self_attn.k_proj", kv, hidden, c.AttentionBias)
		linear("self_attn.v_proj", kv, hidden, c.AttentionBias)
		linear("self_attn.o_proj", hidden, q, c.AttentionBias)
		linear("mlp.gate_proj", mlp, hidden, c.MLPBias)
		linear("mlp.up_proj", mlp, hidden, c.MLPBias)
		linear("mlp.down_proj", hidden, mlp, c.MLPBias)
		out = append(out, TensorShape{prefix + "input_layernorm.weight", []int64{hidden}},
			TensorShape{prefix + "post_attention_layernorm.weight", []int64{hidden}})
	}
	out = append(out, TensorShape{"model.norm.weight", []int64{hidden}})
	if !c.TieWordEmbeddings {
		out = append(out, TensorShape{"lm_head.weight", []int64{int64(c.VocabSize), hidden}})
	}
	return out
}

// Check makes sure that every parameter of a model with configuration c is there in its shape, and that no stored layer
// would be left out. Other tensors are allowed: old checkpoints hold rotary tables. It needs no memory, so a program calls
// it before it makes the model: a configuration of another model, or a hostile one, is then an error and not a crash.
func (w *Weights) Check(c *Config) error {
	if err := w.check(c); err != nil {
		return fmt.Errorf("modelio: the weights of %s do not fit config.json: %w", w.path, err)
	}
	return nil
}

func (w *Weights) check(c *Config) error {
	// A hostile layer count must not make the list of shapes long: every layer has tensors.
	if c.NumHiddenLayers > len(w.names) {
		return fmt.Errorf("the configuration has %d layers (num_hidden_layers), the weights have %d tensors", c.NumHiddenLayers, len(w.names))
	}
	for _, p := range c.TensorShapes() {
		v, ok := w.views[p.Name]
		if !ok && c.TieWordEmbeddings && p.Name == "model.embed_tokens.weight" {
			v, ok = w.views["lm_head.weight"] // a tied parameter may be stored under either name
		}
		if !ok {
			return fmt.Errorf("parameter %q is missing", p.Name)
		}
		if !slices.Equal(v.Shape, p.Shape) {
			return fmt.Errorf("parameter %q has shape %v, the configuration needs %v", p.Name, v.Shape, p.Shape)
		}
	}
	for _, name := range w.names {
		rest, ok := strings.CutPrefix(name, "model.layers.")
		if !ok {
			continue
		}
		number, _, _ := strings.Cut(rest, ".")
		if n, err := strconv.Atoi(number); err == nil && n >= c.NumHiddenLayers {
			return fmt.Errorf("parameter %q has no place in the configuration, which has %d layers (num_hidden_layers)", name, c.NumHiddenLayers)
		}
	}
	return nil
}

// checkShapes makes sure that the weights are the parameters of c, no more and no less.
func (w *Weights) checkShapes(c *Config) error {
	if err := w.check(c); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, p := range c.TensorShapes() {
		known[p.Name] = true
	}
	for _, name := range w.names {
		if !known[name] {
			return fmt.Errorf("parameter %q has no place in the configuration", name)
		}
	}
	return nil
}
