package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// someText draws text rich in what the split patterns distinguish.
func someText() *rapid.Generator[string] {
	part := rapid.OneOf(
		rapid.SampledFrom([]string{
			"'s", "'S", "'ſ", "'ll", "'LL", "'Re", "'v", "''", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u0085",
			"a", "Zx", "é", "e\u0301", "中", "ſ", "1", "23", "½", "Ⅷ", "٣", "!", "...", "😀", "\u200d", "\ufffd", "\x00", "<|im_end|>", "_",
		}),
		rapid.String(),
	)
	return rapid.Map(rapid.SliceOfN(part, 0, 24), func(p []string) string {
		return strings.ToValidUTF8(strings.Join(p, ""), "\ufffd")
	})
}

// TestParityScanners compares the hand-written scanners with the patterns they stand for.
func TestParityScanners(t *testing.T) {
	for expr, scan := range knownPatterns {
		re := backtracking{regexp2.MustCompile(expr, regexp2.None)}
		rapid.Check(t, func(t *rapid.T) {
			s := someText().Draw(t, "text")
			want, err := re.findAll(s)
			require.NoError(t, err)
			got, err := scan.findAll(s)
			require.NoError(t, err)
			if len(s) > 0 {
				require.Equal(t, want, got, "%q by %s", s, expr)
			}
		})
	}
}

// TestParityMerge compares the heap with the scan.
func TestParityMerge(t *testing.T) {
	tok := smol(t)
	rapid.Check(t, func(t *rapid.T) {
		word := strings.Repeat(someText().Draw(t, "word"), rapid.IntRange(1, 4).Draw(t, "times"))
		if word == "" {
			return
		}
		var b bpeScratch
		want := tok.model.mergeShort(tok.model.symbols(word, nil), &b)
		got := tok.model.mergeLong(tok.model.symbols(word, nil))
		require.Equal(t, want, got)
	})
}

// inVocabulary drops the characters with bytes that the vocabulary of SmolLM2 lacks: rare
// control characters and bytes that begin no character in use.
func inVocabulary(tok *Tokenizer, s string) string {
	return strings.Map(func(r rune) rune {
		if !tok.model.hasBytes(string(r)) {
			return -1
		}
		return r
	}, s)
}

func TestRoundTripAndOffsets(t *testing.T) {
	tok := smol(t)
	rapid.Check(t, func(t *rapid.T) {
		s := inVocabulary(tok, someText().Draw(t, "text"))
		enc, err := tok.EncodeOffsets(s, EncodeOptions{})
		require.NoError(t, err)
		require.Equal(t, s, tok.Decode(enc.IDs, false))
		at := 0
		for _, o := range enc.Offsets { // the spans cover the text without gaps
			require.Equal(t, at, o.Start)
			at = o.End
		}
		require.Equal(t, len(s), at)
	})
}

func TestOffsetsThroughNormalisation(t *testing.T) {
	tok, _ := small(t, "qwen2")
	text := "xe\u0301y" // NFC makes one character of the middle two
	enc, err := tok.EncodeOffsets(text, EncodeOptions{})
	require.NoError(t, err)
	for i, o := range enc.Offsets {
		require.Contains(t, []string{"x", "e\u0301", "y"}, text[o.Start:o.End], "token %d", i)
	}
	tok, _ = small(t, "llama2")
	enc, err = tok.EncodeOffsets("ab c", EncodeOptions{AddSpecialTokens: true})
	require.NoError(t, err)
	require.Equal(t, Span{0, 0}, enc.Offsets[0])
	require.Equal(t, Span{4, 4}, enc.Offsets[len(enc.Offsets)-1])
	require.Equal(t, 4, enc.Offsets[len(enc.Offsets)-2].End)
}

