package dcp

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/modelio/pickle"
)

// golden is what PyTorch 2.13 wrote at two ranks: fully_shard over two linear layers and AdamW, after one step.
func golden(name string) string { return filepath.Join("..", "..", "testdata", "torch", "dcp", name) }

func TestGoldenModel(t *testing.T) {
	f, err := Open(golden("pytorch_model_fsdp_0"), nil)
	require.NoError(t, err)
	defer f.Close()
	want, err := pickle.Open(filepath.Join(golden("full.pt")))
	require.NoError(t, err)
	defer want.Close()
	require.Equal(t, []string{"__0_0.distcp", "__1_0.distcp"}, f.Files())
	for _, item := range f.Items() {
		require.Equal(t, "model", item.Path[0])
		whole, err := want.Tensor(item.Path[1].(string))
		require.NoError(t, err)
		require.Equal(t, whole.DType, item.Tensor.DType)
		require.Equal(t, whole.Shape, item.Tensor.Shape)
		rows := int64(1)
		if len(whole.Shape) > 0 {
			rows = whole.Shape[0]
		}
		for lo := int64(0); lo <= rows; lo++ {
			for hi := lo; hi <= rows; hi++ {
				a, err := whole.Rows(lo, hi)
				require.NoError(t, err)
				b, err := item.Tensor.Rows(lo, hi)
				require.NoError(t, err)
				require.True(t, bytes.Equal(a, b), "%s rows %d to %d", item.Name, lo, hi)
				require.NoError(t, item.Tensor.Release(b))
			}
		}
		_, err = item.Tensor.Rows(0, rows+1)
		require.ErrorContains(t, err, "out of range")
	}
}

func TestGoldenOptimizer(t *testing.T) {
	f, err := Open(golden("optimizer_0"), nil)
	require.NoError(t, err)
	defer f.Close()
	step, err := f.Tensor("optimizer.state.0.weight.step")
	require.NoError(t, err)
	one, err := step.Rows(0, 1)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0x80, 0x3f}, one)
	lr, err := f.Value("optimizer.param_groups.0.lr")
	require.NoError(t, err)
	require.Equal(t, 1e-3, lr)
	betas, err := f.Value("optimizer.param_groups.0.betas")
	require.NoError(t, err)
	require.Equal(t, &pickle.Tuple{Items: []any{0.9, 0.999}}, betas)
	for _, item := range f.Items() {
		if item.Name == "optimizer.param_groups.0.lr" {
			require.Equal(t, []any{"optimizer", "param_groups", int64(0), "lr"}, item.Path)
		}
	}
	_, err = f.Value("optimizer.state.0.weight.step")
	require.Error(t, err)
	_, err = f.Tensor("optimizer.param_groups.0.lr")
	require.Error(t, err)
}

// write makes a folder of one file.
func write(t testing.TB, entries []Entry, fill func(w *Writer)) string {
	dir := t.TempDir()
	var data bytes.Buffer
	w := NewWriter(&data, FileName(0))
	fill(w)
	for _, p := range w.Parts() {
		i := slices.IndexFunc(entries, func(e Entry) bool { return e.Name == p.Name })
		entries[i].Parts = append(entries[i].Parts, p)
	}
	meta, err := EncodeMetadata(entries)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName(0)), data.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, MetadataName), meta, 0o600))
	return dir
}

func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestBoxesAreJoined(t *testing.T) {
	whole := count(4 * 3 * 2) // (4, 3, 2) bytes, in four boxes along two dimensions, and an empty one
	box := func(r0, r1, c0, c1 int) (b []byte) {
		for r := r0; r < r1; r++ {
			b = append(b, whole[(r*3+c0)*2:(r*3+c1)*2]...)
		}
		return b
	}
	dir := write(t, []Entry{{Name: "a", Path: []any{"a"}, DType: "U8", Shape: []int64{4, 3, 2}}, {Name: "v", Path: []any{"v"}}}, func(w *Writer) {
		for _, c := range [][4]int{{0, 3, 0, 1}, {0, 3, 1, 3}, {3, 4, 0, 2}, {3, 4, 2, 3}, {4, 4, 0, 3}} {
			data := box(c[0], c[1], c[2], c[3])
			require.NoError(t, w.Tensor("a", "U8", []int64{int64(c[0]), int64(c[2]), 0}, []int64{int64(c[1] - c[0]), int64(c[3] - c[2]), 2}, data))
		}
		require.NoError(t, w.Value("v", "text"))
	})
	f, err := Open(dir, nil)
	require.NoError(t, err)
	defer f.Close()
	a, err := f.Tensor("a")
	require.NoError(t, err)
	for lo := range int64(4) {
		for hi := lo; hi <= 4; hi++ {
			got, err := a.Rows(lo, hi)
			require.NoError(t, err)
			require.True(t, bytes.Equal(whole[lo*6:hi*6], got))
		}
	}
	v, err := f.Value("v")
	require.NoError(t, err)
	require.Equal(t, "text", v)
}

