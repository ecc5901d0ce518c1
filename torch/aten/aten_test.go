package aten_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/aten"
)

func scope(t *testing.T) *torch.Scope {
	s := torch.NewScope(nil)
	t.Cleanup(s.Close)
	return s
}

func vec(s *torch.Scope, v ...float32) *torch.Tensor { return s.Own(torch.FromSlice(v)) }

func floats(t *torch.Tensor) []float32 { return torch.Slice[float32](t) }

func TestOptionalArguments(t *testing.T) {
	s := scope(t)
	a, b := vec(s, 1, 2), vec(s, 10, 20)
	sum := aten.AddTensor(a, b)
	require.Equal(t, []float32{11, 22}, floats(sum))
	require.Same(t, s, sum.Scope())
	require.Equal(t, []float32{21, 42}, floats(aten.AddTensor(a, b, aten.AddOptions{Alpha: 2})))
	require.Equal(t, []float32{6, 12}, floats(aten.AddTensor(a, b, aten.AddOptions{Alpha: 0.5})))
	require.Equal(t, []float32{1, 2}, floats(aten.AddTensor(a, b, aten.AddOptions{Alpha: 0})), "an explicit zero is not the default")
	require.Equal(t, torch.Float64, aten.SumDimIntList(a, []int64{0}, aten.SumDimIntListOptions{DType: new(torch.Float64)}).DType())
	require.Equal(t, []int64{1}, aten.SumDimIntList(a, nil, aten.SumDimIntListOptions{Keepdim: true}).Shape(), "nil is None: all dimensions")

	values, indices := aten.Topk(vec(s, 3, 1, 2), 2, aten.TopkOptions{Largest: new(false)})
	require.Equal(t, []float32{1, 2}, floats(values))
	require.Equal(t, []int64{1, 2}, torch.Slice[int64](indices))
}

func TestNumbers(t *testing.T) {
	s := scope(t)
	x := vec(s, 3)
	require.Equal(t, []float32{6}, floats(aten.MulScalar(x, 2)))
	require.Equal(t, []float32{1.5}, floats(aten.MulScalar(x, float32(0.5))))
	imaginary := aten.MulScalar(x, 2i)
	require.Equal(t, torch.Complex64, imaginary.DType())
	require.Equal(t, complex(0, 6), aten.Item(imaginary))
	require.Equal(t, 3.0, aten.Item(x))
	require.Equal(t, int64(7), aten.Item(s.Own(torch.FromSlice([]int64{7}))))
	require.Equal(t, true, aten.Item(aten.GtScalar(x, 1)))
	out := aten.ForeachAddScalarList([]*torch.Tensor{x, x, imaginary}, []torch.Number{1, 0.5, 1 + 1i})
	require.Equal(t, []float32{4}, floats(out[0]))
	require.Equal(t, []float32{3.5}, floats(out[1]))
	require.Equal(t, 1+7i, aten.Item(out[2]))
}

func TestForeach(t *testing.T) {
	s := scope(t)
	a, b := vec(s, 1, 2), vec(s, 3)
	out := aten.ForeachAddList([]*torch.Tensor{a, b}, []*torch.Tensor{b, a})
	require.Len(t, out, 2)
	require.Equal(t, []float32{4, 5}, floats(out[0]))
	require.Equal(t, []float32{4, 5}, floats(out[1]))
	aten.ForeachMulInPlaceScalar([]*torch.Tensor{a, b}, 2)
	require.Equal(t, []float32{2, 4}, floats(a))
	require.Equal(t, []float32{6}, floats(b))
	require.InDelta(t, math.Sqrt(41), aten.Item(aten.ForeachNormScalar(out)[0]), 1e-5)
}

func TestFusedAdamWParity(t *testing.T) {
	s := scope(t)
	p, g, m, v, step := vec(s, 1, -2), vec(s, 0.5, 0.25), vec(s, 0, 0), vec(s, 0, 0), vec(s, 1)
	list := func(t *torch.Tensor) []*torch.Tensor { return []*torch.Tensor{t} }
	aten.FusedAdamwInPlace(list(p), list(g), list(m), list(v), nil, list(step), 0.1, 0.9, 0.999, 0.01, 1e-8, false, false)
	// After the first step the bias-corrected moments are g and g², so the step is lr times the sign of g.
	for i, w := range []float64{1, -2} {
		require.InDelta(t, w*(1-0.1*0.01)-0.1, floats(p)[i], 1e-6)
	}
}

func TestOutAndInPlaceReturnTheirArguments(t *testing.T) {
	s := scope(t)
	a, b := vec(s, 1, 2), vec(s, 3, 4)
	before := s.Len()
	require.Same(t, a, aten.AddInPlaceTensor(a, b))
	require.Equal(t, []float32{4, 6}, floats(a))
	require.Equal(t, before, s.Len(), "no second handle is made")

	m := aten.ViewCopy(vec(s, 1, 2, 3, 4), []int64{2, 2})
	res := aten.EmptyLike(m)
	require.Same(t, res, aten.AddmmOut(m, m, m, res, aten.AddmmOptions{Beta: 2, Alpha: 1}))
	require.Equal(t, []float32{9, 14, 21, 30}, floats(aten.Reshape(res, []int64{-1})))

	values, indices := s.Own(torch.Empty(torch.Float32, 0)), s.Own(torch.Empty(torch.Int64, 0))
	gotV, gotI := aten.TopkValues(vec(s, 3, 1, 2), 1, values, indices)
	require.Same(t, values, gotV)
	require.Same(t, indices, gotI)
	require.Equal(t, []float32{3}, floats(values))
}

