//go:build !cgo

package torch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithoutCgoEverythingIsAClearError(t *testing.T) {
	for name, f := range map[string]func(){
		"load":      func() { Throw(wrap("load", LoadLibrary())) },
		"create":    func() { Ones(Float32, 2) },
		"slice":     func() { FromSlice([]float32{1}) },
		"memory":    func() { FromMemory(Float32, nil, nil, 0) },
		"mode":      func() { NoGrad(func() {}) },
		"call":      func() { Call("aten::relu") },
		"generator": func() { NewGenerator(1) },
		"stats":     func() { MemoryStats() },
	} {
		err := Try(f)
		require.ErrorIs(t, err, ErrLibrary, name)
		require.ErrorContains(t, err, "built without cgo", name)
	}
}
