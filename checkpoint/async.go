package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

// Note [Saving while training goes on]
// The background part of a save runs no collective: training uses the group meanwhile, and all ranks must start the same
// collectives in the same order. Ranks agree on the plan in Start, copy their tensors, and go on. In the background each
// writes its files into the temporary folder, which all ranks share, and then a note "rank-<n>.json" that lists them (or
// says why they could not be written). Rank 0 waits for all notes, writes the manifest and renames the folder. The outcome
// is exchanged in the next collective call: Start or Wait.

// Saver saves in the background: Start copies what is to be saved and returns, and training may go on and change the
// tensors. The copy takes as much main memory as the rank's part of the checkpoint, until it is written. Every rank uses
// one Saver, from one goroutine. The zero value of the other fields works.
type Saver struct {
	Group   dist.Group
	Root    string
	Options SaveOptions
	// Timeout is how long rank 0 waits for the other ranks' files after its own are written; 0 is 30 minutes.
	Timeout time.Duration

	running *background
}

// background is a save that goes on.
type background struct {
	w      *saver
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done
	tidied error // of deleting older checkpoints, once done
	copies []*torch.Tensor
}

// Start begins to save a checkpoint, as Save does. While an earlier one is being written it waits for that: at most one copy
// is in memory. A collective; the errors of the earlier save come back here, or from Wait, on all ranks. It returns the
// folder of the earlier checkpoint that has become complete, "" if there is none.
func (s *Saver) Start(ctx context.Context, step int, snapshot Snapshot) (finished string, err error) {
	if finished, err = s.Wait(ctx); err != nil {
		return finished, err
	}
	w := newSaver(ctx, s.Group, s.Root, step, snapshot, s.Options)
	if err := s.start(w); err != nil {
		return finished, fmt.Errorf("checkpoint: rank %d: save %s: %w", s.Group.Rank(), w.final, err)
	}
	return finished, nil
}

func (s *Saver) start(w *saver) error {
	plan, err := w.begin()
	if err != nil {
		return err
	}
	b := &background{w: w, done: make(chan struct{})}
	err = b.copy(plan)
	if _, err := w.share(report{}, err); err != nil {
		b.free()
		return w.giveUp(err)
	}
	timeout := s.Timeout
	if timeout == 0 {
		timeout = 30 * time.Minute
	}
	// A cancelled training step does not cancel the save: its end is waited for.
	w.ctx, b.cancel = context.WithCancel(context.WithoutCancel(w.ctx))
	s.running = b
	go func() {
		defer close(b.done)
		defer b.free()
		b.err = b.run(plan, timeout)
	}()
	return nil
}

// copy replaces the tensors that this rank will write by copies in main memory.
func (b *background) copy(p *plan) error {
	s := &b.w.snapshot
	for _, part := range []struct {
		kind    Kind
		entries *[]Entry
	}{{Model, &s.Model}, {Optimizer, &s.Optimizer}, {RankState, &s.RankState}} {
		var copies []Entry
		for _, e := range *part.entries {
			if part.kind != RankState && !p.writes[part.kind][e.Name] {
				continue
			}
			var t *torch.Tensor
			err := torch.Try(func() {
				torch.NoGrad(func() {
					scope := torch.NewScope(nil)
					defer scope.Close()
					c := e.Tensor.In(scope).Detach()
					if c.Device().Type != torch.CPUType {
						c = c.ToDevice(torch.CPU)
					} else {
						c = c.Clone()
					}
					t = c.In(nil)
				})
			})
			if err != nil {
				return fmt.Errorf("copy %s tensor %q: %w", part.kind, e.Name, err)
			}
			b.copies = append(b.copies, t)
			e.Tensor = t
			copies = append(copies, e)
		}
		*part.entries = copies
	}
	return nil
}

func (b *background) free() {
	for _, t := range b.copies {
		t.Free()
	}
	b.copies = nil
}

