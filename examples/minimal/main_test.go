package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio/convert"
	"github.com/gofsdp/gofsdp/torch"
)

func tinyModel(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, convert.Convert(t.Context(), "../../testdata/gguf/tiny_llama.gguf", dir, convert.Options{}))
	return dir
}

func TestTrainOnTwoRanks(t *testing.T) {
	dir := tinyModel(t)
	losses := make([][]float64, 2)
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		return torch.Try(func() { losses[g.Rank()] = train(ctx, g, dir, 8) })
	})
	for rank, list := range losses {
		require.Len(t, list, 8)
		require.Less(t, list[7], list[0], "rank %d", rank)
	}
}

func TestRun(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{tinyModel(t)}))
	require.ErrorContains(t, run(t.Context(), nil), "give a model folder")
	require.ErrorContains(t, run(t.Context(), []string{"absent"}), "absent")
}

// The lines that the README shows are this program's.
func TestREADMEShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, chapter, found := strings.Cut(string(readme), "\n## In Go\n")
	require.True(t, found)
	_, block, found := strings.Cut(chapter, "```go\n")
	require.True(t, found)
	block, _, found = strings.Cut(block, "```")
	require.True(t, found)
	for _, part := range strings.Split(block, "\t…\n") {
		require.Contains(t, string(source), part)
	}
}
