package torch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// argumentNames reads the argument names out of a printed schema, "name.overload(Type name=default, *, …) -> result".
func argumentNames(schema string) []string {
	var names []string
	depth, start := 0, strings.Index(schema, "(")+1
	add := func(arg string) {
		arg, _, _ = strings.Cut(strings.TrimSpace(arg), "=")
		if fields := strings.Fields(arg); len(fields) > 1 {
			names = append(names, fields[len(fields)-1])
		}
	}
	for i := start; i < len(schema); i++ {
		switch schema[i] {
		case '(', '[':
			depth++
		case ']':
			depth--
		case ')':
			if depth == 0 {
				add(schema[start:i])
				return names
			}
			depth--
		case ',':
			if depth == 0 {
				add(schema[start:i])
				start = i + 1
			}
		}
	}
	return names
}

func TestDeclaredOperatorsMatchTheLibrary(t *testing.T) {
	require.Greater(t, len(declared), 100)
	for _, o := range declared {
		name := o.Name
		if o.Overload != "" {
			name += "." + o.Overload
		}
		schema, err := Schema(name)
		require.NoError(t, err, name)
		have := argumentNames(schema)
		for _, arg := range strings.Split(o.Args, ",") {
			require.Contains(t, have, arg, "%s: %s", name, schema)
		}
	}
}

func TestMisspeltArgumentIsNamed(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Ones(Float32, 2))
	o := &Op{Name: "aten::add", Overload: "Tensor", Args: "self,other,alhpa"}
	require.NotPanics(t, func() { o.one(x, x, Default) })
	require.ErrorContains(t, Try(func() { o.one(x, x, 2) }), "no argument alhpa")
	missing := &Op{Name: "aten::add", Overload: "Tensor", Args: "self"}
	require.ErrorContains(t, Try(func() { missing.one(x) }), "argument other is missing")
}

func TestCallChecksItsArguments(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Ones(Float32, 2))
	for want, f := range map[string]func(){
		"cannot be passed":      func() { Call("aten::relu", x, struct{}{}) },
		"takes 1":               func() { Call("aten::relu", x, x) },
		"is missing":            func() { Call("aten::add.Tensor", x) },
		"aten::nonsense":        func() { Call("aten::nonsense", x) },
		"has no default":        func() { Call("aten::add.Tensor", x, Default) },
		"got None":              func() { (*Tensor)(nil).Sum() },
		"1 gradients for 2":     func() { BackwardAll([]*Tensor{x, x}, []*Tensor{x}, BackwardOptions{}) },
		"2 gradients for 1":     func() { Grad([]*Tensor{x}, []*Tensor{x}, GradOptions{GradOutputs: []*Tensor{x, x}}) },
		"no roots":              func() { BackwardAll(nil, nil, BackwardOptions{}) },
		"does not require":      func() { x.Sum().Backward() },
		"[2] float32":           func() { x.MM(x) },
		"require gradient":      func() { x.RegisterHook(func(*Tensor) (*Tensor, error) { return nil, nil }) },
		"post-accumulate":       func() { x.RegisterPostAccumulateGradHook(func(*Tensor) error { return nil }) },
		"gradient of shape [3]": func() { x.SetGrad(s.Own(Ones(Float32, 3))) },
		"dimension 3 of":        func() { x.Size(3) },
		"needs one element":     func() { x.Item() },
		"convert it with To":    func() { Slice[int64](x) },
		"do not fill shape":     func() { FromSlice([]float32{1}, 2) },
		"cannot allocate":       func() { Empty(Float32, 1<<60) },
		"negative dimension":    func() { Empty(Float32, -1) },
	} {
		assert.ErrorContains(t, Try(f), want, want)
	}
	require.Equal(t, []float32{1, 1}, Slice[float32](x), "the library still works")
}

// Deep goroutine stacks move when they grow; results of a call whose callback made the stack grow must arrive.
func TestCallbackThatGrowsTheStack(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Ones(Float32, 4).SetRequiresGrad(true))
	var deep func(n int) int
	deep = func(n int) int {
		var pad [256]byte
		if n == 0 {
			return int(pad[0])
		}
		return deep(n-1) + int(pad[n%256])
	}
	for n := range 64 {
		done := make(chan *Tensor)
		go func() { // a fresh, small stack each time
			var y *Tensor
			WithSavedTensorHooks(&growing{deep: func() { deep(10 * n) }}, func() { y = x.Exp() })
			done <- y
		}()
		require.InDelta(t, 2.7182817, float64(Slice[float32](<-done)[3]), 1e-6)
	}
}

type growing struct {
	keeper
	deep func()
}

func (g *growing) Pack(t *Tensor) (int64, error) {
	g.deep()
	return g.keeper.Pack(t)
}

func TestPostAccumulateHooksRunInOrderAndCanBeRemoved(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	w := s.Own(Ones(Float32, 1).SetRequiresGrad(true))
	var log []string
	hook := func(name string) *Hook {
		return w.RegisterPostAccumulateGradHook(func(leaf *Tensor) error {
			log = append(log, name)
			require.True(t, leaf.IsSame(w))
			return nil
		})
	}
	hook("a")
	b := hook("b")
	hook("c")
	w.MulScalar(2).Sum().Backward()
	b.Remove()
	w.MulScalar(2).Sum().Backward()
	require.Equal(t, []string{"a", "b", "c", "a", "c"}, log)
}

func TestFunctionDetectsChangesInPlaceAndSecondBackward(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(FromSlice([]float32{1, 2, 3}).SetRequiresGrad(true))
	z := x.MulScalar(1)
	y := Apply(square{}, z)[0].Sum()
	NoGrad(func() { z.AddScalarInPlace(1) })
	require.ErrorContains(t, Try(func() { y.Backward() }), "inplace")
	y = Apply(square{}, x)[0].Sum()
	y.Backward()
	require.ErrorContains(t, Try(func() { y.Backward() }), "second time")
}

func BenchmarkOperator(b *testing.B) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Ones(Float32, 1))
	runs := []struct {
		name string
		f    func(x *Tensor)
	}{
		{"method", func(x *Tensor) { x.Mul(x) }},
		{"Call", func(x *Tensor) { Call("aten::mul.Tensor", x, x) }},
		{"CallOne", func(x *Tensor) { CallOne("aten::mul.Tensor", x, x) }},
		{"In", func(x *Tensor) { x.In(x.Scope()) }},
		{"DType", func(x *Tensor) { x.DType() }},
	}
	for _, r := range runs {
		b.Run(r.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N / 100 {
				step := NewScope(s)
				y := x.In(step)
				for range 100 {
					r.f(y)
				}
				step.Close()
			}
		})
	}
}
