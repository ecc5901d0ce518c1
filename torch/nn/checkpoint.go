package nn

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gofsdp/gofsdp/torch"
)

// Note [Activation checkpointing]
// The layer runs once with saved-tensor hooks that keep nothing but a running number per tensor. The first number that
// backward asks for runs the layer again, on detached copies of its inputs, with hooks that catch the tensors that
// operations save, in the same order. When the last one is caught the recomputation stops: what the layer would still
// compute (often its largest product) nobody needs. It stops by an error thrown out of the saving operation.
// The recomputation runs under the Autocast regions of the first run, which has ended by then.
// Randomness: the call's generator, or the process-wide one, is set back to its state at the first run, and afterwards to
// where backward found it.
//
// A checkpointed layer inside another gives its inputs to the outer frame as if an operation had saved them, so the outer
// one keeps nothing of the inner ones but numbers. When the outer one is recomputed, the inner ones run checkpointed
// again and only their inputs are caught; each inner one is recomputed from there.
//
// A frame lives as long as one of the graph's saved tensors.

var errStop = errors.New("nn: recomputation has all it needs")

// frame is one checkpointed run of a layer. It is the saved-tensor hooks of that run.
type frame struct {
	layer     string
	forward   func(c *Call, inputs []*torch.Tensor)
	call      Call
	inputs    []input
	rng       *torch.Tensor
	autocast  torch.AutocastState
	generator *torch.Generator
	outer     torch.SavedTensorHooks // of the checkpointed layer around this one, or nil

	mu       sync.Mutex
	shapes   []string        // of the tensors saved by the first run, to name a recomputation that differs
	caught   []*torch.Tensor // by the recomputation; in no scope; nil where released
	released []bool
	live     int  // numbers that the graph still holds
	complete bool // the first run is over
	running  bool
}

// input is a tensor that the layer got: held here, or by the outer frame under a number.
type input struct {
	tensor       *torch.Tensor
	ticket       int64
	version      int64
	requiresGrad bool
}

// generator is the source of dropout masks for a layer with these inputs.
func (c *Call) generator(inputs []*torch.Tensor) *torch.Generator {
	if c.Generator != nil {
		return c.Generator
	}
	for _, t := range inputs {
		if t.Device().Type == torch.CUDAType {
			return torch.DefaultGenerator(t.Device())
		}
	}
	return torch.DefaultGenerator(torch.CPU)
}

func checkpointed[In, Out any](l Layer[In, Out], c *Call, in In) Out {
	f := &frame{layer: fmt.Sprintf("%T", l), call: *c, generator: c.generator(tensorsOf(in)), outer: c.saver, autocast: torch.CurrentAutocast()}
	defer f.finish()
	f.rng = f.generator.State()
	for _, t := range tensorsOf(in) {
		f.keep(t)
	}
	f.call.Scope = nil
	f.forward = func(again *Call, inputs []*torch.Tensor) { l.Forward(again, replaceTensors(in, inputs)) }

	first := c.with(c.Scope)
	first.saver = f
	var out Out
	torch.WithSavedTensorHooks(f, func() { out = l.Forward(first, in) })
	return out
}

// keep stores an input for the recomputation.
func (f *frame) keep(t *torch.Tensor) {
	in := input{requiresGrad: t.RequiresGrad()}
	d := t.Detach()
	defer d.Free()
	if f.outer == nil {
		in.tensor, in.version = d.In(nil), d.Version()
	} else {
		ticket, err := f.outer.Pack(d)
		torch.Throw(err)
		in.ticket = ticket
	}
	f.inputs = append(f.inputs, in)
}

// bind gives the inputs to a recomputation, as leaves of a graph of their own.
func (f *frame) bind(scope *torch.Scope) ([]*torch.Tensor, error) {
	list := make([]*torch.Tensor, len(f.inputs))
	for i, in := range f.inputs {
		t := in.tensor
		switch {
		case t == nil:
			var err error
			if t, err = f.outer.Unpack(in.ticket); err != nil {
				return nil, err
			}
		case t.Version() != in.version:
			return nil, fmt.Errorf("nn: input %d (%v) of the checkpointed %s was changed in place after its forward", i, t, f.layer)
		}
		list[i] = t.In(scope).Detach()
		if in.requiresGrad {
			list[i].SetRequiresGrad(true)
		}
	}
	return list, nil
}

