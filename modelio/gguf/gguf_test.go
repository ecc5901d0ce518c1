package gguf

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

const (
	goldenFile = "../../testdata/gguf/quants.gguf"
	goldenF32  = "../../testdata/gguf/quants.safetensors"
)

func TestDequantizeGolden(t *testing.T) {
	f, err := Open(goldenFile)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, 3, f.Version())
	ref, err := safetensors.Open(goldenF32)
	require.NoError(t, err)
	defer ref.Close()
	supported := 0
	for _, l := range layouts {
		if l.dequantize != nil {
			supported++
		}
	}
	require.Len(t, f.Tensors(), supported, "every type that can be read has a golden")
	for _, w := range f.Tensors() {
		t.Run(w.Name, func(t *testing.T) {
			require.Equal(t, w.Name, w.Type.String())
			want, err := ref.Tensor(w.Name)
			require.NoError(t, err)
			require.Equal(t, want.Shape, w.Shape)
			require.Equal(t, want.NumElements(), w.NumElements())
			got := make([]float32, w.NumElements())
			require.NoError(t, w.Dequantize(got, 0, w.Rows()))
			for i, x := range got {
				require.Equalf(t, binary.LittleEndian.Uint32(want.Data[4*i:]), math.Float32bits(x), "element %d", i)
			}
			// Any range of rows gives the same bits, released pages included.
			part := make([]float32, 2*w.RowLen())
			for lo := int64(0); lo+2 <= w.Rows(); lo++ {
				require.NoError(t, w.Release(lo, lo+2))
				require.NoError(t, w.Dequantize(part, lo, lo+2))
				require.Equal(t, got[lo*w.RowLen():(lo+2)*w.RowLen()], part)
			}
		})
	}
}

func TestMetadataGolden(t *testing.T) {
	f, err := Open(goldenFile)
	require.NoError(t, err)
	require.NoError(t, f.Close(), "metadata outlives the mapping")
	want := []KV{
		{"general.architecture", String, "llama"},
		{"scalar.uint8", Uint8, uint8(255)}, {"scalar.int8", Int8, int8(-128)}, {"scalar.uint16", Uint16, uint16(65535)},
		{"scalar.int16", Int16, int16(-32768)}, {"scalar.uint32", Uint32, uint32(math.MaxUint32)},
		{"scalar.int32", Int32, int32(math.MinInt32)}, {"scalar.float32", Float32, float32(0.1)}, {"scalar.bool", Bool, true},
		{"scalar.string", String, "grün"}, {"scalar.uint64", Uint64, uint64(math.MaxUint64)},
		{"scalar.int64", Int64, int64(math.MinInt64)}, {"scalar.float64", Float64, 0.1},
		{"array.uint8", Array, []uint8{0, 255}}, {"array.int8", Array, []int8{-128, 127}},
		{"array.uint16", Array, []uint16{1, 2, 65535}}, {"array.int16", Array, []int16{-1}}, {"array.uint32", Array, []uint32{7}},
		{"array.int32", Array, []int32{-1, 3}}, {"array.float32", Array, []float32{0.5, -2}},
		{"array.bool", Array, []bool{true, false}}, {"array.string", Array, []string{"a", "", "bc"}},
		{"array.uint64", Array, []uint64{1 << 63}}, {"array.int64", Array, []int64{-5}}, {"array.float64", Array, []float64{0.1}},
	}
	require.Equal(t, want, f.Metadata())

	u, err := f.Uint("scalar.uint64")
	require.NoError(t, err)
	require.Equal(t, uint64(math.MaxUint64), u)
	_, err = f.Uint("scalar.int8")
	require.ErrorContains(t, err, `"scalar.int8" is a int8, expected a whole number that is not negative`)
	x, err := f.Float("scalar.float32")
	require.NoError(t, err)
	require.Equal(t, float64(float32(0.1)), x)
	x, err = f.Float("scalar.uint16")
	require.NoError(t, err)
	require.Equal(t, 65535.0, x)
	s, err := f.Str("scalar.string")
	require.NoError(t, err)
	require.Equal(t, "grün", s)
	_, err = f.Str("absent")
	require.ErrorIs(t, err, ErrNoKey)
	b, err := f.Bool("scalar.bool")
	require.NoError(t, err)
	require.True(t, b)
	_, err = f.Bool("scalar.uint8")
	require.Error(t, err)
	ss, err := f.Strings("array.string")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "", "bc"}, ss)
	ii, err := f.Ints("array.uint16")
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2, 65535}, ii)
	_, err = f.Ints("array.uint64")
	require.ErrorContains(t, err, "below 2^63")
	_, err = f.Ints("array.float32")
	require.ErrorContains(t, err, "whole numbers")
}

