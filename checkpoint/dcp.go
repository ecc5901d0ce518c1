package checkpoint

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/modelio/dcp"
	"github.com/gofsdp/gofsdp/modelio/pickle"
)

// rename gives a parameter's name in PyTorch's model.
func (w *saver) rename(kind Kind) func(string) string {
	if w.options.DCPName == nil {
		return nil
	}
	return func(param string) string { return w.options.DCPName(kind, param) }
}

// parts is where a report keeps what was written of a kind.
func (r *report) parts(kind Kind) *[]dcp.Part {
	if kind == Model {
		return &r.ModelParts
	}
	return &r.OptimizerParts
}

// writeDCP writes this rank's data file of a kind.
func (w *saver) writeDCP(kind Kind, entries []Entry, mine *report) (err error) {
	folder, name := w.options.Format.folder(kind), dcp.FileName(w.g.Rank())
	file, err := os.OpenFile(filepath.Join(w.tmp, folder, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	var sums hasher
	buffer := bufio.NewWriterSize(pieces{w.ctx, io.MultiWriter(&sums, file)}, 1<<20)
	out := dcp.NewWriter(buffer, name)
	for _, e := range entries {
		name, _ := dcpName(kind, e.Name, w.rename(kind))
		at := make([]int64, len(e.Shape))
		if len(at) > 0 {
			at[0] = e.Lo
		}
		dtype, sizes := e.Tensor.DType().Safetensors(), e.Tensor.Shape()
		if err := withBytes(e.Tensor, func(b []byte) error { return out.Tensor(name, dtype, at, sizes, b) }); err != nil {
			return fmt.Errorf("%s tensor %q: %w", kind, e.Name, err)
		}
	}
	if kind == Optimizer && w.first() {
		for _, v := range w.groupValues() {
			if err := out.Value(v.name, v.value); err != nil {
				return err
			}
		}
	}
	if err := buffer.Flush(); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	*mine.parts(kind) = out.Parts()
	mine.Files = append(mine.Files, File{Path: folder + "/" + name, Kind: kind, Rank: w.g.Rank(), Size: out.Size(), Tensors: len(entries),
		CRC32C: sums.text()})
	return nil
}

// value is an entry of a parameter group.
type value struct {
	name  string
	path  []any
	value any
}

// groupValues lists what PyTorch keeps of the parameter groups, each setting by itself.
func (w *saver) groupValues() []value {
	rename := w.rename(Optimizer)
	var list []value
	for i, g := range w.snapshot.Groups {
		put := func(name string, v any) {
			list = append(list, value{fmt.Sprintf("optimizer.param_groups.%d.%s", i, name), []any{"optimizer", "param_groups", int64(i), name}, v})
		}
		for _, s := range g.Settings {
			v := s.Value
			if pair, ok := v.([]float64); ok {
				tuple := &pickle.Tuple{}
				for _, x := range pair {
					tuple.Items = append(tuple.Items, x)
				}
				v = tuple
			}
			put(s.Name, v)
		}
		params := []any{}
		for _, p := range g.Params {
			if rename != nil {
				p = rename(p)
			}
			params = append(params, p)
		}
		put("params", params)
	}
	return list
}

// writeMetadata writes what makes one of PyTorch's folders complete.
func (w *saver) writeMetadata(kind Kind, p *plan, all []report) (f File, err error) {
	byName := map[string][]dcp.Part{}
	for i := range all {
		for _, part := range *all[i].parts(kind) {
			byName[part.Name] = append(byName[part.Name], part)
		}
	}
	var entries []dcp.Entry
	for _, t := range p.tensors {
		if t.Kind == kind {
			name, path := dcpName(kind, t.Name, w.rename(kind))
			entries = append(entries, dcp.Entry{Name: name, Path: path, DType: t.DType, Shape: t.Shape, Parts: byName[name]})
		}
	}
	if kind == Optimizer {
		for _, v := range w.groupValues() {
			entries = append(entries, dcp.Entry{Name: v.name, Path: v.path, Parts: byName[v.name]})
		}
	}
	text, err := dcp.EncodeMetadata(entries)
	if err != nil {
		return f, err
	}
	f = File{Path: w.options.Format.folder(kind) + "/" + dcp.MetadataName, Kind: kind, Size: int64(len(text)), CRC32C: checksum(text)}
	return f, writeSynced(filepath.Join(w.tmp, filepath.FromSlash(f.Path)), text)
}

// pieces passes bytes on in small pieces, until its context ends.
type pieces struct {
	ctx context.Context
	w   io.Writer
}

// Write writes b.
func (p pieces) Write(b []byte) (n int, err error) {
	const piece = 1 << 20
	for len(b) > 0 {
		if p.ctx.Err() != nil {
			return n, context.Cause(p.ctx)
		}
		m, err := p.w.Write(b[:min(piece, len(b))])
		if n += m; err != nil {
			return n, err
		}
		b = b[m:]
	}
	return n, nil
}
