package data_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/data"
)

func readGolden(t *testing.T, name string, dst any) {
	t.Helper()
	raw, err := os.ReadFile("../testdata/goldens/packing/" + name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, dst))
}

// TestGoldenPack compares rows, labels and lengths with TRL's pack_dataset.
func TestGoldenPack(t *testing.T) {
	var golden struct {
		Samples [][]int32 `json:"samples"`
		Results []struct {
			Strategy string `json:"strategy"`
			Length   int    `json:"seq_length"`
			Out      struct {
				IDs     [][]int32 `json:"input_ids"`
				Labels  [][]int32 `json:"labels"`
				Lengths [][]int   `json:"seq_lengths"`
			} `json:"out"`
		} `json:"results"`
	}
	readGolden(t, "packing.json", &golden)
	require.Len(t, golden.Results, 9)
	var examples []data.Example
	for _, ids := range golden.Samples {
		labels := append([]int32{data.IgnoreIndex}, ids[1:]...)
		examples = append(examples, data.Example{IDs: ids, Labels: labels})
	}
	for _, g := range golden.Results {
		t.Run(fmt.Sprintf("%s/%d", g.Strategy, g.Length), func(t *testing.T) {
			strategy, err := data.ParseStrategy(g.Strategy)
			require.NoError(t, err)
			rows, stats, err := data.Pack(examples, data.PackOptions{Length: g.Length, Strategy: strategy})
			require.NoError(t, err)
			require.Equal(t, len(g.Out.IDs), stats.Rows)
			require.Len(t, rows, len(g.Out.IDs))
			for i, row := range rows {
				require.Equal(t, g.Out.IDs[i], row.IDs, "row %d", i)
				require.Equal(t, g.Out.Labels[i], row.Labels, "row %d", i)
				if g.Out.Lengths != nil {
					require.Equal(t, g.Out.Lengths[i], row.Lengths, "row %d", i)
				} else {
					require.Nil(t, row.Lengths)
				}
			}
		})
	}
}

// TestGoldenCollate compares batches with TRL's DataCollatorForLanguageModeling.
func TestGoldenCollate(t *testing.T) {
	var golden map[string]struct {
		IDs       [][]int64 `json:"input_ids"`
		Labels    [][]int64 `json:"labels"`
		Mask      [][]int   `json:"attention_mask"`
		Positions [][]int64 `json:"position_ids"`
		CuSeqlens []int32   `json:"cu_seq_lens_q"`
	}
	readGolden(t, "collator.json", &golden)
	sequence := func(from, n, masked int32) data.Example {
		var ex data.Example
		for i := range n {
			ex.IDs = append(ex.IDs, from+i)
			ex.Labels = append(ex.Labels, from+i)
			if i < masked {
				ex.Labels[i] = data.IgnoreIndex
			}
		}
		return ex
	}
	a, b := sequence(100, 5, 0), sequence(300, 9, 0)
	packed := data.Example{IDs: append(a.IDs[:5:5], b.IDs...), Labels: append(a.Labels[:5:5], b.Labels...), Lengths: []int{5, 9}}
	last := sequence(300, 9, 3)
	last.Lengths = []int{9}
	for _, c := range []struct {
		name     string
		examples []data.Example
		opts     data.CollateOptions
	}{
		{"padded_plain", []data.Example{a, b}, data.CollateOptions{PadID: 2}},
		{"padded_masked_prompt", []data.Example{sequence(100, 5, 2), sequence(300, 9, 4)}, data.CollateOptions{PadID: 2}},
		{"padded_plain_multiple_of_8", []data.Example{a, b}, data.CollateOptions{PadID: 2, PadToMultipleOf: 8}},
		{"padding_free", []data.Example{a, b}, data.CollateOptions{PadID: 2, PaddingFree: true}},
		{"padding_free_packed", []data.Example{packed, last}, data.CollateOptions{PadID: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, ok := golden[c.name]
			require.True(t, ok)
			got := data.Collate(c.examples, c.opts)
			require.Equal(t, len(want.IDs), got.B)
			require.Equal(t, len(want.IDs[0]), got.T)
			for i := range got.B {
				row := func(x []int64) []int64 { return x[i*got.T : (i+1)*got.T] }
				require.Equal(t, want.IDs[i], row(got.IDs))
				require.Equal(t, want.Labels[i], row(got.Labels))
				if want.Mask != nil {
					n := 0
					for _, on := range want.Mask[i] {
						n += on
					}
					require.Equal(t, n, got.Lengths[i])
				}
				if want.Positions != nil {
					require.Equal(t, want.Positions[i], row(got.PositionIDs))
				}
			}
			require.Equal(t, want.CuSeqlens, got.CuSeqlens)
			require.Equal(t, want.CuSeqlens != nil, got.PaddingFree())
		})
	}
}
