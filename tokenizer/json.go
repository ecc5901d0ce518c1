package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
)

// maxTokenID bounds ids, so that a damaged file cannot ask for gigabytes.
const maxTokenID = 1<<22 - 1

// tokenizerFile is tokenizer.json. Stages of several kinds stay raw until their parser
// knows the type.
type tokenizerFile struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         *modelFile      `json:"model"`
}

type modelFile struct {
	Type                    string           `json:"type"`
	Dropout                 *float64         `json:"dropout"`
	UnkToken                *string          `json:"unk_token"`
	ContinuingSubwordPrefix *string          `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string          `json:"end_of_word_suffix"`
	FuseUnk                 bool             `json:"fuse_unk"`
	ByteFallback            bool             `json:"byte_fallback"`
	IgnoreMerges            bool             `json:"ignore_merges"`
	Vocab                   map[string]int64 `json:"vocab"`
	Merges                  mergeList        `json:"merges"`
}

// mergeList accepts both spellings of merges: "a b" and ["a", "b"].
type mergeList [][2]string

func (l *mergeList) UnmarshalJSON(data []byte) error {
	inner := bytes.TrimLeft(data, " \t\r\n[")
	if brackets := bytes.Count(data[:len(data)-len(inner)], []byte("[")); brackets >= 2 {
		var pairs [][]string
		if err := json.Unmarshal(data, &pairs); err != nil {
			return err
		}
		*l = make(mergeList, len(pairs))
		for i, p := range pairs {
			if len(p) != 2 {
				return fmt.Errorf("merges[%d]: %d tokens instead of 2", i, len(p))
			}
			(*l)[i] = [2]string{p[0], p[1]}
		}
		return nil
	}
	var lines []string
	if err := json.Unmarshal(data, &lines); err != nil {
		return err
	}
	*l = make(mergeList, len(lines))
	for i, line := range lines {
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("merges[%d]: %q is not two tokens with a space between them", i, line)
		}
		(*l)[i] = [2]string{left, right}
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func parseTokenizerJSON(data []byte) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(data, &f); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			before := data[:min(int(syntax.Offset), len(data))]
			return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(before, []byte("\n")), err)
		}
		return nil, err
	}
	if f.Model == nil {
		return nil, errors.New("no model")
	}
	t := &Tokenizer{}
	var byteLevel bool
	var err error
	if t.norm, err = parseNormalizer(f.Normalizer); err != nil {
		return nil, err
	}
	if t.pre, byteLevel, err = parsePreTokenizer(f.PreTokenizer); err != nil {
		return nil, err
	}
	if err = t.buildModel(f.Model, byteLevel); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err = t.addTokens(f.AddedTokens); err != nil {
		return nil, err
	}
	if t.prefix, t.suffix, err = parsePostProcessor(f.PostProcessor, t.Token); err != nil {
		return nil, err
	}
	if err = t.buildDecoder(f.Decoder); err != nil {
		return nil, err
	}
	return t, nil
}

// buildModel checks the model section and indexes it.
func (t *Tokenizer) buildModel(f *modelFile, byteLevel bool) error {
	set := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case f.Type != "" && f.Type != "BPE":
		return fmt.Errorf("type %q is not supported, only BPE is", f.Type)
	case f.Dropout != nil && *f.Dropout != 0:
		return fmt.Errorf("dropout %g is not supported", *f.Dropout)
	case set(f.ContinuingSubwordPrefix):
		return fmt.Errorf("continuing_subword_prefix %q is not supported", *f.ContinuingSubwordPrefix)
	case set(f.EndOfWordSuffix):
		return fmt.Errorf("end_of_word_suffix %q is not supported", *f.EndOfWordSuffix)
	case len(f.Vocab) == 0:
		return errors.New("vocab is empty")
	}
	top := int64(-1)
	for token, id := range f.Vocab {
		if id < 0 || id > maxTokenID {
			return fmt.Errorf("vocab: token %q has id %d, outside 0..%d", token, id, maxTokenID)
		}
		top = max(top, id)
	}
	t.tokens = make([]string, top+1)
	t.ids = make(map[string]int32, len(f.Vocab))
	for token, id := range f.Vocab {
		if err := t.define(token, int32(id)); err != nil {
			return fmt.Errorf("vocab: %w", err)
		}
	}
	m := &bpe{
		byteLevel:    byteLevel,
		unk:          -1,
		fuseUnk:      f.FuseUnk,
		byteFallback: f.ByteFallback,
		ignoreMerges: f.IgnoreMerges,
		merges:       make(map[pair]merge, len(f.Merges)),
	}
	m.cache.seed = maphash.MakeSeed()
	if set(f.UnkToken) {
		id, ok := t.ids[*f.UnkToken]
		if !ok {
			return fmt.Errorf("unk_token %q is not in the vocabulary", *f.UnkToken)
		}
		m.unk = id
	}
	for i, p := range f.Merges {
		left, okL := t.ids[p[0]]
		right, okR := t.ids[p[1]]
		id, ok := t.ids[p[0]+p[1]]
		if !okL || !okR || !ok {
			return fmt.Errorf("merges[%d]: %q, %q or their concatenation is not in the vocabulary", i, p[0], p[1])
		}
		m.merges[pair{left, right}] = merge{rank: int32(i), id: id}
	}
	m.index(t)
	t.model = m
	return nil
}

// index prepares the lookups from text to symbols.
func (m *bpe) index(t *Tokenizer) {
	for b := range m.bytes {
		name := byteTokenName(byte(b))
		if m.byteLevel {
			name = string(byteToRune[b])
		}
		m.bytes[b] = -1
		if id, ok := t.ids[name]; ok {
			m.bytes[b] = id
		}
	}
	m.vocab = t.ids
	if m.byteLevel {
		m.vocab = nil
		if m.ignoreMerges { // whole words are looked up only then
			m.vocab = make(map[string]int32, len(t.ids))
			for id, token := range t.tokens {
				if raw, ok := rawBytes(token); ok && raw != "" {
					m.vocab[raw] = int32(id)
				}
			}
		}
	}
}
