package torch

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Function is an operation whose backward is written in Go. Forward runs without recording; Backward gets the gradient
// of each output (nil where none arrived) and returns one per input (nil: no gradient).
//
// Both get tensors that belong to a scope, which is closed when the call ends. A Function must not capture tensors: what
// Backward needs goes through the context.
//
// Backward can be differentiated itself: under BackwardOptions.CreateGraph and GradOptions.CreateGraph what it computes is
// recorded, and saved inputs and outputs are part of the graph. Other tensors that Forward saves are constants to it. A
// Function whose Backward computes something else than its derivative says so with OnceDifferentiable.
type Function interface {
	Forward(ctx *FunctionContext, in []*Tensor) []*Tensor
	Backward(ctx *FunctionContext, grads []*Tensor) ([]*Tensor, error)
}

// OnceDifferentiable is embedded in a Function whose Backward must not be differentiated: it runs without recording, and a
// second derivative through it is an error instead of a wrong number.
type OnceDifferentiable struct{}

func (OnceDifferentiable) onceDifferentiable() {}

// FunctionContext carries what Forward keeps for Backward.
type FunctionContext struct {
	saved []*Tensor // bound to scope
	scope *Scope
	needs []bool
	fixed []*Tensor
	value any
}

// MarkNonDifferentiable says that outputs of Forward never require grad, such as indices.
func (c *FunctionContext) MarkNonDifferentiable(outputs ...*Tensor) {
	c.fixed = append(c.fixed, outputs...)
}

// Save keeps tensors for Backward; nil stays nil. Autograd treats them as it treats what its own operators save: saved-tensor
// hooks (activation checkpointing) apply, and a change in place before Backward is an error.
func (c *FunctionContext) Save(tensors ...*Tensor) { c.saved = append(c.saved, tensors...) }

// Saved gives the saved tensors in Backward.
func (c *FunctionContext) Saved() []*Tensor { return c.saved }

// SetValue keeps anything but tensors for Backward: sizes, settings, a generator's seed.
func (c *FunctionContext) SetValue(v any) { c.value = v }

// Value gives in Backward what Forward gave to SetValue, or nil.
func (c *FunctionContext) Value() any { return c.value }

// NeedsInputGrad tells whether anybody wants the gradient of input i. Backward may give nil for the others.
func (c *FunctionContext) NeedsInputGrad(i int) bool { return c.needs[i] }

// Scope is the scope of the running call.
func (c *FunctionContext) Scope() *Scope { return c.scope }

// Apply runs f on in and records it. The outputs belong to the innermost scope of the inputs.
func Apply(f Function, in ...*Tensor) []*Tensor {
	const op = "Apply"
	args := newInvocation(op)
	defer args.close()
	ih := args.handles(in)
	outer := args.scope
	ctx := &FunctionContext{scope: NewScope(outer), needs: make([]bool, len(in))}
	defer ctx.scope.Close()
	bound := make([]*Tensor, len(in))
	for i, t := range in {
		if t != nil {
			bound[i] = t.In(ctx.scope)
			ctx.needs[i] = t.RequiresGrad()
		}
	}
	var out []*Tensor
	NoGrad(func() { out = f.Forward(ctx, bound) })
	fixed := make([]int64, len(out))
	for i, t := range out {
		fixed[i] = b2i(slices.Contains(ctx.fixed, t))
	}
	_, once := f.(interface{ onceDifferentiable() })
	node := &functionNode{f: f, once: once, outputs: len(out), needs: ctx.needs, value: ctx.value}
	wrapped, err := capi.RecordFunction(node, fmt.Sprintf("%TBackward", f), ih, args.handles(out), fixed, args.handles(ctx.saved))
	check(op, err)
	return wrapAll(wrapped, outer)
}

type functionNode struct {
	f       Function
	once    bool
	outputs int
	needs   []bool
	value   any
}

