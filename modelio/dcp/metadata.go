package dcp

import (
	"fmt"
	"math"
	"math/bits"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/modelio/pickle"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

const (
	metadataModule = "torch.distributed.checkpoint.metadata."
	storageInfo    = pickle.Global("torch.distributed.checkpoint.filesystem._StorageInfo")

	metadataClass  = pickle.Global(metadataModule + "Metadata")
	tensorClass    = pickle.Global(metadataModule + "TensorStorageMetadata")
	valueClass     = pickle.Global(metadataModule + "BytesStorageMetadata")
	chunkClass     = pickle.Global(metadataModule + "ChunkStorageMetadata")
	propertyClass  = pickle.Global(metadataModule + "TensorProperties")
	memoryEncoding = pickle.Global(metadataModule + "_MEM_FORMAT_ENCODING")
	indexClass     = pickle.Global(metadataModule + "MetadataIndex")
	storageMeta    = pickle.Global(metadataModule + "StorageMeta")
	layoutFunction = pickle.Global("torch.serialization._get_layout")

	// PyTorch 2.3 and older have these in another place.
	oldPropertyClass  = pickle.Global("torch.distributed._shard.sharded_tensor.metadata.TensorProperties")
	oldMemoryEncoding = pickle.Global("torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING")
)

// classes are what a .metadata may name.
var classes = []pickle.Global{
	metadataClass, tensorClass, valueClass, chunkClass, propertyClass, memoryEncoding, indexClass, storageInfo, storageMeta,
	layoutFunction, oldPropertyClass, oldMemoryEncoding, "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib._local.PosixPath",
	"pathlib._local.WindowsPath",
}

// metadata is what a .metadata says, checked.
type metadata struct {
	names   []string // in the order of the file
	entries map[string]*entry
}

// entry is a tensor, or a plain value where dtype is "".
type entry struct {
	name   string
	path   []any // keys of the nested dict: string or int64
	dtype  string
	shape  []int64
	chunks []chunk
	place  place // of a value
}

// chunk is a box of a tensor and where its bytes are.
type chunk struct {
	offsets, sizes []int64
	place          place
}

func (c chunk) empty() bool { return slices.Contains(c.sizes, 0) }

type place struct {
	file           string
	offset, length int64
}

func parseMetadata(data []byte) (*metadata, error) {
	root, err := pickle.Unpickle(data, classes)
	if err != nil {
		return nil, err
	}
	top, err := object(root, "the file", metadataClass)
	if err != nil {
		return nil, err
	}
	m := &metadata{entries: map[string]*entry{}}
	if err := m.readEntries(top); err != nil {
		return nil, err
	}
	if err := m.readPlaces(top); err != nil {
		return nil, err
	}
	if err := m.readPaths(top); err != nil {
		return nil, err
	}
	for _, name := range m.names {
		if err := m.entries[name].check(); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
	}
	return m, nil
}

func (m *metadata) readEntries(top *pickle.Object) error {
	list, err := dict(top, "state_dict_metadata")
	if err != nil {
		return err
	}
	for _, item := range list.Items {
		name, ok := item.Key.(string)
		if !ok {
			return fmt.Errorf("state_dict_metadata has a key that is no string")
		}
		if m.entries[name] != nil {
			return fmt.Errorf("%q is listed twice", name)
		}
		e := &entry{name: name}
		if err := e.read(item.Value); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		m.names, m.entries[name] = append(m.names, name), e
	}
	return nil
}

func (e *entry) read(v any) error {
	o, err := object(v, "its metadata", tensorClass, valueClass)
	if err != nil || o.Class == valueClass {
		return err
	}
	if e.shape, err = size(o, "size"); err != nil {
		return err
	}
	properties, _ := o.Get("properties")
	p, err := object(properties, "properties", propertyClass, oldPropertyClass)
	if err != nil {
		return err
	}
	fields, ok := p.State.(*pickle.Tuple)
	if !ok || len(fields.Items) == 0 {
		return fmt.Errorf("properties have no dtype")
	}
	dtype, _ := fields.Items[0].(pickle.Global)
	if e.dtype, ok = dtype.DType(); !ok {
		return fmt.Errorf("unknown dtype %q", string(dtype))
	}
	chunks, _ := o.Get("chunks")
	list, ok := chunks.(*pickle.List)
	if !ok {
		return fmt.Errorf("chunks are missing")
	}
	for _, item := range list.Items {
		box, err := object(item, "a chunk", chunkClass)
		if err != nil {
			return err
		}
		var c chunk
		if c.offsets, err = size(box, "offsets"); err != nil {
			return err
		}
		if c.sizes, err = size(box, "sizes"); err != nil {
			return err
		}
		e.chunks = append(e.chunks, c)
	}
	return nil
}

// readPlaces finds the bytes of every part.
func (m *metadata) readPlaces(top *pickle.Object) error {
	list, err := dict(top, "storage_data")
	if err != nil {
		return err
	}
	for _, item := range list.Items {
		index, err := object(item.Key, "a key of storage_data", indexClass)
		if err != nil {
			return err
		}
		name, _ := index.Get("fqn")
		e := m.entries[text(name)]
		if e == nil {
			return fmt.Errorf("storage_data has %q, which state_dict_metadata does not list", text(name))
		}
		info, err := object(item.Value, "a value of storage_data", storageInfo)
		if err != nil {
			return fmt.Errorf("%q: %w", e.name, err)
		}
		p, err := parsePlace(info)
		if err != nil {
			return fmt.Errorf("%q: %w", e.name, err)
		}
		if e.dtype == "" {
			e.place = p
			continue
		}
		at, _ := index.Get("offset")
		offsets, ok := pickle.Ints(at)
		if !ok {
			return fmt.Errorf("%q: a part without an offset", e.name)
		}
		i := slices.IndexFunc(e.chunks, func(c chunk) bool { return slices.Equal(c.offsets, offsets) && c.place.file == "" })
		if i < 0 {
			return fmt.Errorf("%q: storage_data has a part at %v, which chunks do not list", e.name, offsets)
		}
		e.chunks[i].place = p
	}
	return nil
}

func parsePlace(info *pickle.Object) (p place, err error) {
	path, _ := info.Get("relative_path")
	offset, _ := info.Get("offset")
	length, _ := info.Get("length")
	var ok1, ok2 bool
	p.file = text(path)
	p.offset, ok1 = offset.(int64)
	p.length, ok2 = length.(int64)
	switch transforms, _ := info.Get("transform_descriptors"); {
	case transforms != nil:
		return p, fmt.Errorf("the bytes in %q are compressed or otherwise transformed, which is not supported", p.file)
	case p.file == "" || !filepath.IsLocal(filepath.FromSlash(p.file)):
		return p, fmt.Errorf("file %q lies outside the folder", p.file)
	case !ok1 || !ok2 || p.offset < 0 || p.length < 0 || p.offset > math.MaxInt64-p.length:
		return p, fmt.Errorf("%v bytes at %v of %q", length, offset, p.file)
	}
	return p, nil
}

// readPaths takes the keys in; a checkpoint without them was a flat dict.
func (m *metadata) readPaths(top *pickle.Object) error {
	for _, name := range m.names {
		m.entries[name].path = []any{name}
	}
	v, _ := top.Get("planner_data")
	if v == nil {
		return nil
	}
	list, ok := v.(*pickle.Dict)
	if !ok {
		return fmt.Errorf("planner_data is no dict")
	}
	for _, item := range list.Items {
		name, _ := item.Key.(string)
		path, ok := item.Value.(*pickle.Tuple)
		if !ok || len(path.Items) == 0 {
			return fmt.Errorf("planner_data: %q has no keys", name)
		}
		for _, key := range path.Items {
			switch key.(type) {
			case string, int64:
			default:
				return fmt.Errorf("planner_data: %q has a key that is neither a string nor a number", name)
			}
		}
		if e := m.entries[name]; e != nil {
			e.path = path.Items
		}
	}
	return nil
}

// check makes sure that the parts lie in the tensor, cover it, and do not overlap.
func (e *entry) check() error {
	if e.dtype == "" {
		if e.place.file == "" {
			return fmt.Errorf("storage_data does not have it")
		}
		return nil
	}
	if _, err := safetensors.ByteSize(e.dtype, e.shape); err != nil {
		return err
	}
	want, _ := volume(e.shape)
	covered := int64(0)
	for _, c := range e.chunks {
		if len(c.offsets) != len(e.shape) || len(c.sizes) != len(e.shape) {
			return fmt.Errorf("a part of sizes %v at %v in shape %v", c.sizes, c.offsets, e.shape)
		}
		for d, n := range e.shape {
			if c.offsets[d] < 0 || c.sizes[d] < 0 || c.sizes[d] > n || c.offsets[d] > n-c.sizes[d] {
				return fmt.Errorf("a part of sizes %v at %v lies outside shape %v", c.sizes, c.offsets, e.shape)
			}
		}
		if c.empty() {
			continue
		}
		if c.place.file == "" {
			return fmt.Errorf("storage_data has no part at %v", c.offsets)
		}
		n, _ := volume(c.sizes)
		if n > want-covered {
			return fmt.Errorf("its parts overlap")
		}
		covered += n
	}
	if covered != want {
		return fmt.Errorf("its parts hold %d of %d elements", covered, want)
	}
	return e.checkOverlap()
}

// checkOverlap compares parts that share rows. Parts are few in every direction but the first.
func (e *entry) checkOverlap() error {
	list := slices.DeleteFunc(slices.Clone(e.chunks), chunk.empty)
	if len(e.shape) == 0 {
		return nil // one element, counted above
	}
	slices.SortFunc(list, func(a, b chunk) int { return slices.Compare(a.offsets, b.offsets) })
	const most = 1 << 26 // comparisons: no checkpoint comes near
	steps := 0
	for i, a := range list {
		for _, b := range list[i+1:] {
			if b.offsets[0] >= a.offsets[0]+a.sizes[0] {
				break
			}
			if steps++; steps > most {
				return fmt.Errorf("it has %d parts, too many to check", len(list))
			}
			if overlap(a, b) {
				return fmt.Errorf("its parts of sizes %v at %v and %v at %v overlap", a.sizes, a.offsets, b.sizes, b.offsets)
			}
		}
	}
	return nil
}

func overlap(a, b chunk) bool {
	for d := range a.offsets {
		if a.offsets[d] >= b.offsets[d]+b.sizes[d] || b.offsets[d] >= a.offsets[d]+a.sizes[d] {
			return false
		}
	}
	return true
}

// volume is the number of elements; ok is false where it overflows.
func volume(sizes []int64) (n int64, ok bool) {
	total := uint64(1)
	for _, d := range sizes {
		hi, lo := bits.Mul64(total, uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		total = lo
	}
	return int64(total), true
}

func object(v any, what string, want ...pickle.Global) (*pickle.Object, error) {
	o, ok := v.(*pickle.Object)
	if !ok || !slices.Contains(want, o.Class) {
		return nil, fmt.Errorf("%s is no %s", what, want[0])
	}
	return o, nil
}

func dict(o *pickle.Object, name string) (*pickle.Dict, error) {
	v, _ := o.Get(name)
	d, ok := v.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("%s is missing", name)
	}
	return d, nil
}

func size(o *pickle.Object, name string) ([]int64, error) {
	v, _ := o.Get(name)
	list, ok := pickle.Ints(v)
	if !ok {
		return nil, fmt.Errorf("%s is no torch.Size", name)
	}
	return list, nil
}

func text(v any) string {
	s, _ := v.(string)
	return s
}
