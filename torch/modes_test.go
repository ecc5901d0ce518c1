package torch

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInferenceMode(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	w := s.Own(Ones(Float32, 2, 2)).SetRequiresGrad(true)
	var y *Tensor
	InferenceMode(func() {
		InferenceMode(func() { y = w.MulScalar(3) })
		require.True(t, w.Mul(w).IsInference(), "the inner region does not end the outer one")
	})
	require.True(t, y.IsInference())
	require.False(t, y.RequiresGrad())
	require.False(t, w.MulScalar(3).IsInference())
	require.ErrorIs(t, Try(func() { w.Mul(y) }), ErrArgument, "it would have to be saved for backward")
	require.Equal(t, []float32{3, 3, 3, 3}, Slice[float32](y))

	require.Panics(t, func() { InferenceMode(func() { panic("bug") }) })
	require.True(t, w.MulScalar(3).RequiresGrad(), "the mode ends with a panic too")
}

func TestAutocast(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x, w := s.Own(Randn(NewGenerator(1), Float32, 3, 4)), s.Own(Randn(NewGenerator(2), Float32, 2, 4)).SetRequiresGrad(true)
	var y, full, loss *Tensor
	Autocast(CPUType, BFloat16, func() {
		y = x.Linear(w, nil)
		NoAutocast(CPUType, func() { full = x.Linear(w, nil) })
		require.Equal(t, BFloat16, x.MatMul(x.T()).DType(), "the region goes on")
		require.Equal(t, Float32, x.MulScalar(2).DType(), "elementwise operators keep the type")
		require.Equal(t, Float16, func() (d DType) {
			Autocast(CPUType, Float16, func() { d = x.MatMul(x.T()).DType() })
			return d
		}())
		loss = y.MSELoss(y.Detach().AddScalar(1), ReduceMean)
	})
	require.Equal(t, BFloat16, y.DType())
	require.Equal(t, Float32, full.DType())
	require.Equal(t, Float32, loss.DType(), "losses compute in float32")
	require.Equal(t, Float32, x.Linear(w, nil).DType())
	want := x.To(BFloat16).Linear(w.To(BFloat16), nil)
	require.True(t, y.Equal(want))
	loss.Backward()
	require.Equal(t, Float32, w.Grad().DType())

	require.ErrorContains(t, Try(func() { Autocast(CPUType, Int64, func() {}) }), "expected float16 or bfloat16")
	require.ErrorIs(t, Try(func() { Autocast(MetaType, BFloat16, func() {}) }), ErrArgument)
	require.Equal(t, Float32, x.MatMul(x.T()).DType())
}

func TestModesStayInTheirGoroutine(t *testing.T) {
	w := Ones(Float32, 2, 2).SetRequiresGrad(true)
	var wg sync.WaitGroup
	for g := range 12 {
		wg.Go(func() {
			for range 30 {
				s := NewScope(nil)
				x := w.In(s)
				switch g % 3 {
				case 0:
					InferenceMode(func() {
						if !x.MatMul(x).IsInference() {
							t.Error("not in inference mode")
						}
					})
				case 1:
					Autocast(CPUType, BFloat16, func() {
						if x.MatMul(x).DType() != BFloat16 {
							t.Error("not in autocast")
						}
					})
				default:
					if y := x.MatMul(x); y.DType() != Float32 || !y.RequiresGrad() {
						t.Error("a mode of another goroutine")
					}
				}
				s.Close()
			}
		})
	}
	wg.Wait()
}

// scaled multiplies by a number that no tensor carries.
type scaled struct{ factor float64 }

func (f scaled) Forward(ctx *FunctionContext, in []*Tensor) []*Tensor {
	ctx.SetValue(f.factor * float64(in[0].Numel()))
	return []*Tensor{in[0].MulScalar(ctx.Value().(float64)), in[1].Clone()}
}

func (scaled) Backward(ctx *FunctionContext, g []*Tensor) ([]*Tensor, error) {
	if ctx.NeedsInputGrad(1) {
		panic("input 1 needs no gradient")
	}
	return []*Tensor{g[0].MulScalar(ctx.Value().(float64)), nil}, nil
}

func TestFunctionWithContext(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x, y := s.Own(Ones(Float32, 2)).SetRequiresGrad(true), s.Own(Ones(Float32, 3)).SetRequiresGrad(true)
	c := s.Own(Ones(Float32, 1))
	f := scaled{5}
	a, b := Apply(f, x, c), Apply(f, y, c) // one Function, a context per call
	b[0].Sum().Add(a[0].Sum()).Backward()
	require.Equal(t, []float32{10, 10}, Slice[float32](x.Grad()))
	require.Equal(t, []float32{15, 15, 15}, Slice[float32](y.Grad()))
}

func TestViewAndInPlaceRules(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	leaf := func() *Tensor { return s.Own(FromSlice([]float32{1, 2, 3, 4}, 2, 2)).SetRequiresGrad(true) }
	for name, c := range map[string]struct {
		f    func()
		says string
	}{
		"a leaf that requires grad":     {func() { leaf().AddScalarInPlace(1) }, "leaf Variable that requires grad"},
		"a view of such a leaf":         {func() { leaf().Select(0, 0).Zero() }, "view of a leaf Variable that requires grad"},
		"a saved result":                {func() { y := leaf().Exp(); y.AddScalarInPlace(1); y.Sum().Backward() }, "modified by an inplace operation"},
		"a saved input through a view":  {func() { x := leaf().Clone(); y := x.Mul(x); x.Select(0, 0).Zero(); y.Sum().Backward() }, "modified by an inplace operation"},
		"an expanded view":              {func() { s.Own(Ones(Float32, 1, 2)).Expand(3, 2).AddInPlace(s.Own(Ones(Float32, 3, 2)), 1) }, "more than one element of the written-to tensor refers to a single memory location"},
		"one of several views":          {func() { leaf().Clone().Chunk(2, 0)[0].AddScalarInPlace(1) }, "output of a function that returns multiple views"},
		"a second backward":             {func() { y := leaf().Exp().Sum(); y.Backward(); y.Backward() }, "second time"},
		"no scalar":                     {func() { leaf().Exp().Backward() }, "scalar outputs"},
		"integers":                      {func() { s.Own(Ones(Int64, 2)).SetRequiresGrad(true) }, "floating point"},
		"no leaf":                       {func() { leaf().Exp().SetRequiresGrad(false) }, "leaf"},
		"nothing to differentiate":      {func() { s.Own(Ones(Float32)).Backward() }, "does not require grad"},
		"a detached copy does not help": {func() { x := leaf().Clone(); y := x.Mul(x); x.Detach().Zero(); y.Sum().Backward() }, "modified by an inplace operation"},
	} {
		err := Try(c.f)
		require.ErrorContains(t, err, c.says, name)
		require.ErrorIs(t, err, ErrArgument, name)
	}

	x := leaf() // and what is allowed
	NoGrad(func() { x.AddScalarInPlace(1) })
	y := x.Clone()
	y.Select(0, 0).MulScalarInPlace(3)
	y.Sum().Backward()
	require.Equal(t, []float32{3, 3, 1, 1}, Slice[float32](x.Grad()))
}
