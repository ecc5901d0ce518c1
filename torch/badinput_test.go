package torch

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// badValues are arguments by type: few that fit, and all the ways not to.
type badValues struct {
	rng    *rand.Rand
	scope  *Scope
	byType map[reflect.Type][]any
}

func newBadValues(seed uint64) *badValues {
	s, closed := NewScope(nil), NewScope(nil)
	own := func(t *Tensor) *Tensor { return s.Own(t) }
	dead := own(Ones(Float32, 2))
	dead.Free()
	gone := closed.Own(Ones(Float32, 2, 3))
	closed.Close()
	emptied := own(Ones(Float32, 4))
	emptied.ResizeStorage(0)
	leaf := own(Ones(Float32, 2, 3)).SetRequiresGrad(true)
	x := own(FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3))
	tensors := []any{(*Tensor)(nil), &Tensor{}, dead, gone, emptied, x, x.T(), x.Select(0, 1), leaf, leaf.MulScalar(2),
		own(Ones(Int64, 3)), own(FromSlice([]int64{5, -1, 1 << 40})), own(FromSlice([]bool{true, false, true})),
		own(FromSlice([]complex64{1i, 2})), own(Empty(Float32, 0)), own(Empty(Float64, 0, 3)), own(Scalar(Float32, 2)),
		own(Ones(BFloat16, 2, 3)), own(Ones(Float16, 3)), own(Ones(Float32, 3)).To(Float8E4M3), own(EmptyOn(Meta, Float32, 2, 3)),
		own(Ones(Float32, 1)).Expand(1<<8, 1<<9), own(FromBytes(Uint16, make([]byte, 6), 3)),
		CallOne("aten::_to_sparse", x), own(Full(Float64, math.NaN(), 3, 3)), own(Ones(Float32, 3, 3))}
	list := func(v ...any) []any { return v }
	lists := list([]*Tensor(nil), []*Tensor{}, []*Tensor{nil}, []*Tensor{x, dead}, []*Tensor{x, x}, []*Tensor{x, {}})
	hook := func(*Tensor) (*Tensor, error) { return nil, nil }
	return &badValues{rng: rand.New(rand.NewPCG(seed, 1)), scope: s, byType: map[reflect.Type][]any{
		reflect.TypeFor[*Tensor]():    tensors,
		reflect.TypeFor[[]*Tensor]():  lists,
		reflect.TypeFor[*Scope]():     list((*Scope)(nil), s, closed),
		reflect.TypeFor[int]():        list(0, 1, -1, 2, 7, math.MaxInt, math.MinInt),
		reflect.TypeFor[int64]():      list(int64(0), int64(1), int64(-1), int64(3), int64(1<<33), int64(math.MaxInt64), int64(math.MinInt64)),
		reflect.TypeFor[[]int64]():    list([]int64(nil), []int64{0}, []int64{-1}, []int64{2, 3}, []int64{3, 2}, []int64{-1, -1}, []int64{1 << 62, 1 << 62}, []int64{math.MinInt64}, []int64{1, 1, 1, 1, 1, 1, 1, 1}),
		reflect.TypeFor[float64]():    list(0.0, 1.0, -2.5, math.NaN(), math.Inf(1), math.Inf(-1), 1e308),
		reflect.TypeFor[bool]():       list(true, false),
		reflect.TypeFor[string]():     list("", "none", "tanh", "nonsense", strings.Repeat("x", 1<<12)),
		reflect.TypeFor[DType]():      list(Float32, Int64, Bool, BFloat16, Float8E5M2, Complex64, DType(-1), DType(8), DType(12), DType(44), DType(99)),
		reflect.TypeFor[Device]():     list(CPU, Meta, CUDA(0), CUDA(-1), CUDA(300), Device{Type: 77, Index: -9}),
		reflect.TypeFor[*Generator](): list((*Generator)(nil), &Generator{}, NewGenerator(1)),
		reflect.TypeFor[Reduction]():  list(ReduceNone, ReduceMean, ReduceSum, Reduction(99), Reduction(-7)),
		reflect.TypeFor[Stream]():     list(Stream{}),
		reflect.TypeFor[*Event]():     list((*Event)(nil), &Event{}),
		reflect.TypeFor[BackwardOptions](): list(BackwardOptions{}, BackwardOptions{Gradient: x}, BackwardOptions{Gradient: dead},
			BackwardOptions{RetainGraph: true}, BackwardOptions{CreateGraph: true, Gradient: &Tensor{}}),
		reflect.TypeFor[func(*Tensor) (*Tensor, error)](): list(hook),
		reflect.TypeFor[func(*Tensor) error]():            list(func(*Tensor) error { return nil }),
		reflect.TypeFor[func([]byte)]():                   list(func([]byte) {}),
		reflect.TypeFor[func(uintptr)]():                  list(func(uintptr) {}),
	}}
}

