package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const testdata = "../testdata"

// smolFiles is the tokenizer of SmolLM2, made by FromGGUF from the published GGUF file.
var smolFiles = sync.OnceValues(func() (Files, error) {
	file, err := os.Open(filepath.Join(testdata, "tokenizer", "smollm2.tokenizer.json.gz"))
	if err != nil {
		return Files{}, err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return Files{}, err
	}
	body, err := io.ReadAll(z)
	if err != nil {
		return Files{}, err
	}
	config, err := os.ReadFile(filepath.Join(testdata, "tokenizer", "smollm2.tokenizer_config.json"))
	return Files{TokenizerJSON: body, TokenizerConfig: config}, err
})

func smol(t testing.TB) *Tokenizer {
	t.Helper()
	f, err := smolFiles()
	require.NoError(t, err)
	tok, err := New(f)
	require.NoError(t, err)
	return tok
}

func readJSON(t testing.TB, dst any, elem ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elem...))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, dst))
}

// textCase is one text with the ids and decodings of the reference library.
type textCase struct {
	Text               string  `json:"text"`
	IDs                []int32 `json:"ids"`
	Decoded            string  `json:"decoded"`
	DecodedSkipSpecial string  `json:"decoded_skip_special"`
}

func (c textCase) check(t *testing.T, tok *Tokenizer, opts EncodeOptions) {
	t.Helper()
	ids, err := tok.Encode(c.Text, opts)
	require.NoError(t, err)
	require.Equal(t, c.IDs, ids, "%q", c.Text)
	require.Equal(t, c.Decoded, tok.Decode(ids, false), "%q", c.Text)
	require.Equal(t, c.DecodedSkipSpecial, tok.Decode(ids, true), "%q", c.Text)

	enc, err := tok.EncodeOffsets(c.Text, opts)
	require.NoError(t, err)
	require.Equal(t, ids, enc.IDs)
	require.Len(t, enc.Offsets, len(ids))

	for _, skip := range []bool{false, true} {
		stream, got := tok.Stream(skip), ""
		for _, id := range ids {
			got += stream.Push(id)
		}
		require.Equal(t, tok.Decode(ids, skip), got+stream.Flush(), "stream of %q", c.Text)
	}
}

func TestGoldenSmolLM2Strings(t *testing.T) {
	var golden struct{ Strings []textCase }
	readJSON(t, &golden, testdata, "goldens", "tokenizer", "strings.json")
	require.Len(t, golden.Strings, 204)
	tok := smol(t)
	for _, c := range golden.Strings {
		c.check(t, tok, EncodeOptions{})
	}
}

// TestGoldenSmall covers every kind of component with small vocabularies.
func TestGoldenSmall(t *testing.T) {
	for _, name := range []string{"gpt2", "llama3", "qwen2", "digits", "split", "llama2", "metaspace"} {
		t.Run(name, func(t *testing.T) {
			tok, cases := small(t, name)
			require.NotEmpty(t, cases)
			for _, c := range cases {
				c.check(t, tok, EncodeOptions{AddSpecialTokens: true})
			}
		})
	}
}

func small(t testing.TB, name string) (*Tokenizer, []textCase) {
	t.Helper()
	var file struct {
		Tokenizer json.RawMessage
		Cases     []textCase
	}
	readJSON(t, &file, testdata, "tokenizer", "small", name+".json")
	tok, err := New(Files{TokenizerJSON: file.Tokenizer})
	require.NoError(t, err)
	return tok, file.Cases
}

func TestCheckIDs(t *testing.T) {
	tok := smol(t)
	ids, err := tok.Encode("a<|im_end|>", EncodeOptions{})
	require.NoError(t, err)
	require.NoError(t, tok.CheckIDs(ids, tok.VocabSize()))
	require.ErrorContains(t, tok.CheckIDs(ids, 2), `token 0 is "a" with id`)
	require.ErrorContains(t, tok.CheckIDs([]int32{-1}, 2), "id -1, for which a model with a vocab_size of 2 has no embedding")
}
