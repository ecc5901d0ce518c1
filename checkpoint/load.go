package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/torch"
)

// shardingKey names the metadata entry of a shard: JSON that maps each tensor to its offsets.
const shardingKey = "DCP_SHARDING_INFO"

type offsets struct {
	SavedOffsets []int64 `json:"saved_offsets"`
}

// ErrWorldSize is in the error of LoadRankState where the number of ranks is another one than at the save.
var ErrWorldSize = errors.New("the number of ranks has changed")

// Checkpoint is a complete checkpoint, open for reading. Its methods may be called from several goroutines; ranks of one
// process may share it.
type Checkpoint struct {
	dir      string
	manifest Manifest
	source   source

	mu      sync.Mutex
	closers []func() error
	kinds   map[Kind]*index
}

// index is what the files of one kind hold together.
type index struct {
	names   []string // in the order of the files
	tensors map[string]*stored
}

// stored is a tensor in the files; its chunks are sorted by their rows, which cover all.
type stored struct {
	name   string
	dtype  string
	shape  []int64
	chunks []chunk
}

// chunk is a range of rows that one file, or folder of PyTorch's, holds.
type chunk struct {
	lo, hi int64
	path   string
	src    rows
}

// rows gives the bytes of rows, counted from the chunk's first, and takes them back. A scalar is one row.
type rows interface {
	rows(lo, hi int64) ([]byte, error)
	release(data []byte) error
}

// shardRows are the rows of a tensor in a safetensors file.
type shardRows struct {
	file  *safetensors.File
	view  safetensors.View
	check *verifier
}

func (s shardRows) rows(lo, hi int64) ([]byte, error) {
	part := s.view
	if len(part.Shape) > 0 {
		part.Data = s.view.Rows(lo, hi)
	}
	if len(part.Data) == 0 {
		return nil, nil
	}
	at := s.file.Offset(part)
	return part.Data, s.check.check(s.file.Bytes(), at, at+int64(len(part.Data)))
}

func (s shardRows) release(data []byte) error {
	return s.file.Release(safetensors.View{Name: s.view.Name, Data: data})
}

// TensorInfo describes a whole tensor in a checkpoint.
type TensorInfo struct {
	Name  string
	DType torch.DType
	Shape []int64
}

// Open opens the checkpoint in the folder dir: one of this package, or one that Accelerate or the Trainer of transformers
// has written with SHARDED_STATE_DICT (pytorch_model_fsdp_0 and optimizer_0) or FULL_STATE_DICT (pytorch_model_fsdp.bin and
// optimizer.bin). A checkpoint with a missing or cut file gives ErrIncomplete. Other faults in the files of this package are
// noticed when the bytes are loaded, by their checksums: ErrDamaged.
func Open(dir string) (*Checkpoint, error) {
	m, src, err := readManifest(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: open: %w", err)
	}
	return &Checkpoint{dir: dir, manifest: m, source: src, kinds: map[Kind]*index{}}, nil
}

// Dir is the folder.
func (c *Checkpoint) Dir() string { return c.dir }

// Info is the manifest.
func (c *Checkpoint) Info() Manifest { return c.manifest }

// Close unmaps the files. Loaded tensors do not depend on them.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, f := range c.closers {
		errs = append(errs, f())
	}
	c.closers, c.kinds = nil, map[Kind]*index{}
	return errors.Join(errs...)
}

// ReadTrainer decodes the trainer's state into what into points to. Where none was saved, the error wraps os.ErrNotExist.
func (c *Checkpoint) ReadTrainer(into any) error {
	path := filepath.Join(c.dir, trainerName)
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, f := range c.manifest.Files {
		if f.Path == trainerName && f.CRC32C != "" && f.CRC32C != checksum(data) {
			return fmt.Errorf("checkpoint: %s: %w", path, ErrDamaged)
		}
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return nil
}

// Tensors lists what the checkpoint holds of a kind, Model or Optimizer, in the order of the files.
func (c *Checkpoint) Tensors(kind Kind) ([]TensorInfo, error) {
	x, err := c.index(kind)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	list := make([]TensorInfo, len(x.names))
	for i, name := range x.names {
		t := x.tensors[name]
		dtype, err := torch.ParseDType(t.dtype)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %s: tensor %q: %w", t.chunks[0].path, name, err)
		}
		list[i] = TensorInfo{Name: name, DType: dtype, Shape: slices.Clone(t.shape)}
	}
	return list, nil
}

