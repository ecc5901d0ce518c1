package capi

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func operator(t *testing.T, name, overload, args string) Handle {
	t.Helper()
	h, err := FindOp(name, overload, args)
	require.NoError(t, err)
	return h
}

// newTensor makes a float32 tensor of ones.
func newTensor(t *testing.T, sizes ...int64) Handle {
	t.Helper()
	args := append([]int64{TagIntList, int64(len(sizes))}, sizes...)
	out, err := CallOp(operator(t, "aten::ones", "", "size"), args, make([]int64, 8))
	require.NoError(t, err)
	h := Handle(out[1])
	t.Cleanup(func() { Free(h) })
	return h
}

type noCallback struct{}

func (noCallback) Call(Event, []int64, []int64) error { return nil }

func err1[T any](_ T, err error) error { return err }

// Every function that takes a handle gives an error for the nil handle, and the process lives.
func TestNilHandlesAreErrors(t *testing.T) {
	require.NoError(t, Load())
	x := newTensor(t, 2)
	for name, f := range map[string]func() error{
		"CallOp":               func() error { return err1(CallOp(0, nil, make([]int64, 4))) },
		"Alias":                func() error { return err1(Alias(0)) },
		"Meta":                 func() error { return err1(Meta(0, make([]int64, 64))) },
		"TestMul":              func() error { return TestMul(x, 0, 1) },
		"DataPtr":              func() error { return err1(DataPtr(0)) },
		"StorageResize":        func() error { return StorageResize(0, 0) },
		"VariableData":         func() error { return err1(VariableData(0)) },
		"SetData":              func() error { return SetData(0, x) },
		"SetData from":         func() error { return SetData(x, 0) },
		"SetRequiresGrad":      func() error { return SetRequiresGrad(0, true) },
		"Grad":                 func() error { return err1(Grad(0)) },
		"SetGrad":              func() error { return SetGrad(0, x) },
		"Backward":             func() error { return Backward([]Handle{0}, nil, false, false) },
		"Backward of none":     func() error { return Backward(nil, []Handle{x}, false, false) },
		"GradOf":               func() error { return err1(GradOf([]Handle{0}, nil, []Handle{0}, false, false, true)) },
		"HookTensor":           func() error { return err1(HookTensor(0, noCallback{})) },
		"UnhookTensor":         func() error { return UnhookTensor(0, 0) },
		"HookPostAccumulate":   func() error { return err1(HookPostAccumulate(0, noCallback{})) },
		"UnhookPostAccumulate": func() error { return UnhookPostAccumulate(0, 0) },
		"RecordFunction":       func() error { return err1(RecordFunction(noCallback{}, []Handle{0}, []Handle{0}, nil)) },
		"QueueCallback":        func() error { return QueueCallback(noCallback{}) },
		"PopSavedHooks":        PopSavedHooks,
		"PopInferenceMode":     PopInferenceMode,
		"PopAutocast":          PopAutocast,
		"PushAutocast":         func() error { return PushAutocast(99, 15) },
		"AutocastDType":        func() error { return err1(AutocastDType(99)) },
		"IsInference":          func() error { return err1(IsInference(0)) },
		"SeedGenerator":        func() error { return SeedGenerator(0, 1) },
		"GeneratorState":       func() error { return err1(GeneratorState(0)) },
		"SetGeneratorState":    func() error { return SetGeneratorState(0, x) },
		"PrefixStore":          func() error { return err1(PrefixStore(0, "p")) },
		"StorePort":            func() error { return err1(StorePort(0)) },
		"StoreSet":             func() error { return StoreSet(0, "k", nil) },
		"StoreGet":             func() error { return err1(StoreGet(0, "k", 1)) },
		"StoreAdd":             func() error { return err1(StoreAdd(0, "k", 1)) },
		"StoreCheck":           func() error { return err1(StoreCheck(0, "k")) },
		"NewGloo":              func() error { return err1(NewGloo(0, 0, 1, 10, 10, "127.0.0.1")) },
		"AbortGroup":           func() error { _, err := AbortGroup(0); return err },
		"AllGather":            func() error { return err1(AllGather(0, x, x)) },
		"AllGather of":         func() error { return err1(AllGather(0, 0, 0)) },
		"AllGatherList":        func() error { return err1(AllGatherList(0, []Handle{x}, x)) },
		"ReduceScatter":        func() error { return err1(ReduceScatter(0, x, x, ReduceSum)) },
		"AllReduce":            func() error { return err1(AllReduce(0, x, ReduceSum)) },
		"Broadcast":            func() error { return err1(Broadcast(0, x, 0)) },
		"Send":                 func() error { return err1(Send(0, x, 0, 0)) },
		"Recv":                 func() error { return err1(Recv(0, x, 0, 0)) },
		"Barrier":              func() error { return err1(Barrier(0)) },
		"WaitWork":             func() error { return err1(WaitWork(0, 1)) },
		"WorkDone":             func() error { return err1(WorkDone(0)) },
	} {
		var ce *Error
		if err := f(); assert.Error(t, err, name) {
			assert.True(t, errors.As(err, &ce), name)
		}
	}
	// Freeing nothing is nothing.
	Free(0)
	FreeAll(nil)
	FreeAll([]Handle{0, 0})
	FreeGenerator(0)
	FreeStore(0)
	FreeGroup(0)
	FreeWork(0)
}

