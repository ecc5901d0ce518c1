//go:build !race

package aten_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/torch/aten"
)

// A call allocates nothing on Go's heap, but for the slabs of the scope that take the handles of results. (With the race
// detector sync.Pool forgets on purpose.)
func TestCallsAllocateNothing(t *testing.T) {
	s := scope(t)
	x, half := vec(s, 1), 0.5
	for name, call := range map[string]func(){
		"method":   func() { x.Mul(x) },
		"scalar":   func() { x.MulScalar(half) },
		"shape":    func() { x.Reshape(1, 1) },
		"aten":     func() { aten.MulTensor(x, x) },
		"options":  func() { aten.AddTensor(x, x, aten.AddOptions{Alpha: 2}) },
		"in place": func() { aten.MulInPlaceTensor(x, x) },
		"out":      func() { aten.MulOut(x, x, x) },
	} {
		// Now and then a slab is made, and the collector takes the buffers of calls.
		require.Less(t, testing.AllocsPerRun(500, call), 0.5, name)
	}
}
