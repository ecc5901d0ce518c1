package gguf

import (
	"fmt"
	"strings"
)

// Type is the type of a tensor's elements, ggml's enum ggml_type.
type Type uint32

// The tensor types that can be dequantised.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q5_0 Type = 6
	Q5_1 Type = 7
	Q8_0 Type = 8
	Q4_K Type = 12
	Q5_K Type = 13
	Q6_K Type = 14
	BF16 Type = 30
)

// layout describes one block of a type: its number of elements and bytes.
type layout struct {
	name        string
	block, size int
	dequantize  func(dst []float32, src []byte) // nil: the type can be stored but not read
}

// layouts is indexed by Type. Types that ggml has dropped have no name.
var layouts = [...]layout{
	F32:  {"F32", 1, 4, dequantF32},
	F16:  {"F16", 1, 2, dequantF16},
	Q4_0: {"Q4_0", 32, 18, dequantQ4_0},
	Q4_1: {"Q4_1", 32, 20, dequantQ4_1},
	Q5_0: {"Q5_0", 32, 22, dequantQ5_0},
	Q5_1: {"Q5_1", 32, 24, dequantQ5_1},
	Q8_0: {"Q8_0", 32, 34, dequantQ8_0},
	9:    {"Q8_1", 32, 36, nil},
	10:   {"Q2_K", 256, 84, nil},
	11:   {"Q3_K", 256, 110, nil},
	Q4_K: {"Q4_K", 256, 144, dequantQ4_K},
	Q5_K: {"Q5_K", 256, 176, dequantQ5_K},
	Q6_K: {"Q6_K", 256, 210, dequantQ6_K},
	15:   {"Q8_K", 256, 292, nil},
	16:   {"IQ2_XXS", 256, 66, nil},
	17:   {"IQ2_XS", 256, 74, nil},
	18:   {"IQ3_XXS", 256, 98, nil},
	19:   {"IQ1_S", 256, 50, nil},
	20:   {"IQ4_NL", 32, 18, nil},
	21:   {"IQ3_S", 256, 110, nil},
	22:   {"IQ2_S", 256, 82, nil},
	23:   {"IQ4_XS", 256, 136, nil},
	24:   {"I8", 1, 1, nil},
	25:   {"I16", 1, 2, nil},
	26:   {"I32", 1, 4, nil},
	27:   {"I64", 1, 8, nil},
	28:   {"F64", 1, 8, nil},
	29:   {"IQ1_M", 256, 56, nil},
	BF16: {"BF16", 1, 2, dequantBF16},
	34:   {"TQ1_0", 256, 54, nil},
	35:   {"TQ2_0", 256, 66, nil},
	39:   {"MXFP4", 32, 17, nil},
}

func (t Type) layout() (layout, bool) {
	if int64(t) >= int64(len(layouts)) || layouts[t].name == "" {
		return layout{}, false
	}
	return layouts[t], true
}

// String gives ggml's name of the type.
func (t Type) String() string {
	if l, ok := t.layout(); ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// BlockSize gives the number of elements in one quantisation block, 0 for an unknown type.
func (t Type) BlockSize() int {
	l, _ := t.layout()
	return l.block
}

// BlockBytes gives the number of bytes in one quantisation block, 0 for an unknown type.
func (t Type) BlockBytes() int {
	l, _ := t.layout()
	return l.size
}

// CanDequantize tells whether tensors of this type can be turned into float32.
func (t Type) CanDequantize() bool {
	l, _ := t.layout()
	return l.dequantize != nil
}

// supportedTypes lists the names of the types that can be dequantised, for messages.
func supportedTypes() string {
	var names []string
	for _, l := range layouts {
		if l.dequantize != nil {
			names = append(names, l.name)
		}
	}
	return strings.Join(names, ", ")
}
