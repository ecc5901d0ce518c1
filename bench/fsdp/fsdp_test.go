package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/bench/peer"
)

func TestScalingMeasuresEveryPoint(t *testing.T) {
	layers, err := byLayers(t.Context(), time.Millisecond, []int{2, 3})
	require.NoError(t, err)
	parameters, err := byParameters(t.Context(), time.Millisecond, []int{2})
	require.NoError(t, err)
	require.Equal(t, []int{2, 3}, []int{layers[0].N, layers[1].N})
	require.Equal(t, 3, layers[1].Parameters)
	require.Equal(t, 16, parameters[0].Parameters)
	for _, p := range append(layers, parameters...) {
		require.Positive(t, p.Plain)
		require.Positive(t, p.One)
		require.Positive(t, p.Two)
	}
}

func TestResultsAreWrittenAndShown(t *testing.T) {
	r := results{Machine: peer.Machine{CPU: "a CPU", Cores: 2},
		Overhead: &overhead{Tokens: 512, Plain: []float64{2, 4, 2}, Sharded: []float64{2.02, 4.2, 2.04}},
		Layers:   []point{{N: 2, Parameters: 2, Plain: 10, One: 14, Two: 110}},
	}
	require.InDelta(t, 0.02, r.Overhead.overhead(), 1e-9)
	require.Equal(t, `a CPU, 2 cores; one thread per rank; CPU time, medians.

| SmolLM2-135M, NF4, 512 tokens, one rank | plain | sharded | overhead |
|---|---:|---:|---:|
| forward and backward (s) | 2.000 | 2.040 | +2.00 % |

| layers of one parameter | plain (us) | 1 rank (us) | 2 ranks (us each) | own cost at 1 rank, each (us) | at 2 ranks, each (us) |
|---:|---:|---:|---:|---:|---:|
| 2 | 10 | 14 | 110 | 2.0 | 50.0 |
`, r.markdown())
	path := filepath.Join(t.TempDir(), "new", "fsdp.json")
	require.NoError(t, r.write(path))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var back results
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, r, back)
}
