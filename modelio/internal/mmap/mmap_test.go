package mmap

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMapping(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	want := bytes.Repeat([]byte("0123456789"), 5000)
	require.NoError(t, os.WriteFile(path, want, 0o600))
	m, err := Open(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, m.Bytes()))
	require.NoError(t, m.Release(4097, 20000))
	require.NoError(t, m.Release(0, len(want)))
	require.NoError(t, m.Release(-1, 5))
	require.NoError(t, m.Release(10, len(want)), "a range past the end is ignored")
	require.True(t, bytes.Equal(want, m.Bytes()), "released pages are read again")
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir)
	require.ErrorContains(t, err, "not a regular file")
	_, err = Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	m, err := Open(empty)
	require.NoError(t, err)
	require.Empty(t, m.Bytes())
	require.NoError(t, m.Close())
}
