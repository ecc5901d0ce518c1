package dcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"unsafe"

	"github.com/gofsdp/gofsdp/modelio/internal/mmap"
	"github.com/gofsdp/gofsdp/modelio/pickle"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// MetadataName is the file that makes a folder complete.
const MetadataName = ".metadata"

// Verify is asked before bytes lo to hi of a file of the folder are used; whole is the mapped file.
type Verify func(file string, whole []byte, lo, hi int64) error

// Folder is an open folder. Its methods may be called from several goroutines; Close must come after the last use of any
// bytes.
type Folder struct {
	dir    string
	meta   *metadata
	verify Verify

	mu    sync.Mutex
	files map[string]*mmap.Mapping
}

// Is tells whether dir holds a complete folder of torch.distributed.checkpoint.
func Is(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, MetadataName))
	return err == nil && info.Mode().IsRegular()
}

// Open reads the metadata of a folder and maps its files, all of which must be there and long enough. verify may be nil.
func Open(dir string, verify Verify) (*Folder, error) {
	f := &Folder{dir: dir, verify: verify, files: map[string]*mmap.Mapping{}}
	if err := f.open(); err != nil {
		f.Close()
		return nil, fmt.Errorf("dcp: open %s: %w", dir, err)
	}
	return f, nil
}

func (f *Folder) open() error {
	path := filepath.Join(f.dir, MetadataName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it has no %s: it is incomplete, or no folder of torch.distributed.checkpoint: %w", MetadataName, err)
	}
	if err != nil {
		return err
	}
	if f.verify != nil {
		if err := f.verify(MetadataName, data, 0, int64(len(data))); err != nil {
			return err
		}
	}
	if f.meta, err = parseMetadata(data); err != nil {
		return fmt.Errorf("%s: %w", MetadataName, err)
	}
	for _, name := range f.meta.names {
		e := f.meta.entries[name]
		places := []place{e.place}
		for _, c := range e.chunks {
			places = append(places, c.place)
		}
		for _, p := range places {
			if p.file == "" {
				continue
			}
			if err := f.mapFile(p); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
	}
	return nil
}

func (f *Folder) mapFile(p place) error {
	m := f.files[p.file]
	if m == nil {
		var err error
		if m, err = mmap.Open(filepath.Join(f.dir, filepath.FromSlash(p.file))); err != nil {
			return err
		}
		f.files[p.file] = m
	}
	if have := int64(len(m.Bytes())); p.offset+p.length > have {
		return fmt.Errorf("%s has %d bytes, bytes %d to %d are wanted: it is cut off", p.file, have, p.offset, p.offset+p.length)
	}
	return nil
}

// Dir is the folder's path.
func (f *Folder) Dir() string { return f.dir }

// Files lists the names of the data files.
func (f *Folder) Files() []string {
	var list []string
	for name := range f.files {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// Close unmaps the files.
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, name := range f.Files() {
		errs = append(errs, f.files[name].Close())
	}
	f.files = map[string]*mmap.Mapping{}
	return errors.Join(errs...)
}

// Item is what a folder says of one name.
type Item struct {
	Name string
	// Path are the keys that lead to it in the nested dict that was saved: strings, and int64 for places in lists.
	Path   []any
	Tensor *Tensor // nil for a plain value, which Value reads
}

// Items lists everything in the order of the metadata.
func (f *Folder) Items() []Item {
	var list []Item
	for _, name := range f.meta.names {
		e := f.meta.entries[name]
		item := Item{Name: name, Path: slices.Clone(e.path)}
		if e.dtype != "" {
			item.Tensor = &Tensor{DType: e.dtype, Shape: slices.Clone(e.shape), entry: e, folder: f, parts: make([]*pickle.Tensor, len(e.chunks))}
		}
		list = append(list, item)
	}
	return list
}

// Tensor gives the tensor of a name.
func (f *Folder) Tensor(name string) (*Tensor, error) {
	for _, item := range f.Items() {
		if item.Name == name && item.Tensor != nil {
			return item.Tensor, nil
		}
	}
	return nil, fmt.Errorf("dcp: %s holds no tensor %q", f.dir, name)
}

// Value reads a plain value, as package pickle gives them: float64, int64, bool, string, nil, *pickle.Tuple, …
func (f *Folder) Value(name string) (any, error) {
	e := f.meta.entries[name]
	if e == nil || e.dtype != "" {
		return nil, fmt.Errorf("dcp: %s holds no value %q", f.dir, name)
	}
	file, err := f.item(e.place)
	if err != nil {
		return nil, fmt.Errorf("dcp: %s: %q: %w", f.dir, name, err)
	}
	return file.Root(), nil
}

// item parses what torch.save wrote in a range of bytes.
func (f *Folder) item(p place) (*pickle.File, error) {
	f.mu.Lock()
	m := f.files[p.file]
	f.mu.Unlock()
	if m == nil {
		return nil, errors.New("the folder is closed")
	}
	return pickle.Parse(fmt.Sprintf("%s, bytes %d to %d", p.file, p.offset, p.offset+p.length), m.Bytes()[p.offset:p.offset+p.length])
}

// Tensor is a stored tensor.
type Tensor struct {
	DType string  // safetensors' name
	Shape []int64 // empty for a scalar

	entry  *entry
	folder *Folder
	mu     sync.Mutex
	parts  []*pickle.Tensor // of the chunks, once read
}

// part gives the bytes' owner of a chunk, checked against the metadata.
func (t *Tensor) part(i int) (*pickle.Tensor, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parts[i] != nil {
		return t.parts[i], nil
	}
	c := t.entry.chunks[i]
	// What describes the tensor is in the first and the last bytes; the others are verified as they are read.
	if err := t.verify(c.place, 0, min(c.place.length, 4096)); err != nil {
		return nil, err
	}
	if err := t.verify(c.place, max(0, c.place.length-4096), c.place.length); err != nil {
		return nil, err
	}
	file, err := t.folder.item(c.place)
	if err != nil {
		return nil, err
	}
	p, err := file.Tensor("")
	if err != nil {
		return nil, err
	}
	if p.DType != t.DType || !slices.Equal(p.Shape, c.sizes) {
		return nil, fmt.Errorf("%s holds %s%v, the metadata says %s%v", file.Path(), p.DType, p.Shape, t.DType, c.sizes)
	}
	t.parts[i] = p
	return p, nil
}

// verify asks about bytes lo to hi of a place.
func (t *Tensor) verify(p place, lo, hi int64) error {
	if t.folder.verify == nil {
		return nil
	}
	return t.folder.verify(p.file, t.folder.files[p.file].Bytes(), p.offset+lo, p.offset+hi)
}

func (t *Tensor) rowCount() int64 {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[0]
}

// Rows gives the bytes of rows lo up to, not including, hi along dimension 0; a scalar counts as one row. They are the
// mapped file's own (read-only) where one part holds just these rows, and put together in fresh memory elsewhere.
func (t *Tensor) Rows(lo, hi int64) ([]byte, error) {
	b, err := t.rows(lo, hi)
	if err != nil {
		return nil, fmt.Errorf("dcp: %s: %q: %w", t.folder.dir, t.entry.name, err)
	}
	return b, nil
}

func (t *Tensor) rows(lo, hi int64) ([]byte, error) {
	if lo < 0 || hi < lo || hi > t.rowCount() {
		return nil, fmt.Errorf("rows %d to %d of shape %v are out of range", lo, hi, t.Shape)
	}
	width := int64(safetensors.BitsPerElement(t.DType) / 8)
	row := width
	if len(t.Shape) > 0 {
		n, _ := volume(t.Shape[1:])
		row *= n
	}
	if lo == hi || row == 0 {
		return nil, nil
	}
	var out []byte
	for i, c := range t.entry.chunks {
		if c.empty() {
			continue
		}
		from, to := int64(0), int64(1) // of the chunk
		at := int64(0)
		if len(t.Shape) > 0 {
			from, to = max(lo, c.offsets[0]), min(hi, c.offsets[0]+c.sizes[0])
			if from >= to {
				continue
			}
			at = from - lo
			from, to = from-c.offsets[0], to-c.offsets[0]
		}
		p, err := t.part(i)
		if err != nil {
			return nil, err
		}
		data, err := p.Rows(from, to)
		if err != nil {
			return nil, err
		}
		if err := t.verifyData(c.place, data); err != nil {
			return nil, err
		}
		if len(t.Shape) == 0 || to-from == hi-lo && slices.Equal(c.sizes[1:], t.Shape[1:]) {
			return data, nil
		}
		if out == nil {
			out = make([]byte, (hi-lo)*row)
		}
		copyBox(out[at*row:], data, to-from, c, t.Shape, width)
	}
	return out, nil
}

// verifyData asks about bytes that lie in the mapped file; a copy of a tensor that does not lie there row by row was made
// of the whole part.
func (t *Tensor) verifyData(p place, data []byte) error {
	if t.folder.verify == nil || len(data) == 0 {
		return nil
	}
	if off, ok := t.folder.offset(p, data); ok {
		return t.folder.verify(p.file, t.folder.files[p.file].Bytes(), off, off+int64(len(data)))
	}
	return t.verify(p, 0, p.length)
}

// offset is where in the file of p data lies, if it does.
func (f *Folder) offset(p place, data []byte) (int64, bool) {
	whole := f.files[p.file].Bytes()
	off := uintptr(unsafe.Pointer(unsafe.SliceData(data))) - uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return int64(off), off < uintptr(len(whole))
}

// copyBox copies rows of a part that may be narrower than the tensor in other dimensions than 0.
func copyBox(dst, src []byte, rows int64, c chunk, shape []int64, width int64) {
	sizes := append([]int64{rows}, c.sizes[1:]...)
	var walk func(d int, dst, src []byte)
	walk = func(d int, dst, src []byte) {
		dstRow, srcRow := width, width
		for i := d + 1; i < len(shape); i++ {
			dstRow, srcRow = dstRow*shape[i], srcRow*sizes[i]
		}
		start := int64(0)
		if d > 0 {
			start = c.offsets[d]
		}
		if dstRow == srcRow { // the rest is whole
			copy(dst[start*dstRow:], src[:sizes[d]*srcRow])
			return
		}
		for i := range sizes[d] {
			walk(d+1, dst[(start+i)*dstRow:], src[i*srcRow:])
		}
	}
	walk(0, dst, src)
}

// Release hands the pages under bytes that Rows gave back to the system; they stay readable.
func (t *Tensor) Release(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	for _, c := range t.entry.chunks {
		if m := t.folder.files[c.place.file]; m != nil {
			if off, ok := t.folder.offset(c.place, data); ok {
				return m.Release(int(off), len(data))
			}
		}
	}
	return nil
}
