package convert

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/fetch"
	"github.com/gofsdp/gofsdp/modelio/internal/float"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

const tinyGGUF = "../../testdata/gguf/tiny_llama.gguf"

func TestConvertGolden(t *testing.T) {
	ref, err := safetensors.Open("../../testdata/gguf/tiny_llama.safetensors")
	require.NoError(t, err)
	defer ref.Close()
	for _, c := range []struct {
		dtype, torch string
		narrow       func(float32) float32
	}{
		{"", "bfloat16", func(x float32) float32 { return float.BF16(float.ToBF16(x)) }},
		{"f16", "float16", func(x float32) float32 { return float.F16(float.ToF16(x)) }},
		{"f32", "float32", func(x float32) float32 { return x }},
	} {
		t.Run(c.torch, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "nested", "model")
			last := int64(0)
			require.NoError(t, Convert(context.Background(), tinyGGUF, out, Options{DType: c.dtype, MaxShardBytes: 20_000,
				Progress: func(done, total int64) {
					require.Greater(t, done, last)
					require.LessOrEqual(t, done, total)
					last = done
				}}))
			m, err := modelio.Open(out)
			require.NoError(t, err)
			defer m.Close()
			require.Equal(t, c.torch, m.Config.DType)
			require.Equal(t, "llama3", m.Config.Rope.Type)
			require.Len(t, m.Weights.Names(), len(ref.Names()))
			require.FileExists(t, filepath.Join(out, modelio.IndexName))
			for _, name := range ref.Names() {
				v, err := m.Weights.Tensor(name)
				require.NoError(t, err)
				got := make([]float32, v.NumElements())
				require.NoError(t, v.ReadFloat32(got, 0, v.NumRows()))
				want, err := ref.Tensor(name)
				require.NoError(t, err)
				require.Equal(t, want.Shape, v.Shape)
				for i, x := range got {
					exact := math.Float32frombits(binary.LittleEndian.Uint32(want.Data[4*i:]))
					require.Equal(t, c.narrow(exact), x, "%s[%d]", name, i)
				}
			}
			for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json"} {
				require.FileExists(t, filepath.Join(out, name))
			}
		})
	}
}

func TestConvertRefuses(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	check := func(err error, want string) {
		t.Helper()
		require.ErrorContains(t, err, want)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries, "nothing may be left behind")
	}
	out := filepath.Join(dir, "model")
	check(Convert(ctx, tinyGGUF, out, Options{DType: "int4"}), `dtype "int4" is not known (have bf16, f16, f32)`)
	check(Convert(ctx, filepath.Join(dir, "absent.gguf"), out, Options{}), "no such file")
	check(Convert(ctx, "../../testdata/gguf/quants.gguf", out, Options{}), `"tokenizer.ggml.tokens"`)

	ctx, cancel := context.WithCancelCause(ctx)
	stop := errors.New("stopped")
	err := Convert(ctx, tinyGGUF, out, Options{Progress: func(int64, int64) { cancel(stop) }})
	require.ErrorIs(t, err, stop)
	check(err, "convert "+tinyGGUF)

	require.NoError(t, os.Mkdir(out, 0o755))
	require.NoError(t, Convert(context.Background(), tinyGGUF, out, Options{}), "an empty folder is fine")
	require.ErrorContains(t, Convert(context.Background(), tinyGGUF, out, Options{}), "is not empty")
}

// TestConvertGoldenSmolLM2 compares with the folder that transformers saved from the same file: every byte.
func TestConvertGoldenSmolLM2(t *testing.T) {
	readme, err := os.ReadFile("../../testdata/goldens/README.md")
	require.NoError(t, err)
	want := regexp.MustCompile(`Model sha256 \(model\.safetensors, bf16\): ([0-9a-f]{64})`).FindSubmatch(readme)
	require.NotNil(t, want)
	path, err := fetch.SmolLM2(context.Background(), "", nil)
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), "smollm2")
	require.NoError(t, Convert(context.Background(), path, out, Options{}))
	f, err := os.Open(filepath.Join(out, modelio.WeightsName))
	require.NoError(t, err)
	defer f.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	require.NoError(t, err)
	require.Equal(t, string(want[1]), hex.EncodeToString(hash.Sum(nil)))
	c, err := modelio.ReadConfig(out)
	require.NoError(t, err)
	require.True(t, c.TieWordEmbeddings)
	require.Equal(t, 1e-5, c.RMSNormEps)
	require.Equal(t, 100000.0, c.Rope.Theta)
	generation, err := os.ReadFile(filepath.Join(out, "generation_config.json"))
	require.NoError(t, err)
	require.True(t, bytes.Contains(generation, []byte(`"pad_token_id": 2`)))
}
