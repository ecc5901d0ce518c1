//go:build long

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The whole soak: after the warm-up the process may not grow by more than 1 KB per 1,000 steps, and every byte of tensor
// memory comes back.
func TestSoak(t *testing.T) {
	r, err := run(config{steps: 100_000, warmup: 30_000, scopes: true, gc: true})
	require.NoError(t, err)
	t.Log(r)
	require.Equal(t, r.before.LiveBytes, r.after.LiveBytes)
	require.Equal(t, r.before.LiveTensors, r.after.LiveTensors)
	require.LessOrEqual(t, r.slope, 1.0, "kB per 1,000 steps")
}

// Left to the collector, memory stays bounded: the second half of a run is no higher than the first.
func TestSoakWithoutScopes(t *testing.T) {
	r, err := run(config{steps: 20_000, warmup: 10_000, gc: true})
	require.NoError(t, err)
	t.Log(r)
	require.Equal(t, r.before.LiveBytes, r.after.LiveBytes, "after the collector")
	require.Equal(t, r.before.LiveTensors, r.after.LiveTensors)
	require.Less(t, r.peaks[1], r.peaks[0]+16<<10, "kB")
}
