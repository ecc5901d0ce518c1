package data_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/data"
)

// deal returns the rows of one epoch, per step and rank.
func deal(t require.TestingT, cfg data.SamplerConfig, epoch int) [][][]int {
	var out [][][]int
	for rank := range max(1, cfg.World) {
		cfg.Rank = rank
		s, err := data.NewSampler(cfg)
		require.NoError(t, err)
		require.NoError(t, s.Seek(data.Position{Epoch: epoch}))
		for step := 0; s.Position().Epoch == epoch; step++ {
			if rank == 0 {
				out = append(out, nil)
			}
			out[step] = append(out[step], s.Next())
		}
		require.Len(t, out, s.StepsPerEpoch())
	}
	return out
}

func TestSamplerDealsAsAccelerateDoes(t *testing.T) {
	cfg := data.SamplerConfig{Rows: 11, BatchSize: 2, World: 2, InOrder: true}
	require.Equal(t, [][][]int{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8, 9}, {10, 0}}}, deal(t, cfg, 0))
	cfg.Rows = 9
	require.Equal(t, [][][]int{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8, 0}, {1, 2}}}, deal(t, cfg, 0))
	cfg.Tail = data.TailDrop
	require.Equal(t, [][][]int{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}}, deal(t, cfg, 0))
	cfg.Tail = data.TailShort
	require.Equal(t, [][][]int{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8}, {}}}, deal(t, cfg, 0))
	require.Equal(t, [][][]int{{{0, 1}}, {{2}}}, deal(t, data.SamplerConfig{Rows: 3, BatchSize: 2, InOrder: true}, 0))
	// Fewer rows than one step takes: around more than once.
	require.Equal(t, [][][]int{{{0, 1}, {2, 0}, {1, 2}, {0, 1}}}, deal(t, data.SamplerConfig{Rows: 3, BatchSize: 2, World: 4, InOrder: true}, 0))
}

// The order of an epoch is pinned: a checkpoint of one version must resume in another.
func TestSamplerOrderIsStable(t *testing.T) {
	cfg := data.SamplerConfig{Rows: 8, BatchSize: 8, Seed: 42}
	require.Equal(t, [][][]int{{{5, 4, 2, 1, 0, 3, 6, 7}}}, deal(t, cfg, 0))
	require.Equal(t, [][][]int{{{4, 5, 7, 0, 1, 6, 2, 3}}}, deal(t, cfg, 1))
}

func TestSamplerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := data.SamplerConfig{
			Rows: rapid.IntRange(1, 60).Draw(t, "rows"), BatchSize: rapid.IntRange(1, 5).Draw(t, "batch"),
			World: rapid.IntRange(1, 5).Draw(t, "world"), Seed: rapid.Uint64().Draw(t, "seed"),
			Tail: data.Tail(rapid.IntRange(0, 2).Draw(t, "tail")),
		}
		if rapid.Bool().Draw(t, "group") {
			cfg.Lengths = rapid.SliceOfN(rapid.IntRange(1, 9), cfg.Rows, cfg.Rows).Draw(t, "lengths")
		}
		if cfg.Tail == data.TailDrop && cfg.Rows < cfg.World*cfg.BatchSize {
			_, err := data.NewSampler(cfg)
			require.ErrorContains(t, err, "drop_last leaves no batch")
			return
		}
		seen := make([]int, cfg.Rows)
		total := 0
		steps := deal(t, cfg, 3)
		for _, step := range steps {
			for _, rows := range step {
				for _, row := range rows {
					seen[row]++
					total++
				}
				if cfg.Tail == data.TailDrop || cfg.Tail == data.TailWrap && cfg.World > 1 {
					require.Len(t, rows, cfg.BatchSize)
				}
			}
		}
		for row, n := range seen {
			switch {
			case cfg.Tail == data.TailDrop:
				require.LessOrEqual(t, n, 1, "row %d", row)
			case cfg.Tail == data.TailShort || cfg.World == 1:
				require.Equal(t, 1, n, "row %d", row)
			default:
				require.GreaterOrEqual(t, n, 1, "row %d", row)
			}
		}
		if cfg.Lengths != nil {
			longest := 0
			for _, n := range cfg.Lengths {
				longest = max(longest, n)
			}
			require.Equal(t, longest, cfg.Lengths[steps[0][0][0]], "the longest row comes first")
		}
	})
}

// A position saved as JSON after any step repeats the rest exactly, over the end of an epoch as well.
func TestSamplerResumes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := data.SamplerConfig{Rows: rapid.IntRange(6, 40).Draw(t, "rows"), BatchSize: 2, World: 3, Rank: 1, Seed: 7,
			Tail: data.Tail(rapid.IntRange(0, 2).Draw(t, "tail"))}
		a, err := data.NewSampler(cfg)
		require.NoError(t, err)
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			a.Next()
		}
		saved, err := json.Marshal(a.Position())
		require.NoError(t, err)
		var p data.Position
		require.NoError(t, json.Unmarshal(saved, &p))
		b, err := data.NewSampler(cfg)
		require.NoError(t, err)
		require.NoError(t, b.Seek(p))
		for range 30 {
			require.Equal(t, a.Next(), b.Next())
			require.Equal(t, a.Position(), b.Position())
		}
	})
}

