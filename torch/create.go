package torch

import (
	"math"
	"reflect"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Element is a Go type that has a DType.
type Element interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int8 | ~int16 | ~int32 | ~int64 | ~float32 | ~float64 | ~complex64 | ~complex128 | ~bool
}

// goTypes maps the kinds of Go types to element types. int and uint are not among them: their size is the machine's.
var goTypes = map[reflect.Kind]DType{
	reflect.Uint8: Uint8, reflect.Uint16: Uint16, reflect.Uint32: Uint32, reflect.Uint64: Uint64,
	reflect.Int8: Int8, reflect.Int16: Int16, reflect.Int32: Int32, reflect.Int64: Int64,
	reflect.Float32: Float32, reflect.Float64: Float64, reflect.Complex64: Complex64, reflect.Complex128: Complex128,
	reflect.Bool: Bool,
}

func dtypeOf[T Element]() DType { return goTypes[reflect.TypeFor[T]().Kind()] }

var (
	opEmpty  = newOp("aten::empty", "memory_format", "size,dtype,device")
	opZeros  = newOp("aten::zeros", "", "size,dtype,device")
	opOnes   = newOp("aten::ones", "", "size,dtype,device")
	opFull   = newOp("aten::full", "", "size,fill_value,dtype,device")
	opArange = newOp("aten::arange", "start", "start,end,dtype,device")
	opEye    = newOp("aten::eye", "", "n,dtype,device")
	opRandn  = newOp("aten::randn", "generator", "size,generator,dtype,device")
	opRand   = newOp("aten::rand", "generator", "size,generator,dtype,device")
	opCat    = newOp("aten::cat", "", "tensors,dim")
	opStack  = newOp("aten::stack", "", "tensors,dim")

	opResolveConj = newOp("aten::resolve_conj", "", "self")
	opResolveNeg  = newOp("aten::resolve_neg", "", "self")
)

// Empty makes an uninitialised tensor on the CPU, in no scope.
func Empty(dtype DType, shape ...int64) *Tensor { return EmptyOn(CPU, dtype, shape...) }

// EmptyOn makes an uninitialised tensor on a device.
func EmptyOn(d Device, dtype DType, shape ...int64) *Tensor { return opEmpty.one(shape, dtype, d) }

// Zeros makes a tensor of zeros.
func Zeros(dtype DType, shape ...int64) *Tensor { return opZeros.one(shape, dtype, CPU) }

// Ones makes a tensor of ones.
func Ones(dtype DType, shape ...int64) *Tensor { return opOnes.one(shape, dtype, CPU) }

// Full makes a tensor whose elements are all value.
func Full(dtype DType, value float64, shape ...int64) *Tensor {
	return opFull.one(shape, value, dtype, CPU)
}

// Arange makes the 1-D tensor start, start+1, … below end.
func Arange(dtype DType, start, end int64) *Tensor { return opArange.one(start, end, dtype, CPU) }

// Eye makes the n × n identity matrix.
func Eye(dtype DType, n int64) *Tensor { return opEye.one(n, dtype, CPU) }

// Randn draws from the normal distribution; g nil is the process-wide generator.
func Randn(g *Generator, dtype DType, shape ...int64) *Tensor {
	return opRandn.one(shape, g, dtype, CPU)
}

// Rand draws uniformly from [0, 1); g nil is the process-wide generator.
func Rand(g *Generator, dtype DType, shape ...int64) *Tensor {
	return opRand.one(shape, g, dtype, CPU)
}

// Scalar makes a tensor without dimensions.
func Scalar(dtype DType, value float64) *Tensor { return Full(dtype, value) }

