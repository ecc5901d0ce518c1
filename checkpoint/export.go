package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/dcp"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/torch"
)

// ExportOptions are the settings of Export. The zero value keeps the dtypes of the checkpoint.
type ExportOptions struct {
	// DType is what floating-point tensors are stored as; 0 keeps theirs.
	DType torch.DType
	// MaxShardBytes is the size of a weights file; 0 stands for modelio.DefaultMaxShardBytes.
	MaxShardBytes int64
	// Base is a model folder from which configuration and tokenizer are copied; "" copies nothing.
	Base string
	// Progress is told how many bytes of the result are written; nil is not called.
	Progress func(done, total int64)
}

// Export joins the shards of a kind into a model folder: model.safetensors, or several files with an index. It streams, so
// the memory that it needs does not grow with the model. The folder out must not exist or be empty; it appears when it is
// complete.
func (c *Checkpoint) Export(ctx context.Context, kind Kind, out string, o ExportOptions) error {
	if err := c.export(ctx, kind, out, o); err != nil {
		return fmt.Errorf("checkpoint: merge the %s of %s: %w", kind, c.dir, err)
	}
	return nil
}

func (c *Checkpoint) export(ctx context.Context, kind Kind, out string, o ExportOptions) error {
	x, err := c.index(kind)
	if err != nil {
		return err
	}
	if len(x.names) == 0 {
		return fmt.Errorf("it holds none: %w", os.ErrNotExist)
	}
	folder, err := modelio.CreateFolder(out)
	if err != nil {
		return err
	}
	defer folder.Abort()
	specs := make([]safetensors.Spec, len(x.names))
	total := int64(0)
	for i, name := range x.names {
		t := x.tensors[name]
		specs[i] = safetensors.Spec{Name: name, DType: t.target(o.DType), Shape: t.shape}
		size, err := safetensors.ByteSize(specs[i].DType, t.shape)
		if err != nil {
			return err
		}
		total += size
	}
	w, err := modelio.CreateWeights(folder.Dir(), specs, o.MaxShardBytes)
	if err != nil {
		return err
	}
	defer w.Abort()
	done := int64(0)
	for i, name := range x.names {
		at := int64(0)
		err := x.tensors[name].eachPiece(ctx, specs[i].DType, func(b []byte) error {
			if err := w.WriteAt(name, at, b); err != nil {
				return err
			}
			at, done = at+int64(len(b)), done+int64(len(b))
			if o.Progress != nil {
				o.Progress(done, total)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	if err := w.Commit(); err != nil {
		return err
	}
	if o.Base != "" {
		if err := exportTexts(o, folder.Dir()); err != nil {
			return err
		}
	}
	return folder.Commit()
}

func exportTexts(o ExportOptions, dir string) error {
	config, err := modelio.ReadConfig(o.Base)
	if err != nil {
		return err
	}
	if o.DType != 0 {
		config.DType = o.DType.String()
	}
	return errors.Join(modelio.CopyTexts(o.Base, dir), modelio.WriteConfig(dir, config))
}

// target is the dtype that a tensor is exported as.
func (t *stored) target(want torch.DType) string {
	if dtype, err := torch.ParseDType(t.dtype); want != 0 && err == nil && dtype.IsFloat() {
		return want.Safetensors()
	}
	return t.dtype
}

// eachPiece gives the whole tensor, converted, in pieces of rows.
func (t *stored) eachPiece(ctx context.Context, to string, f func([]byte) error) error {
	step := t.pieceRows()
	for _, c := range t.chunks {
		for from := c.lo; from < c.hi; from += step {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			src, err := c.src.rows(from-c.lo, min(from+step, c.hi)-c.lo)
			if err != nil {
				return err
			}
			if to == t.dtype {
				err = f(src)
			} else {
				err = converted(src, t.dtype, to, f)
			}
			if err == nil {
				err = c.src.release(src)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func converted(src []byte, from, to string, f func([]byte) error) error {
	if len(src) == 0 {
		return nil
	}
	a, err := torch.ParseDType(from)
	if err != nil {
		return err
	}
	b, err := torch.ParseDType(to)
	if err != nil {
		return err
	}
	return torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			t := s.Own(torch.FromMemory(a, src, func() {}, int64(len(src))/a.Size()))
			t.To(b).WithBytes(func(b []byte) { torch.Throw(f(b)) })
		})
	})
}

// Locate finds what a person means by the path of a checkpoint: the folder itself, one of PyTorch's folders in it
// (pytorch_model_fsdp_0, optimizer_0), or the parent folder of several checkpoints, of which the newest is taken. kind is
// what the folder holds.
func Locate(path string) (dir string, kind Kind, err error) {
	if _, err := os.Stat(path); err != nil {
		return "", "", fmt.Errorf("checkpoint: %w", err)
	}
	clean := filepath.Clean(path)
	name := filepath.Base(clean)
	switch {
	case name == dcpOptimizer && dcp.Is(clean), name == string(Optimizer) && exists(filepath.Join(clean, "..", manifestName)):
		return filepath.Dir(clean), Optimizer, nil
	case name == dcpModel && exists(filepath.Join(clean, "..", manifestName)), name == string(Model) && exists(filepath.Join(clean, "..", manifestName)):
		return filepath.Dir(clean), Model, nil
	}
	_, _, opened := readManifest(clean)
	if opened == nil {
		return clean, Model, nil
	}
	list, err := List(clean)
	if err == nil && slices.ContainsFunc(list, func(f Folder) bool { return f.Err == nil }) {
		dir, _, err = Latest(clean)
		return dir, Model, err
	}
	return "", "", fmt.Errorf("checkpoint: %s is neither a checkpoint nor a folder of checkpoints: %w", path, opened)
}
