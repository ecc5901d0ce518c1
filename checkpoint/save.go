package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/torch"
)

// SaveOptions are the settings of Save. The zero value keeps every checkpoint.
type SaveOptions struct {
	// TotalLimit is how many complete checkpoints stay; the oldest are deleted after a save. 0 keeps all.
	TotalLimit int
	// Keep are steps whose checkpoints are never deleted, such as the best one's.
	Keep []int
}

// Save writes the checkpoint of step under root, in a file system that all ranks share, and returns its folder. A
// collective: every rank must call it. Either it succeeds on all ranks or it fails on all, and then nothing has changed;
// the rank at fault returns the cause, the others a *RankError. (Only where a rank dies or the network fails at the very
// end may others return an error about a checkpoint that is complete.) An existing checkpoint of that step is replaced.
//
// Where deleting older checkpoints fails, Save returns the folder, which is complete, and the error.
func Save(ctx context.Context, g dist.Group, root string, step int, s Snapshot, o SaveOptions) (dir string, err error) {
	w := &saver{ctx: ctx, g: g, root: root, step: step, snapshot: s, options: o}
	w.final = filepath.Join(root, folderName(step))
	w.tmp = filepath.Join(root, tmpPrefix+folderName(step))
	if err := w.save(); err != nil {
		return "", fmt.Errorf("checkpoint: rank %d: save %s: %w", g.Rank(), w.final, err)
	}
	if err := w.tidy(); err != nil {
		return w.final, fmt.Errorf("checkpoint: rank %d: delete checkpoints older than %s: %w", g.Rank(), w.final, err)
	}
	return w.final, nil
}

// saver is one rank's part in a save. Its stages end with share, so no rank goes on while another has failed.
type saver struct {
	ctx        context.Context
	g          dist.Group
	root       string
	step       int
	snapshot   Snapshot
	options    SaveOptions
	tmp, final string
	trainer    []byte
}

func (w *saver) first() bool { return w.g.Rank() == 0 }

func (w *saver) share(mine report, err error) ([]report, error) {
	return share(w.ctx, w.g, "save", mine, err)
}

func (w *saver) save() error {
	mine, err := w.describe()
	all, err := w.share(mine, err)
	if err != nil {
		return err
	}
	plan, err := makePlan(all, w.g.Rank())
	if err != nil {
		return err // every rank has computed the same
	}
	for rank, r := range all {
		if r.Step != all[0].Step {
			return fmt.Errorf("rank 0 saves step %d, rank %d step %d", all[0].Step, rank, r.Step)
		}
	}
	if w.first() {
		err = w.prepare()
	}
	if _, err := w.share(report{}, err); err != nil {
		return err
	}
	files, err := w.write(plan)
	all, err = w.share(report{Files: files}, err)
	if err != nil {
		return w.giveUp(err)
	}
	if w.first() {
		err = w.finish(all)
	}
	if _, err := w.share(report{}, err); err != nil {
		return w.giveUp(err)
	}
	return nil
}

// giveUp removes what was written, for a full disk needs the room, unless another rank may still be writing.
func (w *saver) giveUp(err error) error {
	if w.first() && !errors.Is(err, errLost) {
		return errors.Join(err, os.RemoveAll(w.tmp))
	}
	return err
}

func (w *saver) describe() (report, error) {
	mine := report{Step: w.step}
	if w.step < 0 {
		return mine, fmt.Errorf("step %d is negative", w.step)
	}
	for _, part := range w.snapshot.parts() {
		items, err := describeAll(part.kind, part.entries)
		if err != nil {
			return mine, err
		}
		if part.kind != RankState {
			mine.Items = append(mine.Items, items...)
			continue
		}
		for i, it := range items {
			if it.Lo != 0 || it.Hi != rowsOf(it.Shape) {
				return mine, fmt.Errorf("%s tensor %q: rows %d to %d of %v, but rank states are whole", RankState, it.Name, it.Lo, it.Hi, items[i].Shape)
			}
		}
	}
	if w.first() && w.snapshot.Trainer != nil {
		text, err := json.MarshalIndent(w.snapshot.Trainer, "", "  ")
		if err != nil {
			return mine, fmt.Errorf("write the trainer's state as JSON: %w", err)
		}
		w.trainer = append(text, '\n')
	}
	return mine, nil
}

type part struct {
	kind    Kind
	entries []Entry
}

func (s Snapshot) parts() []part {
	return []part{{Model, s.Model}, {Optimizer, s.Optimizer}, {RankState, s.RankState}}
}

