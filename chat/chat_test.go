package chat

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/tokenizer"
	"github.com/stretchr/testify/require"
)

const testdata = "../testdata"

var smolTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	file, err := os.Open(filepath.Join(testdata, "tokenizer", "smollm2.tokenizer.json.gz"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	config, err := os.ReadFile(filepath.Join(testdata, "tokenizer", "smollm2.tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	return tokenizer.New(tokenizer.Files{TokenizerJSON: body, TokenizerConfig: config})
})

func smol(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := smolTokenizer()
	require.NoError(t, err)
	return tok
}

type rendering struct {
	Text string
	IDs  []int32
}

type goldenChat struct {
	Template      string
	Conversations []struct {
		Messages        []Message
		Plain, Gen      rendering
		PromptLenTokens *int `json:"prompt_len_tokens"`
	}
}

func readGolden(t testing.TB) goldenChat {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testdata, "goldens", "tokenizer", "chat.json"))
	require.NoError(t, err)
	var g goldenChat
	require.NoError(t, json.Unmarshal(data, &g))
	require.Len(t, g.Conversations, 10)
	return g
}

func TestGoldenChat(t *testing.T) {
	g, tok := readGolden(t), smol(t)
	require.Equal(t, g.Template, tok.ChatTemplate())
	tpl, err := NewWithWarning(g.Template, tok.SpecialTokens(), func(msg string) { t.Error(msg) })
	require.NoError(t, err)
	for _, c := range g.Conversations {
		for _, gen := range []bool{false, true} {
			want := c.Plain
			if gen {
				want = c.Gen
			}
			text, err := tpl.Render(c.Messages, RenderOptions{AddGenerationPrompt: gen})
			require.NoError(t, err)
			require.Equal(t, want.Text, text)
			ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
			require.NoError(t, err)
			require.Equal(t, want.IDs, ids)
		}
		if c.PromptLenTokens == nil {
			continue
		}
		ids, learn, err := tpl.Encode(tok, c.Messages, EncodeOptions{Learn: LearnLastAnswer})
		require.NoError(t, err)
		require.Equal(t, c.Plain.IDs, ids)
		last := len(ids) - 1 // the newline after <|im_end|>
		for i, b := range learn {
			require.Equal(t, i >= *c.PromptLenTokens && i < last, b, "token %d of %q", i, c.Plain.Text)
		}
	}
}
