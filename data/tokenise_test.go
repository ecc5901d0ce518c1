package data_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/data"
)

// words encodes each word as its length. Words without a space between them are one, as real tokenizers merge.
func words(text string) ([]int32, error) {
	var ids []int32
	for _, w := range strings.Fields(text) {
		if w == "poison" {
			return nil, errors.New("cannot encode poison")
		}
		ids = append(ids, int32(len(w)))
	}
	return ids, nil
}

// toy renders a turn as 100, its words, 101, and counts the words and the 101 of assistants in the loss.
func toy(messages []data.Message, _ []json.RawMessage) (ids []int32, on []bool, err error) {
	for _, m := range messages {
		w, err := words(m.Content)
		if err != nil {
			return nil, nil, err
		}
		answer := m.Role == "assistant"
		if m.Content == "mute" {
			return nil, nil, fmt.Errorf("toy: %w", data.ErrNoLabels)
		}
		ids, on = append(ids, 100), append(on, false)
		for _, id := range append(w, 101) {
			ids, on = append(ids, id), append(on, answer)
		}
	}
	return ids, on, nil
}

var encoders = data.Encoders{
	Chat: toy,
	ChatPrompt: func(messages []data.Message, tools []json.RawMessage) ([]int32, error) {
		ids, _, err := toy(messages, tools)
		return append(ids, 100), err
	},
	Text: words,
}

func tokenise(t *testing.T, src string, opts data.TokeniseOptions) ([]data.Example, data.Stats) {
	t.Helper()
	examples, stats, err := data.Tokenise(t.Context(), open(t, src), encoders, opts)
	require.NoError(t, err)
	return examples, stats
}

func TestTokeniseMasksAndEnds(t *testing.T) {
	const x = data.IgnoreIndex
	for _, c := range []struct {
		name, src   string
		opts        data.TokeniseOptions
		ids, labels []int32
	}{
		{"messages", `{"messages":[{"role":"user","content":"a bb"},{"role":"assistant","content":"ccc"}]}`, data.TokeniseOptions{EOS: []int32{2}},
			[]int32{100, 1, 2, 101, 100, 3, 101}, []int32{x, x, x, x, x, 3, 101}},
		{"text gets an end", `{"text":"a bb"}`, data.TokeniseOptions{EOS: []int32{0}}, []int32{1, 2, 0}, []int32{1, 2, 0}},
		{"text has an end", `{"text":"a bb"}`, data.TokeniseOptions{EOS: []int32{0, 2}}, []int32{1, 2}, []int32{1, 2}},
		{"completion", `{"prompt":"a bb","completion":" ccc"}`, data.TokeniseOptions{EOS: []int32{0}}, []int32{1, 2, 3, 0}, []int32{x, x, 3, 0}},
		{"completion merges", `{"prompt":"a bb","completion":"ccc"}`, data.TokeniseOptions{EOS: []int32{0}}, []int32{1, 5, 0}, []int32{x, 5, 0}},
		{"prompt counts", `{"prompt":"a bb","completion":" ccc"}`, data.TokeniseOptions{PromptLoss: true}, []int32{1, 2, 3}, []int32{1, 2, 3}},
		{"chat completion", `{"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"bb"}]}`, data.TokeniseOptions{EOS: []int32{0}},
			[]int32{100, 1, 101, 100, 2, 101}, []int32{x, x, x, x, 2, 101}},
		{"tokens", `{"input_ids":[5,6,7],"labels":[-100,6,7]}`, data.TokeniseOptions{MaxLength: 2, EOS: []int32{0}}, []int32{5, 6}, []int32{x, 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			examples, _ := tokenise(t, c.src, c.opts)
			require.Len(t, examples, 1)
			require.Equal(t, c.ids, examples[0].IDs)
			require.Equal(t, c.labels, examples[0].Labels)
		})
	}
}

func TestTokeniseDropsRowsWithoutLabels(t *testing.T) {
	chat := func(question, answer string) string {
		return fmt.Sprintf(`{"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q}]}`+"\n", question, answer)
	}
	long := chat("one two three four five six", "seven") // the answer is cut off
	examples, stats := tokenise(t, chat("a", "bb")+long+chat("c", "dd ee ff gg")+chat("mute", "x"), data.TokeniseOptions{MaxLength: 7})
	require.Len(t, examples, 2)
	require.Equal(t, int32(1), examples[0].IDs[1])
	require.Equal(t, data.Stats{Rows: 4, Dropped: 2, Truncated: 2, TokensCut: 6, Tokens: 13, Loss: 5, LongestBefore: 11}, stats)

	// One token has nothing to predict it.
	_, stats, err := data.Tokenise(t.Context(), open(t, `{"text":"a"}`), encoders, data.TokeniseOptions{})
	require.ErrorIs(t, err, data.ErrNoLabels)
	require.Equal(t, 1, stats.Dropped)
}

