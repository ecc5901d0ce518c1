package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"
)

// Tokenizer converts between text and token ids. Make one with Load or New.
type Tokenizer struct {
	added  *addedTokens
	norm   []normalizer
	pre    []splitter
	model  *bpe
	prefix []int32 // added before every sequence by the post-processor
	suffix []int32
	dec    []decoder

	tokens []string // spelling by id; "" marks a hole
	bytes  []string // raw bytes by id, nil unless the decoder is ByteLevel
	ids    map[string]int32

	special      specialTokens
	chatTemplate string
}

// Files are the contents of the files of a tokenizer folder, as transformers names them.
// Only TokenizerJSON is needed; the others may be nil.
type Files struct {
	TokenizerJSON    []byte // tokenizer.json
	TokenizerConfig  []byte // tokenizer_config.json
	SpecialTokensMap []byte // special_tokens_map.json
	ChatTemplate     []byte // chat_template.jinja; wins over the chat_template key of tokenizer_config.json
}

// Names of the files in a tokenizer folder.
const (
	TokenizerJSONName    = "tokenizer.json"
	TokenizerConfigName  = "tokenizer_config.json"
	SpecialTokensMapName = "special_tokens_map.json"
	ChatTemplateName     = "chat_template.jinja"
)

// Load reads the tokenizer in folder dir: tokenizer.json, and where present
// tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
func Load(dir string) (*Tokenizer, error) {
	var f Files
	for _, part := range []struct {
		name string
		dst  *[]byte
	}{
		{TokenizerJSONName, &f.TokenizerJSON},
		{TokenizerConfigName, &f.TokenizerConfig},
		{SpecialTokensMapName, &f.SpecialTokensMap},
		{ChatTemplateName, &f.ChatTemplate},
	} {
		data, err := os.ReadFile(filepath.Join(dir, part.name))
		if errors.Is(err, fs.ErrNotExist) && part.name != TokenizerJSONName {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("tokenizer: load: %w", err)
		}
		*part.dst = data
	}
	t, err := New(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return t, nil
}

// New builds a tokenizer from file contents. Errors name the file and the component.
func New(f Files) (*Tokenizer, error) {
	t, err := parseTokenizerJSON(f.TokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", TokenizerJSONName, err)
	}
	if err := t.readConfig(f); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

// Files writes the contents to folder dir, which must exist. Each file is complete or absent.
func (f *Files) Write(dir string) error {
	for _, part := range []struct {
		name string
		data []byte
	}{
		{TokenizerJSONName, f.TokenizerJSON},
		{TokenizerConfigName, f.TokenizerConfig},
		{SpecialTokensMapName, f.SpecialTokensMap},
		{ChatTemplateName, f.ChatTemplate},
	} {
		if part.data == nil {
			continue
		}
		if err := writeFile(filepath.Join(dir, part.name), part.data); err != nil {
			return fmt.Errorf("tokenizer: write: %w", err)
		}
	}
	return nil
}

func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails harmlessly after the rename
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// EncodeOptions selects what Encode adds to the text. The zero value adds nothing.
type EncodeOptions struct {
	// AddSpecialTokens applies the post-processor, which for most models puts the
	// beginning-of-sequence token first. Text rendered from a chat template already
	// holds its special tokens: leave it false there.
	AddSpecialTokens bool
}

// Span is a half-open byte range [Start, End) of the input text.
type Span struct{ Start, End int }

// Encoding is a token sequence with the bytes each token came from.
type Encoding struct {
	IDs []int32
	// Offsets[i] are the bytes of the input that token i stands for. Unlike the Python
	// library, a token that holds part of a character covers only that part, and leading
	// spaces belong to their token. Tokens that the post-processor adds have empty spans.
	Offsets []Span
}

// Encode returns the token ids of text. It fails if text is not valid UTF-8 or a
// backtracking split pattern runs out of time.
func (t *Tokenizer) Encode(text string, opts EncodeOptions) ([]int32, error) {
	e := encoder{t: t, ids: make([]int32, 0, len(text)/4+4)}
	if err := e.run(text, opts); err != nil {
		return nil, err
	}
	return e.ids, nil
}

// EncodeOffsets is Encode with the byte range of each token.
func (t *Tokenizer) EncodeOffsets(text string, opts EncodeOptions) (Encoding, error) {
	e := encoder{t: t, wantOffsets: true, ids: []int32{}, offsets: []Span{}}
	if err := e.run(text, opts); err != nil {
		return Encoding{}, err
	}
	return Encoding{IDs: e.ids, Offsets: e.offsets}, nil
}

// encoder is the state of one Encode call.
type encoder struct {
	t           *Tokenizer
	wantOffsets bool
	ids         []int32
	offsets     []Span
	scratch     bpeScratch
}

func (e *encoder) run(text string, opts EncodeOptions) error {
	if i := invalidUTF8(text); i >= 0 {
		return fmt.Errorf("tokenizer: encode: text is not valid UTF-8 at byte %d", i)
	}
	t := e.t
	if opts.AddSpecialTokens {
		for _, id := range t.prefix {
			e.emit(id, Span{})
		}
	}
	words := e.words
	for i := len(t.pre) - 1; i >= 0; i-- {
		next, s := words, t.pre[i]
		words = func(p piece) error { return s.split(p, next) }
	}
	err := t.added.raw.split(piece{text: text}, e.emitPiece, func(p piece) error {
		for _, n := range t.norm {
			var err error
			if p, err = n.normalize(p); err != nil {
				return err
			}
		}
		return t.added.normalized.split(p, e.emitPiece, words)
	})
	if err != nil {
		return fmt.Errorf("tokenizer: encode: %w", err)
	}
	if opts.AddSpecialTokens {
		for _, id := range t.suffix {
			e.emit(id, Span{len(text), len(text)})
		}
	}
	return nil
}

func (e *encoder) emit(id int32, s Span) {
	e.ids = append(e.ids, id)
	if e.wantOffsets {
		e.offsets = append(e.offsets, s)
	}
}

func (e *encoder) emitPiece(id int32, p piece) { e.emit(id, p.span(0, len(p.text))) }

// words runs the model on one pre-token.
func (e *encoder) words(p piece) error {
	at := 0
	for _, s := range e.t.model.tokenize(p.text, &e.scratch) {
		end := at + int(s.n)
		if e.wantOffsets {
			e.offsets = append(e.offsets, p.span(at, end))
		}
		e.ids = append(e.ids, s.id)
		at = end
	}
	return nil
}

func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}

// VocabSize is one more than the largest token id, added tokens included: the least number
// of rows an embedding needs.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// CheckIDs makes sure that a model whose vocabulary has vocab rows (vocab_size) has an embedding for every id. Tokenizers
// with tokens that were added after training may have more.
func (t *Tokenizer) CheckIDs(ids []int32, vocab int) error {
	for i, id := range ids {
		if id >= 0 && int(id) < vocab {
			continue
		}
		text, _ := t.Token(id)
		return fmt.Errorf("tokenizer: token %d is %q with id %d, for which a model with a vocab_size of %d has no embedding", i, text, id, vocab)
	}
	return nil
}

// TokenID returns the id of a token by its spelling in the vocabulary.
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token returns the spelling of id in the vocabulary ("Ġthe", not " the").
func (t *Tokenizer) Token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == "" {
		return "", false
	}
	return t.tokens[id], true
}