// SkipChecksums makes loading as quick as the copy alone, for files that were checked by other means. Call it first.
func (c *Checkpoint) SkipChecksums() {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := slices.Clone(c.manifest.Files)
	for i := range files {
		files[i].CRC32C = ""
	}
	c.manifest.Files = files
}

// Drop forgets tensors that the checkpoint may hold and Load shall not ask for, such as the second name of a tied parameter.
func (c *Checkpoint) Drop(kind Kind, names ...string) error {
	x, err := c.index(kind)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		delete(x.tensors, name)
	}
	x.names = slices.DeleteFunc(x.names, func(name string) bool { return slices.Contains(names, name) })
	return nil
}

// Load fills the rows that each entry names, in place, from whichever shards hold them: the number of ranks and their rows
// need not be those of the save. The entries must be exactly the checkpoint's tensors, with the same shapes and dtypes;
// that is checked before the first one is changed. Load needs no communication: use Agree to tell the other ranks.
func (c *Checkpoint) Load(ctx context.Context, kind Kind, entries []Entry) error {
	if err := c.load(ctx, kind, entries); err != nil {
		return fmt.Errorf("checkpoint: load the %s from %s: %w", kind, c.dir, err)
	}
	return nil
}

func (c *Checkpoint) load(ctx context.Context, kind Kind, entries []Entry) error {
	x, err := c.index(kind)
	if err != nil {
		return err
	}
	return x.fill(ctx, kind, entries)
}

// LoadRankState fills the entries with what the same rank saved. Where the number of ranks is another one than at the
// save, the error wraps ErrWorldSize and nothing is changed.
func (c *Checkpoint) LoadRankState(ctx context.Context, rank, worldSize int, entries []Entry) error {
	if err := c.loadRankState(ctx, rank, worldSize, entries); err != nil {
		return fmt.Errorf("checkpoint: load the state of rank %d from %s: %w", rank, c.dir, err)
	}
	return nil
}

func (c *Checkpoint) loadRankState(ctx context.Context, rank, worldSize int, entries []Entry) error {
	switch {
	case c.Foreign():
		return fmt.Errorf("%w: another program wrote the checkpoint, whose random states mean nothing here", ErrWorldSize)
	case worldSize != c.manifest.WorldSize:
		return fmt.Errorf("%w: %d ranks saved, now there are %d", ErrWorldSize, c.manifest.WorldSize, worldSize)
	}
	x := &index{tensors: map[string]*stored{}}
	for _, f := range c.manifest.Files {
		if f.Kind != RankState || f.Rank != rank {
			continue
		}
		file, check, err := openShard(c.dir, f)
		if err != nil {
			return err
		}
		defer file.Close()
		for name, v := range file.All() {
			x.names = append(x.names, name)
			x.tensors[name] = &stored{name: name, dtype: v.DType, shape: v.Shape,
				chunks: []chunk{{0, rowsOf(v.Shape), file.Path(), shardRows{file, v, check}}}}
		}
	}
	return x.fill(ctx, RankState, entries)
}

// openShard opens a file of this package and checks its header.
func openShard(dir string, f File) (*safetensors.File, *verifier, error) {
	path := filepath.Join(dir, filepath.FromSlash(f.Path))
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, damaged(path, f, err)
	}
	check, err := f.verifier(path)
	if err == nil {
		err = check.check(file.Bytes(), 0, file.HeaderSize())
	}
	if n := len(file.Names()); err == nil && n != f.Tensors {
		err = fmt.Errorf("%s holds %d tensors, the manifest says %d: %w", path, n, f.Tensors, ErrIncomplete)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, check, nil
}

