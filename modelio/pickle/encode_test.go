package pickle

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWrittenTensorsAreRead(t *testing.T) {
	for dtype, width := range map[string]int{"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "U8": 1, "BOOL": 1, "I64": 8, "U16": 2, "F8_E4M3": 1} {
		for _, shape := range [][]int64{nil, {0, 4}, {3}, {2, 3, 1}} {
			n := 1
			for _, d := range shape {
				n *= int(d)
			}
			data := make([]byte, n*width)
			for i := range data {
				data[i] = byte(i % 2)
			}
			var out bytes.Buffer
			require.NoError(t, WriteTensor(&out, dtype, shape, data))
			f, err := Parse("item", out.Bytes())
			require.NoError(t, err, "%s%v", dtype, shape)
			got, err := f.Tensor("")
			require.NoError(t, err)
			require.Equal(t, dtype, got.DType)
			require.Equal(t, append([]int64{}, shape...), got.Shape)
			back, err := got.Bytes()
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, back))
			if n > 0 {
				at := bytes.Index(out.Bytes(), []byte("archive/data/0")) + 14
				extra := int(out.Bytes()[at+2])
				require.Zero(t, (at+4+extra)%alignment, "the data is aligned")
			}
		}
	}
	require.ErrorContains(t, WriteTensor(new(bytes.Buffer), "F32", []int64{2}, make([]byte, 7)), "takes 8 bytes, got 7")
	require.ErrorContains(t, WriteTensor(new(bytes.Buffer), "F4", []int64{2}, make([]byte, 1)), "no dtype for F4")
}

func TestWrittenValuesAreRead(t *testing.T) {
	value := &Dict{Items: []Item{{"lr", 1e-3}, {"betas", &Tuple{[]any{0.9, 0.999}}}, {"foreach", nil}, {"amsgrad", false},
		{"params", &List{[]any{"a.weight", "b"}}}, {int64(3), int64(-1 << 40)}, {"big", int64(70000)}, {"again", "lr"}}}
	var out bytes.Buffer
	require.NoError(t, WriteValue(&out, value))
	f, err := Parse("value", out.Bytes())
	require.NoError(t, err)
	require.Equal(t, value, f.Root())
	require.ErrorContains(t, WriteValue(&out, struct{}{}), "a value of type struct {}")
}

func TestObjectsAreRead(t *testing.T) {
	class := Global("some.module.Class")
	data, err := Encode([]any{&Object{Class: class, State: &Dict{Items: []Item{{"dtype", Global("torch.float32")}}}},
		&Object{Class: class, Args: []any{int64(0)}}, &Object{Class: torchSize, Args: []any{&Tuple{[]any{int64(2), int64(3)}}}}})
	require.NoError(t, err)
	v, err := Unpickle(data, []Global{class})
	require.NoError(t, err)
	items := v.(*List).Items
	dtype, ok := items[0].(*Object).Get("dtype")
	require.True(t, ok)
	name, ok := dtype.(Global).DType()
	require.True(t, ok)
	require.Equal(t, "F32", name)
	require.Equal(t, []any{int64(0)}, items[1].(*Object).Args)
	size, ok := Ints(items[2])
	require.True(t, ok)
	require.Equal(t, []int64{2, 3}, size)
	_, ok = items[1].(*Object).Get("dtype")
	require.False(t, ok)

	_, err = Unpickle(data, nil)
	require.ErrorContains(t, err, `the pickle names "some.module.Class", which is not allowed`)
	for _, evil := range []string{"cos\nsystem\n(X\x02\x00\x00\x00idtR.", "cbuiltins\neval\n."} {
		_, err := Unpickle([]byte(evil), []Global{class})
		require.ErrorContains(t, err, "not allowed")
	}
	_, err = Unpickle([]byte("\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R."), nil)
	require.ErrorContains(t, err, "cannot be called here")
}

func TestPropertyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		leaf := rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }),
			rapid.Map(rapid.Int64(), func(n int64) any { return n }), rapid.Map(rapid.String(), func(s string) any { return s }),
			rapid.Map(rapid.Float64(), func(f float64) any { return f }))
		list := rapid.Map(rapid.SliceOfN(leaf, 1, 9), func(l []any) any { return &List{l} })
		v := rapid.Map(rapid.SliceOfN(rapid.OneOf(leaf, list), 1, 9), func(l []any) any { return &Tuple{l} }).Draw(t, "value")
		data, err := Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Unpickle(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		require.Equal(t, v, got)
	})
}
