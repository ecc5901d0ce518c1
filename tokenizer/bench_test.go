package tokenizer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const benchText = "The quick brown fox jumps over the lazy dog; it wasn't 12,345 times that day, though.\n" +
	"func main() {\n\tfor i := range 10 {\n\t\tfmt.Println(i, \"naïve café\")\n\t}\n}\n<|im_end|>\n"

func BenchmarkEncode(b *testing.B) {
	tok := smol(b)
	text := strings.Repeat(benchText, 100)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := tok.Encode(text, EncodeOptions{})
		require.NoError(b, err)
	}
}

// BenchmarkEncodeUncached merges every word anew.
func BenchmarkEncodeUncached(b *testing.B) {
	tok := smol(b)
	text := strings.Repeat(benchText, 100)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		var s bpeScratch
		for i := 0; i < len(text); {
			j := scanGPT2(text, i)
			s.symbols = tok.model.mergeShort(tok.model.symbols(text[i:j], s.symbols[:0]), &s)
			i = j
		}
	}
}

// BenchmarkEncodeLongWord is a SentencePiece text, which is one word.
func BenchmarkEncodeLongWord(b *testing.B) {
	tok, _ := small(b, "llama2")
	text := strings.Repeat(benchText, 100)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		_, err := tok.Encode(text, EncodeOptions{})
		require.NoError(b, err)
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := smol(b)
	text := strings.Repeat(benchText, 100)
	ids, err := tok.Encode(text, EncodeOptions{})
	require.NoError(b, err)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Decode(ids, false)
	}
}

func BenchmarkNew(b *testing.B) {
	f, err := smolFiles()
	require.NoError(b, err)
	for b.Loop() {
		_, err := New(f)
		require.NoError(b, err)
	}
}
