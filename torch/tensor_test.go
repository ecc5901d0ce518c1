package torch

import (
	"errors"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/internal/capi"
	"github.com/stretchr/testify/require"
)

func TestSliceRoundTrip(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3))
	require.Equal(t, []int64{2, 3}, x.Shape())
	require.Equal(t, []float32{1, 4, 2, 5, 3, 6}, Slice[float32](x.T()))
	require.Equal(t, 21.0, x.Sum().Item())
	require.Equal(t, []float32{5, 7, 9}, Slice[float32](x.Sum(0)))
}

func TestNoExceptionLeavesTheABI(t *testing.T) {
	require.NoError(t, LoadLibrary())
	kinds := []int{capi.KindTorch, capi.KindOther, capi.KindOOM, capi.KindOther, capi.KindTimeout}
	for what, kind := range kinds {
		err := capi.TestThrow(what)
		var ce *capi.Error
		require.ErrorAs(t, err, &ce)
		require.Equal(t, kind, ce.Kind, ce.Message)
	}
}

func TestErrorNamesOperatorAndShapes(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	err := Try(func() { s.Own(Ones(Float32, 2, 3)).MM(s.Own(Ones(Float32, 4, 5))) })
	require.ErrorIs(t, err, ErrArgument)
	require.ErrorContains(t, err, "mm")
	require.ErrorContains(t, err, "[2 3]")
	require.ErrorContains(t, err, "[4 5]")
}

func TestBackwardAndHooks(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	w := s.Own(Ones(Float32, 3).SetRequiresGrad(true))
	x := s.Own(FromSlice([]float32{1, 2, 3}))
	y := w.Mul(x)
	calls := 0
	y.RegisterHook(func(g *Tensor) (*Tensor, error) { calls++; return g.MulScalar(10), nil })
	y.Sum().Backward()
	require.Equal(t, 1, calls)
	require.Equal(t, []float32{10, 20, 30}, Slice[float32](w.Grad()))
}

func TestErrorInHookComesOutOfBackward(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	mine := errors.New("mine")
	w := s.Own(Ones(Float32, 3).SetRequiresGrad(true))
	y := w.MulScalar(2)
	y.RegisterHook(func(*Tensor) (*Tensor, error) { return nil, mine })
	require.ErrorIs(t, Try(func() { y.Sum().Backward() }), mine)
	z := w.MulScalar(2)
	z.RegisterHook(func(*Tensor) (*Tensor, error) { panic("boom") })
	require.ErrorContains(t, Try(func() { z.Sum().Backward() }), "boom")
}

func TestOnBackward(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Ones(Float32, 2).SetRequiresGrad(true))
	order := []string{}
	in := OnBackward(func() error {
		order = append(order, "post")
		QueueCallback(func() error { order = append(order, "final"); return nil })
		return nil
	}, x.MulScalar(3))
	in[0].MulScalar(2).Sum().Backward()
	require.Equal(t, []string{"post", "final"}, order)
	require.Equal(t, []float32{6, 6}, Slice[float32](x.Grad()))
}

type square struct{}

func (square) Forward(ctx *FunctionContext, in []*Tensor) []*Tensor {
	ctx.Save(in[0])
	return []*Tensor{in[0].Mul(in[0])}
}

func (square) Backward(ctx *FunctionContext, g []*Tensor) ([]*Tensor, error) {
	return []*Tensor{g[0].Mul(ctx.Saved()[0].MulScalar(2))}, nil
}

func TestFunctionInGo(t *testing.T) {
	s := NewScope(nil)
	x := s.Own(FromSlice([]float32{1, 2, 3}).SetRequiresGrad(true))
	y := Apply(square{}, x)[0]
	y.Sum().Backward()
	require.Equal(t, []float32{2, 4, 6}, Slice[float32](x.Grad()))
	s.Close()
}

type keeper struct {
	kept     []*Tensor
	released int
}

func (k *keeper) Pack(t *Tensor) (int64, error) {
	k.kept = append(k.kept, t.Clone().In(nil))
	return int64(len(k.kept) - 1), nil
}
func (k *keeper) Unpack(i int64) (*Tensor, error) { return k.kept[i], nil }
func (k *keeper) Release(int64)                   { k.released++ }

