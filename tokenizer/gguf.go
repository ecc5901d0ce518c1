package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// GGUFMeta is what a GGUF file says about its tokenizer besides the vocabulary.
type GGUFMeta struct {
	Model string // tokenizer.ggml.model; only "gpt2" (byte-level BPE) is supported
	Pre   string // tokenizer.ggml.pre: which way of splitting words

	// Token ids; -1 if the file names none.
	BOS, EOS, UNK, PAD int

	AddBOS         bool   // tokenizer.ggml.add_bos_token
	ChatTemplate   string // tokenizer.chat_template
	ModelMaxLength int    // context length for tokenizer_config.json; 0 leaves it out
}

// Token types of tokenizer.ggml.token_type that matter here.
const (
	ggufControl     = 3
	ggufUserDefined = 4
)

// preFamily is how a family of models splits text.
type preFamily struct {
	normalizer   any
	pre          any
	ignoreMerges bool
}

type object = map[string]any

func byteLevelJSON(useRegex bool) object {
	return object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": useRegex}
}

func splitThenBytes(pattern string) object {
	return object{"type": "Sequence", "pretokenizers": []any{
		object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false},
		byteLevelJSON(false),
	}}
}

// preFamilies maps tokenizer.ggml.pre to the published tokenizer.json of those models.
var preFamilies = func() map[string]preFamily {
	gpt2 := preFamily{pre: byteLevelJSON(true)}
	digits := preFamily{pre: object{"type": "Sequence", "pretokenizers": []any{
		object{"type": "Digits", "individual_digits": true},
		byteLevelJSON(true),
	}}}
	llama3 := preFamily{pre: splitThenBytes(patternLlama3), ignoreMerges: true}
	qwen2 := preFamily{normalizer: object{"type": "NFC"}, pre: splitThenBytes(patternQwen2)}
	return map[string]preFamily{
		"": gpt2, "default": gpt2, "gpt-2": gpt2, "gpt2": gpt2, "phi-2": gpt2,
		"smollm": digits, "starcoder": digits,
		"llama-bpe": llama3, "llama3": llama3, "llama-v3": llama3,
		"qwen2": qwen2,
	}
}()

// FromGGUF makes the files of a tokenizer folder from the vocabulary of a GGUF file: tokens
// by id, their types (tokenizer.ggml.token_type), and the merges ("a b"). The files load in
// transformers as well as here. A kind of model that is not known is an error; guessing
// would silently split text in another way than the model was trained on.
func FromGGUF(vocab []string, types []int32, merges []string, meta GGUFMeta) (*Files, error) {
	if meta.Model != "gpt2" {
		return nil, fmt.Errorf("tokenizer: GGUF: tokenizer.ggml.model %q is not supported, only gpt2 (byte-level BPE) is", meta.Model)
	}
	family, ok := preFamilies[meta.Pre]
	if !ok {
		known := make([]string, 0, len(preFamilies))
		for name := range preFamilies {
			if name != "" {
				known = append(known, name)
			}
		}
		slices.Sort(known)
		return nil, fmt.Errorf("tokenizer: GGUF: tokenizer.ggml.pre %q is not known (have %s); take tokenizer.json from the original model instead",
			meta.Pre, strings.Join(known, ", "))
	}
	if len(types) != len(vocab) {
		return nil, fmt.Errorf("tokenizer: GGUF: %d tokens but %d token types", len(vocab), len(types))
	}
	special := object{}
	for _, s := range []struct {
		name string
		id   int
	}{{"bos_token", meta.BOS}, {"eos_token", meta.EOS}, {"unk_token", meta.UNK}, {"pad_token", meta.PAD}} {
		if s.id < 0 {
			continue
		}
		if s.id >= len(vocab) {
			return nil, fmt.Errorf("tokenizer: GGUF: %s has id %d, but there are %d tokens", s.name, s.id, len(vocab))
		}
		special[s.name] = vocab[s.id]
	}
	body, err := ggufTokenizerJSON(vocab, types, merges, meta, family)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: GGUF: %w", err)
	}
	config := object{
		"add_prefix_space":             false,
		"clean_up_tokenization_spaces": false,
		"tokenizer_class":              "PreTrainedTokenizerFast",
	}
	for name, token := range special {
		config[name] = token
	}
	if meta.ModelMaxLength > 0 {
		config["model_max_length"] = meta.ModelMaxLength
	}
	f := &Files{TokenizerJSON: body}
	if meta.ChatTemplate != "" {
		config["chat_template"] = meta.ChatTemplate
		f.ChatTemplate = []byte(meta.ChatTemplate)
	}
	if f.TokenizerConfig, err = marshal(config, "  "); err != nil {
		return nil, fmt.Errorf("tokenizer: GGUF: %w", err)
	}
	if f.SpecialTokensMap, err = marshal(special, "  "); err != nil {
		return nil, fmt.Errorf("tokenizer: GGUF: %w", err)
	}
	if _, err := New(*f); err != nil {
		return nil, fmt.Errorf("tokenizer: GGUF: the vocabulary is not usable: %w", err)
	}
	return f, nil
}

