package nn

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// Note [Activation checkpointing]
// The layer runs once with saved-tensor hooks that keep nothing but a running number per tensor. The first number that
// backward asks for runs the layer again, on detached copies of its inputs, with hooks that catch the tensors that
// operations save, in the same order. When the last one is caught the recomputation stops: what the layer would still
// compute (often its largest product) nobody needs. It stops by an error thrown out of the saving operation.
// Randomness: the call's generator is set back to its state at the first run, and afterwards to where backward found it.
// The frame owns its inputs and lives as long as one of the graph's saved tensors.

var errStop = errors.New("nn: recomputation has all it needs")

type frame struct {
	recompute func(scope *torch.Scope) // runs the layer on the kept inputs
	inputs    []*torch.Tensor          // detached, in no scope
	rng       *torch.Tensor
	generator *torch.Generator

	count    int             // tensors saved by the first run
	shapes   []string        // what they were, to name a recomputation that differs
	caught   []*torch.Tensor // by the recomputation; in no scope
	released int
	running  bool
}

func checkpointed[In, Out any](l Layer[In, Out], c *Call, in In) Out {
	f := &frame{generator: c.Generator}
	if c.Generator != nil {
		f.rng = c.Generator.State()
	}
	kept := mapTensors(in, func(t *torch.Tensor) *torch.Tensor {
		d := t.Detach().In(nil)
		if t.RequiresGrad() {
			d.SetRequiresGrad(true)
		}
		f.inputs = append(f.inputs, d)
		return d
	})
	call := *c
	f.recompute = func(scope *torch.Scope) {
		again := call.with(scope)
		again.Recomputing = true
		l.Forward(again, mapTensors(kept, func(t *torch.Tensor) *torch.Tensor { return t.In(scope) }))
	}
	var out Out
	torch.WithSavedTensorHooks(f, func() { out = l.Forward(c, in) })
	if f.count == 0 {
		f.free()
	}
	return out
}

// Pack numbers the tensors that the first run saves.
func (f *frame) Pack(t *torch.Tensor) (int64, error) {
	f.shapes = append(f.shapes, t.String())
	f.count++
	return int64(f.count - 1), nil
}

// Unpack gives the recomputed tensor of a number.
func (f *frame) Unpack(ticket int64) (*torch.Tensor, error) {
	if int(ticket) >= len(f.caught) || f.caught[ticket] == nil {
		if err := f.run(); err != nil {
			return nil, err
		}
	}
	return f.caught[ticket], nil
}

// Release frees what a number stands for, and the frame after the last number.
func (f *frame) Release(ticket int64) {
	if int(ticket) < len(f.caught) {
		f.caught[ticket].Free()
		f.caught[ticket] = nil
	}
	if f.released++; f.released == f.count {
		f.free()
	}
}

func (f *frame) free() {
	for _, t := range f.inputs {
		t.Free()
	}
	f.rng.Free()
}

func (f *frame) run() error {
	if f.running {
		return fmt.Errorf("nn: checkpointed layer asks for its own activations while it is recomputed")
	}
	f.running = true
	defer func() { f.running = false }()
	for _, t := range f.caught {
		t.Free()
	}
	f.caught = make([]*torch.Tensor, 0, f.count)
	if f.generator != nil {
		now := f.generator.State()
		f.generator.SetState(f.rng)
		defer func() {
			f.generator.SetState(now)
			now.Free()
		}()
	}
	scope := torch.NewScope(nil)
	defer scope.Close()
	err := torch.Try(func() {
		torch.EnableGrad(func() {
			torch.WithSavedTensorHooks((*catcher)(f), func() { f.recompute(scope) })
		})
	})
	if err != nil && !errors.Is(err, errStop) {
		return fmt.Errorf("nn: recompute a checkpointed layer: %w", err)
	}
	if len(f.caught) != f.count {
		return fmt.Errorf("nn: recomputation of a checkpointed layer saved %d tensors, the first run %d: its forward must do the same each time", len(f.caught), f.count)
	}
	return nil
}

// catcher is the frame's face during recomputation.
type catcher frame

// Pack catches what the recomputation saves.
func (c *catcher) Pack(t *torch.Tensor) (int64, error) {
	i := len(c.caught)
	if s := t.String(); i < len(c.shapes) && s != c.shapes[i] {
		return 0, fmt.Errorf("nn: saved tensor %d of a checkpointed layer is %s when recomputed, was %s", i, s, c.shapes[i])
	}
	c.caught = append(c.caught, t.In(nil))
	if len(c.caught) == c.count {
		return 0, errStop
	}
	return int64(i), nil
}

// Unpack serves a backward inside the recomputed layer.
func (c *catcher) Unpack(ticket int64) (*torch.Tensor, error) { return c.caught[ticket], nil }

// Release keeps the tensors: they are for the frame.
func (c *catcher) Release(int64) {}