// prepare makes an empty temporary folder.
func (w *saver) prepare() error {
	if err := os.MkdirAll(w.root, 0o755); err != nil {
		return err
	}
	if err := checkFree(w.final); err != nil {
		return err
	}
	if err := removeStale(w.root); err != nil {
		return err
	}
	if err := os.Mkdir(w.tmp, 0o755); err != nil {
		return err
	}
	for _, part := range w.snapshot.parts() {
		if err := os.Mkdir(filepath.Join(w.tmp, string(part.kind)), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// write writes this rank's files.
func (w *saver) write(p *plan) ([]File, error) {
	var files []File
	for _, part := range w.snapshot.parts() {
		entries := part.entries
		if part.kind != RankState {
			entries = slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return !p.writes[part.kind][e.Name] })
		}
		if len(entries) == 0 {
			continue
		}
		f, err := w.writeShard(part.kind, entries)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && !w.first() {
				err = fmt.Errorf("%w: rank 0 made this folder: do all ranks share a file system?", err)
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func (w *saver) writeShard(kind Kind, entries []Entry) (File, error) {
	rank := w.g.Rank()
	f := File{Kind: kind, Rank: rank, Tensors: len(entries)}
	f.Path = fmt.Sprintf("%s/shard-%05d-%s-00001-of-00001.safetensors", kind, rank+1, kind)
	path := filepath.Join(w.tmp, filepath.FromSlash(f.Path))
	specs := make([]safetensors.Spec, len(entries))
	for i, e := range entries {
		specs[i] = safetensors.Spec{Name: e.Name, DType: e.Tensor.DType().Safetensors(), Shape: e.Tensor.Shape()}
	}
	meta, err := shardMetadata(kind, entries)
	if err != nil {
		return f, err
	}
	out, err := safetensors.Create(path, specs, meta)
	if err != nil {
		return f, err
	}
	defer out.Abort()
	for _, e := range entries {
		if err := w.writeTensor(out, e); err != nil {
			return f, fmt.Errorf("%s tensor %q: %w", kind, e.Name, err)
		}
	}
	if err := out.Commit(); err != nil {
		return f, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return f, err
	}
	f.Size = info.Size()
	return f, nil
}

// shardMetadata says which rows the file holds, as HuggingFaceStorageReader expects it. Rank states are whole and have no
// place in a larger tensor.
func shardMetadata(kind Kind, entries []Entry) ([]safetensors.KV, error) {
	meta := []safetensors.KV{{Key: "format", Value: "pt"}}
	if kind == RankState {
		return meta, nil
	}
	info := make(map[string]offsets, len(entries))
	for _, e := range entries {
		at := make([]int64, len(e.Shape))
		if len(at) > 0 {
			at[0] = e.Lo
		}
		info[e.Name] = offsets{at}
	}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	return append(meta, safetensors.KV{Key: "DCP_VERSION", Value: "1.0"}, safetensors.KV{Key: shardingKey, Value: string(text)}), nil
}

// writeTensor writes in pieces, so that a cancelled save ends soon.
func (w *saver) writeTensor(out *safetensors.Writer, e Entry) error {
	const piece = 64 << 20
	return torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			t := e.Tensor.In(s).Detach()
			if t.Numel() == 0 {
				return
			}
			if t.Device().Type != torch.CPUType {
				t = t.ToDevice(torch.CPU)
			}
			t.Contiguous().WithBytes(func(b []byte) {
				for at := 0; at < len(b); at += piece {
					if w.ctx.Err() != nil {
						torch.Throw(context.Cause(w.ctx))
					}
					torch.Throw(out.WriteAt(e.Name, int64(at), b[at:min(at+piece, len(b))]))
				}
			})
		})
	})
}

// finish writes what makes the checkpoint complete and gives it its name.
func (w *saver) finish(all []report) error {
	m := Manifest{FormatVersion: FormatVersion, Step: w.step, WorldSize: w.g.Size()}
	for _, part := range w.snapshot.parts() {
		before := len(m.Files)
		for _, r := range all {
			for _, f := range r.Files {
				if f.Kind == part.kind {
					m.Files = append(m.Files, f)
				}
			}
		}
		flush := syncFolder
		if len(m.Files) == before {
			flush = os.Remove // nothing of this kind was saved
		}
		if err := flush(filepath.Join(w.tmp, string(part.kind))); err != nil {
			return err
		}
	}
	if w.trainer != nil {
		if err := writeSynced(filepath.Join(w.tmp, trainerName), w.trainer); err != nil {
			return err
		}
		m.Files = append(m.Files, File{Path: trainerName, Size: int64(len(w.trainer))})
	}
	if err := m.check(w.tmp); err != nil {
		return fmt.Errorf("rank 0 does not see what the ranks wrote (do they share a file system?): %w", err)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(w.tmp, manifestName), append(text, '\n')); err != nil {
		return err
	}
	if err := syncFolder(w.tmp); err != nil {
		return err
	}
	if err := publish(w.tmp, w.final); err != nil {
		return err
	}
	return syncFolder(w.root)
}

// tidy deletes the checkpoint that was replaced and those over the limit.
func (w *saver) tidy() error {
	var err error
	if w.first() {
		err = removeStale(w.root)
		if err == nil && w.options.TotalLimit > 0 {
			err = prune(w.root, w.options.TotalLimit, w.step, w.options.Keep)
		}
	}
	return Agree(w.ctx, w.g, "delete older checkpoints", err)
}