func TestTokeniseNamesTheRow(t *testing.T) {
	d := open(t, "{\"text\":\"fine\"}\n{\"text\":\"poison\"}\n")
	_, _, err := data.Tokenise(t.Context(), d, encoders, data.TokeniseOptions{})
	require.ErrorContains(t, err, d.Path()+":2: cannot encode poison")
	_, _, err = data.Tokenise(t.Context(), d, data.Encoders{}, data.TokeniseOptions{})
	require.ErrorContains(t, err, "there is no text encoder")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = data.Tokenise(ctx, d, encoders, data.TokeniseOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

// Several workers give the same result as one.
func TestTokeniseParityOfWorkers(t *testing.T) {
	var src strings.Builder
	for i := range 300 {
		fmt.Fprintf(&src, "{\"text\":%q}\n", strings.Repeat("ab ", i%17))
	}
	one, stats1 := tokenise(t, src.String(), data.TokeniseOptions{MaxLength: 9, EOS: []int32{0}})
	four, stats4 := tokenise(t, src.String(), data.TokeniseOptions{MaxLength: 9, EOS: []int32{0}, Workers: 4})
	require.Equal(t, one, four)
	require.Equal(t, stats1, stats4)
}

// Packing neither loses nor changes a token, fills no row too far, and BFD keeps examples whole.
func TestPackProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.IntRange(0, 25), 0, 60).Draw(t, "lengths")
		opts := data.PackOptions{Length: rapid.IntRange(1, 20).Draw(t, "length"),
			Strategy: data.Strategy(rapid.IntRange(0, 2).Draw(t, "strategy")),
			Window:   rapid.SampledFrom([]int{-1, 0, 7}).Draw(t, "window")}
		var examples []data.Example
		var total, cut int64
		next := int32(0)
		for _, n := range lengths {
			var ex data.Example
			for range n {
				ex.IDs, ex.Labels = append(ex.IDs, next), append(ex.Labels, next)
				next++
			}
			examples = append(examples, ex)
			total += int64(n)
			cut += int64(max(0, n-opts.Length))
		}
		rows, stats, err := data.Pack(examples, opts)
		require.NoError(t, err)
		if opts.Strategy != data.BFD {
			cut = 0
		}
		require.Equal(t, data.PackStats{Rows: len(rows), Tokens: total - cut, TokensCut: cut}, stats)
		seen := map[int32]bool{}
		for _, row := range rows {
			require.LessOrEqual(t, len(row.IDs), opts.Length)
			require.Equal(t, row.IDs, row.Labels)
			at := 0
			for _, n := range row.Lengths {
				for i, id := range row.IDs[at : at+n] {
					require.Equal(t, row.IDs[at]+int32(i), id)
				}
				at += n
			}
			if opts.Strategy != data.Wrapped {
				require.Equal(t, len(row.IDs), at)
			}
			for _, id := range row.IDs {
				require.False(t, seen[id])
				seen[id] = true
			}
		}
	})
}

func TestPackTruncatesAndCounts(t *testing.T) {
	examples := make([]data.Example, 3)
	for i, n := range []int32{5, 3, 9} {
		for j := range n {
			examples[i].IDs = append(examples[i].IDs, 10*int32(i)+j)
			examples[i].Labels = append(examples[i].Labels, 10*int32(i)+j)
		}
	}
	rows, stats, err := data.Pack(examples, data.PackOptions{Length: 8})
	require.NoError(t, err)
	require.Equal(t, data.PackStats{Rows: 2, Tokens: 16, TokensCut: 1}, stats)
	require.Equal(t, []int{8}, rows[0].Lengths)
	require.Equal(t, []int{5, 3}, rows[1].Lengths)
	_, _, err = data.Pack(examples, data.PackOptions{})
	require.ErrorContains(t, err, "set max_length")
	_, err = data.ParseStrategy("ffd")
	require.ErrorContains(t, err, `unknown packing strategy "ffd"`)
}

func TestCollatePadsAPaddingFreeRowAsItsOwnSequence(t *testing.T) {
	ex := data.Example{IDs: []int32{1, 2, 3}, Labels: []int32{1, 2, 3}}
	b := data.Collate([]data.Example{ex, ex}, data.CollateOptions{PadID: 9, PadToMultipleOf: 4, PaddingFree: true})
	require.Equal(t, 8, b.T)
	require.Equal(t, []int64{1, 2, 3, 1, 2, 3, 9, 9}, b.IDs)
	require.Equal(t, []int64{-100, 2, 3, -100, 2, 3, -100, -100}, b.Labels)
	require.Equal(t, []int64{0, 1, 2, 0, 1, 2, 0, 1}, b.PositionIDs)
	require.Equal(t, []int32{0, 3, 6, 8}, b.CuSeqlens)
	require.Equal(t, []int{3, 3}, b.Lengths)
	require.Equal(t, 4, b.LossTokens())
	require.Zero(t, data.Collate(nil, data.CollateOptions{}).LossTokens())
}