// damaged adds to the error about a file's form that its bytes have changed, if so.
func damaged(path string, f File, err error) error {
	data, failed := os.ReadFile(path)
	if failed == nil && f.CRC32C != "" && checksum(data) != f.CRC32C {
		return fmt.Errorf("%w: %w", err, ErrDamaged)
	}
	return err
}

// verifier is that of the file's checksums; nil if it has none.
func (f File) verifier(path string) (*verifier, error) {
	if f.CRC32C == "" {
		return nil, nil
	}
	v, err := newVerifier(path, f.CRC32C, f.Size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// index maps the files of a kind and joins what they hold, once.
func (c *Checkpoint) index(kind Kind) (*index, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.kinds[kind]; x != nil {
		return x, nil
	}
	x := &index{tensors: map[string]*stored{}}
	if err := c.source(c, kind, x); err != nil {
		return nil, err
	}
	for _, name := range x.names {
		if err := x.tensors[name].close(); err != nil {
			return nil, err
		}
	}
	c.kinds[kind] = x
	return x, nil
}

// source finds the tensors of a kind in the files.
type source func(c *Checkpoint, kind Kind, x *index) error

func (c *Checkpoint) indexShards(kind Kind, x *index) error {
	for _, f := range c.manifest.Files {
		if f.Kind != kind {
			continue
		}
		file, check, err := openShard(c.dir, f)
		if err != nil {
			return err
		}
		c.closers = append(c.closers, file.Close)
		if err := x.add(file, check); err != nil {
			return fmt.Errorf("%s: %w", file.Path(), err)
		}
	}
	return nil
}

// add takes the chunks of one file in.
func (x *index) add(file *safetensors.File, check *verifier) error {
	text, ok := file.MetadataValue(shardingKey)
	if !ok {
		return fmt.Errorf("its header has no %s", shardingKey)
	}
	info := map[string]offsets{}
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return fmt.Errorf("%s: %w", shardingKey, err)
	}
	for name, v := range file.All() {
		at, ok := info[name]
		if !ok {
			return fmt.Errorf("tensor %q: %s does not list it", name, shardingKey)
		}
		rows, lo := rowsOf(v.Shape), int64(0)
		if len(at.SavedOffsets) != len(v.Shape) {
			return fmt.Errorf("tensor %q: %d offsets for shape %v", name, len(at.SavedOffsets), v.Shape)
		}
		for dim, o := range at.SavedOffsets {
			if dim == 0 {
				lo = o
			}
			if o < 0 || o > math.MaxInt64-rows || dim > 0 && o != 0 {
				return fmt.Errorf("tensor %q: offsets %v: only dimension 0 may be sharded", name, at.SavedOffsets)
			}
		}
		t := x.tensors[name]
		if t == nil {
			t = &stored{name: name, dtype: v.DType, shape: slices.Clone(v.Shape)}
			x.tensors[name], x.names = t, append(x.names, name)
		}
		if t.dtype != v.DType || len(t.shape) != len(v.Shape) || len(v.Shape) > 0 && !slices.Equal(t.shape[1:], v.Shape[1:]) {
			return fmt.Errorf("tensor %q: %s%v does not continue %s%v of %s", name, v.DType, v.Shape, t.dtype, t.shape, t.chunks[0].path)
		}
		t.chunks = append(t.chunks, chunk{lo, lo + rows, file.Path(), shardRows{file, v, check}})
	}
	return nil
}

// close sorts the chunks and checks that they leave no row out.
func (t *stored) close() error {
	slices.SortStableFunc(t.chunks, func(a, b chunk) int { return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(a.hi, b.hi)) })
	next := int64(0)
	for _, c := range t.chunks {
		if c.lo != next {
			return fmt.Errorf("%s: tensor %q: rows %d to %d follow rows up to %d", c.path, t.name, c.lo, c.hi, next)
		}
		next = c.hi
	}
	if len(t.shape) > 0 {
		t.shape[0] = next
	}
	return nil
}