// A run that goes on with another number of ranks sees each remaining row of the epoch.
func TestSamplerResumesAtAnotherWorldSize(t *testing.T) {
	order := deal(t, data.SamplerConfig{Rows: 24, BatchSize: 24, Seed: 5}, 0)[0][0]
	s, err := data.NewSampler(data.SamplerConfig{Rows: 24, BatchSize: 2, World: 4, Seed: 5})
	require.NoError(t, err)
	s.Next()
	require.Equal(t, data.Position{Index: 8}, s.Position())
	var rest []int
	for rank := range 2 {
		r, err := data.NewSampler(data.SamplerConfig{Rows: 24, BatchSize: 4, World: 2, Rank: rank, Seed: 5})
		require.NoError(t, err)
		require.NoError(t, r.Seek(s.Position()))
		for r.Position().Epoch == 0 {
			rest = append(rest, r.Next()...)
		}
	}
	require.ElementsMatch(t, order[8:], rest)
	require.ErrorContains(t, s.Seek(data.Position{Index: 25}), "does not fit 24 rows")
}

func TestSamplerRefusesBadConfigs(t *testing.T) {
	for want, cfg := range map[string]data.SamplerConfig{
		"there are 0 rows":       {BatchSize: 1},
		"batch size is 0":        {Rows: 1},
		"rank 2 of 2":            {Rows: 1, BatchSize: 1, World: 2, Rank: 2},
		"ranks with batch size":  {Rows: 1, BatchSize: math.MaxInt, World: 2},
		"lengths for 1 rows":     {Rows: 1, BatchSize: 1, Lengths: []int{1, 2}},
		"drop_last leaves no ba": {Rows: 1, BatchSize: 2, Tail: data.TailDrop},
	} {
		_, err := data.NewSampler(cfg)
		require.ErrorContains(t, err, want)
	}
}

type failing struct{ data.Examples }

var errDisk = errors.New("disk on fire")

func (f failing) Example(i int) (data.Example, error) {
	if i == 3 {
		return data.Example{}, errDisk
	}
	return f.Examples.Example(i)
}

func someExamples(n int) data.Examples {
	out := make(data.Examples, n)
	for i := range out {
		out[i] = data.Example{IDs: []int32{int32(i), 7}, Labels: []int32{data.IgnoreIndex, 7}}
	}
	return out
}

func TestLoaderYieldsEpochsAndPositions(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, err := data.NewSampler(data.SamplerConfig{Rows: 5, BatchSize: 2, InOrder: true})
	require.NoError(t, err)
	l := data.NewLoader(someExamples(5), s, data.LoaderConfig{Epochs: 2})
	defer l.Close()
	want := []data.Position{{0, 2}, {0, 4}, {1, 0}, {1, 2}, {1, 4}, {2, 0}}
	for i, p := range want {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, p, b.Position, "batch %d", i)
		require.Equal(t, b.B, b.LossTokens())
		require.Equal(t, int64(i%3*2), b.IDs[0])
	}
	for range 2 {
		_, err = l.Next(t.Context())
		require.ErrorIs(t, err, io.EOF)
	}
}

func TestLoaderReportsErrorsAndCancels(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, err := data.NewSampler(data.SamplerConfig{Rows: 5, BatchSize: 1, InOrder: true})
	require.NoError(t, err)
	l := data.NewLoader(failing{someExamples(5)}, s, data.LoaderConfig{Prefetch: 1})
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Next(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	for i := range 3 {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(i), b.IDs[0], "a cancelled call loses nothing")
	}
	for range 2 {
		_, err = l.Next(t.Context())
		require.ErrorIs(t, err, errDisk)
		require.ErrorContains(t, err, "load row 3")
	}
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())

	s, err = data.NewSampler(data.SamplerConfig{Rows: 9, BatchSize: 9})
	require.NoError(t, err)
	l = data.NewLoader(someExamples(5), s, data.LoaderConfig{})
	_, err = l.Next(t.Context())
	require.ErrorContains(t, err, "the sampler was made for more rows")
	require.NoError(t, l.Close())

	// Close ends a loader whose batches nobody takes.
	s, err = data.NewSampler(data.SamplerConfig{Rows: 5, BatchSize: 1})
	require.NoError(t, err)
	l = data.NewLoader(someExamples(5), s, data.LoaderConfig{})
	time.Sleep(time.Millisecond)
	require.NoError(t, l.Close())
	_, err = l.Next(t.Context())
	require.ErrorIs(t, err, io.ErrClosedPipe)
}
