package torch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each kind of work that libtorch spreads over threads of its own.
func TestManyShortGoroutinesLeaveThreadsAndMemoryBounded(t *testing.T) {
	g := NewGenerator(1)
	a, image := Randn(g, Float32, 128, 128), Randn(g, Float32, 1, 8, 32, 32)
	kernel, long := Randn(g, Float32, 8, 8, 3, 3), Randn(g, Float32, 1<<18)
	for _, work := range []struct {
		name string
		f    func(s *Scope)
	}{
		{"products", func(s *Scope) { a.In(s).MatMul(a).MatMul(a).Sum().Item() }},
		{"convolutions", func(s *Scope) {
			CallOne("aten::conv2d", image.In(s), kernel, nil, []int64{1, 1}, []int64{1, 1}).Sum().Item()
		}},
		{"elementwise", func(s *Scope) { long.In(s).Exp().Mul(long).Softmax(0).Sum().Item() }},
		{"backward", func(s *Scope) {
			x := a.In(s).Clone().SetRequiresGrad(true)
			x.MatMul(x).Exp().Sum().Backward()
		}},
	} {
		t.Run(work.name, func(t *testing.T) {
			settle()
			TrimMemory()
			threads, rss := procStatus(t, "Threads"), procStatus(t, "VmRSS")
			var failed atomic.Int64
			var wg sync.WaitGroup
			for range 1000 {
				wg.Go(func() {
					s := NewScope(nil)
					defer s.Close()
					if Try(func() { work.f(s) }) != nil {
						failed.Add(1)
					}
				})
			}
			wg.Wait()
			require.Zero(t, failed.Load())
			TrimMemory()
			t.Logf("threads %d -> %d, RSS %d -> %d kB", threads, procStatus(t, "Threads"), rss, procStatus(t, "VmRSS"))
			require.Less(t, procStatus(t, "Threads"), threads+64)
			require.Less(t, procStatus(t, "VmRSS"), rss+200<<10)
		})
	}
}

func TestHooksFromManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for g := range errs {
		wg.Go(func() {
			for i := range 30 {
				mine := fmt.Errorf("goroutine %d, round %d", g, i)
				s := NewScope(nil)
				errs[g] = Try(func() {
					x := s.Own(Full(Float32, float64(g), 3).SetRequiresGrad(true))
					y := x.MulScalar(2)
					fail := i%3 == 0
					y.RegisterHook(func(grad *Tensor) (*Tensor, error) {
						if fail {
							return nil, mine
						}
						return grad.MulScalar(float64(g)), nil
					})
					err := Try(func() { Apply(square{}, y)[0].Sum().Backward() })
					switch {
					case fail && !errors.Is(err, mine):
						panic(failure{fmt.Errorf("got error %v, want %v", err, mine)})
					case !fail:
						Throw(err)
						if got, want := Slice[float32](x.Grad())[2], float32(8*g*g); got != want {
							panic(failure{fmt.Errorf("gradient %v, want %v", got, want)})
						}
					}
				})
				s.Close()
				if errs[g] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestGradModeStaysInItsGoroutine(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				NoGrad(func() {
					EnableGrad(func() {
						if !GradEnabled() {
							t.Error("EnableGrad inside NoGrad does not record")
						}
					})
					if GradEnabled() {
						t.Error("NoGrad records")
					}
				})
			}
		})
		wg.Go(func() {
			for range 100 {
				s := NewScope(nil)
				if !s.Own(Ones(Float32, 1).SetRequiresGrad(true)).MulScalar(2).RequiresGrad() {
					t.Error("grad mode leaked from another goroutine")
				}
				s.Close()
			}
		})
	}
	wg.Wait()
}

func TestWorker(t *testing.T) {
	w := NewWorker()
	defer w.Close()
	require.NoError(t, w.Do(func() { Ones(Float32, 1).Free() }))
	require.ErrorIs(t, w.Do(func() { (*Tensor)(nil).Sum() }), ErrArgument)
	require.PanicsWithValue(t, "bug", func() { _ = w.Do(func() { panic("bug") }) })
	require.NoError(t, w.Do(func() {}), "a worker survives a panic")
	w.Close()
	require.ErrorIs(t, w.Do(func() {}), ErrWorkerClosed)
}

func TestNumThreads(t *testing.T) {
	n := NumThreads()
	defer SetNumThreads(n)
	require.Positive(t, n)
	a, b := NewWorker(), NewWorker()
	defer a.Close()
	defer b.Close()
	got := func(w *Worker) (n int) {
		require.NoError(t, w.Do(func() { n = NumThreads() }))
		return n
	}
	require.Equal(t, n, got(a))
	for _, want := range []int{1, 3, n} {
		require.NoError(t, a.Do(func() { SetNumThreads(want) }))
		require.Equal(t, want, got(a))
		require.Equal(t, want, got(b), "other OS threads follow")
		require.Equal(t, want, NumThreads())
	}
	require.ErrorIs(t, Try(func() { SetNumThreads(0) }), ErrArgument)
	v, err := Versions()
	require.NoError(t, err)
	require.Contains(t, v, "built 2.")
}
