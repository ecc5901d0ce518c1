package gotorch_test

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	torch "github.com/wangkuiyi/gotorch"
)

var nan, inf = math.NaN(), math.Inf(1)

// printCases are float64 tensors whose texts are in testdata/print.txt, one after the other, with a line "----" behind each.
// The texts were written by the C++ code of at::print as it was from libtorch 1.6 on.
var printCases = []struct {
	shape  []int64
	values []float64
}{
	{[]int64{}, []float64{-5.747312345}},
	{[]int64{}, []float64{123456789}},
	{[]int64{}, []float64{nan}},
	{[]int64{4}, []float64{1, -2, 30, 0}},
	{[]int64{3}, []float64{1234567890123, -3, 0}},
	{[]int64{3}, []float64{123456789, 1, 2}},
	{[]int64{5}, []float64{nan, inf, -inf, 1.5, math.Copysign(0, -1)}},
	{[]int64{2}, []float64{nan, inf}},
	{[]int64{2}, []float64{1.5, -1234.5}},
	{[]int64{3}, []float64{999.9999999999999, 1000, 0.5}},
	{[]int64{2}, []float64{1e-150, 1.5e150}},
	{[]int64{2}, []float64{1e-7, 2e-7}},
	{[]int64{0}, nil},
	{[]int64{2, 0}, nil},
	{[]int64{2, 2}, []float64{123456.7, 234567.8, -123456, 34566}},
	{[]int64{2, 30}, ramp(60, 1.5)},
	{[]int64{2, 25}, ramp(50, 123456.5)},
	{[]int64{2, 2, 3}, ramp(12, 0.25)},
	{[]int64{3, 2, 1, 2}, ramp(12, 4321)},
	{[]int64{2, 2, 2}, []float64{0.5, 1, 2, 3, 12345, 1, 2, 3}},
	{[]int64{2, 1, 30}, ramp(60, 2e5+0.5)},
}

func ramp(n int, step float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = float64(i) * step
	}
	return v
}

func double(shape []int64, values []float64) torch.Tensor {
	if len(values) == 0 {
		values = []float64{}
	}
	flat := torch.NewTensor(values)
	if len(shape) == 0 {
		return flat.Squeeze()
	}
	return flat.View(shape...)
}

func TestPrintGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/print.txt")
	require.NoError(t, err)
	want := strings.Split(strings.TrimSuffix(string(text), "\n----\n"), "\n----\n")
	require.Len(t, want, len(printCases))
	for i, c := range printCases {
		require.Equal(t, want[i], double(c.shape, c.values).String(), "case %d", i)
	}
}

func TestPrintTypes(t *testing.T) {
	one := torch.Ones([]int64{1}, false)
	for dtype, name := range []string{"Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double"} {
		require.Equal(t, " 1\n[ CPU"+name+"Type{1} ]", one.CastTo(int8(dtype)).String())
	}
	require.Equal(t, " 1\n[ CPUBFloat16Type{1} ]", one.CastTo(torch.BFloat16).String())
	require.Equal(t, " 1\n[ CPUComplexFloatType{1} ]", one.CastTo(torch.ComplexFloat).String())
	require.Equal(t, "[ Tensor (undefined) ]", torch.Tensor{}.String())
	require.Equal(t, "[ Tensor (undefined) ]", one.Grad().String())
}

func ExampleTensor_Print() {
	torch.NewTensor([][]float32{{1, -2.5}, {0, 100}}).Print()
	// Output:
	//    1.0000   -2.5000
	//    0.0000  100.0000
	// [ CPUFloatType{2,2} ]
}