// IsSpecial reports whether id is an added token marked special.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.added.special[id] }

// BOS returns the beginning-of-sequence token, if the configuration names one.
func (t *Tokenizer) BOS() (id int32, ok bool) { return t.named("bos_token") }

// EOS returns the end-of-sequence token, if the configuration names one.
func (t *Tokenizer) EOS() (id int32, ok bool) { return t.named("eos_token") }

// PAD returns the padding token, if the configuration names one.
func (t *Tokenizer) PAD() (id int32, ok bool) { return t.named("pad_token") }

// UNK returns the unknown token, if the configuration names one.
func (t *Tokenizer) UNK() (id int32, ok bool) { return t.named("unk_token") }

func (t *Tokenizer) named(name string) (int32, bool) {
	s, ok := t.special[name]
	if !ok {
		return 0, false
	}
	return t.TokenID(s)
}

// SpecialTokens returns the configured tokens by name (bos_token, eos_token, …), as a
// chat template wants them. The map is a copy.
func (t *Tokenizer) SpecialTokens() map[string]string {
	out := make(map[string]string, len(t.special))
	for k, v := range t.special {
		out[k] = v
	}
	return out
}

// ChatTemplate is the Jinja source of the chat template, or "" if the model has none.
func (t *Tokenizer) ChatTemplate() string { return t.chatTemplate }

// specialTokens maps bos_token, eos_token, … to spellings.
type specialTokens map[string]string

var specialNames = []string{
	"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
}

// readConfig takes the special tokens and the chat template from the side files.
func (t *Tokenizer) readConfig(f Files) error {
	t.special = specialTokens{}
	for _, part := range []struct {
		name string
		data []byte
	}{{TokenizerConfigName, f.TokenizerConfig}, {SpecialTokensMapName, f.SpecialTokensMap}} {
		if part.data == nil {
			continue
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(part.data, &fields); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		for _, name := range specialNames {
			if _, done := t.special[name]; done { // tokenizer_config.json wins
				continue
			}
			s, err := tokenSpelling(fields[name])
			if err != nil {
				return fmt.Errorf("%s: %s: %w", part.name, name, err)
			}
			if s != "" {
				t.special[name] = s
			}
		}
		if raw, ok := fields["chat_template"]; ok && part.name == TokenizerConfigName {
			s, err := defaultTemplate(raw)
			if err != nil {
				return fmt.Errorf("%s: chat_template: %w", part.name, err)
			}
			t.chatTemplate = s
		}
	}
	if f.ChatTemplate != nil {
		t.chatTemplate = string(f.ChatTemplate)
	}
	return nil
}

// tokenSpelling accepts "tok", {"content": "tok", …} and null.
func tokenSpelling(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	var obj struct {
		Content string `json:"content"`
	}
	err := json.Unmarshal(raw, &obj)
	return obj.Content, err
}

// defaultTemplate accepts a template, or a list of named ones of which "default" is taken.
func defaultTemplate(raw json.RawMessage) (string, error) {
	if string(raw) == "null" {
		return "", nil
	}
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", err
	}
	for _, e := range list {
		if e.Name == "default" {
			return e.Template, nil
		}
	}
	return "", errors.New(`list without a template named "default"`)
}
