package safetensors

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWriterLayout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	w, err := Create(path, []Spec{
		{"b", "BF16", []int64{3}}, {"a", "BF16", []int64{1}}, {"z", "F32", nil}, {"q<\"", "U8", []int64{2, 0}},
	}, []KV{{"format", "pt"}, {"a", "ü\n"}})
	require.NoError(t, err)
	defer w.Abort()
	require.NoError(t, w.WriteAt("b", 2, []byte{3, 4, 5, 6}))
	require.NoError(t, w.Write("z", []byte{9, 9, 9, 9}))
	require.NoError(t, w.WriteAt("b", 0, []byte{1, 2}))
	require.NoError(t, w.Write("a", []byte{7, 8}))
	require.NoFileExists(t, path)
	require.NoError(t, w.Commit())
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	header := `{"__metadata__":{"format":"pt","a":"ü\n"},` +
		`"z":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},` +
		`"b":{"dtype":"BF16","shape":[3],"data_offsets":[6,12]},"q<\"":{"dtype":"U8","shape":[2,0],"data_offsets":[12,12]}}`
	for len(header)%8 != 0 {
		header += " "
	}
	require.Equal(t, string(build(header, []byte{9, 9, 9, 9, 7, 8, 1, 2, 3, 4, 5, 6})), string(got))
	f, err := Parse("f", got)
	require.NoError(t, err)
	value, ok := f.MetadataValue("a")
	require.True(t, ok)
	require.Equal(t, "ü\n", value)
}

func TestWriterRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	_, err := Create(path, []Spec{{"a", "Q4_1", []int64{3}}}, nil)
	require.ErrorContains(t, err, `tensor "a": unknown dtype "Q4_1"`)
	_, err = Create(path, []Spec{{"a", "U8", []int64{3}}, {"a", "F32", []int64{3}}}, nil)
	require.ErrorContains(t, err, "given twice")
	_, err = Create(path, []Spec{{"__metadata__", "U8", nil}}, nil)
	require.ErrorContains(t, err, "__metadata__")
	var large []Spec
	for i := range 9 {
		large = append(large, Spec{fmt.Sprint(i), "U8", []int64{1 << 60}})
	}
	_, err = Create(path, large, nil)
	require.ErrorContains(t, err, "too large")

	w, err := Create(path, []Spec{{"a", "F32", []int64{3}}}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, w.Write("b", nil), `no tensor "b"`)
	require.ErrorContains(t, w.Write("a", make([]byte, 11)), "takes 12 bytes, got 11")
	require.ErrorContains(t, w.WriteAt("a", 8, make([]byte, 5)), "[8,13) lie outside")
	require.ErrorContains(t, w.WriteAt("a", -1, nil), "outside")
	require.NoError(t, w.WriteAt("a", 0, make([]byte, 4)))
	require.NoError(t, w.WriteAt("a", 8, make([]byte, 4)))
	require.ErrorContains(t, w.Commit(), `tensor "a" has not been written from byte 4 on`)

	w, err = Create(path, []Spec{{"a", "F32", []int64{3}}}, nil)
	require.NoError(t, err)
	w.Abort()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "a failed or dropped file leaves nothing behind")
}

func TestWriterConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	var specs []Spec
	for i := range 8 {
		specs = append(specs, Spec{fmt.Sprint("t", i), "U8", []int64{1000}})
	}
	w, err := Create(path, specs, nil)
	require.NoError(t, err)
	defer w.Abort()
	var wg sync.WaitGroup
	errs := make([]error, 80)
	for i := range 80 {
		wg.Go(func() {
			errs[i] = w.WriteAt(fmt.Sprint("t", i%8), int64(i/8)*100, bytes.Repeat([]byte{byte(i)}, 100))
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, w.Commit())
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	for i := range 80 {
		v, err := f.Tensor(fmt.Sprint("t", i%8))
		require.NoError(t, err)
		at := int64(i/8) * 100
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, 100), v.Rows(at, at+100))
	}
}

func TestRoundTripProperty(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringN(0, 20, -1), 0, 8, rapid.ID[string]).Draw(t, "names")
		data := map[string][]byte{}
		var specs []Spec
		for _, name := range names {
			s := Spec{Name: name,
				DType: rapid.SampledFrom([]string{"U8", "I8", "BOOL", "F16", "BF16", "F32", "F64", "I64", "F8_E4M3"}).Draw(t, "dtype"),
				Shape: rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 4).Draw(t, "shape")}
			n, err := ByteSize(s.DType, s.Shape)
			require.NoError(t, err)
			data[name] = rapid.SliceOfN(rapid.Byte(), int(n), int(n)).Draw(t, "data")
			specs = append(specs, s)
		}
		var meta []KV
		for _, key := range rapid.SliceOfNDistinct(rapid.String(), 0, 4, rapid.ID[string]).Draw(t, "keys") {
			meta = append(meta, KV{key, rapid.String().Draw(t, "value")})
		}
		path := filepath.Join(dir, "f.safetensors")
		w, err := Create(path, specs, meta)
		require.NoError(t, err)
		defer w.Abort()
		for _, s := range specs {
			cut := rapid.IntRange(0, len(data[s.Name])).Draw(t, "cut")
			require.NoError(t, w.WriteAt(s.Name, int64(cut), data[s.Name][cut:]))
			require.NoError(t, w.WriteAt(s.Name, 0, data[s.Name][:cut]))
		}
		require.NoError(t, w.Commit())
		f, err := Open(path)
		require.NoError(t, err)
		defer f.Close()
		require.Zero(t, f.header.dataStart%8)
		require.Equal(t, meta, f.Metadata())
		require.Len(t, f.Names(), len(specs))
		for _, s := range specs {
			v, err := f.Tensor(s.Name)
			require.NoError(t, err)
			require.Equal(t, s.DType, v.DType)
			require.Equal(t, len(s.Shape), len(v.Shape))
			require.True(t, bytes.Equal(data[s.Name], v.Data))
		}
	})
}

func TestCoverage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 20
		var c coverage
		var seen [size]bool
		for range rapid.IntRange(0, 10).Draw(t, "n") {
			from := rapid.Int64Range(0, size).Draw(t, "from")
			to := rapid.Int64Range(from, size).Draw(t, "to")
			c.add(from, to)
			for i := from; i < to; i++ {
				seen[i] = true
			}
		}
		want := int64(-1)
		for i := size - 1; i >= 0; i-- {
			if !seen[i] {
				want = int64(i)
			}
		}
		require.Equal(t, want, c.firstGap(size))
	})
}
