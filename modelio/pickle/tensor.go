package pickle

import (
	"fmt"
	"unsafe"
)

// Tensor is a tensor in a file: a view of one of the archive's storages, which several tensors may share. Its bytes are
// valid until the File is closed.
type Tensor struct {
	DType string  // safetensors' name: "F32", "BF16", "I64", …
	Shape []int64 // empty for a scalar

	// RequiresGrad tells whether the tensor was a parameter, or marked for autograd.
	RequiresGrad bool

	stride     []int64 // in elements
	offset     int64
	width      int64 // bytes of an element
	contiguous bool
	storage    *storage
	file       *File
}

// NumElements gives the number of elements.
func (t *Tensor) NumElements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// rowCount is the size of dim 0, 1 for a scalar; rowLen the number of elements of a row.
func (t *Tensor) rowCount() int64 {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[0]
}

func (t *Tensor) rowLen() int64 {
	n := int64(1)
	for i := 1; i < len(t.Shape); i++ {
		n *= t.Shape[i]
	}
	return n
}

// Bytes gives all elements, little-endian and row-major.
func (t *Tensor) Bytes() ([]byte, error) { return t.Rows(0, t.rowCount()) }

// Rows gives the bytes of rows lo up to, not including, hi along dim 0; a scalar counts as one row. They are the mapped
// file's own (read-only) where the tensor lies there row by row, and a copy where it does not (a transposed view).
func (t *Tensor) Rows(lo, hi int64) ([]byte, error) {
	if lo < 0 || hi < lo || hi > t.rowCount() {
		return nil, fmt.Errorf("pickle: rows [%d:%d] of a tensor of shape %v are out of range", lo, hi, t.Shape)
	}
	row := t.rowLen() * t.width
	if t.contiguous {
		start := t.offset*t.width + lo*row
		end := start + (hi-lo)*row
		return t.storage.data[start:end:end], nil
	}
	out := make([]byte, 0, (hi-lo)*row)
	for i := lo; i < hi; i++ {
		out = t.gather(out, 1, t.offset+i*t.stride[0])
	}
	return out, nil
}

// gather appends the elements of dimensions dim and up, from the element at.
func (t *Tensor) gather(out []byte, dim int, at int64) []byte {
	if dim == len(t.Shape) {
		return append(out, t.storage.data[at*t.width:(at+1)*t.width]...)
	}
	for i := range t.Shape[dim] {
		out = t.gather(out, dim+1, at+i*t.stride[dim])
	}
	return out
}

// Release hands the pages under rows lo up to, not including, hi back to the system; they stay readable. It does nothing
// for a tensor that does not lie in the file row by row.
func (t *Tensor) Release(lo, hi int64) error {
	if !t.contiguous || t.file == nil || t.file.mapping == nil {
		return nil
	}
	part, err := t.Rows(lo, hi)
	if err != nil || len(part) == 0 {
		return err
	}
	base := unsafe.SliceData(t.file.mapping.Bytes())
	off := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(base))
	return t.file.mapping.Release(int(off), len(part))
}
