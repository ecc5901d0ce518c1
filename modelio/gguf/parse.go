package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"unicode/utf8"
)

const (
	defaultAlignment = 32
	maxDims          = 4 // ggml's GGML_MAX_DIMS
	maxNesting       = 8 // arrays within arrays
	alignmentKey     = "general.alignment"
)

// FormatError says what is wrong with a file, and where.
type FormatError struct {
	File   string // path of the file
	Offset int64  // byte offset in the file
	Msg    string // what is wrong
}

// Error names the file, the offset and the fault.
func (e *FormatError) Error() string {
	return fmt.Sprintf("gguf: %s: byte %d: %s", e.File, e.Offset, e.Msg)
}

// parser reads the head of a file. The first fault stops it: later reads give zeros and change nothing.
type parser struct {
	file string
	data []byte
	pos  int
	err  error
}

func (p *parser) fail(at int, format string, args ...any) {
	if p.err == nil {
		p.err = &FormatError{File: p.file, Offset: int64(at), Msg: fmt.Sprintf(format, args...)}
	}
}

// take gives the next n bytes, nil after a fault.
func (p *parser) take(n int, what string) []byte {
	if p.err != nil {
		return nil
	}
	if n > len(p.data)-p.pos {
		p.fail(p.pos, "the file ends inside %s (%d bytes needed, %d left)", what, n, len(p.data)-p.pos)
		return nil
	}
	b := p.data[p.pos : p.pos+n]
	p.pos += n
	return b
}

