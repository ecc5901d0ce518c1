package nn

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// Note [Re-entrant checkpointing]
// The older kind of activation checkpointing is one autograd function: its forward runs the layer without recording, its
// backward runs it again with recording and calls Backward on that, inside the outer one. Parameters get their gradients
// from the inner Backward. Autograd sees the layer's inputs only, so where none of them requires grad (the layer after a
// frozen embedding) the layer would be left out and its parameters would get nothing: EnableInputRequireGrads.
type reentrant struct {
	torch.OnceDifferentiable // the inner Backward makes numbers, no graph

	layer     string
	forward   func(c *Call, inputs []*torch.Tensor) []*torch.Tensor
	call      Call
	generator *torch.Generator
	autocast  torch.AutocastState
	rng       *torch.Tensor // the generator's state before the first run; in no scope
}

func checkpointedReentrant[In, Out any](l Layer[In, Out], c *Call, in In) Out {
	var out Out
	first := true
	r := &reentrant{layer: fmt.Sprintf("%T", l), call: *c, autocast: torch.CurrentAutocast()}
	r.call.Scope = nil
	r.forward = func(c *Call, inputs []*torch.Tensor) []*torch.Tensor {
		o := l.Forward(c, replaceTensors(in, inputs))
		if first {
			out = o
		}
		return tensorsOf(o)
	}
	inputs := tensorsOf(in)
	r.generator = c.generator(inputs)
	if len(inputs) == 0 {
		return l.Forward(c, in)
	}
	outputs := torch.Apply(r, inputs...)
	first = false
	return replaceTensors(out, outputs)
}

// Forward runs the layer without recording.
func (r *reentrant) Forward(ctx *torch.FunctionContext, in []*torch.Tensor) []*torch.Tensor {
	r.rng = r.generator.State()
	ctx.Save(in...)
	return r.forward(r.call.with(ctx.Scope()), in)
}

// Backward runs the layer again, and Backward on what comes out.
func (r *reentrant) Backward(ctx *torch.FunctionContext, grads []*torch.Tensor) ([]*torch.Tensor, error) {
	scope := ctx.Scope()
	inputs := make([]*torch.Tensor, len(ctx.Saved()))
	for i, t := range ctx.Saved() {
		if inputs[i] = t.Detach(); ctx.NeedsInputGrad(i) {
			inputs[i].SetRequiresGrad(true)
		}
	}
	now := r.generator.State()
	defer now.Free()
	r.generator.SetState(r.rng)
	defer r.generator.SetState(now)
	call := r.call.with(scope)
	call.Recomputing, call.saver = true, nil // the recomputed graph is its own
	err := torch.Try(func() {
		torch.EnableGrad(func() {
			var roots, rootGrads []*torch.Tensor
			var outputs []*torch.Tensor
			r.autocast.Do(func() { outputs = r.forward(call, inputs) })
			for i, o := range outputs {
				if o.RequiresGrad() && grads[i] != nil {
					roots, rootGrads = append(roots, o), append(rootGrads, grads[i])
				}
			}
			if len(roots) == 0 {
				torch.Throw(fmt.Errorf("none of the outputs requires grad when computed again: its forward must do the same each time"))
			}
			torch.BackwardAll(roots, rootGrads, torch.BackwardOptions{})
		})
	})
	if err != nil {
		return nil, fmt.Errorf("nn: recompute the checkpointed %s: %w", r.layer, err)
	}
	result := make([]*torch.Tensor, len(inputs))
	for i, t := range inputs {
		if ctx.NeedsInputGrad(i) {
			result[i] = t.Grad()
		}
	}
	return result, nil
}

// EnableInputRequireGrads makes the outputs of a layer require grad although its parameters are frozen, as transformers'
// method of that name does for the input embedding. Re-entrant checkpointing of the layers after it needs that. It
// returns the hook, for RemoveHook.
func EnableInputRequireGrads(layer interface{ LayerHooks() *Hooks }) Hook {
	hook := inputGrads{new(byte)}
	layer.LayerHooks().AddHook(hook)
	return hook
}

// inputGrads is told from others of its kind by its pointer.
type inputGrads struct{ *byte }

func (inputGrads) BeforeForward(_ *Call, in []*torch.Tensor) []*torch.Tensor { return in }

func (inputGrads) AfterForward(_ *Call, out []*torch.Tensor) []*torch.Tensor {
	if !torch.GradEnabled() {
		return out
	}
	for _, t := range out {
		if t.DType().IsFloat() && !t.RequiresGrad() {
			t.SetRequiresGrad(true)
		}
	}
	return out
}
