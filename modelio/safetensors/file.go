package safetensors

import (
	"fmt"
	"iter"
	"unsafe"

	"github.com/gofsdp/gofsdp/modelio/internal/mmap"
)

// File is a safetensors file mapped into memory. Its methods may be called from several goroutines; Close must come
// after the last use of any View.
type File struct {
	path   string
	m      *mmap.Mapping
	whole  []byte
	data   []byte // tensor bytes only
	header *header
	index  map[string]int
}

// View is a tensor in a mapped file.
type View struct {
	Name  string
	DType string  // the format's name: "F32", "BF16", "F16", "U8", "I64", ...
	Shape []int64 // empty for a scalar
	Data  []byte  // row-major, little-endian; valid until the File is closed
}

// Open maps the file at path and validates its header. Faults in the file are *FormatError.
func Open(path string) (*File, error) {
	m, err := mmap.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: open: %w", err)
	}
	f, err := newFile(path, m.Bytes())
	if err != nil {
		m.Close()
		return nil, err
	}
	f.m = m
	return f, nil
}

// Parse reads a file that is already in memory; name stands for the path in errors.
func Parse(name string, data []byte) (*File, error) { return newFile(name, data) }

func newFile(path string, data []byte) (*File, error) {
	h, err := parseHeader(path, data, int64(len(data)))
	if err != nil {
		return nil, err
	}
	f := &File{path: path, whole: data, data: data[h.dataStart:], header: h, index: make(map[string]int, len(h.entries))}
	for i, e := range h.entries {
		f.index[e.name] = i
	}
	return f, nil
}

// Path gives the path that the file was opened with.
func (f *File) Path() string { return f.path }

// Bytes gives the whole file; nothing is read before it is touched.
func (f *File) Bytes() []byte { return f.whole }

// HeaderSize is the number of bytes before the first tensor's.
func (f *File) HeaderSize() int64 { return f.header.dataStart }

// Offset is where in the file the bytes of a view (or a part of them) begin.
func (f *File) Offset(v View) int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(v.Data))) - uintptr(unsafe.Pointer(unsafe.SliceData(f.whole))))
}

// Names lists the tensors in the order in which their bytes lie in the file.
func (f *File) Names() []string {
	names := make([]string, len(f.header.entries))
	for i, e := range f.header.entries {
		names[i] = e.name
	}
	return names
}

// Has tells whether the file holds a tensor of that name.
func (f *File) Has(name string) bool {
	_, ok := f.index[name]
	return ok
}

// Metadata lists the entries of "__metadata__" in file order; nil when the file has none.
func (f *File) Metadata() []KV { return f.header.metadata }

// MetadataValue looks one metadata entry up.
func (f *File) MetadataValue(key string) (string, bool) {
	for i := len(f.header.metadata) - 1; i >= 0; i-- {
		if kv := f.header.metadata[i]; kv.Key == key {
			return kv.Value, true
		}
	}
	return "", false
}

// Tensor gives a view of the named tensor. Nothing is read before its bytes are touched.
func (f *File) Tensor(name string) (View, error) {
	i, ok := f.index[name]
	if !ok {
		return View{}, fmt.Errorf("safetensors: %s holds no tensor %q", f.path, name)
	}
	return f.view(i), nil
}

func (f *File) view(i int) View {
	e := f.header.entries[i]
	return View{Name: e.name, DType: e.dtype, Shape: e.shape, Data: f.data[e.begin:e.end:e.end]}
}

// All iterates over the tensors in file order.
func (f *File) All() iter.Seq2[string, View] {
	return func(yield func(string, View) bool) {
		for i, e := range f.header.entries {
			if !yield(e.name, f.view(i)) {
				return
			}
		}
	}
}

// Release hands the pages under the view (or under a View whose Data is a part of the tensor's) back to the system.
// The view stays valid; its bytes are read from the file again when touched.
func (f *File) Release(v View) error {
	if f.m == nil || len(v.Data) == 0 {
		return nil
	}
	base := f.m.Bytes()
	off := uintptr(unsafe.Pointer(unsafe.SliceData(v.Data))) - uintptr(unsafe.Pointer(unsafe.SliceData(base)))
	if off > uintptr(len(base)) {
		return fmt.Errorf("safetensors: release: tensor %q does not lie in %s", v.Name, f.path)
	}
	return f.m.Release(int(off), len(v.Data))
}

// Close unmaps the file; views of it must not be used any more.
func (f *File) Close() error {
	if f.m == nil {
		return nil
	}
	return f.m.Close()
}

// NumElements gives the number of elements.
func (v View) NumElements() int64 {
	n := int64(1)
	for _, d := range v.Shape {
		n *= d
	}
	return n
}

// Rows gives the bytes of rows lo up to, not including, hi along dim 0. Like a slice expression it panics when the
// range is not within 0 <= lo <= hi <= Shape[0], when the tensor is a scalar, and when a sub-byte row ends inside a
// byte.
func (v View) Rows(lo, hi int64) []byte {
	if len(v.Shape) == 0 || lo < 0 || hi < lo || hi > v.Shape[0] {
		panic(fmt.Sprintf("safetensors: rows [%d:%d] of tensor %q with shape %v", lo, hi, v.Name, v.Shape))
	}
	if v.Shape[0] == 0 {
		return v.Data
	}
	if int64(len(v.Data))%v.Shape[0] != 0 {
		panic(fmt.Sprintf("safetensors: a row of tensor %q (%s%v) is not a whole number of bytes", v.Name, v.DType, v.Shape))
	}
	row := int64(len(v.Data)) / v.Shape[0]
	return v.Data[lo*row : hi*row : hi*row]
}
