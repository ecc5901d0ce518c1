//go:build !race

package aten_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/torch/aten"
)

// A call allocates its result's handle on Go's heap, and nothing else. (With the race
// detector sync.Pool forgets on purpose.)
func TestCallsAllocateTheResultOnly(t *testing.T) {
	s := scope(t)
	x, half := vec(s, 1), 0.5
	for name, row := range map[string]struct {
		allocations float64
		f           func()
	}{
		"method":   {1, func() { x.Mul(x) }},
		"scalar":   {1, func() { x.MulScalar(half) }},
		"shape":    {1, func() { x.Reshape(1, 1) }},
		"aten":     {1, func() { aten.MulTensor(x, x) }},
		"options":  {1, func() { aten.AddTensor(x, x, aten.AddOptions{Alpha: 2}) }},
		"in place": {0, func() { aten.MulInPlaceTensor(x, x) }},
		"out":      {0, func() { aten.MulOut(x, x, x) }},
	} {
		// Now and then the scope's list of its tensors grows, and the collector takes the buffers of calls.
		require.Less(t, testing.AllocsPerRun(200, row.f), row.allocations+0.5, name)
	}
}
