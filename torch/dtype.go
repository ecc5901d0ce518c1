package torch

import "fmt"

// DType is the type of a tensor's elements; the values are libtorch's.
type DType int8

// The element types.
const (
	Uint8       DType = 0
	Int8        DType = 1
	Int16       DType = 2
	Int32       DType = 3
	Int64       DType = 4
	Float16     DType = 5
	Float32     DType = 6
	Float64     DType = 7
	Complex64   DType = 9
	Complex128  DType = 10
	Bool        DType = 11
	BFloat16    DType = 15
	Float8E5M2  DType = 23
	Float8E4M3  DType = 24
	Uint16      DType = 27
	Uint32      DType = 28
	Uint64      DType = 29
	lastDType   DType = 45 // of libtorch, which has types for quantisation beside these
	undefinedDT DType = -1
)

var dtypes = []struct {
	t           DType
	name        string
	safetensors string
	size        int64
}{
	{Uint8, "uint8", "U8", 1}, {Int8, "int8", "I8", 1}, {Int16, "int16", "I16", 2}, {Int32, "int32", "I32", 4},
	{Int64, "int64", "I64", 8}, {Float16, "float16", "F16", 2}, {Float32, "float32", "F32", 4},
	{Float64, "float64", "F64", 8}, {Complex64, "complex64", "C64", 8}, {Complex128, "complex128", "C128", 16},
	{Bool, "bool", "BOOL", 1}, {BFloat16, "bfloat16", "BF16", 2}, {Float8E5M2, "float8_e5m2", "F8_E5M2", 1},
	{Float8E4M3, "float8_e4m3fn", "F8_E4M3", 1}, {Uint16, "uint16", "U16", 2}, {Uint32, "uint32", "U32", 4},
	{Uint64, "uint64", "U64", 8},
}

// String is PyTorch's name of the type.
func (d DType) String() string {
	for _, e := range dtypes {
		if e.t == d {
			return e.name
		}
	}
	return fmt.Sprintf("dtype(%d)", int8(d))
}

// Size is the number of bytes of one element.
func (d DType) Size() int64 {
	for _, e := range dtypes {
		if e.t == d {
			return e.size
		}
	}
	return 0
}

// IsFloat tells whether the type is a real floating-point type.
func (d DType) IsFloat() bool {
	switch d {
	case Float16, Float32, Float64, BFloat16, Float8E5M2, Float8E4M3:
		return true
	}
	return false
}

// Safetensors is the type's name in safetensors files.
func (d DType) Safetensors() string {
	for _, e := range dtypes {
		if e.t == d {
			return e.safetensors
		}
	}
	return ""
}

// ParseDType accepts PyTorch's names, with or without "torch.", the short forms bf16, fp16 and fp32, and the names in
// safetensors files.
func ParseDType(s string) (DType, error) {
	name := s
	if len(name) > 6 && name[:6] == "torch." {
		name = name[6:]
	}
	switch name {
	case "bf16":
		return BFloat16, nil
	case "fp16", "half":
		return Float16, nil
	case "fp32", "float":
		return Float32, nil
	}
	for _, e := range dtypes {
		if e.name == name || e.safetensors == name {
			return e.t, nil
		}
	}
	return undefinedDT, fmt.Errorf("torch: unknown dtype %q", s)
}