func TestRefusals(t *testing.T) {
	for want, k := range map[string]struct {
		shape []int64
		parts [][2][]int64
	}{
		"its parts hold 2 of 4 elements": {[]int64{4}, [][2][]int64{{{0}, {2}}}},
		"its parts overlap":              {[]int64{4}, [][2][]int64{{{0}, {3}}, {{1}, {3}}}},
		"overlap":                        {[]int64{2, 2}, [][2][]int64{{{0, 0}, {1, 2}}, {{0, 1}, {2, 1}}}},
		"lies outside shape":             {[]int64{4}, [][2][]int64{{{3}, {2}}}},
		"a part of sizes [2 1]":          {[]int64{4}, [][2][]int64{{{0, 0}, {2, 1}}}},
	} {
		dir := write(t, []Entry{{Name: "a", Path: []any{"a"}, DType: "U8", Shape: k.shape}}, func(w *Writer) {
			for _, p := range k.parts {
				n := 1
				for _, d := range p[1] {
					n *= int(d)
				}
				require.NoError(t, w.Tensor("a", "U8", p[0], p[1], count(n)))
			}
		})
		_, err := Open(dir, nil)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `"a"`)
	}
	for want, p := range map[string]Part{
		"lies outside the folder": {Name: "a", Offsets: []int64{0}, Sizes: []int64{1}, File: "../evil", Length: 1},
		"bytes at -1":             {Name: "a", Offsets: []int64{0}, Sizes: []int64{1}, File: "x", Offset: -1, Length: 1},
		"no such file":            {Name: "a", Offsets: []int64{0}, Sizes: []int64{1}, File: "x", Length: 1},
	} {
		meta, err := EncodeMetadata([]Entry{{Name: "a", Path: []any{"a"}, DType: "U8", Shape: []int64{1}, Parts: []Part{p}}})
		require.NoError(t, err)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, MetadataName), meta, 0o600))
		_, err = Open(dir, nil)
		require.ErrorContains(t, err, want)
	}
	_, err := Open(t.TempDir(), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.False(t, Is(t.TempDir()))
}

func TestCutFileAndWrongItem(t *testing.T) {
	dir := write(t, []Entry{{Name: "a", Path: []any{"a"}, DType: "U8", Shape: []int64{4}}}, func(w *Writer) {
		require.NoError(t, w.Tensor("a", "U8", []int64{0}, []int64{4}, count(4)))
	})
	path := filepath.Join(dir, FileName(0))
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, whole[:len(whole)-1], 0o600))
	_, err = Open(dir, nil)
	require.ErrorContains(t, err, "it is cut off")

	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(whole), "ByteStorage", "CharStorage", 1)), 0o600))
	f, err := Open(dir, nil)
	require.NoError(t, err)
	defer f.Close()
	a, err := f.Tensor("a")
	require.NoError(t, err)
	_, err = a.Rows(0, 1)
	require.ErrorContains(t, err, "holds I8[4], the metadata says U8[4]")
}

func TestVerifyIsAsked(t *testing.T) {
	asked := map[string]int64{}
	bad := errors.New("bad bytes")
	var refuse int64 = -1
	verify := func(file string, whole []byte, lo, hi int64) error {
		asked[file] += hi - lo
		if lo <= refuse && refuse < hi && file != MetadataName {
			return bad
		}
		return nil
	}
	f, err := Open(golden("pytorch_model_fsdp_0"), verify)
	require.NoError(t, err)
	defer f.Close()
	require.Positive(t, asked[MetadataName])
	for _, item := range f.Items() {
		_, err := item.Tensor.Rows(0, item.Tensor.Shape[0])
		require.NoError(t, err)
	}
	require.Positive(t, asked["__1_0.distcp"])
	refuse = 700
	_, err = f.Items()[0].Tensor.Rows(0, 1)
	require.ErrorIs(t, err, bad)
}

func FuzzParseMetadata(f *testing.F) {
	for _, name := range []string{"pytorch_model_fsdp_0", "optimizer_0"} {
		data, err := os.ReadFile(filepath.Join(golden(name), MetadataName))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("\x80\x02cposix\nsystem\n."))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMetadata(data)
		if err != nil {
			return
		}
		for _, name := range m.names {
			for _, c := range m.entries[name].chunks {
				if c.place.file != "" && !filepath.IsLocal(c.place.file) {
					t.Fatalf("accepted the file %q", c.place.file)
				}
			}
		}
	})
}
