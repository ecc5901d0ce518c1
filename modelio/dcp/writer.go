package dcp

import (
	"fmt"
	"io"
	"slices"

	"github.com/gofsdp/gofsdp/modelio/pickle"
)

// FileName is the data file of a rank, counted from 0.
func FileName(rank int) string { return fmt.Sprintf("__%d_0.distcp", rank) }

// Part is a part of a tensor, or a value, that a Writer has written. It may travel to another process as JSON.
type Part struct {
	Name           string
	Offsets, Sizes []int64 // nil for a value
	File           string
	Offset, Length int64
}

// Writer writes the data file of one rank.
type Writer struct {
	w     io.Writer
	file  string
	n     int64
	parts []Part
}

// NewWriter writes to w what will be the named file of the folder.
func NewWriter(w io.Writer, file string) *Writer { return &Writer{w: w, file: file} }

// Tensor writes the part of a tensor that begins at offsets; data are its elements, row-major.
func (w *Writer) Tensor(name, dtype string, offsets, sizes []int64, data []byte) error {
	// sizes must not be nil: it tells tensors from values.
	offsets, sizes = append([]int64{}, offsets...), append([]int64{}, sizes...)
	return w.item(Part{Name: name, Offsets: offsets, Sizes: sizes}, func(out io.Writer) error {
		return pickle.WriteTensor(out, dtype, sizes, data)
	})
}

// Value writes a plain value: what pickle.Encode takes.
func (w *Writer) Value(name string, v any) error {
	return w.item(Part{Name: name}, func(out io.Writer) error { return pickle.WriteValue(out, v) })
}

// item starts at a multiple of 64, so that the tensor in it does too.
func (w *Writer) item(p Part, write func(io.Writer) error) error {
	const alignment = 64
	if pad := (alignment - w.n%alignment) % alignment; pad > 0 {
		if _, err := w.Write(make([]byte, pad)); err != nil {
			return err
		}
	}
	p.File, p.Offset = w.file, w.n
	if err := write(w); err != nil {
		return fmt.Errorf("dcp: write %q: %w", p.Name, err)
	}
	p.Length = w.n - p.Offset
	w.parts = append(w.parts, p)
	return nil
}

// Write passes bytes on and counts them.
func (w *Writer) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.n += int64(n)
	return n, err
}

// Size is the number of bytes written.
func (w *Writer) Size() int64 { return w.n }

// Parts lists what was written.
func (w *Writer) Parts() []Part { return slices.Clone(w.parts) }

// Entry describes a whole tensor, or a value, for EncodeMetadata.
type Entry struct {
	Name  string
	Path  []any  // keys of the nested dict: strings, and int64 for places in lists
	DType string // safetensors' name; "" for a value
	Shape []int64
	Parts []Part
}

// EncodeMetadata gives the contents of a .metadata, version 1.0.0 of the format.
func EncodeMetadata(entries []Entry) ([]byte, error) {
	var described, paths, places pickle.Dict
	put := func(d *pickle.Dict, key, value any) { d.Items = append(d.Items, pickle.Item{Key: key, Value: value}) }
	for _, e := range entries {
		put(&paths, e.Name, &pickle.Tuple{Items: e.Path})
		if e.DType == "" {
			if len(e.Parts) != 1 {
				return nil, fmt.Errorf("dcp: value %q has %d parts", e.Name, len(e.Parts))
			}
			put(&described, e.Name, instance(valueClass))
			put(&places, index(e.Name, nil, nil), stored(e.Parts[0]))
			continue
		}
		dtype, ok := pickle.TorchDType(e.DType)
		if !ok {
			return nil, fmt.Errorf("dcp: tensor %q: PyTorch has no dtype for %s", e.Name, e.DType)
		}
		parts := slices.Clone(e.Parts)
		slices.SortFunc(parts, func(a, b Part) int { return slices.Compare(a.Offsets, b.Offsets) })
		var chunks []any
		for i, p := range parts {
			chunks = append(chunks, instance(chunkClass, pickle.Item{Key: "offsets", Value: torchSize(p.Offsets)},
				pickle.Item{Key: "sizes", Value: torchSize(p.Sizes)}))
			put(&places, index(e.Name, torchSize(p.Offsets), int64(i)), stored(p))
		}
		put(&described, e.Name, instance(tensorClass, pickle.Item{Key: "properties", Value: properties(dtype)},
			pickle.Item{Key: "size", Value: torchSize(e.Shape)}, pickle.Item{Key: "chunks", Value: chunks}))
	}
	meta := instance(storageMeta, pickle.Item{Key: "checkpoint_id"}, pickle.Item{Key: "save_id"}, pickle.Item{Key: "load_id"},
		pickle.Item{Key: "modules", Value: []any{}})
	return pickle.Encode(instance(metadataClass,
		pickle.Item{Key: "state_dict_metadata", Value: &described}, pickle.Item{Key: "planner_data", Value: &paths},
		pickle.Item{Key: "storage_data", Value: &places}, pickle.Item{Key: "storage_meta", Value: meta},
		pickle.Item{Key: "version", Value: "1.0.0"}))
}

func instance(class pickle.Global, attributes ...pickle.Item) *pickle.Object {
	return &pickle.Object{Class: class, State: &pickle.Dict{Items: attributes}}
}

func torchSize(dims []int64) *pickle.Object {
	items := make([]any, len(dims))
	for i, d := range dims {
		items[i] = d
	}
	return &pickle.Object{Class: "torch.Size", Args: []any{&pickle.Tuple{Items: items}}}
}

// properties of a tensor in main memory without gradient; all but the dtype are deprecated.
func properties(dtype pickle.Global) *pickle.Object {
	layout := &pickle.Object{Class: layoutFunction, Args: []any{"torch.strided"}}
	contiguous := &pickle.Object{Class: memoryEncoding, Args: []any{int64(0)}}
	return &pickle.Object{Class: propertyClass, State: &pickle.Tuple{Items: []any{dtype, layout, false, contiguous, false}}}
}

func index(name string, offset, at any) *pickle.Object {
	return instance(indexClass, pickle.Item{Key: "fqn", Value: name}, pickle.Item{Key: "offset", Value: offset}, pickle.Item{Key: "index", Value: at})
}

func stored(p Part) *pickle.Object {
	return instance(storageInfo, pickle.Item{Key: "relative_path", Value: p.File}, pickle.Item{Key: "offset", Value: p.Offset},
		pickle.Item{Key: "length", Value: p.Length})
}