func (n *functionNode) Call(_ capi.Event, in, out []int64) error {
	defer inHook()()
	s := NewScope(nil)
	defer s.Close()
	tensors := make([]*Tensor, len(in))
	for i, h := range in {
		tensors[i] = wrapHandle(capi.Handle(h), s)
	}
	ctx := &FunctionContext{scope: s, saved: tensors[n.outputs:], needs: n.needs, value: n.value}
	var result []*Tensor
	var err error
	backward := func() { result, err = n.f.Backward(ctx, tensors[:n.outputs:n.outputs]) }
	recording := GradEnabled() // the engine sets it to "create graph"; this is its thread
	if recording && n.once {
		NoGrad(backward)
	} else {
		backward()
	}
	if err != nil {
		return err
	}
	if len(result) > len(out) {
		return fmt.Errorf("torch: %T.Backward gave %d gradients for %d inputs", n.f, len(result), len(out))
	}
	if recording && n.once {
		result = refuseTwice(n.f, result)
	}
	for i, g := range result {
		if g != nil {
			out[i] = int64(g.alias("backward"))
		}
	}
	return nil
}

// refuseTwice makes gradients an error to differentiate.
func refuseTwice(f Function, grads []*Tensor) []*Tensor {
	var list, leaves []*Tensor
	for _, g := range grads {
		if g != nil {
			leaves = append(leaves, g.Detach().SetRequiresGrad(true))
		}
	}
	if len(leaves) == 0 {
		return grads
	}
	leaves = Apply(twice{of: f}, leaves...)
	for _, g := range grads {
		if g != nil {
			g, leaves = leaves[0], leaves[1:]
		}
		list = append(list, g)
	}
	return list
}

// twice passes gradients of a OnceDifferentiable function through.
type twice struct {
	OnceDifferentiable
	of Function
}

func (twice) Forward(_ *FunctionContext, in []*Tensor) []*Tensor { return in }

func (t twice) Backward(*FunctionContext, []*Tensor) ([]*Tensor, error) {
	return nil, fmt.Errorf("torch: %T can be differentiated once, and this is the second time", t.of)
}

// identity passes tensors through and calls f when their gradients have all arrived.
type identity struct{ f func() error }

func (i identity) Forward(_ *FunctionContext, in []*Tensor) []*Tensor { return in }

func (i identity) Backward(_ *FunctionContext, grads []*Tensor) ([]*Tensor, error) {
	return grads, i.f()
}

// OnBackward returns aliases of the tensors. When the gradients of all of them have been computed, that is, when the
// backward of everything computed from them is done, it calls f. f must not capture tensors of scopes.
func OnBackward(f func() error, tensors ...*Tensor) []*Tensor {
	return Apply(identity{f}, tensors...)
}

// SavedTensorHooks decides what autograd keeps instead of the tensors that operations save for backward.
type SavedTensorHooks interface {
	// Pack is called when an operation saves t (detached, valid during the call) and returns a ticket for it.
	Pack(t *Tensor) (ticket int64, err error)
	// Unpack returns the tensor of a ticket.
	Unpack(ticket int64) (*Tensor, error)
	// Release says that the ticket will not be unpacked any more.
	Release(ticket int64)
}

// WithSavedTensorHooks runs f with hooks in force on the calling thread.
func WithSavedTensorHooks(hooks SavedTensorHooks, f func()) {
	lockThread(func() {
		check("saved-tensor hooks", capi.PushSavedHooks(savedHooks{hooks}))
		defer func() { _ = capi.PopSavedHooks() }()
		f()
	})
}

type savedHooks struct{ h SavedTensorHooks }

func (s savedHooks) Call(event capi.Event, in, out []int64) error {
	defer inHook()()
	switch event {
	case capi.EventPack:
		scope := NewScope(nil)
		defer scope.Close()
		ticket, err := s.h.Pack(wrapHandle(capi.Handle(in[0]), scope))
		if err != nil {
			return err
		}
		out[0] = ticket
	case capi.EventUnpack:
		t, err := s.h.Unpack(in[0])
		if err != nil {
			return err
		}
		if t == nil {
			return fmt.Errorf("torch: %T.Unpack(%d) gave no tensor", s.h, in[0])
		}
		out[0] = int64(t.alias("unpack"))
	case capi.EventPackRelease:
		s.h.Release(in[0])
	}
	return nil
}
