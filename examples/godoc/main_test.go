package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRunWritesBothFiles(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "folder")
	require.NoError(t, run(t.Context(), []string{"--goroot", "corpus/testdata/goroot", "--out", out, "--eval-fraction", "0.4", "--seed", "1"}))
	train, err := os.ReadFile(filepath.Join(out, "train.jsonl"))
	require.NoError(t, err)
	eval, err := os.ReadFile(filepath.Join(out, "eval.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 13, strings.Count(string(train)+string(eval), "\n"))
	require.True(t, strings.HasPrefix(string(eval), `{"messages":[{"role":"user","content":"`))
	entries, err := os.ReadDir(out)
	require.NoError(t, err)
	require.Len(t, entries, 2)

	require.ErrorContains(t, run(t.Context(), []string{"--goroot", t.TempDir()}), "is no Go installation")
	require.ErrorContains(t, run(t.Context(), []string{"--rows", "3"}), "-rows")
}
