package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/modelio/dcp"
	"github.com/gofsdp/gofsdp/modelio/pickle"
)

// Foreign tells whether another program has written the checkpoint. It has no checksums, and what the trainer of that
// program keeps is not this one's.
func (c *Checkpoint) Foreign() bool { return c.manifest.foreign() }

func (m Manifest) foreign() bool { return m.FormatVersion == 0 && m.WorldSize == 0 }

// Files of Accelerate with FULL_STATE_DICT.
const (
	fullModel     = "pytorch_model_fsdp.bin"
	fullOptimizer = "optimizer.bin"
)

// recognise finds out whether dir is a checkpoint of Accelerate or of the Trainer of transformers, or one of the folders of
// torch.distributed.checkpoint by itself. The source is nil if it is neither.
func recognise(dir string) (m Manifest, src source, err error) {
	if m.Step, err = foreignStep(dir); err != nil {
		return Manifest{}, nil, err
	}
	parts, err := os.ReadDir(dir)
	if err != nil {
		return Manifest{}, nil, err
	}
	for _, e := range parts {
		name := e.Name()
		switch {
		case name == dcp.MetadataName:
			return m, (*Checkpoint).indexDCP, nil
		case name == dcpModel, name == dcpOptimizer:
			for _, part := range []string{dcpModel, dcpOptimizer} {
				if folder := filepath.Join(dir, part); !dcp.Is(folder) && exists(folder) {
					return Manifest{}, nil, fmt.Errorf("%s has no %s: %w", folder, dcp.MetadataName, ErrIncomplete)
				}
			}
			return m, (*Checkpoint).indexDCP, nil
		case name == fullModel:
			return m, (*Checkpoint).indexFull, nil
		case strings.HasPrefix(name, "pytorch_model_fsdp") && strings.HasSuffix(name, ".bin"):
			return Manifest{}, nil, fmt.Errorf("%s: the parts of LOCAL_STATE_DICT, or of use_dcp=False, are pieces of flattened units "+
				"that only the program that wrote them can put together: save with SHARDED_STATE_DICT or FULL_STATE_DICT: %w",
				filepath.Join(dir, name), errors.ErrUnsupported)
		}
	}
	return Manifest{}, nil, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// foreignStep is the step in the Trainer's state, or in the folder's name.
func foreignStep(dir string) (int, error) {
	path := filepath.Join(dir, trainerName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		step, _ := parseName(filepath.Base(dir))
		return step, nil
	}
	if err != nil {
		return 0, err
	}
	var state struct {
		Step int `json:"global_step"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return 0, fmt.Errorf("%s: %w: %w", path, ErrIncomplete, err)
	}
	return max(0, state.Step), nil
}

// put adds a tensor that one source holds whole.
func (x *index) put(name, dtype string, shape []int64, path string, src rows) error {
	if t := x.tensors[name]; t != nil {
		return fmt.Errorf("%s: two tensors are called %q here (also in %s)", path, name, t.chunks[0].path)
	}
	x.names = append(x.names, name)
	x.tensors[name] = &stored{name: name, dtype: dtype, shape: shape, chunks: []chunk{{0, rowsOf(shape), path, src}}}
	return nil
}

// dcpRows are the rows of a tensor in a folder of PyTorch.
type dcpRows struct{ *dcp.Tensor }

func (r dcpRows) rows(lo, hi int64) ([]byte, error) { return r.Rows(lo, hi) }
func (r dcpRows) release(data []byte) error         { return r.Release(data) }

// indexDCP finds the tensors of a kind in its folder.
func (c *Checkpoint) indexDCP(kind Kind, x *index) error {
	dir := filepath.Join(c.dir, DCP.folder(kind))
	if kind == Model && !exists(dir) {
		dir = c.dir // the folder itself was opened
	}
	if !dcp.Is(dir) {
		return nil
	}
	verify, err := c.verify(DCP.folder(kind))
	if err != nil {
		return err
	}
	folder, err := dcp.Open(dir, verify)
	if err != nil {
		return err
	}
	c.closers = append(c.closers, folder.Close)
	for _, item := range folder.Items() {
		if item.Tensor == nil {
			continue
		}
		name, err := entryName(kind, item)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if name == "" {
			continue
		}
		if err := x.put(name, item.Tensor.DType, item.Tensor.Shape, dir, dcpRows{item.Tensor}); err != nil {
			return err
		}
	}
	return nil
}

// verify gives the check of the files of a folder, nil where there are no checksums.
func (c *Checkpoint) verify(folder string) (dcp.Verify, error) {
	checks := map[string]*verifier{}
	for _, f := range c.manifest.Files {
		name, ok := strings.CutPrefix(f.Path, folder+"/")
		if !ok {
			continue
		}
		v, err := f.verifier(filepath.Join(c.dir, filepath.FromSlash(f.Path)))
		if err != nil {
			return nil, err
		}
		checks[name] = v
	}
	if len(checks) == 0 {
		return nil, nil
	}
	return func(file string, whole []byte, lo, hi int64) error {
		v, ok := checks[file]
		if !ok {
			return fmt.Errorf("%s/%s is not in the manifest: %w", folder, file, ErrDamaged)
		}
		return v.check(whole, lo, hi)
	}, nil
}

// pickleRows are the rows of a tensor in a file of torch.save.
type pickleRows struct{ *pickle.Tensor }

func (r pickleRows) rows(lo, hi int64) ([]byte, error) { return r.Rows(lo, hi) }
func (r pickleRows) release([]byte) error              { return nil } // the file's pages go with it

// indexFull finds the tensors of a kind in the file of a whole state dict.
func (c *Checkpoint) indexFull(kind Kind, x *index) error {
	name := fullModel
	if kind == Optimizer {
		name = fullOptimizer
	}
	path := filepath.Join(c.dir, name)
	if kind == Optimizer && !exists(path) {
		return nil
	}
	file, err := pickle.Open(path)
	if err != nil {
		return err
	}
	c.closers = append(c.closers, file.Close)
	for name, t := range file.All() {
		entry := canonical(name)
		if kind == Optimizer {
			rest, ok := strings.CutPrefix(name, "state.")
			if !ok {
				continue // a setting
			}
			param, state, _ := cutLast(rest)
			entry = canonical(param) + "." + state
		}
		if err := x.put(entry, t.DType, t.Shape, path, pickleRows{t}); err != nil {
			return err
		}
	}
	return nil
}