// finish ends the first run.
func (f *frame) finish() {
	f.mu.Lock()
	f.complete = true
	unused := f.live == 0
	f.mu.Unlock()
	if unused {
		f.free()
	}
}

// Pack numbers the tensors that the first run saves.
func (f *frame) Pack(t *torch.Tensor) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shapes = append(f.shapes, t.String())
	f.released = append(f.released, false)
	f.live++
	return int64(len(f.shapes) - 1), nil
}

// Unpack gives the recomputed tensor of a number.
func (f *frame) Unpack(ticket int64) (*torch.Tensor, error) {
	if t := f.get(ticket); t != nil {
		return t, nil
	}
	if err := f.run(); err != nil {
		return nil, err
	}
	return f.get(ticket), nil
}

func (f *frame) get(ticket int64) *torch.Tensor {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int(ticket) >= len(f.caught) {
		return nil
	}
	return f.caught[ticket]
}

// Release frees what a number stands for, and the frame after the last number.
func (f *frame) Release(ticket int64) {
	f.mu.Lock()
	var t *torch.Tensor
	if int(ticket) < len(f.caught) {
		t, f.caught[ticket] = f.caught[ticket], nil
	}
	f.released[ticket] = true
	f.live--
	last := f.live == 0 && f.complete
	f.mu.Unlock()
	t.Free()
	if last {
		f.free()
	}
}

// free lets go of everything; nothing asks for the frame any more.
func (f *frame) free() {
	f.drop()
	for _, in := range f.inputs {
		if in.tensor == nil {
			f.outer.Release(in.ticket)
		}
		in.tensor.Free()
	}
	f.inputs = nil
	f.rng.Free()
}

// drop frees what a recomputation has caught.
func (f *frame) drop() {
	f.mu.Lock()
	caught := f.caught
	f.caught = nil
	f.mu.Unlock()
	for _, t := range caught {
		t.Free()
	}
}

// run recomputes the layer. After an error nothing is caught.
func (f *frame) run() (err error) {
	f.mu.Lock()
	again := f.running
	f.running = true
	f.mu.Unlock()
	if again {
		return fmt.Errorf("nn: the checkpointed %s asks for its own activations while it is recomputed", f.layer)
	}
	ok := false
	defer func() {
		if !ok {
			f.drop()
		}
		f.mu.Lock()
		f.running = false
		f.mu.Unlock()
	}()
	f.drop()
	scope := torch.NewScope(nil)
	defer scope.Close()
	inputs, err := f.bind(scope)
	if err != nil {
		return err
	}
	now := f.generator.State()
	f.generator.SetState(f.rng)
	defer func() {
		f.generator.SetState(now)
		now.Free()
	}()
	call := f.call.with(scope)
	call.Recomputing, call.saver = true, (*catcher)(f)
	err = torch.Try(func() {
		torch.EnableGrad(func() {
			torch.WithSavedTensorHooks((*catcher)(f), func() { f.autocast.Do(func() { f.forward(call, inputs) }) })
		})
	})
	if err != nil && !errors.Is(err, errStop) {
		return fmt.Errorf("nn: recompute the checkpointed %s: %w", f.layer, err)
	}
	if len(f.caught) != len(f.shapes) {
		return fmt.Errorf("nn: the checkpointed %s saved %d tensors when recomputed and %d before: its forward must do the same each time",
			f.layer, len(f.caught), len(f.shapes))
	}
	ok = true
	return nil
}

// catcher is the frame's face during recomputation.
type catcher frame

// Pack catches what the recomputation saves.
func (c *catcher) Pack(t *torch.Tensor) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.caught)
	if i >= len(c.shapes) { // a layer that went on after the stop
		return 0, errStop
	}
	if s := t.String(); s != c.shapes[i] {
		return 0, fmt.Errorf("saved tensor %d is %s, was %s: its forward must do the same each time", i, s, c.shapes[i])
	}
	if c.released[i] {
		c.caught = append(c.caught, nil)
	} else {
		c.caught = append(c.caught, t.In(nil))
	}
	if len(c.caught) == len(c.shapes) {
		return 0, errStop
	}
	return int64(i), nil
}

// Unpack serves a backward inside the recomputed layer.
func (c *catcher) Unpack(ticket int64) (*torch.Tensor, error) {
	if t := (*frame)(c).get(ticket); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("nn: saved tensor %d of the checkpointed %s is gone", ticket, c.layer)
}

// Release keeps the tensors: they are for the frame.
func (c *catcher) Release(int64) {}