// run writes; on rank 0 it also waits for the others and publishes.
func (b *background) run(p *plan, timeout time.Duration) error {
	mine, err := b.w.write(p)
	if err != nil {
		mine = report{Error: err.Error()}
	}
	if err := errors.Join(err, b.leaveNote(mine)); err != nil || !b.w.first() {
		return err
	}
	all, err := b.collect(timeout)
	if err == nil {
		err = b.w.finish(p, all)
	}
	if err == nil {
		b.tidied = b.w.tidy()
	}
	return err
}

func noteName(rank int) string { return fmt.Sprintf("rank-%d.json", rank) }

// leaveNote tells rank 0 what this rank has written.
func (b *background) leaveNote(mine report) error {
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	path := filepath.Join(b.w.tmp, noteName(b.w.g.Rank()))
	if err := os.WriteFile(path+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// collect waits for the notes of all ranks and removes them.
func (b *background) collect(timeout time.Duration) ([]report, error) {
	all := make([]report, b.w.g.Size())
	deadline := time.Now().Add(timeout)
	for rank := range all {
		path := filepath.Join(b.w.tmp, noteName(rank))
		for pause := time.Millisecond; ; pause = min(2*pause, time.Second/2) {
			text, err := os.ReadFile(path)
			if err == nil {
				if err := json.Unmarshal(text, &all[rank]); err != nil {
					return nil, fmt.Errorf("%s: %w", path, err)
				}
				if err := os.Remove(path); err != nil {
					return nil, err
				}
				break
			}
			switch {
			case !errors.Is(err, fs.ErrNotExist):
				return nil, err
			case time.Now().After(deadline):
				return nil, fmt.Errorf("rank %d has not written its files after %v: did it die, or do the ranks share no file system?", rank, timeout)
			}
			select {
			case <-b.w.ctx.Done():
				return nil, context.Cause(b.w.ctx)
			case <-time.After(pause):
			}
		}
		if all[rank].Error != "" {
			return nil, &RankError{Rank: rank, Op: "save", Cause: all[rank].Error}
		}
	}
	return all, nil
}

// Wait waits for the save in the background and returns its folder, "" if there is none. A collective: where it failed on
// one rank, all return an error, and no checkpoint has appeared; where deleting older ones failed, as with Save, it is
// there all the same. When ctx ends on a rank, its save is given up.
func (s *Saver) Wait(ctx context.Context) (finished string, err error) {
	b := s.running
	if b == nil {
		return "", nil
	}
	s.running = nil
	defer b.cancel()
	select {
	case <-b.done:
	case <-ctx.Done():
		b.cancel()
		<-b.done
		if b.err != nil {
			b.err = errors.Join(context.Cause(ctx), b.err)
		}
	}
	b.w.ctx = ctx
	// Rank 0's fault comes first: it tells of the others' too, and of the publication.
	if _, err := b.w.share(report{}, b.err); err != nil {
		return "", fmt.Errorf("checkpoint: rank %d: save %s: %w", s.Group.Rank(), b.w.final, b.w.giveUp(err))
	}
	if err := Agree(ctx, s.Group, "delete older checkpoints", b.tidied); err != nil {
		return b.w.final, fmt.Errorf("checkpoint: rank %d: delete checkpoints older than %s: %w", s.Group.Rank(), b.w.final, err)
	}
	return b.w.final, nil
}

// Settle waits for this rank's part of the save in the background without the other ranks, for a run that ends with an error:
// the checkpoint may still become complete. When ctx ends, the save is given up.
func (s *Saver) Settle(ctx context.Context) error {
	b := s.running
	if b == nil {
		return nil
	}
	s.running = nil
	defer b.cancel()
	select {
	case <-b.done:
	case <-ctx.Done():
		b.cancel()
		<-b.done
	}
	return b.err
}

// Busy tells whether a save is going on on this rank.
func (s *Saver) Busy() bool {
	if s.running == nil {
		return false
	}
	select {
	case <-s.running.done:
		return false
	default:
		return true
	}
}
