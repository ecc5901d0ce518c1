package errorfile_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/internal/errorfile"
	"github.com/stretchr/testify/require"
)

func TestWriteIsWhatTorchrunReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0", "error.json")
	require.NoError(t, errorfile.Write(path, "shard 3 is torn", "goroutine 1", time.Unix(1700000000, 5)))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"message":{"message":"shard 3 is torn","extraInfo":{"py_callstack":"goroutine 1","timestamp":"1700000000"}}}`, string(data))

	text, err := errorfile.Read(path)
	require.NoError(t, err)
	require.Equal(t, "shard 3 is torn", text)

	require.NoError(t, errorfile.Write(path, "second", "", time.Now()))
	text, err = errorfile.Read(path)
	require.NoError(t, err)
	require.Equal(t, "shard 3 is torn", text, "the first failure counts")
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "error-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestReadPlainAndBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	write := func(v any) {
		data, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
	write(map[string]any{"message": "plain"})
	text, err := errorfile.Read(path)
	require.NoError(t, err)
	require.Equal(t, "plain", text)

	write(map[string]any{"message": 3})
	_, err = errorfile.Read(path)
	require.ErrorContains(t, err, "message")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o644))
	_, err = errorfile.Read(path)
	require.ErrorContains(t, err, path)
	_, err = errorfile.Read(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}