func TestGenerator(t *testing.T) {
	s := scope(t)
	x := s.Own(torch.Ones(torch.Float32, 64))
	draw := func(seed int64) []float32 {
		return floats(aten.BernoulliP(x, 0.5, aten.BernoulliOptions{Generator: torch.NewGenerator(seed)}))
	}
	require.Equal(t, draw(1), draw(1))
	require.NotEqual(t, draw(1), draw(2))
}

func TestResults(t *testing.T) {
	s := scope(t)
	x := aten.Reshape(vec(s, 1, 2, 3, 4, 5, 6), []int64{3, 2})
	chunks := aten.Chunk(x, 2)
	require.Len(t, chunks, 2)
	require.Equal(t, []int64{2, 2}, chunks[0].Shape())
	require.Equal(t, int64(3), aten.SymSizeInt(x, 0))
	require.Equal(t, int64(2), aten.SizeInt(x, -1))
	require.True(t, aten.IsNonzero(vec(s, 1)))
	require.True(t, aten.Allclose(x, x))
	require.True(t, aten.SymIsContiguous(x))
	require.Equal(t, torch.Float32, aten.ResultTypeTensor(x, s.Own(torch.FromSlice([]int64{1}))))
	scale, zero := aten.UnderChooseQparamsPerTensor(x)
	require.InDelta(t, 6.0/255, scale, 1e-6)
	require.Equal(t, int64(0), zero)
}

func TestAbsentTensors(t *testing.T) {
	s := scope(t)
	x := aten.Reshape(vec(s, 1, 2, 3, 4), []int64{2, 2})
	column := aten.IndexTensor(x, []*torch.Tensor{nil, s.Own(torch.FromSlice([]int64{1}))})
	require.Equal(t, []int64{2, 1}, column.Shape())
	require.Equal(t, []float32{2, 4}, floats(aten.Reshape(column, []int64{-1})))

	image := aten.Reshape(x, []int64{1, 1, 2, 2})
	kernel := s.Own(torch.Ones(torch.Float32, 1, 1, 1, 1))
	gi, gw, gb := aten.ConvolutionBackward(image, image, kernel, nil, []int64{1, 1}, []int64{0, 0}, []int64{1, 1}, false,
		[]int64{0, 0}, 1, []bool{false, true, false})
	require.Nil(t, gi)
	require.Nil(t, gb)
	require.Equal(t, []float32{30}, floats(aten.Reshape(gw, []int64{-1})))
}

func TestStrings(t *testing.T) {
	s := scope(t)
	x := aten.Reshape(vec(s, 1, 2, 3, 4), []int64{2, 2})
	require.Equal(t, 5.0, aten.Item(aten.Einsum("ii->", []*torch.Tensor{x})))
	require.Equal(t, []float32{-2}, floats(aten.DivTensorMode(vec(s, -3), vec(s, 2), new("floor"))))
	require.Equal(t, []float32{-1.5}, floats(aten.DivTensorMode(vec(s, -3), vec(s, 2), nil)))
	exact := floats(aten.Gelu(vec(s, 1)))[0]
	require.InDelta(t, 0.5*(1+math.Erf(1/math.Sqrt2)), exact, 1e-6)
	require.NotEqual(t, exact, floats(aten.Gelu(vec(s, 1), aten.GeluOptions{Approximate: new("tanh")}))[0])
}

func TestFactories(t *testing.T) {
	x := aten.EmptyMemoryFormat([]int64{2, 3}, aten.EmptyOptions{DType: new(torch.BFloat16), Device: &torch.Meta})
	defer x.Free()
	require.Equal(t, torch.BFloat16, x.DType())
	require.Equal(t, torch.Meta.Type, x.Device().Type)
	y := aten.ZerosLike(x, aten.ZerosLikeOptions{Device: &torch.CPU, DType: new(torch.Float32)})
	defer y.Free()
	require.Equal(t, torch.CPU, y.Device())
	image := aten.Zeros([]int64{1, 2, 3, 3}, aten.ZerosOptions{Layout: new(torch.Strided)})
	defer image.Free()
	last := aten.Clone(image, aten.CloneOptions{MemoryFormat: new(torch.ChannelsLast)})
	defer last.Free()
	require.Equal(t, []int64{18, 1, 6, 2}, last.Stride())
}

func TestFaultsAreErrors(t *testing.T) {
	s, other := scope(t), scope(t)
	x, y := vec(s, 1, 2), vec(other, 1, 2)
	freed := vec(s, 1)
	freed.Free()
	live := torch.MemoryStats().LiveTensors
	for want, f := range map[string]func(){
		"twice":                 func() { aten.AddTensor(x, x, aten.AddOptions{}, aten.AddOptions{}) },
		"neither contains":      func() { aten.AddTensor(x, y) },
		"was freed":             func() { aten.AddTensor(freed, x) },
		"got None":              func() { aten.AddTensor(x, nil) },
		"cannot be a string":    func() { aten.AddScalar(x, "1") },
		"[2] float32":           func() { aten.Mm(x, x) },
		"cannot be a struct {}": func() { aten.ForeachAddScalarList([]*torch.Tensor{x}, []torch.Number{struct{}{}}) },
	} {
		err := torch.Try(f)
		require.ErrorContains(t, err, want)
		var te *torch.Error
		require.ErrorAs(t, err, &te)
	}
	require.Equal(t, []float32{2, 4}, floats(aten.AddTensor(x, x)), "the tensors are not left in use")
	s.Close()
	other.Close()
	require.Less(t, torch.MemoryStats().LiveTensors, live)
}
