package torch

import "github.com/gofsdp/gofsdp/internal/capi"

// Function is an operation whose backward is written in Go. Forward runs without recording; Backward gets the gradient
// of each output (nil where none arrived) and returns one per input (nil: no gradient).
//
// Both get tensors that belong to a scope, which is closed when the call ends. A Function must not capture tensors: what
// Backward needs goes through the context.
type Function interface {
	Forward(ctx *FunctionContext, in []*Tensor) []*Tensor
	Backward(ctx *FunctionContext, grads []*Tensor) ([]*Tensor, error)
}

// FunctionContext carries what Forward keeps for Backward. It lives as long as the graph node.
type FunctionContext struct {
	saved []*Tensor // in no scope; freed with the node
	nIn   int
	scope *Scope
}

// Save keeps tensors for Backward. It is called once, in Forward.
func (c *FunctionContext) Save(tensors ...*Tensor) {
	for _, t := range tensors {
		if t == nil {
			c.saved = append(c.saved, nil)
			continue
		}
		c.saved = append(c.saved, t.Detach().In(nil))
	}
}

// Saved gives the saved tensors, bound to the scope of the running call.
func (c *FunctionContext) Saved() []*Tensor {
	list := make([]*Tensor, len(c.saved))
	for i, t := range c.saved {
		if t != nil {
			list[i] = t.In(c.scope)
		}
	}
	return list
}

// Scope is the scope of the running call.
func (c *FunctionContext) Scope() *Scope { return c.scope }

// Apply runs f on in and records it. The outputs belong to the innermost scope of the inputs.
func Apply(f Function, in ...*Tensor) []*Tensor {
	const op = "Apply"
	enc := encoder{op: op}
	defer enc.done()
	ih := make([]capi.Handle, len(in))
	for i, t := range in {
		ih[i] = capi.Handle(enc.tensor(t))
	}
	ctx := &FunctionContext{nIn: len(in), scope: NewScope(enc.scope)}
	defer ctx.scope.Close()
	bound := make([]*Tensor, len(in))
	for i, t := range in {
		if t != nil {
			bound[i] = t.In(ctx.scope)
		}
	}
	var out []*Tensor
	NoGrad(func() { out = f.Forward(ctx, bound) })
	oh := make([]capi.Handle, len(out))
	for i, t := range out {
		oh[i] = capi.Handle(enc.tensor(t))
	}
	wrapped, err := capi.ApplyFunction(&functionNode{f: f, ctx: ctx}, ih, oh)
	check(op, err)
	list := make([]*Tensor, len(wrapped))
	for i, h := range wrapped {
		list[i] = wrapHandle(h, ctx.scope.parent)
	}
	return list
}

type functionNode struct {
	f   Function
	ctx *FunctionContext
}

// Released frees the saved tensors when the graph node dies.
func (n *functionNode) Released() {
	for _, t := range n.ctx.saved {
		t.Free()
	}
}

func (n *functionNode) Call(_ capi.Event, in, out []int64) error {
	s := NewScope(nil)
	defer s.Close()
	ctx := *n.ctx
	ctx.scope = s
	grads := make([]*Tensor, len(in))
	for i, h := range in {
		grads[i] = wrapHandle(capi.Handle(h), s)
	}
	var result []*Tensor
	var err error
	NoGrad(func() { result, err = n.f.Backward(&ctx, grads) })
	if err != nil {
		return err
	}
	for i, g := range result {
		if g != nil && i < len(out) {
			out[i] = int64(g.alias("backward"))
		}
	}
	return nil
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
	switch event {
	case capi.EventPack:
		scope := NewScope(nil)
		defer scope.Close()
		ticket, err := s.h.Pack(wrapHandle(capi.Handle(in[0]), scope))
		out[0] = ticket
		return err
	case capi.EventUnpack:
		t, err := s.h.Unpack(in[0])
		if err != nil {
			return err
		}
		out[0] = int64(t.alias("unpack"))
	case capi.EventPackRelease:
		s.h.Release(in[0])
	}
	return nil
}
