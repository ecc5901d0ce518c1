package pickle

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/gofsdp/gofsdp/modelio/internal/mmap"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// File is a PyTorch file mapped into memory. Its methods may be called from several goroutines; Close must come after the
// last use of any tensor.
type File struct {
	path    string
	mapping *mmap.Mapping
	root    any
	names   []string
	tensors map[string]*Tensor
}

// ErrLegacy says that a file is older than PyTorch's zip format.
var ErrLegacy = errors.New("the file is in PyTorch's format from before version 1.6: load it with Python's torch.load and torch.save it again, or save it as safetensors")

// Open maps the file at path and runs its pickle, under the rules of the package.
func Open(path string) (*File, error) {
	m, err := mmap.Open(path)
	if err != nil {
		return nil, fmt.Errorf("pickle: open: %w", err)
	}
	f, err := Parse(path, m.Bytes())
	if err != nil {
		m.Close()
		return nil, err
	}
	f.mapping = m
	return f, nil
}

// Parse reads a file that is already in memory; name stands for the path in errors.
func Parse(name string, data []byte) (*File, error) { return parse(name, data, false) }

// ParseModule is Parse, and accepts TorchScript archives too, among them those of C++'s torch::save. Of an archive's modules it
// reads the attributes, as a *Dict each; their code is neither read nor run.
func ParseModule(name string, data []byte) (*File, error) { return parse(name, data, true) }

func parse(name string, data []byte, modules bool) (*File, error) {
	f := &File{path: name, tensors: map[string]*Tensor{}}
	if err := f.parse(data, modules); err != nil {
		return nil, fmt.Errorf("pickle: %s: %w", name, err)
	}
	return f, nil
}

// magic is how files from before the zip format start: a pickled number.
const magic = "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

func (f *File) parse(data []byte, modules bool) error {
	switch {
	case bytes.HasPrefix(data, []byte(magic)), len(data) > 262 && string(data[257:262]) == "ustar":
		return ErrLegacy
	case !bytes.HasPrefix(data, []byte("PK\x03\x04")):
		return errors.New("this is no file of torch.save: it is no zip archive")
	}
	a, err := openArchive(data)
	if err != nil {
		return err
	}
	find := findGlobal
	switch script := a.has("constants.pkl"); {
	case script && modules:
		find = findClass
	case script:
		return errors.New("this is a TorchScript program, not a file of weights: save the model's state_dict")
	}
	if order, err := a.bytes("byteorder"); err == nil && string(order) != "little" {
		return fmt.Errorf("the file's byte order is %q, only \"little\" is supported", order)
	}
	program, err := a.bytes("data.pkl")
	if err != nil {
		return err
	}
	storages := map[string]*storage{}
	m := machine{data: program, find: find, reduce: reduce,
		pers: func(id any) (any, error) { return a.storage(id, storages) }}
	if f.root, err = m.run(); err != nil {
		return fmt.Errorf("data.pkl: %w", err)
	}
	c := collector{file: f}
	return c.collect("", f.root, 0)
}

// Path gives the path that the file was opened with.
func (f *File) Path() string { return f.path }

// Root is the object that was saved: a *Dict for a state dict, with *Tensor, *Dict, *List, *Tuple, string, int64, float64,
// bool, *big.Int, []byte and nil inside.
func (f *File) Root() any { return f.root }

// Names lists the tensors in the order of the file. Inside dicts, lists and tuples that are nested the name is the path,
// "model.layers.0.weight"; a tensor that was saved by itself has the name "".
func (f *File) Names() []string { return append([]string(nil), f.names...) }

// Has tells whether the file holds a tensor of that name.
func (f *File) Has(name string) bool { return f.tensors[name] != nil }

// Tensor gives the named tensor.
func (f *File) Tensor(name string) (*Tensor, error) {
	t := f.tensors[name]
	if t == nil {
		return nil, fmt.Errorf("pickle: %s holds no tensor %q", f.path, name)
	}
	return t, nil
}

// All iterates over the tensors in the order of the file.
func (f *File) All() iter.Seq2[string, *Tensor] {
	return func(yield func(string, *Tensor) bool) {
		for _, name := range f.names {
			if !yield(name, f.tensors[name]) {
				return
			}
		}
	}
}

// Close unmaps the file; its tensors must not be used any more.
func (f *File) Close() error {
	if f.mapping == nil {
		return nil
	}
	return f.mapping.Close()
}

