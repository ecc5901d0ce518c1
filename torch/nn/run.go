package nn

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"sync"

	"github.com/gofsdp/gofsdp/torch"
)

// Call is the context of one forward pass. It is passed down from layer to layer.
type Call struct {
	// Context ends waits for other ranks inside hooks, in the forward and in its backward. Nil never ends.
	Context context.Context
	// Scope is where the running layer's temporaries live. Layers bind their parameters with p.In(c.Scope).
	Scope *torch.Scope
	// Training switches dropout on.
	Training bool
	// Generator is the source of dropout masks; it belongs to this rank. Nil is the process-wide one.
	Generator *torch.Generator
	// Recomputing is true while activation checkpointing runs a layer again inside backward.
	Recomputing bool

	saver torch.SavedTensorHooks // of the checkpointed layer that is running, see Note [Activation checkpointing]
}

// Ctx is Context, or a context that never ends.
func (c *Call) Ctx() context.Context {
	if c.Context == nil {
		return context.Background()
	}
	return c.Context
}

// with is a copy of the call for a scope.
func (c *Call) with(s *torch.Scope) *Call {
	d := *c
	d.Scope = s
	return &d
}

// Layer is a module that Run can call. Embedding Hooks gives a struct the first method.
type Layer[In, Out any] interface {
	LayerHooks() *Hooks
	Forward(c *Call, in In) Out
}

// Hook is work around a layer's forward. Tensors are those inside the layer's inputs and outputs, in order; a hook
// returns them, or replacements. Hooks run outside the layer's own activation checkpointing: not again when the layer is
// recomputed. Hooks of layers inside a checkpointed one do run again, with Call.Recomputing set; the recomputation may
// stop before their AfterForward.
type Hook interface {
	BeforeForward(c *Call, in []*torch.Tensor) []*torch.Tensor
	AfterForward(c *Call, out []*torch.Tensor) []*torch.Tensor
}

// Hooks holds what Run does around a layer. Embed it by value.
type Hooks struct {
	hooks      []Hook
	checkpoint bool
	reentrant  bool
}

// LayerHooks makes an embedding struct a Layer.
func (h *Hooks) LayerHooks() *Hooks { return h }

// AddHook appends a hook. BeforeForward runs in the order of addition, AfterForward in the reverse order.
func (h *Hooks) AddHook(hook Hook) { h.hooks = append(h.hooks, hook) }

// RemoveHook removes a hook.
func (h *Hooks) RemoveHook(hook Hook) {
	for i, x := range h.hooks {
		if x == hook {
			h.hooks = append(h.hooks[:i:i], h.hooks[i+1:]...)
			return
		}
	}
}

// SetCheckpoint switches activation checkpointing: the layer's activations are not kept for backward but computed again
// there (the non-reentrant kind, through saved-tensor hooks).
func (h *Hooks) SetCheckpoint(on bool) { h.checkpoint = on }

// SetCheckpointReentrant chooses the re-entrant kind of activation checkpointing: backward calls Backward inside itself.
// It costs no saved-tensor hooks, computes the whole layer again, and needs an input that requires grad; see
// EnableInputRequireGrads. SetCheckpoint switches checkpointing itself.
func (h *Hooks) SetCheckpointReentrant(on bool) { h.reentrant = on }

// Run calls a layer: its temporaries die when it returns, its outputs belong to c.Scope.
//
// Note [One thread per forward]
// Autograd runs backward in the order of sequence numbers, which libtorch counts per OS thread. If the scheduler moved the
// goroutine during a forward, gradients that meet in one tensor would be added in another order, and the last bits would
// differ from run to run. So Run stays on its thread.
func Run[In, Out any](l Layer[In, Out], c *Call, in In) Out {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := l.LayerHooks()
	scope := torch.NewScope(c.Scope)
	defer scope.Close()
	inner := c.with(scope)

	in = mapTensors(in, func(t *torch.Tensor) *torch.Tensor { return t.In(scope) })
	for _, hook := range h.hooks {
		in = replaceTensors(in, hook.BeforeForward(inner, tensorsOf(in)))
	}
	var out Out
	switch {
	case !h.checkpoint || !c.Training || !torch.GradEnabled():
		out = l.Forward(inner, in)
	case h.reentrant:
		out = checkpointedReentrant(l, inner, in)
	default:
		out = checkpointed(l, inner, in)
	}
	for i := len(h.hooks) - 1; i >= 0; i-- {
		out = replaceTensors(out, h.hooks[i].AfterForward(inner, tensorsOf(out)))
	}
	return mapTensors(out, func(t *torch.Tensor) *torch.Tensor { return t.In(c.Scope) })
}

