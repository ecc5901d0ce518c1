package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/bench/peer"
	"github.com/gofsdp/gofsdp/torch"
)

func TestMarkdown(t *testing.T) {
	r := results{Machine: peer.Machine{CPU: "A CPU"}, Rows: []row{
		{Title: "x · y", Nanoseconds: map[string][]float64{"Go": {120, 900, 110}, "C++": {100, 90, 100}, "Python": {200, 240, 240}}},
	}}
	require.Equal(t, `A CPU, one thread; nanoseconds per call, medians of 3 runs in turn.

| one-element tensors | Go | C++ | Python | Go / C++ | Go / Python |
|---|---:|---:|---:|---:|---:|
| x · y | 120 | 100 | 240 | 1.20 | 0.50 |
`, r.markdown())
	r.Rows[0].Nanoseconds = map[string][]float64{"Go": {7}}
	require.Contains(t, r.markdown(), "| x · y | 7 |\n")
}

// The Go side knows every case, and leaves no tensor behind.
func TestGoSide(t *testing.T) {
	before := torch.MemoryStats().LiveTensors
	s := goSide()
	for _, c := range cases {
		ns, err := s.time(c.name, 200)
		require.NoError(t, err, c.name)
		require.Positive(t, ns, c.name)
	}
	_, err := s.time("nonsense", 1)
	require.ErrorContains(t, err, "nonsense")
	require.NoError(t, s.end())
	require.Equal(t, before, torch.MemoryStats().LiveTensors)
}

// A program that answers is a side; one that ends is an error.
func TestPrograms(t *testing.T) {
	s, err := start(context.Background(), "shell", "sh", "-c", `read name count; echo 12.5; read name count; exit 3`)
	require.NoError(t, err)
	ns, err := s.time("mul", 10)
	require.NoError(t, err)
	require.Equal(t, 12.5, ns)
	_, err = s.time("mul", 10)
	require.ErrorContains(t, err, "unexpected EOF")
	require.ErrorContains(t, s.end(), "exit status 3")
	_, err = start(context.Background(), "C++", "/nonexistent/calls_bench")
	require.ErrorContains(t, err, "the C++ side")
}
