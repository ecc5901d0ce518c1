package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/stretchr/testify/require"
)

const tinyGGUF = "../../testdata/gguf/tiny_llama.gguf"

func TestConvert(t *testing.T) {
	out := filepath.Join(t.TempDir(), "model")
	dtype := func() string {
		c, err := modelio.ReadConfig(out)
		require.NoError(t, err)
		return c.DType
	}
	require.Zero(t, run([]string{"convert", tinyGGUF, out, "--max_shard_size", "20KB"}))
	require.FileExists(t, filepath.Join(out, modelio.IndexName))
	require.Zero(t, run([]string{"convert", tinyGGUF, out, "--dtype", "f32"}))
	require.Equal(t, "bfloat16", dtype(), "a complete folder is left alone")
	require.Zero(t, run([]string{"convert", "--force", tinyGGUF, out, "--dtype", "f32"}))
	require.Equal(t, "float32", dtype())
	require.NoDirExists(t, out+".new")
	require.Equal(t, 1, run([]string{"convert", "absent.gguf", filepath.Join(t.TempDir(), "x")}))

	other := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o644))
	require.Equal(t, 1, run([]string{"convert", "--force", tinyGGUF, other}))
	require.FileExists(t, filepath.Join(other, "thesis.txt"), "only a model folder may be replaced")
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]byteSize{"5GB": 5e9, "500mb": 5e8, "2 GiB": 2 << 30, "1.5KB": 1500, "77": 77, "8B": 8} {
		var b byteSize
		require.NoError(t, b.UnmarshalText([]byte(text)))
		require.Equal(t, want, b)
	}
	for _, text := range []string{"", "GB", "0", "-1GB", "1TBX", "NaN", "1e30GB"} {
		var b byteSize
		require.Error(t, b.UnmarshalText([]byte(text)), text)
	}
}

func TestMeter(t *testing.T) {
	var out bytes.Buffer
	m := newMeter(&out, false)
	m.at("download", 0, 1<<20)
	m.at("download", 1<<20, 1<<20)
	m.at("convert", 1, 2<<20)
	m.close()
	require.Equal(t, "download (1.0 MiB)\nconvert (2.0 MiB)\n", out.String())
	out.Reset()
	m = newMeter(&out, true)
	m.at("convert", 1<<20, 2<<20)
	m.close()
	require.Contains(t, out.String(), "50%")
}
