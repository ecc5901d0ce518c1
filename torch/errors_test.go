package torch

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// faulty is a Function that fails in the way that it is told to.
type faulty struct {
	in   string // "forward", "backward" or "panic"
	with error
}

func (f faulty) Forward(ctx *FunctionContext, in []*Tensor) []*Tensor {
	if f.in == "forward" {
		Throw(f.with)
	}
	return []*Tensor{in[0].Clone()}
}

func (f faulty) Backward(_ *FunctionContext, g []*Tensor) ([]*Tensor, error) {
	switch f.in {
	case "backward":
		return nil, f.with
	case "panic":
		panic(fmt.Sprint("panic with ", f.with))
	}
	return g, nil
}

// Each of 64 goroutines builds its own graphs and fails in its own ways: every error must come back, to who caused it.
func TestNoErrorIsLostOrSwapped(t *testing.T) {
	const goroutines, rounds = 64, 24
	var wg sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range errs {
		wg.Go(func() {
			for round := range rounds {
				if errs[g] = deliberate(int64(g), round); errs[g] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func deliberate(g int64, round int) error {
	s := NewScope(nil)
	defer s.Close()
	mine := fmt.Errorf("goroutine %d, round %d", g, round)
	x := s.Own(Full(Float32, float64(g), 2, g+1)).SetRequiresGrad(true)
	kind := (int(g) + round) % 6
	err := Try(func() {
		y := x.MulScalar(2)
		switch kind {
		case 0: // the shape tells whose error it is
			y.MatMul(s.Own(Ones(Float32, g+2, 3)))
		case 1:
			y.RegisterHook(func(*Tensor) (*Tensor, error) { return nil, mine })
		case 2:
			y = Apply(faulty{"forward", mine}, y)[0]
		case 3:
			y = Apply(faulty{"backward", mine}, y)[0]
		case 4:
			y = Apply(faulty{"panic", mine}, y)[0]
		}
		y.Sum().Backward()
	})
	var panicked *capi.PanicError
	switch kind {
	case 0:
		if want := fmt.Sprintf("(2x%d and %dx3)", g+1, g+2); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrArgument) {
			return fmt.Errorf("%w: got %v, want an error with %s", mine, err, want)
		}
	case 1, 2, 3:
		if !errors.Is(err, mine) {
			return fmt.Errorf("%w: got %v", mine, err)
		}
	case 4:
		if !errors.As(err, &panicked) || panicked.Value != fmt.Sprint("panic with ", mine) {
			return fmt.Errorf("%w: got %v, want its panic", mine, err)
		}
	case 5:
		if err != nil {
			return fmt.Errorf("%w: got %v, want none", mine, err)
		}
		for _, v := range Slice[float32](x.Grad()) {
			if v != 2 {
				return fmt.Errorf("%w: gradient %v, want 2", mine, v)
			}
		}
	}
	return nil
}

func TestCatch(t *testing.T) {
	f := func() (n int, err error) {
		defer Catch(&err)
		Ones(Float32, 2).Add(Ones(Float32, 3))
		return 1, nil
	}
	n, err := f()
	require.ErrorIs(t, err, ErrArgument)
	require.Zero(t, n)

	mine := errors.New("mine")
	g := func() (err error) {
		defer Catch(&err)
		Throw(mine)
		return nil
	}
	require.ErrorIs(t, g(), mine)
	require.PanicsWithValue(t, "a bug", func() {
		_ = func() (err error) {
			defer Catch(&err)
			panic("a bug")
		}()
	})
}