func TestConcurrentUse(t *testing.T) {
	tok := smol(t)
	var golden struct{ Strings []textCase }
	readJSON(t, &golden, testdata, "goldens", "tokenizer", "strings.json")
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		wg.Go(func() {
			for _, c := range golden.Strings {
				ids, err := tok.Encode(c.Text, EncodeOptions{})
				if err != nil || fmt.Sprint(ids) != fmt.Sprint(c.IDs) {
					errs <- fmt.Errorf("%q: %v, %w", c.Text, ids, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	tok, _ := small(t, "gpt2")
	for i := range maxWordsPerShard * 20 {
		_, err := tok.Encode(fmt.Sprint(i), EncodeOptions{})
		require.NoError(t, err)
	}
	for i := range tok.model.cache.shards {
		require.LessOrEqual(t, len(tok.model.cache.shards[i].words), maxWordsPerShard)
	}
}

func TestInvalidUTF8(t *testing.T) {
	_, err := smol(t).Encode("ab\xffc", EncodeOptions{})
	require.ErrorContains(t, err, "not valid UTF-8 at byte 2")
}

func TestStreamHoldsIncompleteCharacters(t *testing.T) {
	tok := smol(t)
	ids, err := tok.Encode("é😀!", EncodeOptions{})
	require.NoError(t, err)
	stream, got := tok.Stream(false), ""
	for _, id := range ids {
		text := stream.Push(id)
		require.NotContains(t, text, "\ufffd")
		got += text
	}
	require.Equal(t, "é😀!", got+stream.Flush())

	// A character that is cut off comes out at the end.
	stream = tok.Stream(false)
	ids, err = tok.Encode("😀", EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, "", stream.Push(ids[0]))
	require.Equal(t, "\ufffd", stream.Flush())
}

func TestLossyMatchesUnicodePractice(t *testing.T) {
	for in, want := range map[string]string{
		"a\xf0\x9f\x98":     "a\ufffd",                  // one truncated character
		"\xf0\x9f\x98b":     "\ufffdb",                  //
		"\xff\xfe":          "\ufffd\ufffd",             // no character begins like this
		"\xe2\x82\xe2\x82x": "\ufffd\ufffdx",            //
		"\xed\xa0\x80":      "\ufffd\ufffd\ufffd",       // surrogate
		"\xc0\x80":          "\ufffd\ufffd",             // overlong
		"\xf4\x90\x80\x80":  "\ufffd\ufffd\ufffd\ufffd", // beyond U+10FFFF
	} {
		require.Equal(t, want, lossy([]byte(in)), "%q", in)
	}
}

func TestSpecialTokens(t *testing.T) {
	tok := smol(t)
	require.Equal(t, 49152, tok.VocabSize())
	for _, c := range []struct {
		name string
		get  func() (int32, bool)
		want int32
	}{{"bos", tok.BOS, 1}, {"eos", tok.EOS, 2}, {"pad", tok.PAD, 2}, {"unk", tok.UNK, 0}} {
		id, ok := c.get()
		require.True(t, ok, c.name)
		require.Equal(t, c.want, id, c.name)
	}
	require.True(t, tok.IsSpecial(2))
	require.False(t, tok.IsSpecial(100))
	id, ok := tok.TokenID("<|im_end|>")
	require.True(t, ok)
	require.EqualValues(t, 2, id)
	require.NotEmpty(t, tok.ChatTemplate())
	bare, _ := small(t, "gpt2")
	_, ok = bare.EOS()
	require.False(t, ok)
}

func TestLoadFolder(t *testing.T) {
	f, err := smolFiles()
	require.NoError(t, err)
	f.ChatTemplate = []byte("from the file")
	dir := t.TempDir()
	require.NoError(t, f.Write(dir))
	tok, err := Load(dir)
	require.NoError(t, err)
	require.Equal(t, "from the file", tok.ChatTemplate())

	_, err = Load(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestLoadErrors names the component that is wrong.
func TestLoadErrors(t *testing.T) {
	model := `"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	for doc, want := range map[string]string{
		``:        "tokenizer.json",
		"{\n\n}x": "line 3",
		`{}`:      "no model",
		`{"model":{"type":"WordPiece","vocab":{"a":0}}}`:                                                  `"WordPiece"`,
		`{"model":{"type":"BPE","vocab":{}}}`:                                                             "vocab is empty",
		`{"model":{"type":"BPE","vocab":{"a":0,"b":0}}}`:                                                  "same id 0",
		`{"model":{"type":"BPE","vocab":{"a":-1}}}`:                                                       "id -1",
		`{"model":{"type":"BPE","vocab":{"a":99999999999}}}`:                                              "99999999999",
		`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}`:                                       "merges[0]",
		`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b c"]}}`:                                     "merges[0]",
		`{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}}`:                                       "merges[0]",
		`{"model":{"type":"BPE","vocab":{"a":0},"dropout":0.1}}`:                                          "dropout",
		`{"model":{"type":"BPE","vocab":{"a":0},"unk_token":"u"}}`:                                        `"u"`,
		`{"pre_tokenizer":{"type":"Bert"},` + model + `}`:                                                 `pre_tokenizer type "Bert"`,
		`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(("},"behavior":"Isolated"},` + model + `}`: `"(("`,
		`{"pre_tokenizer":{"type":"Split","pattern":{},"behavior":"Isolated"},` + model + `}`:             "pattern",
		`{"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"x"},` + model + `}`:        `"x"`,
		`{"normalizer":{"type":"Precompiled"},` + model + `}`:                                             `normalizer type "Precompiled"`,
		`{"decoder":{"type":"CTC"},` + model + `}`:                                                        `decoder type "CTC"`,
		`{"post_processor":{"type":"Bert"},` + model + `}`:                                                `post_processor type "Bert"`,
		`{"post_processor":{"type":"TemplateProcessing","single":[]},` + model + `}`:                      "0 times",
		`{"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"q"}},{"Sequence":{"id":"A"}}],"special_tokens":{"q":{"ids":[9]}}},` + model + `}`: "id 9",
		`{"added_tokens":[{"id":0,"content":"zz"}],` + model + `}`:  "same id 0",
		`{"added_tokens":[{"id":-5,"content":"zz"}],` + model + `}`: "id -5",
	} {
		_, err := New(Files{TokenizerJSON: []byte(doc)})
		require.ErrorContains(t, err, want, doc)
	}
}

func TestFromGGUFErrors(t *testing.T) {
	vocab, types := []string{"a"}, []int32{1}
	none := GGUFMeta{Model: "gpt2", BOS: -1, EOS: -1, UNK: -1, PAD: -1}
	for want, change := range map[string]func(*GGUFMeta){
		`"llama" is not supported`: func(m *GGUFMeta) { m.Model = "llama" },
		`"tekken" is not known`:    func(m *GGUFMeta) { m.Pre = "tekken" },
		"eos_token has id 7":       func(m *GGUFMeta) { m.EOS = 7 },
		"no bos_token_id":          func(m *GGUFMeta) { m.AddBOS = true },
	} {
		meta := none
		change(&meta)
		_, err := FromGGUF(vocab, types, nil, meta)
		require.ErrorContains(t, err, want)
	}
	_, err := FromGGUF(vocab, nil, nil, none)
	require.ErrorContains(t, err, "0 token types")
	_, err = FromGGUF(vocab, types, []string{"x y"}, none)
	require.ErrorContains(t, err, "merges[0]")
}

// TestParityFromGGUF rebuilds the small golden tokenizers from their vocabulary alone.
func TestParityFromGGUF(t *testing.T) {
	for name, pre := range map[string]string{"digits": "smollm", "llama3": "llama-bpe", "qwen2": "qwen2"} {
		want, cases := small(t, name)
		var file struct{ Tokenizer tokenizerFile }
		readJSON(t, &file, testdata, "tokenizer", "small", name+".json")
		types := make([]int32, len(want.tokens))
		for id := range types {
			types[id] = 1
		}
		for _, a := range file.Tokenizer.AddedTokens {
			types[a.ID] = ggufUserDefined
			if a.Special {
				types[a.ID] = ggufControl
			}
		}
		var merges []string
		for _, m := range file.Tokenizer.Model.Merges {
			merges = append(merges, m[0]+" "+m[1])
		}
		bos, _ := want.TokenID("<s>")
		f, err := FromGGUF(want.tokens, types, merges, GGUFMeta{Model: "gpt2", Pre: pre, BOS: int(bos), EOS: -1, UNK: -1, PAD: -1, AddBOS: true, ChatTemplate: "x"})
		require.NoError(t, err)
		tok, err := New(*f)
		require.NoError(t, err)
		require.Equal(t, "x", tok.ChatTemplate())
		for _, c := range cases {
			// GGUF does not carry the flags of the added tokens these texts need.
			if strings.Contains(c.Text, "<|end|> ") || strings.Contains(c.Text, "<mask>") {
				continue
			}
			got, err := tok.Encode(c.Text, EncodeOptions{AddSpecialTokens: true})
			require.NoError(t, err)
			plain, err := want.Encode(c.Text, EncodeOptions{})
			require.NoError(t, err)
			require.Equal(t, append([]int32{bos}, plain...), got, "%s: %q", name, c.Text)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	tok := smol(f)
	for _, s := range []string{"", "Hello, world!", "<|im_end|> x", "日本 1234 ½\r\n\t '\u017f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			_, err := tok.Encode(s, EncodeOptions{})
			require.Error(t, err)
			return
		}
		s = inVocabulary(tok, s)
		ids, err := tok.Encode(s, EncodeOptions{})
		require.NoError(t, err)
		require.Equal(t, s, tok.Decode(ids, false))
	})
}

func FuzzLoad(f *testing.F) {
	for _, name := range []string{"llama3", "llama2", "split", "metaspace"} {
		var file struct{ Tokenizer map[string]json.RawMessage }
		readJSON(f, &file, testdata, "tokenizer", "small", name+".json")
		file.Tokenizer["model"] = json.RawMessage(`{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<unk>":3,"<0x41>":4},"merges":[["a","b"]],"byte_fallback":true,"unk_token":"<unk>"}`)
		delete(file.Tokenizer, "post_processor")
		doc, err := json.Marshal(file.Tokenizer)
		require.NoError(f, err)
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		tok, err := New(Files{TokenizerJSON: doc})
		if err != nil {
			return
		}
		ids, err := tok.Encode("ab <s> Ab\r\n1é", EncodeOptions{AddSpecialTokens: true})
		if err == nil {
			tok.Decode(ids, true)
			stream := tok.Stream(false)
			for _, id := range ids {
				stream.Push(id)
			}
			stream.Flush()
		}
	})
}