func TestSavedTensorHooks(t *testing.T) {
	s := NewScope(nil)
	k := &keeper{}
	x := s.Own(FromSlice([]float32{1, 2, 3}).SetRequiresGrad(true))
	var y *Tensor
	WithSavedTensorHooks(k, func() { y = x.Exp().Mul(x) })
	require.Len(t, k.kept, 3)
	y.Sum().Backward()
	require.InDeltaSlice(t, []float64{2 * 2.7182817, 3 * 7.389056, 4 * 20.085537}, toFloat64(Slice[float32](x.Grad())), 1e-4)
	s.Close()
	require.Equal(t, 3, k.released)
}

func toFloat64(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

func TestScopes(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	settle()
	before := MemoryStats().LiveTensors
	outer := NewScope(nil)
	x := outer.Own(Ones(Float32, 4))
	inner := NewScope(outer)
	y := x.In(inner).MulScalar(2)
	require.Same(t, inner, y.Scope())
	kept := inner.Escape(y.AddScalar(1))
	inner.Close()
	require.True(t, y.Freed())
	require.ErrorIs(t, Try(func() { y.Sum() }), ErrFreed)
	require.Equal(t, []float32{3, 3, 3, 3}, Slice[float32](kept))
	other := NewScope(nil)
	defer other.Close()
	require.ErrorIs(t, Try(func() { x.Add(other.Own(Ones(Float32, 4))) }), ErrScope)
	outer.Close()
	other.Close()
	require.Equal(t, before, MemoryStats().LiveTensors)
}

func TestCloseDuringUseInAnotherGoroutine(t *testing.T) {
	for range 200 {
		s := NewScope(nil)
		x := s.Own(Ones(Float32, 64, 64))
		done := make(chan error)
		go func() { done <- Try(func() { x.MM(x).Sum().Item() }) }()
		s.Close()
		if err := <-done; err != nil {
			require.ErrorIs(t, err, ErrFreed)
		}
	}
}

func TestUnscopedTensorsAreCollected(t *testing.T) {
	runtime.GC()
	before := MemoryStats().LiveBytes
	for range 100 {
		Ones(Float32, 1<<20)
	}
	require.Eventually(t, func() bool { // clean-ups run in a goroutine of the collector
		runtime.GC()
		return MemoryStats().LiveBytes < before+(20<<20)
	}, 5*time.Second, 10*time.Millisecond)
}

func TestStorageResizeKeepsTheGraph(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	w := s.Own(Randn(NewGenerator(1), Float32, 4, 4).SetRequiresGrad(true))
	copyOf := w.Detach().Clone()
	x := s.Own(Randn(NewGenerator(2), Float32, 2, 4).SetRequiresGrad(true))
	y := x.MM(w).ReLU()
	bytes := w.StorageBytes()
	w.ResizeStorage(0)
	y.RegisterHook(func(*Tensor) (*Tensor, error) {
		NoGrad(func() {
			w.ResizeStorage(bytes)
			w.VariableData().Copy(copyOf)
		})
		return nil, nil
	})
	y.Sum().Backward()
	ref := copyOf.Clone().SetRequiresGrad(true)
	x.Detach().MM(ref).ReLU().Sum().Backward()
	require.Equal(t, Slice[float32](ref.Grad()), Slice[float32](w.Grad()))
}

func TestCallReachesEveryOperator(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(FromSlice([]float32{3, 1, 2}))
	r := Call("aten::sort", x)
	require.Equal(t, []float32{1, 2, 3}, Slice[float32](r[0].(*Tensor)))
	require.Equal(t, []int64{1, 2, 0}, Slice[int64](r[1].(*Tensor)))
	many := Call("aten::unbind.int", s.Own(Ones(Float32, 40, 2)))[0].([]*Tensor)
	require.Len(t, many, 40)
	_, err := Schema("aten::nonsense")
	require.Error(t, err)
}

func TestToDeviceOfTheSameDeviceIsNoCopy(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Ones(Float32, 3))
	require.True(t, x.IsSame(x.ToDevice(CPU)))
}