func (b *badValues) pick(t *testing.T, typ reflect.Type) reflect.Value {
	list := b.byType[typ]
	require.NotEmpty(t, list, "no values of type %v: add some", typ)
	return reflect.ValueOf(list[b.rng.IntN(len(list))])
}

// call runs f on values that do not fit. What it may do is return, return an error, or panic with an *Error.
func (b *badValues) call(t *testing.T, name string, f reflect.Value) {
	typ := f.Type()
	args := make([]reflect.Value, typ.NumIn())
	for i := range args {
		if i == len(args)-1 && typ.IsVariadic() && typ.In(i) != reflect.TypeFor[[]int64]() && typ.In(i) != reflect.TypeFor[[]*Tensor]() {
			args[i] = reflect.MakeSlice(typ.In(i), 0, 1)
			if b.rng.IntN(2) == 0 {
				args[i] = reflect.Append(args[i], b.pick(t, typ.In(i).Elem()))
			}
			continue
		}
		args[i] = b.pick(t, typ.In(i))
	}
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err, _ := v.(error)
		var typed *Error
		if !errors.As(err, &typed) || typed.Op == "" || typed.Error() == "" {
			t.Errorf("%s%s: panic with %T: %v", name, describe(args), v, v)
		}
	}()
	if typ.IsVariadic() {
		f.CallSlice(args)
	} else {
		f.Call(args)
	}
}

func describe(args []reflect.Value) string {
	var list []string
	for _, a := range args {
		if t, ok := a.Interface().(*Tensor); ok && t != nil && t.cell != nil {
			list = append(list, t.String())
			continue
		}
		text := fmt.Sprintf("%#v", a.Interface())
		list = append(list, text[:min(len(text), 80)])
	}
	return "(" + strings.Join(list, ", ") + ")"
}

