package gguf

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/gofsdp/gofsdp/modelio/internal/mmap"
)

// File is a GGUF file mapped into memory. Its methods may be called from several goroutines; Close must come after the
// last use of any Tensor.
type File struct {
	path      string
	m         *mmap.Mapping
	data      []byte
	version   uint32
	alignment int
	kvs       []KV
	kvIndex   map[string]int
	tensors   []Tensor
	index     map[string]int
}

// Tensor is a tensor in a mapped file.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int64 // outermost dimension first, as PyTorch writes it (the file has the reverse)
	Data  []byte  // the blocks, row by row; valid until the File is closed

	file   *File
	rows   int64
	rowLen int64
	bytes  uint64
	offset uint64
	infoAt int
}

// Open maps the file at path and reads its metadata and tensor table. Faults in the file are *FormatError.
func Open(path string) (*File, error) {
	m, err := mmap.Open(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: open: %w", err)
	}
	f, err := parse(path, m.Bytes())
	if err != nil {
		m.Close()
		return nil, err
	}
	f.m = m
	return f, nil
}

// Parse reads a file that is already in memory; name stands for the path in errors.
func Parse(name string, data []byte) (*File, error) {
	f, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Path gives the path that the file was opened with.
func (f *File) Path() string { return f.path }

// Version gives the format's version, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Tensors lists the tensors in the order of the file's table.
func (f *File) Tensors() []Tensor { return f.tensors }

// Has tells whether the file holds a tensor of that name.
func (f *File) Has(name string) bool {
	_, ok := f.index[name]
	return ok
}

// Tensor looks a tensor up.
func (f *File) Tensor(name string) (Tensor, error) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, fmt.Errorf("gguf: %s holds no tensor %q", f.path, name)
	}
	return f.tensors[i], nil
}

// Close unmaps the file; its tensors must not be used any more.
func (f *File) Close() error {
	if f.m == nil {
		return nil
	}
	return f.m.Close()
}

// maxElements bounds a tensor so that its size in bytes fits 63 bits in every type, dequantised too.
const maxElements = 1 << 59

// measure computes rows, row length and size, and checks that whole blocks fill each row.
func (t *Tensor) measure() error {
	t.rows, t.rowLen = 1, 1
	if n := len(t.Shape); n > 0 {
		t.rowLen = t.Shape[n-1]
	}
	rows := uint64(1)
	for i := 0; i < len(t.Shape)-1; i++ {
		hi, lo := bits.Mul64(rows, uint64(t.Shape[i]))
		if hi != 0 || lo > maxElements {
			return fmt.Errorf("shape %v overflows", t.Shape)
		}
		rows = lo
	}
	t.rows = int64(rows)
	hi, total := bits.Mul64(rows, uint64(t.rowLen))
	if hi != 0 || total > maxElements {
		return fmt.Errorf("shape %v overflows", t.Shape)
	}
	l, _ := t.Type.layout()
	if t.rowLen%int64(l.block) != 0 {
		return fmt.Errorf("rows of %d elements are not whole blocks of %d (%v)", t.rowLen, l.block, t.Type)
	}
	t.bytes = total / uint64(l.block) * uint64(l.size)
	return nil
}

// Rows gives the number of rows: the product of all dimensions but the innermost.
func (t Tensor) Rows() int64 { return t.rows }

// RowLen gives the number of elements in a row: the innermost dimension.
func (t Tensor) RowLen() int64 { return t.rowLen }

// NumElements gives the number of elements.
func (t Tensor) NumElements() int64 { return t.rows * t.rowLen }

// Dequantize writes rows lo up to, not including, hi as float32 into dst, which must hold exactly their elements.
func (t Tensor) Dequantize(dst []float32, lo, hi int64) error {
	l, _ := t.Type.layout()
	if l.dequantize == nil {
		return fmt.Errorf("gguf: dequantize tensor %q: type %v is not supported (supported: %s)", t.Name, t.Type, supportedTypes())
	}
	if lo < 0 || hi < lo || hi > t.rows {
		return fmt.Errorf("gguf: dequantize tensor %q: rows [%d:%d] of %d", t.Name, lo, hi, t.rows)
	}
	if int64(len(dst)) != (hi-lo)*t.rowLen {
		return fmt.Errorf("gguf: dequantize tensor %q: rows [%d:%d] have %d elements, dst has %d",
			t.Name, lo, hi, (hi-lo)*t.rowLen, len(dst))
	}
	rowBytes := t.rowLen / int64(l.block) * int64(l.size)
	l.dequantize(dst, t.Data[lo*rowBytes:hi*rowBytes])
	return nil
}

// Release hands the pages under rows lo up to, not including, hi back to the system. They stay readable.
func (t Tensor) Release(lo, hi int64) error {
	if t.file == nil || t.file.m == nil || t.rows == 0 || lo < 0 || hi <= lo || hi > t.rows || len(t.Data) == 0 {
		return nil
	}
	rowBytes := int64(len(t.Data)) / t.rows
	off := int64(uintptr(unsafe.Pointer(unsafe.SliceData(t.Data))) - uintptr(unsafe.Pointer(unsafe.SliceData(t.file.data))))
	return t.file.m.Release(int(off+lo*rowBytes), int((hi-lo)*rowBytes))
}
