package safetensors

import (
	"fmt"
	"math/bits"
)

// dtypes lists the format's dtypes from the narrowest alignment to the widest. The order is the reference writer's:
// it lays tensors out from the last dtype to the first, so that each is aligned for its own type.
var dtypes = []struct {
	name string
	bits uint64
}{
	{"BOOL", 8},
	{"F4", 4},
	{"F6_E2M3", 6},
	{"F6_E3M2", 6},
	{"U8", 8},
	{"I8", 8},
	{"F8_E5M2", 8},
	{"F8_E4M3", 8},
	{"F8_E8M0", 8},
	{"F8_E4M3FNUZ", 8},
	{"F8_E5M2FNUZ", 8},
	{"I16", 16},
	{"U16", 16},
	{"F16", 16},
	{"BF16", 16},
	{"I32", 32},
	{"U32", 32},
	{"F32", 32},
	{"C64", 64},
	{"F64", 64},
	{"I64", 64},
	{"U64", 64},
}

// dtypeRank gives the position of a dtype in dtypes.
var dtypeRank = func() map[string]int {
	m := make(map[string]int, len(dtypes))
	for i, d := range dtypes {
		m[d.name] = i
	}
	return m
}()

// BitsPerElement gives the width of one element of dtype, 0 when the format has no such dtype.
func BitsPerElement(dtype string) int {
	i, ok := dtypeRank[dtype]
	if !ok {
		return 0
	}
	return int(dtypes[i].bits)
}

// ByteSize gives the number of bytes that a tensor of this dtype and shape takes. A shape without dimensions is a
// scalar. Unknown dtypes, negative dimensions, sizes beyond int64 and sub-byte tensors that end inside a byte are
// errors.
func ByteSize(dtype string, shape []int64) (int64, error) {
	width := BitsPerElement(dtype)
	if width == 0 {
		return 0, fmt.Errorf("unknown dtype %q", dtype)
	}
	zero := false
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		zero = zero || d == 0
	}
	if zero {
		return 0, nil
	}
	total := uint64(width)
	for _, d := range shape {
		hi, lo := bits.Mul64(total, uint64(d))
		if hi != 0 {
			return 0, fmt.Errorf("shape %v of %s overflows", shape, dtype)
		}
		total = lo
	}
	if total%8 != 0 {
		return 0, fmt.Errorf("shape %v of %s does not end on a byte", shape, dtype)
	}
	return int64(total / 8), nil
}
