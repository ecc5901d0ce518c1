package torch

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Results are what an Op gave, to be read in the order of the schema.
type Results struct {
	words []int64
	scope *Scope
}

func (r *Results) next() int64 {
	if len(r.words) == 0 {
		panic("torch: results are read past their end")
	}
	v := r.words[0]
	r.words = r.words[1:]
	return v
}

// expect reads a tag, and tells whether there is a value; None and a value that is absent in a library of another
// version are not.
func (r *Results) expect(tag int64) bool {
	if len(r.words) == 0 {
		return false
	}
	switch got := r.next(); got {
	case tag:
		return true
	case capi.TagNone:
		return false
	default:
		panic(fmt.Sprintf("torch: a result has tag %d, want %d", got, tag))
	}
}

// Tensor reads a tensor; nil where the result is None or undefined.
func (r *Results) Tensor() *Tensor {
	if !r.expect(capi.TagTensor) {
		return nil
	}
	return wrapHandle(capi.Handle(r.next()), r.scope)
}

// Tensors reads a list of tensors.
func (r *Results) Tensors() []*Tensor {
	if !r.expect(capi.TagTensorList) {
		return nil
	}
	list := make([]*Tensor, r.next())
	for i := range list {
		list[i] = wrapHandle(capi.Handle(r.next()), r.scope)
	}
	return list
}

// Int reads an integer.
func (r *Results) Int() int64 {
	if !r.expect(capi.TagInt) {
		return 0
	}
	return r.next()
}

// Float reads a floating-point number.
func (r *Results) Float() float64 {
	if !r.expect(capi.TagDouble) {
		return 0
	}
	return r.float()
}

func (r *Results) float() float64 { return math.Float64frombits(uint64(r.next())) }

// Bool reads a truth value.
func (r *Results) Bool() bool { return r.expect(capi.TagBool) && r.next() != 0 }

// Str reads a string.
func (r *Results) Str() string {
	if !r.expect(capi.TagString) {
		return ""
	}
	n := r.next()
	var b []byte
	for int64(len(b)) < n {
		b = binary.NativeEndian.AppendUint64(b, uint64(r.next()))
	}
	return string(b[:n])
}

// Ints reads a list of integers.
func (r *Results) Ints() []int64 {
	if !r.expect(capi.TagIntList) {
		return nil
	}
	list := make([]int64, r.next())
	for i := range list {
		list[i] = r.next()
	}
	return list
}

// Floats reads a list of floating-point numbers.
func (r *Results) Floats() []float64 {
	if !r.expect(capi.TagDoubleList) {
		return nil
	}
	list := make([]float64, r.next())
	for i := range list {
		list[i] = r.float()
	}
	return list
}

// Bools reads a list of truth values.
func (r *Results) Bools() []bool {
	if !r.expect(capi.TagBoolList) {
		return nil
	}
	list := make([]bool, r.next())
	for i := range list {
		list[i] = r.next() != 0
	}
	return list
}

// DType reads an element type.
func (r *Results) DType() DType { return DType(r.Int()) }

// Layout reads a layout.
func (r *Results) Layout() Layout { return Layout(r.Int()) }

// Device reads a device.
func (r *Results) Device() Device {
	if !r.expect(capi.TagDevice) {
		return Device{}
	}
	kind := r.next()
	return deviceOf(kind, r.next())
}

// Number reads a number: an int64, float64, bool or complex128, or nil.
func (r *Results) Number() Number { return r.any() }

// all reads what is left.
func (r *Results) all() []any {
	var list []any
	for len(r.words) > 0 {
		list = append(list, r.any())
	}
	return list
}

func (r *Results) any() any {
	if len(r.words) == 0 {
		return nil
	}
	switch tag := r.words[0]; tag {
	case capi.TagNone:
		r.next()
		return nil
	case capi.TagTensor:
		return r.Tensor()
	case capi.TagInt:
		return r.Int()
	case capi.TagDouble:
		return r.Float()
	case capi.TagBool:
		return r.Bool()
	case capi.TagString:
		return r.Str()
	case capi.TagTensorList:
		return r.Tensors()
	case capi.TagIntList:
		return r.Ints()
	case capi.TagDoubleList:
		return r.Floats()
	case capi.TagBoolList:
		return r.Bools()
	case capi.TagDevice:
		return r.Device()
	case capi.TagComplex:
		r.next()
		re := r.float()
		return complex(re, r.float())
	default:
		panic(fmt.Sprintf("torch: unknown result tag %d", tag))
	}
}

// wrapAll gives the tensors of handles in scope; 0 gives nil.
func wrapAll(handles []capi.Handle, scope *Scope) []*Tensor {
	list := make([]*Tensor, len(handles))
	for i, h := range handles {
		list[i] = wrapHandle(h, scope)
	}
	return list
}
