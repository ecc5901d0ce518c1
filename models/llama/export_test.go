package llama

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/stretchr/testify/require"
)

// RopeOf gives the frequencies and the tables of a configuration file.
func RopeOf(t *testing.T, path string, tokens int64) (inverse []float32, cos, sin *torch.Tensor) {
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	cfg, err := modelio.ParseConfig(data)
	require.NoError(t, err)
	r, err := newRope(cfg)
	require.NoError(t, err)
	s := torch.NewScope(nil)
	t.Cleanup(s.Close)
	cos, sin = r.tables(s, Input{IDs: s.Own(torch.Zeros(torch.Int64, 1, tokens))}, nil)
	return r.inverse, cos, sin
}

// Frequencies gives the rotary frequencies of a configuration.
func Frequencies(t *testing.T, c *modelio.Config) []float32 {
	r, err := newRope(c)
	require.NoError(t, err)
	return r.inverse
}

// PickMany draws n tokens and counts them.
func PickMany(o GenerateOptions, logits []float32, n int) []int {
	counts, random := make([]int, len(logits)), rand.New(rand.NewPCG(1, 2))
	for range n {
		counts[o.pick(logits, random)]++
	}
	return counts
}
