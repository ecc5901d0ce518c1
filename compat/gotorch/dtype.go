package gotorch

import (
	"reflect"
	"unsafe"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/wangkuiyi/gotorch/variadic"
)

// The element types, by libtorch's numbers. Those of torch.DType have the same.
const (
	Byte          int8 = iota // uint8
	Char                      // int8
	Short                     // int16
	Int                       // int32
	Long                      // int64
	Half                      // float16
	Float                     // float32
	Double                    // float64
	ComplexHalf               // two float16
	ComplexFloat              // two float32
	ComplexDouble             // two float64
	Bool                      // one byte
	QInt8                     // quantised
	QUInt8                    // quantised
	QInt32                    // quantised
	BFloat16                  // the upper half of a float32
	Invalid       = -1        // none
)

// NewTensor copies a Go slice, or slices of slices of equal lengths, into a tensor. The elements' type gives the tensor's:
// bool, uint8, int8, int16, int32, int64, float32 and float64 have their own, and uint16 stands for the bits of Half. The
// option "dtype" sets another type of the same size, such as BFloat16 for uint16.
func NewTensor(data interface{}, options ...map[string]interface{}) Tensor {
	if data == nil || reflect.TypeOf(data).Kind() != reflect.Slice {
		fail("NewTensor", "needs a slice, got a %T", data)
	}
	shape, kind := sliceShapeAndElemKind(data)
	dtype := tensorElemDType(options, kind)
	if dtype == Invalid {
		fail("NewTensor", "there are no tensors of Go's type %v", kind)
	}
	buffer := flatten(nil, reflect.ValueOf(data), shape)
	size := torch.DType(dtype).Size()
	for _, d := range shape {
		size *= d
	}
	if int64(len(buffer)) != size {
		fail("NewTensor", "elements of Go's type %v do not have the size of %v", kind, torch.DType(dtype))
	}
	return Wrap(torch.FromBytes(torch.DType(dtype), buffer, shape...))
}

// sliceShapeAndElemKind gives the lengths of nested slices, the outermost first, and the kind of what is inside. The first
// element stands for all.
func sliceShapeAndElemKind(data interface{}) ([]int64, reflect.Kind) {
	var shape []int64
	v := reflect.ValueOf(data)
	for v.Kind() == reflect.Slice {
		shape = append(shape, int64(v.Len()))
		if v.Len() > 0 {
			v = v.Index(0)
		} else {
			v = reflect.Zero(v.Type().Elem())
		}
	}
	return shape, v.Kind()
}

// tensorElemDType gives the type that the options ask for, else that of a Go kind, or Invalid.
func tensorElemDType(opts []map[string]interface{}, k reflect.Kind) int8 {
	if dtype, ok := variadic.Lookup(opts, "dtype"); ok {
		d, ok := dtype.(int8)
		if !ok {
			fail("NewTensor", "the option dtype is a %T, not an int8 such as gotorch.Float", dtype)
		}
		return d
	}
	switch k {
	case reflect.Bool:
		return Bool
	case reflect.Uint8:
		return Byte
	case reflect.Int8:
		return Char
	case reflect.Int16:
		return Short
	case reflect.Int32:
		return Int
	case reflect.Int64:
		return Long
	case reflect.Uint16:
		return Half
	case reflect.Float32:
		return Float
	case reflect.Float64:
		return Double
	}
	return Invalid
}

// flatten appends the memory of the elements of nested slices of the given shape.
func flatten(buffer []byte, v reflect.Value, shape []int64) []byte {
	if int64(v.Len()) != shape[0] {
		fail("NewTensor", "slices of unequal lengths: %d beside %d", v.Len(), shape[0])
	}
	if len(shape) > 1 {
		for i := range v.Len() {
			buffer = flatten(buffer, v.Index(i), shape[1:])
		}
		return buffer
	}
	n := v.Len() * int(v.Type().Elem().Size())
	return append(buffer, unsafe.Slice((*byte)(v.UnsafePointer()), n)...)
}
