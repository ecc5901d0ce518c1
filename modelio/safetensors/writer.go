package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
)

// Spec says what a tensor to be written looks like.
type Spec struct {
	Name  string
	DType string // the format's name, such as "F32" or "BF16"
	Shape []int64
}

// Writer streams tensors into a file of a fixed layout. Write and WriteAt may be called from several goroutines.
type Writer struct {
	path      string
	f         *atomicfile.File
	dataStart int64
	head      []byte
	entries   []entry
	index     map[string]int

	mu      sync.Mutex
	written []coverage // per entry
}

// Create lays out a file at path for the given tensors and opens it under a temporary name. The layout is the
// reference writer's (dtypes of wider alignment first, then by name), so the order of specs does not matter and equal
// contents give equal files. Metadata keeps its order. Call Commit or Abort in the end.
func Create(path string, specs []Spec, metadata []KV) (*Writer, error) {
	entries, err := layOut(specs)
	if err != nil {
		return nil, fmt.Errorf("safetensors: create %s: %w", path, err)
	}
	head, err := encodeHeader(entries, metadata)
	if err != nil {
		return nil, fmt.Errorf("safetensors: create %s: %w", path, err)
	}
	f, err := atomicfile.Create(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	w := &Writer{path: path, f: f, dataStart: int64(len(head)), head: head, entries: entries,
		index: make(map[string]int, len(entries)), written: make([]coverage, len(entries))}
	size := w.dataStart
	for i, e := range entries {
		w.index[e.name] = i
		size = w.dataStart + e.end
	}
	_, err = f.WriteAt(head, 0)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		f.Abort()
		return nil, fmt.Errorf("safetensors: create %s: %w", path, err)
	}
	return w, nil
}

// layOut sorts the tensors and gives them their offsets.
func layOut(specs []Spec) ([]entry, error) {
	entries := make([]entry, len(specs))
	for i, s := range specs {
		size, err := ByteSize(s.DType, s.Shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", s.Name, err)
		}
		if s.Name == metadataKey {
			return nil, fmt.Errorf("no tensor may be named %q", metadataKey)
		}
		entries[i] = entry{name: s.Name, dtype: s.DType, shape: slices.Clone(s.Shape), end: size}
	}
	sort.Slice(entries, func(i, j int) bool {
		if c := dtypeRank[entries[i].dtype] - dtypeRank[entries[j].dtype]; c != 0 {
			return c > 0
		}
		return entries[i].name < entries[j].name
	})
	next := int64(0)
	for i := range entries {
		e := &entries[i]
		if e.end > math.MaxInt64-MaxHeaderSize-8-next {
			return nil, fmt.Errorf("tensor %q: the file would be too large", e.name)
		}
		e.begin, e.end = next, next+e.end
		next = e.end
	}
	byName := make(map[string]bool, len(entries))
	for _, e := range entries {
		if byName[e.name] {
			return nil, fmt.Errorf("tensor %q is given twice", e.name)
		}
		byName[e.name] = true
	}
	return entries, nil
}

// encodeHeader gives the length prefix and the JSON text, padded with spaces so that the data is 8-byte aligned.
func encodeHeader(entries []entry, metadata []KV) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	if metadata != nil {
		b.WriteString(quote(metadataKey) + ":{")
		for i, kv := range metadata {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quote(kv.Key) + ":" + quote(kv.Value))
		}
		b.WriteByte('}')
	}
	for i, e := range entries {
		if i > 0 || metadata != nil {
			b.WriteByte(',')
		}
		shape := strings.ReplaceAll(strings.Trim(fmt.Sprint(e.shape), "[]"), " ", ",")
		fmt.Fprintf(&b, `%s:{"dtype":%q,"shape":[%s],"data_offsets":[%d,%d]}`, quote(e.name), e.dtype, shape, e.begin, e.end)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	n := b.Len() - 8
	if n > MaxHeaderSize {
		return nil, fmt.Errorf("the header of %d bytes is over the limit of %d", n, MaxHeaderSize)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(n))
	return b.Bytes(), nil
}

// quote writes s as a JSON string without the HTML escapes that Go adds by default.
func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}

// Header gives the bytes before the first tensor's.
func (w *Writer) Header() []byte { return w.head }

// Names lists the tensors in the order in which their bytes lie in the file, without gaps, after the header.
func (w *Writer) Names() []string {
	names := make([]string, len(w.entries))
	for i, e := range w.entries {
		names[i] = e.name
	}
	return names
}

// Write writes the whole of the named tensor.
func (w *Writer) Write(name string, data []byte) error {
	i, ok := w.index[name]
	if ok {
		if want := w.entries[i].end - w.entries[i].begin; int64(len(data)) != want {
			return fmt.Errorf("safetensors: write %s: tensor %q takes %d bytes, got %d", w.path, name, want, len(data))
		}
	}
	return w.WriteAt(name, 0, data)
}

// WriteAt writes data at byte off of the named tensor.
func (w *Writer) WriteAt(name string, off int64, data []byte) error {
	i, ok := w.index[name]
	if !ok {
		return fmt.Errorf("safetensors: write %s: the layout has no tensor %q", w.path, name)
	}
	e := w.entries[i]
	size := e.end - e.begin
	if off < 0 || off > size || int64(len(data)) > size-off {
		return fmt.Errorf("safetensors: write %s: bytes [%d,%d) lie outside tensor %q of %d bytes",
			w.path, off, off+int64(len(data)), name, size)
	}
	if _, err := w.f.WriteAt(data, w.dataStart+e.begin+off); err != nil {
		return fmt.Errorf("safetensors: write %s: tensor %q at byte %d: %w", w.path, name, off, err)
	}
	w.mu.Lock()
	w.written[i].add(off, off+int64(len(data)))
	w.mu.Unlock()
	return nil
}

// Commit checks that every byte has been written, flushes the file and gives it its name. When it fails, nothing is
// left behind.
func (w *Writer) Commit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var missing []error
	for i, e := range w.entries {
		if at := w.written[i].firstGap(e.end - e.begin); at >= 0 && len(missing) < 5 {
			missing = append(missing, fmt.Errorf("tensor %q has not been written from byte %d on", e.name, at))
		}
	}
	if len(missing) > 0 {
		w.f.Abort()
		return fmt.Errorf("safetensors: commit %s: %w", w.path, errors.Join(missing...))
	}
	if err := w.f.Commit(); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// Abort drops the file. After Commit it does nothing, so that it can be deferred.
func (w *Writer) Abort() { w.f.Abort() }

// coverage is a sorted list of disjoint ranges [from,to).
type coverage [][2]int64

func (c *coverage) add(from, to int64) {
	if from == to {
		return
	}
	s := *c
	i := sort.Search(len(s), func(i int) bool { return s[i][1] >= from })
	j := i
	for ; j < len(s) && s[j][0] <= to; j++ {
		from, to = min(from, s[j][0]), max(to, s[j][1])
	}
	*c = slices.Replace(s, i, j, [2]int64{from, to})
}

// firstGap gives the first byte below size that is not covered, -1 when there is none.
func (c coverage) firstGap(size int64) int64 {
	switch {
	case size == 0:
		return -1
	case len(c) == 0 || c[0][0] > 0:
		return 0
	case c[0][1] < size:
		return c[0][1]
	}
	return -1
}
