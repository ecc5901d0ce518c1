package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLineFit(t *testing.T) {
	var l line
	require.Zero(t, l.slope())
	for x := range 5 {
		l.add(float64(x), 7-3*float64(x))
	}
	require.InDelta(t, -3, l.slope(), 1e-12)
}

func TestScopesGiveBackEveryByteWithoutTheCollector(t *testing.T) {
	r, err := run(config{steps: 300, scopes: true})
	require.NoError(t, err)
	require.Equal(t, r.before.LiveBytes, r.after.LiveBytes)
	require.Equal(t, r.before.LiveTensors, r.after.LiveTensors)
	require.Less(t, r.loss, 1.2, "it learns")
}