// mapTensors copies v with every tensor in it (through exported fields of structs, pointers to structs, slices and arrays)
// replaced by f's result. Nil tensors stay nil. What can hold no tensors is shared, not copied.
func mapTensors[T any](v T, f func(*torch.Tensor) *torch.Tensor) T {
	switch t := any(v).(type) { // the common cases, without reflection
	case *torch.Tensor:
		if t == nil {
			return v
		}
		return any(f(t)).(T)
	case []*torch.Tensor:
		if t == nil {
			return v
		}
		out := make([]*torch.Tensor, len(t))
		for i, x := range t {
			if x != nil {
				out[i] = f(x)
			}
		}
		return any(out).(T)
	}
	if !holdsTensors(reflect.TypeFor[T]()) {
		return v
	}
	out := reflect.New(reflect.TypeFor[T]()).Elem()
	out.Set(mapValue(reflect.ValueOf(&v).Elem(), f))
	return out.Interface().(T)
}

var tensorType = reflect.TypeFor[*torch.Tensor]()

// mapValue is mapTensors for a value whose type holds tensors.
func mapValue(v reflect.Value, f func(*torch.Tensor) *torch.Tensor) reflect.Value {
	t := v.Type()
	if t == tensorType {
		if v.IsNil() {
			return v
		}
		return reflect.ValueOf(f(v.Interface().(*torch.Tensor)))
	}
	switch t.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		out := reflect.New(t.Elem())
		out.Elem().Set(mapValue(v.Elem(), f))
		return out
	case reflect.Struct:
		out := reflect.New(t).Elem()
		out.Set(v)
		for i := range t.NumField() {
			if field := t.Field(i); field.IsExported() && holdsTensors(field.Type) {
				out.Field(i).Set(mapValue(v.Field(i), f))
			}
		}
		return out
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		out := reflect.MakeSlice(t, v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(mapValue(v.Index(i), f))
		}
		return out
	default: // an array
		out := reflect.New(t).Elem()
		for i := range v.Len() {
			out.Index(i).Set(mapValue(v.Index(i), f))
		}
		return out
	}
}

var tensorHolders sync.Map // reflect.Type -> bool

// holdsTensors tells whether mapTensors can find a tensor in values of type t.
func holdsTensors(t reflect.Type) bool {
	if known, ok := tensorHolders.Load(t); ok {
		return known.(bool)
	}
	holds := reaches(t, tensorType, map[reflect.Type]bool{})
	tensorHolders.Store(t, holds)
	return holds
}

// reaches tells whether values of type t can lead to one of type target, through exported fields of structs, pointers to
// structs, slices and arrays.
func reaches(t, target reflect.Type, seen map[reflect.Type]bool) bool {
	if t == target {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer:
		return t.Elem().Kind() == reflect.Struct && reaches(t.Elem(), target, seen)
	case reflect.Slice, reflect.Array:
		return reaches(t.Elem(), target, seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if field := t.Field(i); field.IsExported() && reaches(field.Type, target, seen) {
				return true
			}
		}
	}
	return false
}

// tensorsOf lists the tensors inside v in order.
func tensorsOf[T any](v T) []*torch.Tensor {
	var list []*torch.Tensor
	mapTensors(v, func(t *torch.Tensor) *torch.Tensor {
		list = append(list, t)
		return t
	})
	return list
}

// replaceTensors puts list in place of the tensors inside v.
func replaceTensors[T any](v T, list []*torch.Tensor) T {
	i := 0
	v = mapTensors(v, func(t *torch.Tensor) *torch.Tensor {
		i++
		if i > len(list) {
			return t
		}
		return list[i-1]
	})
	if i != len(list) {
		torch.Throw(fmt.Errorf("nn: a hook gave %d tensors in place of %d", len(list), i))
	}
	return v
}
