package torch

import (
	"runtime"
	"slices"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// BackwardOptions are the rare wishes of Backward. The zero value is PyTorch's default.
type BackwardOptions struct {
	Gradient    *Tensor // of the root; nil means 1, and then the root must have one element
	RetainGraph bool    // keep it, to go through it again; CreateGraph keeps it too
	CreateGraph bool    // record what backward computes, so that it can be differentiated
}

// Backward accumulates the gradient of t into the leaves of its graph. An error or panic in a hook comes back as the
// *Error of this call, with the hook's error as its cause.
func (t *Tensor) Backward(options ...BackwardOptions) {
	var o BackwardOptions
	if len(options) > 0 {
		o = options[0]
	}
	var grads []*Tensor
	if o.Gradient != nil {
		grads = []*Tensor{o.Gradient}
	}
	BackwardAll([]*Tensor{t}, grads, o)
}

// BackwardAll is Backward from several roots. grads is nil, or has one gradient per root.
func BackwardAll(roots, grads []*Tensor, o BackwardOptions) {
	const op = "backward"
	if len(roots) == 0 {
		fail(op, ErrArgument, "no roots")
	}
	args := newInvocation(op)
	defer args.close()
	rh, gh := args.handles(roots), args.handles(grads)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls.enter()
	defer calls.leave()
	check(op, capi.Backward(rh, gh, o.RetainGraph || o.CreateGraph, o.CreateGraph))
}

// GradOptions are the rare wishes of Grad.
type GradOptions struct {
	GradOutputs []*Tensor
	RetainGraph bool // as in BackwardOptions
	CreateGraph bool
	AllowUnused bool // inputs outside the graph give nil instead of an error
}

// Grad gives the gradients of outputs with respect to inputs without touching the leaves.
func Grad(outputs, inputs []*Tensor, o GradOptions) []*Tensor {
	const op = "grad"
	args := newInvocation(op)
	defer args.close()
	oh, gh, ih := args.handles(outputs), args.handles(o.GradOutputs), args.handles(inputs)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls.enter()
	defer calls.leave()
	out, err := capi.GradOf(oh, gh, ih, o.RetainGraph || o.CreateGraph, o.CreateGraph, o.AllowUnused)
	check(op, err)
	return wrapAll(out, args.scope)
}

// SetRequiresGrad marks a leaf for autograd and returns it.
func (t *Tensor) SetRequiresGrad(on bool) *Tensor {
	h := t.use("SetRequiresGrad")
	defer t.done()
	check("SetRequiresGrad", capi.SetRequiresGrad(h, on))
	return t
}

// Grad is the accumulated gradient of a leaf, in t's scope, or nil.
func (t *Tensor) Grad() *Tensor {
	h := t.use("Grad")
	defer t.done()
	g, err := capi.Grad(h)
	check("Grad", err)
	return wrapHandle(g, t.scope)
}

// SetGrad replaces the accumulated gradient, which has t's shape; nil clears it.
func (t *Tensor) SetGrad(g *Tensor) {
	h := t.use("SetGrad")
	defer t.done()
	var gh capi.Handle
	if g != nil {
		if want, got := t.Shape(), g.Shape(); !slices.Equal(want, got) {
			fail("SetGrad", ErrArgument, "gradient of shape %v for a tensor of shape %v", got, want)
		}
		gh = g.use("SetGrad")
		defer g.done()
	}
	check("SetGrad", capi.SetGrad(h, gh))
}

// NoGrad runs f without recording.
func NoGrad(f func()) { withGradMode(0, f) }

// EnableGrad runs f with recording, inside a NoGrad too.
func EnableGrad(f func()) { withGradMode(1, f) }

func withGradMode(mode int, f func()) {
	check("grad mode", capi.Load())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := capi.GradMode(mode)
	check("grad mode", err)
	defer func() { _, _ = capi.GradMode(int(b2i(before))) }()
	f()
}

// GradEnabled tells whether the calling thread records. Only meaningful inside NoGrad or EnableGrad, or on a locked
// thread.
func GradEnabled() bool {
	check("grad mode", capi.Load())
	on, err := capi.GradMode(-1)
	check("grad mode", err)
	return on
}

// DetectAnomaly runs f with autograd's anomaly detection: a backward that makes a NaN is an error that names the
// forward operation.
func DetectAnomaly(f func()) {
	check("anomaly mode", capi.Load())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := capi.AnomalyMode(1)
	check("anomaly mode", err)
	defer func() { _, _ = capi.AnomalyMode(int(b2i(before))) }()
	f()
}

// Hook is a registered hook of a tensor.
type Hook struct {
	t      *Tensor
	id     int64
	remove func(capi.Handle, int64) error
}

// Remove undoes the registration.
func (h *Hook) Remove() {
	th := h.t.use("Hook.Remove")
	defer h.t.done()
	check("Hook.Remove", h.remove(th, h.id))
}

// RegisterHook calls f with the gradient of t each time it is computed. The gradient belongs to a scope that is closed
// when f returns; a non-nil result replaces it. An error ends the backward.
func (t *Tensor) RegisterHook(f func(grad *Tensor) (*Tensor, error)) *Hook {
	h := t.use("RegisterHook")
	defer t.done()
	id, err := capi.HookTensor(h, tensorHook(f))
	check("RegisterHook", err)
	return &Hook{t, id, capi.UnhookTensor}
}

type tensorHook func(*Tensor) (*Tensor, error)

func (f tensorHook) Call(_ capi.Event, in, out []int64) error {
	defer inHook()()
	s := NewScope(nil)
	defer s.Close()
	r, err := f(wrapHandle(capi.Handle(in[0]), s))
	if err != nil {
		return err
	}
	if r != nil {
		out[0] = int64(r.alias("hook"))
	}
	return nil
}

// RegisterPostAccumulateGradHook calls f with the leaf each time a gradient was accumulated into it. Several hooks run in
// the order of their registration. An error ends the backward.
func (t *Tensor) RegisterPostAccumulateGradHook(f func(leaf *Tensor) error) *Hook {
	h := t.use("RegisterPostAccumulateGradHook")
	defer t.done()
	id, err := capi.HookPostAccumulate(h, leafHook(f))
	check("RegisterPostAccumulateGradHook", err)
	return &Hook{t, id, capi.UnhookPostAccumulate}
}

type leafHook func(*Tensor) error

func (f leafHook) Call(_ capi.Event, in, _ []int64) error {
	defer inHook()()
	s := NewScope(nil)
	defer s.Close()
	return f(wrapHandle(capi.Handle(in[0]), s))
}

// QueueCallback calls f when the running Backward ends. Only valid inside a hook.
func QueueCallback(f func() error) {
	check("QueueCallback", capi.QueueCallback(finalHook(f)))
}

type finalHook func() error

func (f finalHook) Call(capi.Event, []int64, []int64) error {
	defer inHook()()
	return f()
}
