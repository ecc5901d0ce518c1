package torch

import (
	"errors"
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// expFunction keeps its output, as PyTorch's own exp does.
type expFunction struct{ calls *int }

func (f expFunction) Forward(ctx *FunctionContext, in []*Tensor) []*Tensor {
	y := in[0].Exp()
	ctx.Save(y, nil)
	return []*Tensor{y}
}

func (f expFunction) Backward(ctx *FunctionContext, g []*Tensor) ([]*Tensor, error) {
	*f.calls++
	return []*Tensor{g[0].Mul(ctx.Saved()[0])}, nil
}

// derivatives of f at x, up to the third.
func derivatives(s *Scope, f func(*Tensor) *Tensor) (list []float64) {
	x := s.Own(Full(Float64, 0.7, 1)).SetRequiresGrad(true)
	y := f(x)
	for range 3 {
		y = Grad([]*Tensor{y.Sum()}, []*Tensor{x}, GradOptions{CreateGraph: true})[0]
		list = append(list, y.Item())
	}
	return list
}

func TestDoubleBackwardThroughGoFunctions(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	calls := 0
	cube := func(x *Tensor) *Tensor { return Apply(square{}, x)[0].Mul(x) }
	require.InDeltaSlice(t, []float64{3 * 0.49, 6 * 0.7, 6}, derivatives(s, cube), 1e-12, "saved input")
	e := math.Exp(0.7)
	require.InDeltaSlice(t, []float64{e, e, e}, derivatives(s, func(x *Tensor) *Tensor { return Apply(expFunction{&calls}, x)[0] }), 1e-12, "saved output")
	require.Equal(t, 3, calls, "once per derivative")
	both := func(x *Tensor) *Tensor { return Apply(square{}, Apply(expFunction{&calls}, x)[0])[0] } // exp(2x)
	require.InDeltaSlice(t, []float64{2 * e * e, 4 * e * e, 8 * e * e}, derivatives(s, both), 1e-11)

	// A gradient penalty: the loss holds a gradient, and Backward goes through both graphs into the leaves.
	w := s.Own(FromSlice([]float64{2})).SetRequiresGrad(true)
	x := s.Own(FromSlice([]float64{3})).SetRequiresGrad(true)
	y := Apply(square{}, w.Mul(x))[0] // w²x²; its gradient by x is 2w²x
	g := Grad([]*Tensor{y.Sum()}, []*Tensor{x}, GradOptions{CreateGraph: true})[0]
	require.Equal(t, 24.0, g.Item())
	Apply(square{}, g)[0].Sum().Backward() // (2w²x)² = 4w⁴x²
	require.Equal(t, 16.0*8*9, w.Grad().Item())
	require.Equal(t, 8.0*16*3, x.Grad().Item())

	// Without CreateGraph nothing is recorded.
	z := s.Own(FromSlice([]float64{3})).SetRequiresGrad(true)
	require.False(t, Grad([]*Tensor{Apply(square{}, z)[0].Sum()}, []*Tensor{z}, GradOptions{})[0].RequiresGrad())
}

func TestDoubleBackwardLeavesNothing(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	calls := 0
	run := func() {
		s := NewScope(nil)
		defer s.Close()
		derivatives(s, func(x *Tensor) *Tensor { return Apply(square{}, Apply(expFunction{&calls}, x)[0])[0] })
	}
	run()
	settle()
	before := MemoryStats()
	for range 20 {
		run()
	}
	after := MemoryStats()
	require.Equal(t, before.LiveTensors, after.LiveTensors)
	require.Equal(t, before.LiveBytes, after.LiveBytes)
}

func TestDoubleBackwardUnderSavedTensorHooks(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	k := &keeper{}
	calls := 0
	e := math.Exp(0.7)
	require.InDeltaSlice(t, []float64{2 * e * e, 4 * e * e, 8 * e * e}, derivatives(s, func(x *Tensor) (y *Tensor) {
		WithSavedTensorHooks(k, func() { y = Apply(square{}, Apply(expFunction{&calls}, x)[0])[0] })
		return y
	}), 1e-11)
	require.NotEmpty(t, k.kept)
}

// onceSquare is square whose Backward may not be differentiated.
type onceSquare struct {
	OnceDifferentiable
	square
}

// failing is square whose second derivative panics.
type failing struct{ square }

func (f failing) Backward(ctx *FunctionContext, g []*Tensor) ([]*Tensor, error) {
	if GradEnabled() {
		return []*Tensor{Apply(faulty{in: "panic", with: errors.New("inner")}, ctx.Saved()[0])[0].Mul(g[0])}, nil
	}
	return f.square.Backward(ctx, g)
}

func TestSecondDerivativesThatAreRefused(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(FromSlice([]float64{3})).SetRequiresGrad(true)
	first := func(f Function) *Tensor {
		return Grad([]*Tensor{Apply(f, x)[0].Sum()}, []*Tensor{x}, GradOptions{CreateGraph: true})[0]
	}
	g := first(onceSquare{})
	require.Equal(t, 6.0, g.Item(), "the first derivative is there")
	require.ErrorContains(t, Try(func() { g.Sum().Backward() }), "onceSquare can be differentiated once")
	Apply(onceSquare{}, x)[0].Sum().Backward()
	require.Equal(t, 6.0, x.Grad().Item())

	g = first(failing{})
	require.ErrorContains(t, Try(func() { g.Sum().Backward() }), "panic with inner")
	DetectAnomaly(func() {
		zero := s.Own(FromSlice([]float64{0})).SetRequiresGrad(true)
		err := Try(func() { Apply(square{}, zero.Sqrt().Mul(zero.Log()))[0].Sum().Backward() })
		require.ErrorContains(t, err, "torch.squareBackward", "anomaly detection names the Go function")
	})
}

// argSort gives the sorted values and where they come from.
type argSort struct{}

func (argSort) Forward(ctx *FunctionContext, in []*Tensor) []*Tensor {
	values, indices := in[0].Sort(0, false)
	indices = indices.To(Float32)
	ctx.MarkNonDifferentiable(indices)
	return []*Tensor{values, indices}
}

func (argSort) Backward(_ *FunctionContext, g []*Tensor) ([]*Tensor, error) { return g[:1], nil }

func TestMarkNonDifferentiable(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	out := Apply(argSort{}, s.Own(FromSlice([]float32{2, 1})).SetRequiresGrad(true))
	require.True(t, out[0].RequiresGrad())
	require.False(t, out[1].RequiresGrad())
	out[0].Sum().Backward()
}