// fill checks all entries, then copies.
func (x *index) fill(ctx context.Context, kind Kind, entries []Entry) error {
	items, err := describeAll(kind, entries)
	if err != nil {
		return err
	}
	var faults faults
	wanted := make(map[string]bool, len(items))
	for _, it := range items {
		wanted[it.Name] = true
		t := x.tensors[it.Name]
		switch {
		case t == nil:
			faults.add(fmt.Errorf("tensor %q is missing: no %s file holds it", it.Name, kind))
		case t.dtype != it.DType || !slices.Equal(t.shape, it.Shape):
			faults.add(fmt.Errorf("tensor %q is %s%v here, %s%v in %s", it.Name, it.DType, it.Shape, t.dtype, t.shape, t.chunks[0].path))
		}
	}
	for _, name := range x.names {
		if !wanted[name] {
			faults.add(fmt.Errorf("tensor %q of %s is unexpected: nothing here has that name", name, x.tensors[name].chunks[0].path))
		}
	}
	if err := faults.err(); err != nil {
		return err
	}
	for i, it := range items {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := x.tensors[it.Name].copyTo(entries[i].Tensor, it.Lo, it.Hi); err != nil {
			return fmt.Errorf("tensor %q: %w", it.Name, err)
		}
	}
	return nil
}

// piece is a range of rows of a chunk, counted in the tensor, and its bytes.
type piece struct {
	chunk
	from, to int64
	src      []byte
	err      error
}

// pieces gives rows lo to hi in small ranges.
func (t *stored) pieces(lo, hi int64) (list []piece) {
	step := t.pieceRows()
	for _, c := range t.chunks {
		end := min(hi, c.hi)
		for from := max(lo, c.lo); from < end; from += step {
			list = append(list, piece{chunk: c, from: from, to: min(from+step, end)})
		}
	}
	return list
}

// read fetches and checks the bytes in another goroutine.
func (p piece) read() <-chan piece {
	done := make(chan piece, 1)
	go func() {
		p.src, p.err = p.chunk.src.rows(p.from-p.lo, p.to-p.lo)
		done <- p
	}()
	return done
}

// copyTo copies rows lo to hi into dst. While one piece is copied, the next one is read and its checksum compared.
func (t *stored) copyTo(dst *torch.Tensor, lo, hi int64) error {
	list := t.pieces(lo, hi)
	if len(list) == 0 {
		return nil
	}
	next := list[0].read()
	for i := range list {
		p := <-next
		if p.err != nil {
			return p.err
		}
		if i+1 < len(list) {
			next = list[i+1].read()
		}
		if len(p.src) == 0 {
			continue
		}
		err := torch.Try(func() { copyRows(dst, p.src, p.from-lo, p.to-p.from) })
		if err != nil {
			err = fmt.Errorf("copy rows %d to %d from %s: %w", p.from, p.to, p.path, err)
		} else {
			err = p.chunk.src.release(p.src)
		}
		if err != nil {
			if i+1 < len(list) {
				<-next // nobody reads when the files are closed
			}
			return err
		}
	}
	return nil
}

// pieceRows is how many rows are about as large as a block of checksums.
func (t *stored) pieceRows() int64 {
	if len(t.shape) == 0 {
		return 1
	}
	row, err := safetensors.ByteSize(t.dtype, t.shape[1:])
	if err != nil || row == 0 {
		return max(1, t.shape[0])
	}
	return max(1, blockSize/row)
}

// copyRows writes rows of dst. Autograd does not hear of it: nothing may wait for a backward that needs the old values.
func copyRows(dst *torch.Tensor, src []byte, at, rows int64) {
	torch.NoGrad(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		part := dst.In(s).VariableData()
		shape := part.Shape()
		if len(shape) > 0 {
			part = part.Narrow(0, at, rows)
			shape[0] = rows
		}
		part.Copy(s.Own(torch.FromMemory(dst.DType(), src, func() {}, shape...)))
	})
}