// collector names the tensors inside an object. Objects may contain themselves, or one part many times over.
type collector struct {
	file  *File
	steps int
}

const (
	deepest   = 64
	mostSteps = 1 << 22
)

func (c *collector) collect(name string, v any, depth int) error {
	if c.steps++; depth > deepest || c.steps > mostSteps {
		return errors.New("the saved object is nested too deep, or contains itself")
	}
	join := func(key string) string {
		if depth == 0 {
			return key
		}
		return name + "." + key
	}
	switch v := v.(type) {
	case *Tensor:
		if c.file.tensors[name] != nil {
			return fmt.Errorf("two tensors are called %q", name)
		}
		t := *v
		t.file = c.file
		c.file.tensors[name] = &t
		c.file.names = append(c.file.names, name)
	case *Dict:
		for _, item := range v.Items {
			switch key := item.Key.(type) {
			case string:
				if err := c.collect(join(key), item.Value, depth+1); err != nil {
					return err
				}
			case int64:
				if err := c.collect(join(fmt.Sprint(key)), item.Value, depth+1); err != nil {
					return err
				}
			}
		}
	case *List:
		return c.list(join, v.Items, depth)
	case *Tuple:
		return c.list(join, v.Items, depth)
	}
	return nil
}

func (c *collector) list(join func(string) string, items []any, depth int) error {
	for i, item := range items {
		if err := c.collect(join(fmt.Sprint(i)), item, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// archive is the zip file: one folder, with data.pkl and data/<key>.
type archive struct {
	data    []byte
	entries map[string]*zip.File // without the folder
}

func openArchive(data []byte) (*archive, error) {
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	a := &archive{data: data, entries: map[string]*zip.File{}}
	var folder string
	for i, e := range r.File {
		first, rest, ok := strings.Cut(e.Name, "/")
		if !ok || i > 0 && first != folder {
			return nil, fmt.Errorf("this is no file of torch.save: the archive's entry %q is not in its one folder", e.Name)
		}
		if a.entries[rest] != nil {
			return nil, fmt.Errorf("the archive has %q twice", e.Name)
		}
		folder = first
		a.entries[rest] = e
	}
	return a, nil
}

func (a *archive) has(name string) bool { return a.entries[name] != nil }

// bytes gives the contents of an entry as they lie in the file.
func (a *archive) bytes(name string) ([]byte, error) {
	e := a.entries[name]
	if e == nil {
		return nil, fmt.Errorf("this is no file of torch.save: the archive has no %s", name)
	}
	if e.Method != zip.Store || e.CompressedSize64 != e.UncompressedSize64 {
		return nil, fmt.Errorf("the archive's %s is compressed, which torch.save never does", name)
	}
	start, err := e.DataOffset()
	if err != nil {
		return nil, fmt.Errorf("the archive's %s: %w", name, err)
	}
	size := e.UncompressedSize64
	if start < 0 || start > int64(len(a.data)) || size > uint64(int64(len(a.data))-start) {
		return nil, fmt.Errorf("the archive's %s (%d bytes at %d) lies beyond the end of the file", name, size, start)
	}
	return a.data[start : start+int64(size) : start+int64(size)], nil
}

// storage resolves a persistent id: ("storage", type, key, device, number of elements).
func (a *archive) storage(id any, known map[string]*storage) (*storage, error) {
	t, ok := id.(*Tuple)
	if !ok || len(t.Items) != 5 || t.Items[0] != any("storage") {
		return nil, fmt.Errorf("a persistent id that is no storage: %s", describe(id))
	}
	kind, ok1 := t.Items[1].(Global)
	key, ok2 := t.Items[2].(string)
	numel, ok3 := t.Items[4].(int64)
	dtype := storageTypes[kind]
	if !ok1 || !ok2 || !ok3 || numel < 0 || dtype == "" && kind != untypedStorage {
		return nil, fmt.Errorf("a storage of unexpected form")
	}
	if s := known[key]; s != nil && s.dtype == dtype {
		return s, nil
	}
	data, err := a.bytes("data/" + key)
	if err != nil {
		return nil, err
	}
	size := numel
	if dtype != "" {
		if size, err = safetensors.ByteSize(dtype, []int64{numel}); err != nil {
			return nil, err
		}
	}
	if int64(len(data)) != size {
		return nil, fmt.Errorf("storage %s has %d bytes, its %d elements of %q need %d", key, len(data), numel, string(kind), size)
	}
	s := &storage{key: key, dtype: dtype, data: data}
	known[key] = s
	return s, nil
}
