package torch

import "github.com/gofsdp/gofsdp/internal/capi"

// Number is a number for an operator: an int, int64, float64, float32, bool or complex128.
type Number any

// Layout is how a tensor's elements are stored; the values are libtorch's.
type Layout int8

// The layouts.
const (
	Strided Layout = iota
	Sparse
	SparseCSR
	Mkldnn
	SparseCSC
	SparseBSR
	SparseBSC
	Jagged
)

// MemoryFormat is the order of a dense tensor's dimensions in memory; the values are libtorch's.
type MemoryFormat int8

// The memory formats.
const (
	ContiguousFormat MemoryFormat = iota
	PreserveFormat
	ChannelsLast
	ChannelsLast3D
)

// Default passes the operator's default, or None.
func (c *Invocation) Default() *Invocation { return c.words(capi.TagDefault) }

// T passes a tensor; nil is None.
func (c *Invocation) T(t *Tensor) *Invocation {
	if t == nil {
		return c.words(capi.TagNone)
	}
	c.out = append(c.out, capi.TagTensor, c.tensor(t))
	return c
}

// OptT passes a tensor, or the default for nil.
func (c *Invocation) OptT(t *Tensor) *Invocation {
	if t == nil {
		return c.Default()
	}
	return c.T(t)
}

// Ts passes tensors; a nil among them is an absent tensor.
func (c *Invocation) Ts(list []*Tensor) *Invocation {
	c.words(capi.TagTensorList, int64(len(list)))
	for _, t := range list {
		c.words(c.tensor(t))
	}
	return c
}

// OptTs passes tensors, or the default for nil.
func (c *Invocation) OptTs(list []*Tensor) *Invocation {
	if list == nil {
		return c.Default()
	}
	return c.Ts(list)
}

// Int passes an integer.
func (c *Invocation) Int(v int64) *Invocation {
	c.out = append(c.out, capi.TagInt, v)
	return c
}

// OptInt passes an integer, or the default for nil.
func (c *Invocation) OptInt(v *int64) *Invocation {
	if v == nil {
		return c.Default()
	}
	return c.Int(*v)
}

// NonzeroInt passes an integer, or the default for 0.
func (c *Invocation) NonzeroInt(v int64) *Invocation {
	if v == 0 {
		return c.Default()
	}
	return c.Int(v)
}

// Ints passes integers.
func (c *Invocation) Ints(list []int64) *Invocation {
	c.out = append(append(c.out, capi.TagIntList, int64(len(list))), list...)
	return c
}

// OptInts passes integers, or the default for nil.
func (c *Invocation) OptInts(list []int64) *Invocation {
	if list == nil {
		return c.Default()
	}
	return c.Ints(list)
}

// Float passes a floating-point number.
func (c *Invocation) Float(v float64) *Invocation {
	c.out = append(c.out, capi.TagDouble, bits(v))
	return c
}

// OptFloat passes a floating-point number, or the default for nil.
func (c *Invocation) OptFloat(v *float64) *Invocation {
	if v == nil {
		return c.Default()
	}
	return c.Float(*v)
}

// NonzeroFloat passes a floating-point number, or the default for 0.
func (c *Invocation) NonzeroFloat(v float64) *Invocation {
	if v == 0 {
		return c.Default()
	}
	return c.Float(v)
}

// Floats passes floating-point numbers.
func (c *Invocation) Floats(list []float64) *Invocation {
	c.words(capi.TagDoubleList, int64(len(list)))
	for _, v := range list {
		c.words(bits(v))
	}
	return c
}

// OptFloats passes floating-point numbers, or the default for nil.
func (c *Invocation) OptFloats(list []float64) *Invocation {
	if list == nil {
		return c.Default()
	}
	return c.Floats(list)
}

// Bool passes a truth value.
func (c *Invocation) Bool(v bool) *Invocation {
	c.out = append(c.out, capi.TagBool, b2i(v))
	return c
}

// OptBool passes a truth value, or the default for nil.
func (c *Invocation) OptBool(v *bool) *Invocation {
	if v == nil {
		return c.Default()
	}
	return c.Bool(*v)
}

// NonzeroBool passes true, or the default for false.
func (c *Invocation) NonzeroBool(v bool) *Invocation {
	if !v {
		return c.Default()
	}
	return c.Bool(v)
}

// Bools passes truth values.
func (c *Invocation) Bools(list []bool) *Invocation {
	c.words(capi.TagBoolList, int64(len(list)))
	for _, v := range list {
		c.words(b2i(v))
	}
	return c
}

// OptBools passes truth values, or the default for nil.
func (c *Invocation) OptBools(list []bool) *Invocation {
	if list == nil {
		return c.Default()
	}
	return c.Bools(list)
}

// Str passes a string.
func (c *Invocation) Str(s string) *Invocation {
	c.out = append(c.out, capi.TagString)
	c.text(s)
	return c
}

