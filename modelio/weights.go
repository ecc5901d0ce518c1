package modelio

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/modelio/pickle"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// Names of the weight files in a model folder.
const (
	WeightsName = "model.safetensors"
	IndexName   = "model.safetensors.index.json"

	// PyTorch's own files, read where there is no safetensors file.
	PickleName      = "pytorch_model.bin"
	PickleIndexName = "pytorch_model.bin.index.json"
)

// Weights are the tensors of a model, from one file or many.
type Weights struct {
	path    string
	names   []string
	views   map[string]View
	closers []func() error
}

// OpenWeights maps the weights of a model folder: model.safetensors, or the shards that its index names; failing these,
// pytorch_model.bin or its shards, which package pickle reads without running anything of them. Every file and every
// tensor of an index must be there. A model with tied embeddings may lack lm_head.weight.
func OpenWeights(dir string) (*Weights, error) {
	w := &Weights{path: dir, views: map[string]View{}}
	err := w.openFolder(dir)
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("modelio: open weights: %w", err)
	}
	return w, nil
}

func (w *Weights) openFolder(dir string) error {
	for _, format := range []struct {
		single, index string
		add           func(path string, wanted []string) error
	}{{WeightsName, IndexName, w.addFile}, {PickleName, PickleIndexName, w.addPickle}} {
		single := filepath.Join(dir, format.single)
		if _, err := os.Stat(single); err == nil {
			return format.add(single, nil)
		}
		index := filepath.Join(dir, format.index)
		data, err := os.ReadFile(index)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		shards, err := parseIndex(data)
		if err != nil {
			return fmt.Errorf("%s: %w", index, err)
		}
		for _, shard := range slices.Sorted(maps.Keys(shards)) {
			if err := format.add(filepath.Join(dir, shard), shards[shard]); err != nil {
				return fmt.Errorf("%s names %s: %w", index, shard, err)
			}
		}
		return nil
	}
	return fmt.Errorf("%s has neither %s nor %s, and no %s either", dir, WeightsName, IndexName, PickleName)
}

// parseIndex gives the tensors that each shard must hold.
func parseIndex(data []byte) (map[string][]string, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line, column := position(data, syntax.Offset)
			return nil, fmt.Errorf("line %d column %d: %w", line, column, err)
		}
		return nil, err
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	shards := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(index.WeightMap)) {
		shard := index.WeightMap[name]
		if !filepath.IsLocal(shard) {
			return nil, fmt.Errorf("weight_map: tensor %q is said to be in %q, which is not in the folder", name, shard)
		}
		shards[shard] = append(shards[shard], name)
	}
	return shards, nil
}

// addFile adds the wanted tensors of a file in file order; nil wants all.
func (w *Weights) addFile(path string, wanted []string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, f.Close)
	if err := holds(f, wanted); err != nil {
		return err
	}
	for name, v := range f.All() {
		w.add(wanted, View{Name: name, DType: v.DType, Shape: v.Shape, src: mapped{f, v}})
	}
	return nil
}

// addPickle is addFile for PyTorch's files.
func (w *Weights) addPickle(path string, wanted []string) error {
	f, err := pickle.Open(path)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, f.Close)
	if err := holds(f, wanted); err != nil {
		return err
	}
	for name, t := range f.All() {
		w.add(wanted, View{Name: name, DType: t.DType, Shape: t.Shape, src: pickled{name, t}})
	}
	return nil
}

// holds checks that a file has the tensors that an index promises.
func holds(f interface{ Has(string) bool }, wanted []string) error {
	for _, name := range wanted {
		if !f.Has(name) {
			return fmt.Errorf("it holds no tensor %q", name)
		}
	}
	return nil
}

// add adds a tensor if it is wanted; wanted is sorted, nil wants all.
func (w *Weights) add(wanted []string, v View) {
	if wanted != nil {
		if _, ok := slices.BinarySearch(wanted, v.Name); !ok {
			return
		}
	}
	w.names = append(w.names, v.Name)
	w.views[v.Name] = v
}

// Names lists the tensors: file by file, in the order in which they are stored.
func (w *Weights) Names() []string { return slices.Clone(w.names) }

// Has tells whether there is a tensor of that name.
func (w *Weights) Has(name string) bool {
	_, ok := w.views[name]
	return ok
}

// Tensor gives a view of the named tensor.
func (w *Weights) Tensor(name string) (View, error) {
	v, ok := w.views[name]
	if !ok {
		return View{}, fmt.Errorf("modelio: %s holds no tensor %q", w.path, name)
	}
	return v, nil
}

// Close unmaps the files. Views must not be used any more.
func (w *Weights) Close() error {
	var errs []error
	for _, c := range w.closers {
		errs = append(errs, c())
	}
	w.closers = nil
	return errors.Join(errs...)
}

// Model is a model on disk, opened for reading.
type Model struct {
	Path    string
	Config  *Config
	Weights *Weights
}

// Open opens a model folder, or a .gguf file as if it were one.
func Open(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("modelio: open model: %w", err)
	}
	if !info.IsDir() {
		if filepath.Ext(path) != ".gguf" {
			return nil, fmt.Errorf("modelio: open model: %s is neither a folder nor a .gguf file", path)
		}
		return openGGUF(path)
	}
	config, err := ReadConfig(path)
	if err != nil {
		return nil, err
	}
	weights, err := OpenWeights(path)
	if err != nil {
		return nil, err
	}
	return &Model{Path: path, Config: config, Weights: weights}, nil
}

// Close closes the weights.
func (m *Model) Close() error { return m.Weights.Close() }