// elements is the number of elements of a shape; ok is false where a size is negative, or the number does not fit.
func elements(shape []int64) (n int64, ok bool) {
	n = 1
	for _, d := range shape {
		if d == 0 {
			n = 0
		}
	}
	for _, d := range shape {
		if d < 0 || n > 0 && d > math.MaxInt64/n {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// checkBytes panics where data is not the elements of a shape.
func checkBytes(op string, dtype DType, data []byte, shape []int64) {
	if dtype.Size() == 0 {
		fail(op, ErrArgument, "the size of %v is unknown", dtype)
	}
	n, ok := elements(append([]int64{dtype.Size()}, shape...))
	if !ok || n != int64(len(data)) {
		fail(op, ErrArgument, "%d bytes do not fill shape %v of %v", len(data), shape, dtype)
	}
}

// FromSlice copies values into a tensor of the given shape, in no scope. Without a shape it is 1-D.
func FromSlice[T Element](values []T, shape ...int64) *Tensor {
	if shape == nil {
		shape = []int64{int64(len(values))}
	}
	if n, ok := elements(shape); !ok || n != int64(len(values)) {
		fail("FromSlice", ErrArgument, "%d values do not fill shape %v", len(values), shape)
	}
	t := Empty(dtypeOf[T](), shape...)
	if len(values) > 0 {
		copy(t.bytes("FromSlice"), unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0]))))
	}
	return t
}

// FromBytes copies raw little-endian elements into a tensor, in no scope. It serves the types Go lacks (bfloat16).
func FromBytes(dtype DType, data []byte, shape ...int64) *Tensor {
	checkBytes("FromBytes", dtype, data, shape)
	t := Empty(dtype, shape...)
	copy(t.bytes("FromBytes"), data)
	return t
}

// FromMemory makes a tensor over memory outside Go's heap (a mapped file), without a copy. release runs when the last
// tensor over it is gone. The memory must stay valid until then, and must not be written if it is mapped read-only.
func FromMemory(dtype DType, data []byte, release func(), shape ...int64) *Tensor {
	checkBytes("FromMemory", dtype, data, shape)
	check("FromMemory", capi.Load())
	h, err := capi.FromBlob(unsafe.Pointer(unsafe.SliceData(data)), int(dtype), shape, release)
	check("FromMemory", err)
	return wrapHandle(h, nil)
}

// Slice copies the elements out, row by row. T must be the tensor's type; To converts.
func Slice[T Element](t *Tensor) []T {
	if t.DType() != dtypeOf[T]() {
		var zero T
		fail("Slice", ErrArgument, "%v read as %T: convert it with To first", t, zero)
	}
	c := t.host()
	if c != t {
		defer c.Free()
	}
	b := c.bytes("Slice")
	out := make([]T, c.Numel())
	if len(out) > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), len(b)), b)
	}
	return out
}

// Bytes copies the raw elements out, row by row, little-endian.
func (t *Tensor) Bytes() []byte {
	c := t.host()
	if c != t {
		defer c.Free()
	}
	return append([]byte(nil), c.bytes("Bytes")...)
}

// WithBytes calls f with the memory of a contiguous CPU tensor. f must not keep the slice.
func (t *Tensor) WithBytes(f func(b []byte)) {
	t.use("WithBytes")
	defer t.done()
	f(t.bytes("WithBytes"))
}

// host is t, or a contiguous CPU copy of it.
func (t *Tensor) host() *Tensor {
	m := t.meta()
	if m.device.Type == MetaType {
		fail("host", ErrArgument, "a tensor on the meta device has no elements to read: %v", t)
	}
	if m.device.Type == CPUType && m.contiguous {
		return t
	}
	var c *Tensor
	NoGrad(func() { c = opResolveNeg.one(opResolveConj.one(t.ToDevice(CPU))).Contiguous() })
	return c
}

// Item is the value of a real tensor of one element, as a float64: integers beyond 2⁵³ are rounded. Slice gives any type
// as it is.
func (t *Tensor) Item() float64 {
	m := t.meta()
	if m.numel != 1 {
		fail("Item", ErrArgument, "needs one element, got shape %v", m.shape)
	}
	if m.dtype == Complex64 || m.dtype == Complex128 {
		fail("Item", ErrArgument, "a complex number is no float64: use Slice")
	}
	if m.device.Type == MetaType {
		fail("Item", ErrArgument, "a tensor on the meta device has no elements to read")
	}
	var v *Tensor
	NoGrad(func() { v = t.ToDevice(CPU).To(Float64).In(nil) })
	defer v.Free()
	return Slice[float64](v)[0]
}

// Cat joins tensors along dim.
func Cat(dim int, tensors ...*Tensor) *Tensor { return opCat.one(tensors, dim) }

// Stack joins tensors along a new dimension dim.
func Stack(dim int, tensors ...*Tensor) *Tensor { return opStack.one(tensors, dim) }