// OptStr passes a string, or the default for nil.
func (c *Invocation) OptStr(s *string) *Invocation {
	if s == nil {
		return c.Default()
	}
	return c.Str(*s)
}

// NonzeroStr passes a string, or the default for "".
func (c *Invocation) NonzeroStr(s string) *Invocation {
	if s == "" {
		return c.Default()
	}
	return c.Str(s)
}

// Strs passes strings.
func (c *Invocation) Strs(list []string) *Invocation {
	c.words(capi.TagStringList, int64(len(list)))
	for _, s := range list {
		c.text(s)
	}
	return c
}

// OptStrs passes strings, or the default for nil.
func (c *Invocation) OptStrs(list []string) *Invocation {
	if list == nil {
		return c.Default()
	}
	return c.Strs(list)
}

// Number passes a number; nil is None.
func (c *Invocation) Number(v Number) *Invocation {
	switch v := v.(type) {
	case nil:
		return c.words(capi.TagNone)
	case float64:
		return c.Float(v)
	case int:
		return c.Int(int64(v))
	case int64:
		return c.Int(v)
	case float32:
		return c.Float(float64(v))
	case bool:
		return c.Bool(v)
	case complex128:
		return c.complex(v)
	}
	c.fault(ErrArgument, "a number cannot be a %T", v)
	return c
}

// OptNumber passes a number, or the default for nil.
func (c *Invocation) OptNumber(v Number) *Invocation {
	if v == nil {
		return c.Default()
	}
	return c.Number(v)
}

// Numbers passes numbers.
func (c *Invocation) Numbers(list []Number) *Invocation {
	c.words(capi.TagScalarList, int64(len(list)))
	for _, v := range list {
		c.Number(v)
	}
	return c
}

// OptNumbers passes numbers, or the default for nil.
func (c *Invocation) OptNumbers(list []Number) *Invocation {
	if list == nil {
		return c.Default()
	}
	return c.Numbers(list)
}

// DType passes an element type.
func (c *Invocation) DType(d DType) *Invocation {
	if d < 0 || d > lastDType {
		c.fault(ErrArgument, "there is no %v", d)
	}
	return c.Int(int64(d))
}

// OptDType passes an element type, or the default for nil.
func (c *Invocation) OptDType(d *DType) *Invocation {
	if d == nil {
		return c.Default()
	}
	return c.DType(*d)
}

// Layout passes a layout.
func (c *Invocation) Layout(l Layout) *Invocation { return c.Int(int64(l)) }

// OptLayout passes a layout, or the default for nil.
func (c *Invocation) OptLayout(l *Layout) *Invocation {
	if l == nil {
		return c.Default()
	}
	return c.Layout(*l)
}

// MemoryFormat passes a memory format.
func (c *Invocation) MemoryFormat(f MemoryFormat) *Invocation { return c.Int(int64(f)) }

// OptMemoryFormat passes a memory format, or the default for nil.
func (c *Invocation) OptMemoryFormat(f *MemoryFormat) *Invocation {
	if f == nil {
		return c.Default()
	}
	return c.MemoryFormat(*f)
}

// Device passes a device.
func (c *Invocation) Device(d Device) *Invocation {
	if err := d.usable(); err != nil && c.err == nil {
		c.err = err
		if e, ok := err.(*Error); ok {
			e.Op = c.name
		}
	}
	index := d.Index
	if d.Type == CPUType {
		index = -1 // libtorch takes cpu:0 for another device than cpu, and copies
	}
	c.out = append(c.out, capi.TagDevice, int64(d.Type), int64(index))
	return c
}

// OptDevice passes a device, or the default for nil.
func (c *Invocation) OptDevice(d *Device) *Invocation {
	if d == nil {
		return c.Default()
	}
	return c.Device(*d)
}

// OptGenerator passes a source of random numbers, or the default for nil: the process's own.
func (c *Invocation) OptGenerator(g *Generator) *Invocation {
	if g == nil {
		return c.Default()
	}
	if g.h == 0 {
		c.fault(ErrArgument, "the generator is the zero Generator: make one with NewGenerator")
	}
	c.out = append(c.out, capi.TagGenerator, int64(g.h))
	c.rng = g
	return c
}

// Stream passes a stream of a device.
func (c *Invocation) Stream(s Stream) *Invocation {
	if err := s.Device().usable(); err != nil {
		c.fault(ErrNoDevice, "%v", err)
	}
	c.out = append(c.out, capi.TagStream, int64(s.s.Type), int64(s.s.Index), s.s.ID)
	return c
}

// Storage passes the storage behind a tensor.
func (c *Invocation) Storage(s Storage) *Invocation {
	if s.of == nil {
		c.fault(ErrArgument, "the storage is the zero Storage: get one with Tensor.Storage")
	}
	c.out = append(c.out, capi.TagStorage, c.tensor(s.of))
	return c
}