// faultable lists the methods and functions of the package that take tensors, sizes or devices, by name.
func faultable() (names []string, functions map[string]any) {
	functions = map[string]any{
		"Empty": Empty, "EmptyOn": EmptyOn, "Zeros": Zeros, "Ones": Ones, "Full": Full, "Arange": Arange, "Eye": Eye,
		"Randn": Randn, "Rand": Rand, "Scalar": Scalar, "Cat": Cat, "Stack": Stack, "Embedding": Embedding,
		"ForeachNorm": ForeachNorm, "ForeachMulInPlace": ForeachMulInPlace, "ForeachMulTensorInPlace": ForeachMulTensorInPlace,
		"ForeachAddScalarInPlace": ForeachAddScalarInPlace,
		"Slice[float32]":          Slice[float32], "Slice[int64]": Slice[int64], "Slice[bool]": Slice[bool], "Slice[complex64]": Slice[complex64],
		"FromBytes":  func(d DType, shape ...int64) *Tensor { return FromBytes(d, make([]byte, 24), shape...) },
		"FromMemory": func(d DType, shape ...int64) *Tensor { return FromMemory(d, nil, func() {}, shape...) },
		"FromSlice":  func(shape ...int64) *Tensor { return FromSlice([]float32{1, 2, 3, 4, 5, 6}, shape...) },
		"Attention": func(q, k, v, mask *Tensor, p float64, causal, gqa bool) *Tensor {
			return ScaledDotProductAttention(q, k, v, AttentionOptions{Mask: mask, Dropout: p, Causal: causal, GQA: gqa})
		},
		"BackwardAll":  func(roots, grads []*Tensor) { BackwardAll(roots, grads, BackwardOptions{}) },
		"Grad":         func(o, in, g []*Tensor) { Grad(o, in, GradOptions{GradOutputs: g, AllowUnused: true}) },
		"Apply":        func(x *Tensor) { Apply(square{}, x) },
		"OnBackward":   func(list []*Tensor) { OnBackward(func() error { return nil }, list...) },
		"NewGenerator": NewGenerator, "NewGeneratorOn": NewGeneratorOn, "DefaultGenerator": DefaultGenerator,
		"SetMemoryLimit": func(bool) { SetMemoryLimit(-5) }, "SetNumThreads": func(bool) { SetNumThreads(-1) },
		"NewStream": NewStream, "CurrentStream": CurrentStream, "DefaultStream": DefaultStream, "Synchronize": Synchronize,
		"OnDevice":          func(d Device) { OnDevice(d, func() {}) },
		"DeviceMemoryStats": DeviceMemoryStats, "DeviceMemoryInfo": DeviceMemoryInfo, "ResetDevicePeak": ResetDevicePeak,
		"Call":          func(x *Tensor, n int64, f float64, name string) { Call("aten::"+name, x, n, f, struct{}{}) },
		"CallOne":       func(name string) { CallOne("aten::"+name, nil) },
		"Autocast":      func(d DType) { Autocast(CPUType, d, func() {}) },
		"QueueCallback": func(bool) { QueueCallback(func() error { return nil }) },
	}
	receivers := []reflect.Type{reflect.TypeFor[*Tensor](), reflect.TypeFor[*Scope](), reflect.TypeFor[*Generator](),
		reflect.TypeFor[Stream](), reflect.TypeFor[*Event](), reflect.TypeFor[Device]()}
	for _, r := range receivers {
		for i := range r.NumMethod() {
			m := r.Method(i)
			functions[fmt.Sprintf("%v.%s", r, m.Name)] = m.Func.Interface()
		}
	}
	for name := range functions {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, functions
}

// Every one of them, called with what does not fit: nil and zero tensors, freed ones, closed scopes, absurd sizes, other
// types. None may crash, and every fault is an *Error.
func TestBadInputIsATypedError(t *testing.T) {
	names, _ := faultable()
	require.Greater(t, len(names), 150)
	settle()
	runtime.LockOSThread() // so that what leaks into a thread's state shows
	defer runtime.UnlockOSThread()
	for i := range names {
		for round := range uint64(8) {
			badInput(t, i, round)
		}
	}
	require.True(t, GradEnabled())
	s := NewScope(nil)
	defer s.Close()
	require.Equal(t, 6.0, s.Own(Ones(Float32, 2, 3)).Sum().Item(), "the library still works")
}

func FuzzBadInput(f *testing.F) {
	f.Add(uint(0), uint64(1000))
	f.Fuzz(func(t *testing.T, which uint, seed uint64) {
		names, _ := faultable()
		badInput(t, int(which%uint(len(names))), seed)
	})
}

// badInput calls one function a few times with values drawn from seed.
func badInput(t *testing.T, which int, seed uint64) {
	names, functions := faultable()
	defer SetMemoryLimit(SetMemoryLimit(MemoryStats().LiveBytes + 256<<20))
	b := newBadValues(uint64(which)<<8 + seed) // anew, since calls free tensors, close scopes and change in place
	defer b.scope.Close()
	for range 12 {
		b.call(t, names[which], reflect.ValueOf(functions[names[which]]))
	}
}
