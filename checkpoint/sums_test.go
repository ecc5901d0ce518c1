package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/torch"
)

// loadAll loads everything that a checkpoint of two ranks holds, on one rank after the other.
func loadAll(ctx context.Context, dir string) error {
	c, err := Open(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	g := dist.NewSingle()
	err = errors.Join(c.Load(ctx, Model, entries(modelTensors, replicated, g, 1, false)),
		c.Load(ctx, Optimizer, entries(optimizerTensors, replicated, g, 1, false)), c.ReadTrainer(new(trainer)))
	for rank := range 2 {
		err = errors.Join(err, c.LoadRankState(ctx, rank, 2, []Entry{Whole("rng", torch.Zeros(torch.Int64, 2))}))
	}
	return err
}

// A flipped bit is noticed, wherever it is.
func TestFlippedBits(t *testing.T) {
	for _, format := range []Format{Safetensors, DCP} {
		dir := saveAt(t, t.TempDir(), 1, 2, fsdp.ShardRows, SaveOptions{Format: format})
		require.NoError(t, loadAll(t.Context(), dir))
		c, err := Open(dir)
		require.NoError(t, err)
		files := append(c.Info().Files, File{Path: manifestName})
		require.NoError(t, c.Close())
		for _, f := range files {
			path := filepath.Join(dir, f.Path)
			whole, err := os.ReadFile(path)
			require.NoError(t, err)
			step := 7
			if strings.HasSuffix(path, ".distcp") {
				step = 97
			}
			for i := 0; i < len(whole); i += step {
				whole[i] ^= 1 << (i % 8)
				require.NoError(t, os.WriteFile(path, whole, 0o600))
				err := loadAll(t.Context(), dir)
				require.Error(t, err, "byte %d of %s", i, f.Path)
				require.True(t, errors.Is(err, ErrDamaged) || errors.Is(err, ErrIncomplete), "%v", err)
				require.ErrorContains(t, err, filepath.Base(f.Path))
				whole[i] ^= 1 << (i % 8)
			}
			require.NoError(t, os.WriteFile(path, whole, 0o600))
		}
		require.NoError(t, loadAll(t.Context(), dir))
	}
}

// withoutSums makes a checkpoint of version 1 of one of version 2.
func withoutSums(t testing.TB, dir string) {
	t.Helper()
	path := filepath.Join(dir, manifestName)
	m, _, err := readManifest(dir)
	require.NoError(t, err)
	m.FormatVersion, m.CRC32C = 1, ""
	for i := range m.Files {
		m.Files[i].CRC32C = ""
	}
	old, err := json.Marshal(m)
	require.NoError(t, err)
	require.NotContains(t, string(old), "crc32c")
	require.NoError(t, os.WriteFile(path, old, 0o600))
}

func TestOldCheckpointsHaveNoChecksums(t *testing.T) {
	dir := saveAt(t, t.TempDir(), 1, 2, fsdp.ShardRows, SaveOptions{})
	withoutSums(t, dir)
	require.NoError(t, loadAll(t.Context(), dir))
}

func TestBlocks(t *testing.T) {
	data := make([]byte, 2*blockSize+5)
	for i := range data {
		data[i] = byte(i * 7)
	}
	var h hasher
	for at := 0; at < len(data); at += 999_983 {
		h.add(data[at:min(at+999_983, len(data))])
	}
	text := h.text()
	require.Equal(t, checksum(data), text)
	require.Len(t, text, 3*8)
	require.Empty(t, checksum(nil))
	v, err := newVerifier("file", text, int64(len(data)))
	require.NoError(t, err)
	require.NoError(t, v.check(data, 10, blockSize+10))
	data[5] ^= 1 // of a block that has been checked
	require.NoError(t, v.check(data, 0, 1))
	data[2*blockSize] ^= 4
	require.NoError(t, v.check(data, blockSize, 2*blockSize), "its neighbour is not looked at")
	err = v.check(data, 2*blockSize+4, 2*blockSize+5)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, fmt.Sprintf("file: bytes %d to %d have checksum", 2*blockSize, 2*blockSize+5))
	require.ErrorIs(t, v.check(data, 3*blockSize, 3*blockSize+1), ErrDamaged)
	_, err = newVerifier("file", text[8:], int64(len(data)))
	require.ErrorIs(t, err, ErrDamaged)
	_, err = newVerifier("file", "zz"+text[2:], int64(len(data)))
	require.ErrorIs(t, err, ErrDamaged)
}
