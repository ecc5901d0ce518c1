package atomicfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommitMakesTheFileVisible(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f, err := Create(path)
	require.NoError(t, err)
	defer f.Abort()
	_, err = f.WriteString("hello")
	require.NoError(t, err)
	require.NoFileExists(t, path)
	require.NoError(t, f.Commit())
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	require.ErrorIs(t, f.Commit(), os.ErrClosed)
	requireEntries(t, dir, 1)
}

func TestAbortLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "out"))
	require.NoError(t, err)
	f.Abort()
	f.Abort()
	requireEntries(t, dir, 0)
}

func TestWriteReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	require.NoError(t, Write(path, []byte("first")))
	require.NoError(t, Write(path, []byte("second")))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "second", string(got))
	require.ErrorContains(t, Write(filepath.Join(path, "below"), nil), "create ")
}

func requireEntries(t *testing.T, dir string, n int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, n)
}
