//go:build long

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSoak(t *testing.T) {
	r, err := run(config{steps: 10_000, scopes: true, gc: true})
	require.NoError(t, err)
	t.Log(r)
	require.Equal(t, r.before.LiveBytes, r.after.LiveBytes)
	require.Equal(t, r.before.LiveTensors, r.after.LiveTensors)
	require.Less(t, r.slope, 64.0, "kB per 1,000 steps; bench/soak measures it over 100,000")

	r, err = run(config{steps: 3000, gc: true})
	require.NoError(t, err)
	t.Log(r)
	require.Equal(t, r.before.LiveBytes, r.after.LiveBytes, "without scopes, after the collector")
	require.Less(t, r.slope, 5000.0)
}