// Values that no caller of package torch sends.
func TestMalformedCallsAreErrors(t *testing.T) {
	require.NoError(t, Load())
	x := newTensor(t, 2)
	relu := operator(t, "aten::relu", "", "self")
	size := operator(t, "aten::ones", "", "size")
	random := operator(t, "aten::randn", "generator", "size,generator")
	gelu := operator(t, "aten::gelu", "", "self,approximate")
	names := operator(t, "aten::_test_string_default", "", "dummy,a,b")
	scalars := operator(t, "aten::_foreach_add", "ScalarList", "self,scalars")
	rets := make([]int64, 8)
	for name, args := range map[string]struct {
		op   Handle
		args []int64
	}{
		"nothing":             {relu, nil},
		"no handle":           {relu, []int64{TagTensor}},
		"nil tensor":          {relu, []int64{TagTensor, 0}},
		"unknown tag":         {relu, []int64{99}},
		"wrong type":          {relu, []int64{TagInt, 1}},
		"too many":            {relu, []int64{TagTensor, int64(x), TagTensor, int64(x)}},
		"list runs past":      {size, []int64{TagIntList, 1000, 1}},
		"list of less than 0": {size, []int64{TagIntList, -1}},
		"tensors for ints":    {size, []int64{TagTensorList, 1, int64(x)}},
		"string runs past":    {gelu, []int64{TagTensor, int64(x), TagString, 100, 0}},
		"string of -1":        {gelu, []int64{TagTensor, int64(x), TagString, -1}},
		"unknown string":      {gelu, []int64{TagTensor, int64(x), TagString, 1, 'x'}},
		"nil generator":       {random, []int64{TagIntList, 1, 1, TagGenerator, 0}},
		"no device of type":   {operator(t, "aten::ones", "", "size,device"), []int64{TagIntList, 1, 1, TagDevice, 77, 0}},
		"list for a string":   {names, []int64{TagTensor, int64(x), TagStringList, 1, 1, 'x'}},
		"strings run past":    {names, []int64{TagTensor, int64(x), TagStringList, 2, 1, 'x'}},
		"huge string":         {names, []int64{TagTensor, int64(x), TagString, math.MaxInt64, 0}},
		"scalars run past":    {scalars, []int64{TagTensorList, 1, int64(x), TagScalarList, 2, TagInt, 1}},
		"tensor for a scalar": {scalars, []int64{TagTensorList, 1, int64(x), TagScalarList, 1, TagString, 1, 'x'}},
		"half a complex":      {scalars, []int64{TagTensorList, 1, int64(x), TagScalarList, 1, TagComplex, 0}},
		"no default":          {relu, []int64{TagDefault}},
	} {
		out, err := CallOp(args.op, args.args, rets)
		assert.Error(t, err, "%s: %v", name, out)
	}
	for name, f := range map[string]func() error{
		"unknown operator":  func() error { return err1(FindOp("aten::nonsense", "", "")) },
		"bad operator name": func() error { return err1(FindOp("no colons", "", "")) },
		"empty name":        func() error { return err1(FindOp("", "", "")) },
		"schema":            func() error { return err1(OpSchema("aten::nonsense", "")) },
		"meta too small":    func() error { return err1(Meta(x, make([]int64, 3))) },
		"dtype":             func() error { return err1(FromBlob(nil, 120, []int64{0}, nil)) },
		"negative size":     func() error { return err1(FromBlob(nil, 6, []int64{-1}, nil)) },
		"negative storage":  func() error { return StorageResize(x, -1) },
		"huge storage":      func() error { return StorageResize(x, 1<<62) },
		"generator state":   func() error { return badState(x) },
		"no thread":         func() error { return SetNumThreads(-1) },
		"port":              func() error { return err1(StorePort(hashStore(t))) },
		"missing key":       func() error { return err1(StoreGet(hashStore(t), "k", 10)) },
	} {
		assert.Error(t, f(), name)
	}
	out, err := CallOp(relu, []int64{TagTensor, int64(x)}, rets)
	require.NoError(t, err, "the library still works")
	Free(Handle(out[1]))
}