func TestDequantizeRefuses(t *testing.T) {
	f, err := Open(goldenFile)
	require.NoError(t, err)
	defer f.Close()
	w, err := f.Tensor("Q4_1")
	require.NoError(t, err)
	require.ErrorContains(t, w.Dequantize(nil, 0, 1), "have 192 elements, dst has 0")
	require.ErrorContains(t, w.Dequantize(nil, 6, 8), "rows [6:8] of 7")
	require.ErrorContains(t, w.Dequantize(nil, -1, 0), "rows [-1:0]")
	require.NoError(t, w.Dequantize(nil, 7, 7))
	_, err = f.Tensor("absent")
	require.ErrorContains(t, err, `no tensor "absent"`)
	w.Type = 10
	require.ErrorContains(t, w.Dequantize(nil, 0, 0), "type Q2_K is not supported (supported: F32, F16, Q4_0,")
}

func TestParseTruncatedEverywhere(t *testing.T) {
	whole, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	const padding = 12 // after the last tensor, up to the alignment: not needed
	_, err = Parse("padding.gguf", whole[:len(whole)-padding])
	require.NoError(t, err)
	for n := 0; n < len(whole)-padding; n += 1 + n/1500 {
		_, err := Parse("cut.gguf", whole[:n])
		var fault *FormatError
		require.ErrorAs(t, err, &fault, "%d of %d bytes", n, len(whole))
		require.Equal(t, "cut.gguf", fault.File)
		require.LessOrEqual(t, fault.Offset, int64(n))
	}
	path := filepath.Join(t.TempDir(), "cut.gguf")
	require.NoError(t, os.WriteFile(path, whole[:len(whole)-40], 0o600))
	_, err = Open(path)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "truncated")
}

// builder writes GGUF heads for tests.
type builder struct{ b []byte }

func (w *builder) u32(v uint32) *builder { w.b = binary.LittleEndian.AppendUint32(w.b, v); return w }
func (w *builder) u64(v uint64) *builder { w.b = binary.LittleEndian.AppendUint64(w.b, v); return w }
func (w *builder) str(s string) *builder { w.u64(uint64(len(s))).b = append(w.b, s...); return w }

func head(version uint32, tensors, kvs uint64) *builder {
	return (&builder{[]byte("GGUF")}).u32(version).u64(tensors).u64(kvs)
}

func (w *builder) tensor(name string, t Type, offset uint64, innermostFirst ...uint64) *builder {
	w.str(name).u32(uint32(len(innermostFirst)))
	for _, d := range innermostFirst {
		w.u64(d)
	}
	return w.u32(uint32(t)).u64(offset)
}

func (w *builder) data(n int) []byte {
	for len(w.b)%32 != 0 {
		w.b = append(w.b, 0)
	}
	return append(w.b, make([]byte, n)...)
}

func TestParseVersion2AndAlignment(t *testing.T) {
	b := head(2, 2, 1).str(alignmentKey).u32(uint32(Uint32)).u32(8).
		tensor("a", Q8_0, 0, 32, 2, 3).tensor("b", F32, 208).data(300)
	f, err := Parse("v2", b)
	require.NoError(t, err)
	require.Equal(t, 2, f.Version())
	a, err := f.Tensor("a")
	require.NoError(t, err)
	require.Equal(t, []int64{3, 2, 32}, a.Shape)
	require.Equal(t, int64(6), a.Rows())
	require.Len(t, a.Data, 6*34)
	s, err := f.Tensor("b")
	require.NoError(t, err)
	require.Empty(t, s.Shape)
	require.Len(t, s.Data, 4)
	require.True(t, f.Has("b"))
	require.False(t, f.Has("c"))
}

