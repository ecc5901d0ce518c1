package nn

import (
	"context"
	"reflect"

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
// returns them, or replacements. Hooks run outside activation checkpointing: not again when the layer is recomputed.
type Hook interface {
	BeforeForward(c *Call, in []*torch.Tensor) []*torch.Tensor
	AfterForward(c *Call, out []*torch.Tensor) []*torch.Tensor
}

// Hooks holds what Run does around a layer. Embed it by value.
type Hooks struct {
	hooks      []Hook
	checkpoint bool
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

// Run calls a layer: its temporaries die when it returns, its outputs belong to c.Scope.
func Run[In, Out any](l Layer[In, Out], c *Call, in In) Out {
	h := l.LayerHooks()
	scope := torch.NewScope(c.Scope)
	defer scope.Close()
	inner := c.with(scope)

	in = mapTensors(in, func(t *torch.Tensor) *torch.Tensor { return t.In(scope) })
	for _, hook := range h.hooks {
		in = replaceTensors(in, hook.BeforeForward(inner, tensorsOf(in)))
	}
	var out Out
	if h.checkpoint && c.Training && torch.GradEnabled() {
		out = checkpointed(l, inner, in)
	} else {
		out = l.Forward(inner, in)
	}
	for i := len(h.hooks) - 1; i >= 0; i-- {
		out = replaceTensors(out, h.hooks[i].AfterForward(inner, tensorsOf(out)))
	}
	return mapTensors(out, func(t *torch.Tensor) *torch.Tensor { return t.In(c.Scope) })
}

// mapTensors copies v with every tensor in it (through structs, pointers to structs, slices and arrays) replaced by f's
// result. Nil tensors stay nil.
func mapTensors[T any](v T, f func(*torch.Tensor) *torch.Tensor) T {
	if t, ok := any(v).(*torch.Tensor); ok { // the common case, without reflection
		if t == nil {
			return v
		}
		return any(f(t)).(T)
	}
	out := reflect.New(reflect.TypeFor[T]()).Elem()
	out.Set(mapValue(reflect.ValueOf(&v).Elem(), f))
	return out.Interface().(T)
}

var tensorType = reflect.TypeFor[*torch.Tensor]()

func mapValue(v reflect.Value, f func(*torch.Tensor) *torch.Tensor) reflect.Value {
	t := v.Type()
	switch {
	case t == tensorType:
		if v.IsNil() {
			return v
		}
		return reflect.ValueOf(f(v.Interface().(*torch.Tensor)))
	case t.Kind() == reflect.Struct:
		out := reflect.New(t).Elem()
		out.Set(v)
		for i := range t.NumField() {
			if t.Field(i).IsExported() && mayHoldTensors(t.Field(i).Type) {
				out.Field(i).Set(mapValue(v.Field(i), f))
			}
		}
		return out
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		if v.IsNil() {
			return v
		}
		out := reflect.New(t.Elem())
		out.Elem().Set(mapValue(v.Elem(), f))
		return out
	case t.Kind() == reflect.Slice && !v.IsNil() && mayHoldTensors(t.Elem()):
		out := reflect.MakeSlice(t, v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(mapValue(v.Index(i), f))
		}
		return out
	case t.Kind() == reflect.Array && mayHoldTensors(t.Elem()):
		out := reflect.New(t).Elem()
		for i := range v.Len() {
			out.Index(i).Set(mapValue(v.Index(i), f))
		}
		return out
	}
	return v
}

func mayHoldTensors(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		return true
	case reflect.Pointer:
		return t == tensorType || t.Elem().Kind() == reflect.Struct
	case reflect.Slice, reflect.Array:
		return mayHoldTensors(t.Elem())
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
	return mapTensors(v, func(*torch.Tensor) *torch.Tensor {
		i++
		return list[i-1]
	})
}