func (p *parser) u32(what string) uint32 {
	if b := p.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (p *parser) u64(what string) uint64 {
	if b := p.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads a number of things that take at least size bytes each, and refuses what the file cannot hold. So no
// allocation exceeds a small multiple of the file.
func (p *parser) count(what string, size int) int {
	at := p.pos
	n := p.u64(what)
	if p.err == nil && n > uint64((len(p.data)-p.pos)/size) {
		p.fail(at, "%s is %d, more than the rest of the file (%d bytes) can hold", what, n, len(p.data)-p.pos)
		return 0
	}
	return int(n)
}

// str reads a string. The bytes are copied: they outlive the mapping.
func (p *parser) str(what string) string {
	at := p.pos
	n := p.u64("the length of " + what)
	if p.err == nil && n > uint64(len(p.data)-p.pos) {
		p.fail(at, "%s is %d bytes long, %d are left in the file", what, n, len(p.data)-p.pos)
	}
	return string(p.take(int(n), what))
}

// parse reads header, metadata and tensor table.
func parse(path string, data []byte) (*File, error) {
	p := &parser{file: path, data: data}
	f := &File{path: path, data: data, alignment: defaultAlignment,
		kvIndex: map[string]int{}, index: map[string]int{}}
	if magic := p.take(4, "the magic number"); magic != nil && string(magic) != "GGUF" {
		p.fail(0, "the file starts with %q, not with \"GGUF\"", magic)
	}
	at := p.pos
	f.version = p.u32("the version")
	if p.err == nil && f.version != 2 && f.version != 3 {
		if v := bits.ReverseBytes32(f.version); v == 2 || v == 3 {
			p.fail(at, "the file is big-endian, which is not supported")
		} else {
			p.fail(at, "version %d is not supported (2 and 3 are)", f.version)
		}
	}
	tensors := p.count("the number of tensors", 8+4+4+8)
	entries := p.count("the number of metadata entries", 8+4+1)
	for i := 0; i < entries && p.err == nil; i++ {
		f.readKV(p)
	}
	for i := 0; i < tensors && p.err == nil; i++ {
		f.readTensorInfo(p)
	}
	f.placeTensors(p)
	return f, p.err
}

func (f *File) readKV(p *parser) {
	at := p.pos
	kv := KV{Key: p.str("a metadata key")}
	typeAt := p.pos
	kv.Type = ValueType(p.u32("a metadata type"))
	if p.err == nil && !utf8.ValidString(kv.Key) {
		p.fail(at, "a metadata key is not UTF-8: %q", kv.Key)
	}
	if _, ok := f.kvIndex[kv.Key]; ok {
		p.fail(at, "metadata %q appears twice", kv.Key)
	}
	kv.Value = p.value(kv.Type, typeAt, fmt.Sprintf("metadata %q", kv.Key), 0)
	if p.err != nil {
		return
	}
	if kv.Key == alignmentKey {
		a, ok := toInt(kv.Value)
		if !ok || a <= 0 || a > 1<<30 || a&(a-1) != 0 {
			p.fail(typeAt, "%s is %v, expected a power of two", alignmentKey, kv.Value)
			return
		}
		f.alignment = int(a)
	}
	f.kvIndex[kv.Key] = len(f.kvs)
	f.kvs = append(f.kvs, kv)
}

func (p *parser) value(t ValueType, at int, what string, depth int) any {
	switch t {
	case String:
		return p.str(what)
	case Array:
		return p.array(what, depth+1)
	}
	if int64(t) >= int64(len(valueTypes)) {
		p.fail(at, "%s has unknown %v", what, t)
		return nil
	}
	b := p.take(valueTypes[t].size, what)
	if b == nil {
		return nil
	}
	le := binary.LittleEndian
	switch t {
	case Uint8:
		return b[0]
	case Int8:
		return int8(b[0])
	case Bool:
		if b[0] > 1 {
			p.fail(p.pos-1, "%s is a bool with the value %d", what, b[0])
		}
		return b[0] == 1
	case Uint16:
		return le.Uint16(b)
	case Int16:
		return int16(le.Uint16(b))
	case Uint32:
		return le.Uint32(b)
	case Int32:
		return int32(le.Uint32(b))
	case Float32:
		return math.Float32frombits(le.Uint32(b))
	case Uint64:
		return le.Uint64(b)
	case Int64:
		return int64(le.Uint64(b))
	default:
		return math.Float64frombits(le.Uint64(b))
	}
}

func (p *parser) array(what string, depth int) any {
	at := p.pos
	t := ValueType(p.u32("the element type of " + what))
	if p.err == nil && int64(t) >= int64(len(valueTypes)) {
		p.fail(at, "%s is an array of unknown %v", what, t)
	}
	if depth > maxNesting {
		p.fail(at, "%s nests arrays deeper than %d", what, maxNesting)
	}
	if p.err != nil {
		return nil
	}
	n := p.count("the length of "+what, valueTypes[t].size)
	switch t {
	case Uint8:
		return elements[uint8](p, t, n, what, depth)
	case Int8:
		return elements[int8](p, t, n, what, depth)
	case Bool:
		return elements[bool](p, t, n, what, depth)
	case Uint16:
		return elements[uint16](p, t, n, what, depth)
	case Int16:
		return elements[int16](p, t, n, what, depth)
	case Uint32:
		return elements[uint32](p, t, n, what, depth)
	case Int32:
		return elements[int32](p, t, n, what, depth)
	case Float32:
		return elements[float32](p, t, n, what, depth)
	case Uint64:
		return elements[uint64](p, t, n, what, depth)
	case Int64:
		return elements[int64](p, t, n, what, depth)
	case Float64:
		return elements[float64](p, t, n, what, depth)
	case String:
		return elements[string](p, t, n, what, depth)
	default:
		return elements[any](p, t, n, what, depth)
	}
}

func elements[T any](p *parser, t ValueType, n int, what string, depth int) []T {
	out := make([]T, 0, n)
	for range n {
		v := p.value(t, p.pos, what, depth)
		if p.err != nil {
			return nil
		}
		out = append(out, v.(T))
	}
	return out
}

func (f *File) readTensorInfo(p *parser) {
	at := p.pos
	t := Tensor{Name: p.str("a tensor name"), file: f}
	dimsAt := p.pos
	nd := p.u32("the number of dimensions")
	if nd > maxDims {
		p.fail(dimsAt, "tensor %q has %d dimensions, at most %d are allowed", t.Name, nd, maxDims)
	}
	if _, ok := f.index[t.Name]; ok {
		p.fail(at, "tensor %q appears twice", t.Name)
	}
	if p.err != nil {
		return
	}
	t.Shape = make([]int64, nd)
	for i := range t.Shape {
		d := p.u64("a dimension")
		if d > math.MaxInt64 {
			p.fail(p.pos-8, "tensor %q: dimension %d overflows", t.Name, d)
		}
		t.Shape[len(t.Shape)-1-i] = int64(d) // the file lists the innermost dimension first
	}
	typeAt := p.pos
	t.Type = Type(p.u32("a tensor type"))
	if _, ok := t.Type.layout(); p.err == nil && !ok {
		p.fail(typeAt, "tensor %q has unknown type %d", t.Name, uint32(t.Type))
	}
	t.infoAt = p.pos
	t.offset = p.u64("a tensor offset")
	if p.err != nil {
		return
	}
	if err := t.measure(); err != nil {
		p.fail(typeAt, "tensor %q: %v", t.Name, err)
	}
	f.index[t.Name] = len(f.tensors)
	f.tensors = append(f.tensors, t)
}

// placeTensors cuts the tensors out of the data section.
func (f *File) placeTensors(p *parser) {
	if p.err != nil || len(f.tensors) == 0 {
		return
	}
	start := uint64(p.pos+f.alignment-1) / uint64(f.alignment) * uint64(f.alignment)
	size := uint64(len(p.data))
	for i := range f.tensors {
		t := &f.tensors[i]
		if t.offset%uint64(f.alignment) != 0 {
			p.fail(t.infoAt, "tensor %q: offset %d is not a multiple of the alignment %d", t.Name, t.offset, f.alignment)
			return
		}
		if start > size || t.offset > size-start || t.bytes > size-start-t.offset {
			p.fail(len(p.data), "the file ends inside tensor %q (%v%v, %d bytes at offset %d of the data that starts at byte %d): truncated",
				t.Name, t.Type, t.Shape, t.bytes, t.offset, start)
			return
		}
		from := start + t.offset
		t.Data = p.data[from : from+t.bytes : from+t.bytes]
	}
}