func badState(x Handle) error {
	g, err := NewGenerator(1)
	if err != nil {
		return nil
	}
	defer FreeGenerator(g)
	return SetGeneratorState(g, x)
}

func hashStore(t *testing.T) Handle {
	t.Helper()
	s, err := HashStore()
	require.NoError(t, err)
	t.Cleanup(func() { FreeStore(s) })
	return s
}

// A result that does not fit the caller's buffer arrives whole.
func TestResultsOfAnyLength(t *testing.T) {
	require.NoError(t, Load())
	x := newTensor(t, 50, 2)
	unbind := operator(t, "aten::unbind", "int", "self")
	out, err := CallOp(unbind, []int64{TagTensor, int64(x)}, make([]int64, 2))
	require.NoError(t, err)
	require.Len(t, out, 52)
	for _, h := range out[2:] {
		Free(Handle(h))
	}
	_, err = CallOp(unbind, []int64{TagTensor, int64(x)}, make([]int64, 1))
	require.Error(t, err, "no room even for the pointer")
}

// Without a place for results they are dropped.
func TestResultsAreDropped(t *testing.T) {
	require.NoError(t, Load())
	x := newTensor(t, 1000)
	before, _, _, err := MemoryStats()
	require.NoError(t, err)
	out, err := CallOp(operator(t, "aten::relu", "", "self"), []int64{TagTensor, int64(x)}, nil)
	require.NoError(t, err)
	require.Empty(t, out)
	after, _, _, err := MemoryStats()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestListOps(t *testing.T) {
	require.NoError(t, Load())
	text, err := ListOps()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	require.Greater(t, len(lines), 3000)
	require.True(t, slices.IsSorted(lines))
	require.Contains(t, lines, "aten::relu(Tensor self) -> Tensor")
	require.Contains(t, text, "\ngofsdp::")
}

// The Go values behind callbacks are released with what held them.
type releasable struct {
	noCallback
	released *int
}

func (r releasable) Released() { *r.released++ }

func TestCallbacksAreReleased(t *testing.T) {
	require.NoError(t, Load())
	n := 0
	x := newTensor(t, 2)
	require.Error(t, err1(HookTensor(x, releasable{released: &n})), "x does not require grad")
	require.Equal(t, 1, n)
	require.Error(t, err1(HookPostAccumulate(x, releasable{released: &n})))
	require.Equal(t, 2, n)
	require.Error(t, err1(RecordFunction(releasable{released: &n}, []Handle{x}, []Handle{0}, nil)))
	require.Equal(t, 3, n)
	require.NoError(t, SetRequiresGrad(x, true))
	id, err := HookPostAccumulate(x, releasable{released: &n})
	require.NoError(t, err)
	require.NoError(t, UnhookPostAccumulate(x, id))
	require.Equal(t, 4, n)
	require.Error(t, UnhookPostAccumulate(x, 5))
	h, err := FromBlob(nil, 6, []int64{0}, func() { n++ })
	require.NoError(t, err)
	Free(h)
	require.Equal(t, 5, n)
	require.Error(t, err1(FromBlob(nil, 6, []int64{-1}, func() { n++ })))
	require.Equal(t, 6, n)
}

func TestLoadErrorNamesPathsAndRemedy(t *testing.T) {
	err := &LoadError{Tried: []string{"/a/libgofsdp.so: no such file"}}
	require.ErrorContains(t, err, "/a/libgofsdp.so: no such file")
	require.ErrorContains(t, err, "GOFSDP_LIB")
}