func TestParseRefuses(t *testing.T) {
	nested := head(3, 0, 1).str("k").u32(uint32(Array))
	for range 20 {
		nested.u32(uint32(Array)).u64(1)
	}
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "the magic number"},
		{"magic", []byte("GGML\x03\x00\x00\x00"), `starts with "GGML"`},
		{"version 1", head(1, 0, 0).data(0), "version 1 is not supported"},
		{"big-endian", head(3<<24, 0, 0).data(0), "big-endian"},
		{"tensor count", head(3, 1<<40, 0).data(100), "number of tensors is 1099511627776"},
		{"entry count", head(3, 0, math.MaxUint64).data(100), "number of metadata entries is"},
		{"key length", head(3, 0, 1).u64(1 << 62).data(100), "bytes long"},
		{"value type", head(3, 0, 1).str("k").u32(13).data(100), "unknown value type 13"},
		{"bool", head(3, 0, 1).str("k").u32(uint32(Bool)).b, `inside metadata "k"`},
		{"bool value", append(head(3, 0, 1).str("k").u32(uint32(Bool)).b, 2), "bool with the value 2"},
		{"array type", head(3, 0, 1).str("k").u32(uint32(Array)).u32(99).u64(1).data(100), "array of unknown value type 99"},
		{"array length", head(3, 0, 1).str("k").u32(uint32(Array)).u32(uint32(Uint64)).u64(1 << 61).data(100), "more than the rest"},
		{"nesting", nested.data(100), "deeper than 8"},
		{"key twice", head(3, 0, 2).str("k").u32(0).u32(0).str("k").u32(0).data(100), "metadata"},
		{"alignment", head(3, 0, 1).str(alignmentKey).u32(uint32(Uint32)).u32(24).data(100), "power of two"},
		{"alignment 0", head(3, 0, 1).str(alignmentKey).u32(uint32(Uint32)).u32(0).data(100), "power of two"},
		{"dimensions", head(3, 1, 0).tensor("t", F32, 0, 1, 1, 1, 1, 1).data(100), "5 dimensions"},
		{"dimension", head(3, 1, 0).tensor("t", F32, 0, 1<<63).data(100), "overflows"},
		{"product", head(3, 1, 0).tensor("t", F32, 0, 1<<32, 1<<32).data(100), "overflows"},
		{"product of rows", head(3, 1, 0).tensor("t", F32, 0, 0, 1<<62, 1<<62).data(100), "overflows"},
		{"type", head(3, 1, 0).tensor("t", 4, 0, 32).data(100), "unknown type 4"},
		{"block", head(3, 1, 0).tensor("t", Q4_K, 0, 128).data(100), "whole blocks of 256"},
		{"misaligned", head(3, 1, 0).tensor("t", F32, 4, 1).data(100), "multiple of the alignment"},
		{"beyond", head(3, 1, 0).tensor("t", F32, 96, 2).data(100), "truncated"},
		{"far beyond", head(3, 1, 0).tensor("t", F32, math.MaxUint64-31, 2).data(100), "truncated"},
		{"tensor twice", head(3, 2, 0).tensor("t", F32, 0, 1).tensor("t", F32, 32, 1).data(100), "appears twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("bad.gguf", c.data)
			var fault *FormatError
			require.ErrorAs(t, err, &fault)
			require.ErrorContains(t, err, c.want)
			require.True(t, strings.HasPrefix(err.Error(), "gguf: bad.gguf: byte "), err.Error())
		})
	}
}

func FuzzParse(f *testing.F) {
	if whole, err := os.ReadFile(goldenFile); err == nil {
		f.Add(whole[:3000])
	}
	f.Add(head(3, 1, 1).str(alignmentKey).u32(uint32(Uint32)).u32(8).tensor("a", Q4_1, 0, 32, 1).data(20))
	f.Add(head(2, 1, 1).str("k").u32(uint32(Array)).u32(uint32(String)).u64(1).str("x").tensor("a", F32, 0).data(4))
	f.Add(head(3, 0, 1).str("k").u32(uint32(Array)).u32(uint32(Array)).u64(1).u32(0).u64(0).data(0))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Parse("fuzz", b)
		if err != nil {
			var fault *FormatError
			require.ErrorAs(t, err, &fault)
			return
		}
		for _, w := range file.Tensors() {
			if !w.Type.CanDequantize() || w.NumElements() > 1<<20 {
				continue
			}
			require.NoError(t, w.Dequantize(make([]float32, w.NumElements()), 0, w.Rows()))
		}
	})
}

func BenchmarkDequantize(b *testing.B) {
	f, err := Open(goldenFile)
	require.NoError(b, err)
	defer f.Close()
	for _, w := range f.Tensors() {
		b.Run(w.Name, func(b *testing.B) {
			dst := make([]float32, w.NumElements())
			b.SetBytes(4 * w.NumElements())
			b.ReportAllocs()
			for b.Loop() {
				_ = w.Dequantize(dst, 0, w.Rows())
			}
		})
	}
}