func ggufTokenizerJSON(vocab []string, types []int32, merges []string, meta GGUFMeta, family preFamily) ([]byte, error) {
	added := []addedToken{}
	for id, token := range vocab {
		if types[id] == ggufControl || types[id] == ggufUserDefined {
			added = append(added, addedToken{ID: int64(id), Content: token, Special: types[id] == ggufControl})
		}
	}
	var post any
	if meta.AddBOS {
		if meta.BOS < 0 {
			return nil, fmt.Errorf("add_bos_token is set but there is no bos_token_id")
		}
		bos := vocab[meta.BOS]
		post = object{
			"type": "TemplateProcessing",
			"single": []any{
				object{"SpecialToken": object{"id": bos, "type_id": 0}},
				object{"Sequence": object{"id": "A", "type_id": 0}},
			},
			"pair": []any{
				object{"SpecialToken": object{"id": bos, "type_id": 0}},
				object{"Sequence": object{"id": "A", "type_id": 0}},
				object{"SpecialToken": object{"id": bos, "type_id": 1}},
				object{"Sequence": object{"id": "B", "type_id": 1}},
			},
			"special_tokens": object{bos: object{"id": bos, "ids": []int{meta.BOS}, "tokens": []string{bos}}},
		}
	}
	model := struct {
		Type                    string    `json:"type"`
		Dropout                 *float64  `json:"dropout"`
		UnkToken                *string   `json:"unk_token"`
		ContinuingSubwordPrefix *string   `json:"continuing_subword_prefix"`
		EndOfWordSuffix         *string   `json:"end_of_word_suffix"`
		FuseUnk                 bool      `json:"fuse_unk"`
		ByteFallback            bool      `json:"byte_fallback"`
		IgnoreMerges            bool      `json:"ignore_merges"`
		Vocab                   vocabByID `json:"vocab"`
		Merges                  []string  `json:"merges"`
	}{Type: "BPE", IgnoreMerges: family.ignoreMerges, Vocab: vocab, Merges: merges}
	return marshal(struct {
		Version       string       `json:"version"`
		Truncation    any          `json:"truncation"`
		Padding       any          `json:"padding"`
		AddedTokens   []addedToken `json:"added_tokens"`
		Normalizer    any          `json:"normalizer"`
		PreTokenizer  any          `json:"pre_tokenizer"`
		PostProcessor any          `json:"post_processor"`
		Decoder       any          `json:"decoder"`
		Model         any          `json:"model"`
	}{"1.0", nil, nil, added, family.normalizer, family.pre, post, byteLevelJSON(true), model}, " ")
}

// vocabByID marshals as an object whose keys are in the order of their ids.
type vocabByID []string

func (v vocabByID) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for id, token := range v {
		if id > 0 {
			out.WriteByte(',')
		}
		key, err := marshal(token, "")
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%s:%d", bytes.TrimSpace(key), id)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// marshal writes JSON without escaping <, > and &, which tokens are full of.
func marshal(v any, indent string) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	return out.Bytes(), err
}
