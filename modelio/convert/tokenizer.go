package convert

import (
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/modelio/gguf"
	"github.com/gofsdp/gofsdp/tokenizer"
)

// TokenizerFiles makes the tokenizer's files of a model folder from the vocabulary in a GGUF file.
func TokenizerFiles(f *gguf.File) (*tokenizer.Files, error) {
	vocab, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		return nil, err
	}
	wide, err := f.Ints("tokenizer.ggml.token_type")
	if err != nil {
		return nil, err
	}
	types := make([]int32, len(wide))
	for i, t := range wide {
		if t != int64(int32(t)) {
			return nil, fmt.Errorf("gguf: %s: token %d has type %d", f.Path(), i, t)
		}
		types[i] = int32(t)
	}
	merges, err := optional(f.Strings("tokenizer.ggml.merges"))
	if err != nil {
		return nil, err
	}
	var meta tokenizer.GGUFMeta
	if meta.Model, err = f.Str("tokenizer.ggml.model"); err != nil {
		return nil, err
	}
	if meta.Pre, err = optional(f.Str("tokenizer.ggml.pre")); err != nil {
		return nil, err
	}
	if meta.ChatTemplate, err = optional(f.Str("tokenizer.chat_template")); err != nil {
		return nil, err
	}
	if meta.AddBOS, err = optional(f.Bool("tokenizer.ggml.add_bos_token")); err != nil {
		return nil, err
	}
	length, err := optional(f.Uint("llama.context_length"))
	if err != nil {
		return nil, err
	}
	meta.ModelMaxLength = int(min(length, math.MaxInt32))
	for _, id := range []struct {
		key string
		dst *int
	}{
		{"bos_token_id", &meta.BOS}, {"eos_token_id", &meta.EOS}, {"unknown_token_id", &meta.UNK}, {"padding_token_id", &meta.PAD},
	} {
		*id.dst = -1
		v, err := f.Uint("tokenizer.ggml." + id.key)
		if errors.Is(err, gguf.ErrNoKey) {
			continue
		}
		if err != nil {
			return nil, err
		}
		*id.dst = int(min(v, math.MaxInt32))
	}
	return tokenizer.FromGGUF(vocab, types, merges, meta)
}

// optional turns an absent key into the zero value.
func optional[T any](v T, err error) (T, error) {
	if errors.Is(err, gguf.ErrNoKey) {
		var zero T
		return zero, nil
	}
	return v, err
}
