package modelio

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// DefaultMaxShardBytes is the size at which weights go into another file, when nothing else is said.
const DefaultMaxShardBytes = 5_000_000_000

// WeightsWriter streams the weights of a model folder: into model.safetensors, or into shards with an index. Write and
// WriteAt may be called from several goroutines.
type WeightsWriter struct {
	dir    string
	shards []*shard
	byName map[string]*shard
	total  int64
	names  []string
}

type shard struct {
	file  string
	specs []safetensors.Spec
	size  int64
	w     *safetensors.Writer
}

// CreateWeights lays the tensors out, in the order of specs, in files of at most maxShardBytes (0 stands for
// DefaultMaxShardBytes; a tensor is never cut). Nothing is visible before Commit.
func CreateWeights(dir string, specs []safetensors.Spec, maxShardBytes int64) (*WeightsWriter, error) {
	w, err := createWeights(dir, specs, maxShardBytes)
	if err != nil {
		return nil, fmt.Errorf("modelio: create weights: %w", err)
	}
	return w, nil
}

func createWeights(dir string, specs []safetensors.Spec, maxShardBytes int64) (*WeightsWriter, error) {
	if maxShardBytes <= 0 {
		maxShardBytes = DefaultMaxShardBytes
	}
	w := &WeightsWriter{dir: dir, byName: make(map[string]*shard, len(specs)), shards: []*shard{{}}}
	for _, spec := range specs {
		size, err := safetensors.ByteSize(spec.DType, spec.Shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", spec.Name, err)
		}
		if w.byName[spec.Name] != nil {
			return nil, fmt.Errorf("tensor %q is given twice", spec.Name)
		}
		s := w.shards[len(w.shards)-1]
		if len(s.specs) > 0 && size > maxShardBytes-s.size {
			s = &shard{}
			w.shards = append(w.shards, s)
		}
		s.specs = append(s.specs, spec)
		s.size += size
		w.total += size
		w.byName[spec.Name] = s
		w.names = append(w.names, spec.Name)
	}
	for i, s := range w.shards {
		s.file = WeightsName
		if len(w.shards) > 1 {
			s.file = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(w.shards))
		}
		var err error
		if s.w, err = safetensors.Create(filepath.Join(dir, s.file), s.specs, []safetensors.KV{{Key: "format", Value: "pt"}}); err != nil {
			w.Abort()
			return nil, err
		}
	}
	return w, nil
}

// TotalBytes gives the size of all tensors.
func (w *WeightsWriter) TotalBytes() int64 { return w.total }

// Write writes the whole of the named tensor.
func (w *WeightsWriter) Write(name string, data []byte) error {
	s := w.byName[name]
	if s == nil {
		return fmt.Errorf("modelio: write weights: the layout has no tensor %q", name)
	}
	return s.w.Write(name, data)
}

// WriteAt writes data at byte off of the named tensor.
func (w *WeightsWriter) WriteAt(name string, off int64, data []byte) error {
	s := w.byName[name]
	if s == nil {
		return fmt.Errorf("modelio: write weights: the layout has no tensor %q", name)
	}
	return s.w.WriteAt(name, off, data)
}

// Commit gives the files their names, the index last. Weights of the other layout (a single file beside an index) are
// removed, since readers would take the wrong ones.
func (w *WeightsWriter) Commit() error {
	defer w.Abort()
	for _, s := range w.shards {
		if err := s.w.Commit(); err != nil {
			return err
		}
	}
	stale := IndexName
	if len(w.shards) > 1 {
		if err := w.writeIndex(); err != nil {
			return err
		}
		stale = WeightsName
	}
	if err := os.Remove(filepath.Join(w.dir, stale)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("modelio: commit weights: remove the old %s: %w", stale, err)
	}
	return nil
}

func (w *WeightsWriter) writeIndex() error {
	weightMap := make(map[string]string, len(w.names))
	for _, name := range w.names {
		weightMap[name] = w.byName[name].file
	}
	data, err := json.MarshalIndent(map[string]any{
		"metadata":   map[string]any{"total_size": w.total},
		"weight_map": weightMap,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("modelio: commit weights: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(w.dir, IndexName), append(data, '\n')); err != nil {
		return fmt.Errorf("modelio: commit weights: %w", err)
	}
	return nil
}

// Abort drops the files that have not been committed. After Commit it does nothing.
func (w *WeightsWriter) Abort() {
	for _, s := range w.shards {
		if s.w != nil {
			s.w.Abort()
		}
	}
}
