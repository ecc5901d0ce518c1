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
	// Format is how tensors are stored; the zero value is Safetensors.
	Format Format
	// DCPName gives the name of a parameter in PyTorch's model, with the format DCP; nil keeps the names. Adapters are
	// called differently there in the model and in the optimiser.
	DCPName func(kind Kind, param string) string
}

// Save writes the checkpoint of step under root, in a file system that all ranks share, and returns its folder. A
// collective: every rank must call it. Either it succeeds on all ranks or it fails on all, and then nothing has changed;
// the rank at fault returns the cause, the others a *RankError. (Only where a rank dies or the network fails at the very
// end may others return an error about a checkpoint that is complete.) An existing checkpoint of that step is replaced.
//
// Where deleting older checkpoints fails, Save returns the folder, which is complete, and the error.
func Save(ctx context.Context, g dist.Group, root string, step int, s Snapshot, o SaveOptions) (dir string, err error) {
	w := newSaver(ctx, g, root, step, s, o)
	if err := w.save(); err != nil {
		return "", fmt.Errorf("checkpoint: rank %d: save %s: %w", g.Rank(), w.final, err)
	}
	if err := Agree(ctx, g, "delete older checkpoints", w.tidy()); err != nil {
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

func newSaver(ctx context.Context, g dist.Group, root string, step int, s Snapshot, o SaveOptions) *saver {
	return &saver{ctx: ctx, g: g, root: root, step: step, snapshot: s, options: o,
		final: filepath.Join(root, folderName(step)), tmp: filepath.Join(root, tmpPrefix+folderName(step))}
}

func (w *saver) first() bool { return w.g.Rank() == 0 }

func (w *saver) share(mine report, err error) ([]report, error) {
	return share(w.ctx, w.g, "save", mine, err)
}

func (w *saver) save() error {
	plan, err := w.begin()
	if err != nil {
		return err
	}
	mine, err := w.write(plan)
	all, err := w.share(mine, err)
	if err != nil {
		return w.giveUp(err)
	}
	if w.first() {
		err = w.finish(plan, all)
	}
	if _, err := w.share(report{}, err); err != nil {
		return w.giveUp(err)
	}
	return nil
}

// begin agrees on who writes what and makes the temporary folder.
func (w *saver) begin() (*plan, error) {
	mine, err := w.describe()
	all, err := w.share(mine, err)
	if err != nil {
		return nil, err
	}
	plan, err := makePlan(all, w.g.Rank())
	if err != nil {
		return nil, err // every rank has computed the same
	}
	for rank, r := range all {
		if r.Step != all[0].Step {
			return nil, fmt.Errorf("rank 0 saves step %d, rank %d step %d", all[0].Step, rank, r.Step)
		}
	}
	if w.first() {
		err = w.prepare()
	}
	if _, err := w.share(report{}, err); err != nil {
		return nil, err
	}
	return plan, nil
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
		if err := os.Mkdir(filepath.Join(w.tmp, w.options.Format.folder(part.kind)), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// write writes this rank's files.
func (w *saver) write(p *plan) (report, error) {
	var mine report
	for _, part := range w.snapshot.parts() {
		entries := part.entries
		if part.kind != RankState {
			entries = slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return !p.writes[part.kind][e.Name] })
		}
		values := part.kind == Optimizer && w.options.Format == DCP && w.first() && len(w.snapshot.Groups) > 0
		if len(entries) == 0 && !values {
			continue
		}
		write := w.writeShard
		if w.options.Format.uses(part.kind) {
			write = w.writeDCP
		}
		if err := write(part.kind, entries, &mine); err != nil {
			if errors.Is(err, fs.ErrNotExist) && !w.first() {
				err = fmt.Errorf("%w: rank 0 made this folder: do all ranks share a file system?", err)
			}
			return report{}, err
		}
	}
	return mine, nil
}

func (w *saver) writeShard(kind Kind, entries []Entry, mine *report) error {
	rank := w.g.Rank()
	f := File{Kind: kind, Rank: rank, Tensors: len(entries)}
	f.Path = fmt.Sprintf("%s/shard-%05d-%s-00001-of-00001.safetensors", kind, rank+1, kind)
	path := filepath.Join(w.tmp, filepath.FromSlash(f.Path))
	specs := make([]safetensors.Spec, len(entries))
	byName := make(map[string]Entry, len(entries))
	for i, e := range entries {
		specs[i] = safetensors.Spec{Name: e.Name, DType: e.Tensor.DType().Safetensors(), Shape: e.Tensor.Shape()}
		byName[e.Name] = e
	}
	meta, err := shardMetadata(kind, entries)
	if err != nil {
		return err
	}
	out, err := safetensors.Create(path, specs, meta)
	if err != nil {
		return err
	}
	defer out.Abort()
	// In the order of the file, so that its checksums are computed on the way.
	var sums hasher
	sums.add(out.Header())
	for _, name := range out.Names() {
		at := int64(0)
		err := w.eachPiece(byName[name].Tensor, func(b []byte) error {
			sums.add(b)
			at += int64(len(b))
			return out.WriteAt(name, at-int64(len(b)), b)
		})
		if err != nil {
			return fmt.Errorf("%s tensor %q: %w", kind, name, err)
		}
	}
	if err := out.Commit(); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f.Size, f.CRC32C = info.Size(), sums.text()
	mine.Files = append(mine.Files, f)
	return nil
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

// eachPiece gives the bytes of a tensor in pieces: small ones, so that a cancelled save ends soon and that bytes are still
// in the processor's cache when they are written after their checksum.
func (w *saver) eachPiece(t *torch.Tensor, f func([]byte) error) error {
	const piece = 1 << 20
	return withBytes(t, func(b []byte) error {
		for at := 0; at < len(b); at += piece {
			if w.ctx.Err() != nil {
				return context.Cause(w.ctx)
			}
			if err := f(b[at:min(at+piece, len(b))]); err != nil {
				return err
			}
		}
		return nil
	})
}

// withBytes gives the elements of a tensor, row-major, in main memory.
func withBytes(t *torch.Tensor, f func([]byte) error) error {
	return torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			t := t.In(s).Detach()
			if t.Numel() == 0 {
				torch.Throw(f(nil))
				return
			}
			if t.Device().Type != torch.CPUType {
				t = t.ToDevice(torch.CPU)
			}
			t.Contiguous().WithBytes(func(b []byte) { torch.Throw(f(b)) })
		})
	})
}

// finish writes what makes the checkpoint complete and gives it its name.
func (w *saver) finish(p *plan, all []report) error {
	m := Manifest{FormatVersion: FormatVersion, Step: w.step, WorldSize: w.g.Size()}
	if w.options.Format == DCP {
		m.Format = formatDCP
	}
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
		} else if w.options.Format.uses(part.kind) {
			f, err := w.writeMetadata(part.kind, p, all)
			if err != nil {
				return err
			}
			m.Files = append(m.Files, f)
		}
		if err := flush(filepath.Join(w.tmp, w.options.Format.folder(part.kind))); err != nil {
			return err
		}
	}
	if w.trainer != nil {
		if err := writeSynced(filepath.Join(w.tmp, trainerName), w.trainer); err != nil {
			return err
		}
		m.Files = append(m.Files, File{Path: trainerName, Size: int64(len(w.trainer)), CRC32C: checksum(w.trainer)})
	}
	if err := m.check(w.tmp); err != nil {
		return fmt.Errorf("rank 0 does not see what the ranks wrote (do they share a file system?): %w", err)
	}
	text, err := m.encode()
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(w.tmp, manifestName), text); err != nil {
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
	return err
}
