// Package nn builds models from plain Go structs.
//
// A module is a pointer to a struct whose fields are parameters (*Param), other modules, or slices of modules. There is
// no registration: NamedParams visits the fields in the order of their declaration, so the order of parameters is the
// same on every rank and in every run. A struct tag gives the name that a field has on disk; "-" keeps a field out:
//
//	type MLP struct {
//		nn.Hooks
//		Gate *nn.Linear `torch:"gate_proj"`
//		Up   *nn.Linear `torch:"up_proj"`
//	}
//
// Run calls a layer. It opens a scope in which the layer's temporaries live, runs the layer's hooks (sharding,
// activation checkpointing) and hands the outputs to the caller's scope.
package nn

import (
	"fmt"
	"reflect"

	"github.com/gofsdp/gofsdp/torch"
)

// Param is a cell that holds a parameter or a buffer of a module. Sharding swaps its tensor between this rank's rows and
// the whole; the Param stays. Names on disk and the order of parameters never depend on sharding.
type Param struct {
	tensor     *torch.Tensor
	trainable  bool
	shape      []int64
	lo, hi     int64
	replicated bool
	buffer     bool
	verbatim   bool
}

// NewParam makes a parameter of t, which must be in no scope and may be on the meta device, to be loaded later.
// Trainable parameters require grad.
func NewParam(t *torch.Tensor, trainable bool) *Param {
	p := &Param{trainable: trainable, shape: t.Shape()}
	p.hi = p.rows()
	p.SetTensor(t)
	return p
}

// NewReplicatedParam makes a frozen parameter that sharding leaves whole on every rank: small tables that each rank
// needs to make sense of its own rows.
func NewReplicatedParam(t *torch.Tensor) *Param {
	p := NewParam(t, false)
	p.replicated = true
	return p
}

// NewBuffer makes a buffer of t: state that is saved with the model and that no optimiser updates, such as the running
// statistics of a BatchNorm. It is frozen, and whole on every rank.
func NewBuffer(t *torch.Tensor) *Param {
	p := NewReplicatedParam(t)
	p.buffer = true
	return p
}

// Buffer tells whether p was made by NewBuffer.
func (p *Param) Buffer() bool { return p.buffer }

// Tensor is the parameter's current value, in no scope: the rows that this rank owns, or the whole while its unit is
// gathered.
func (p *Param) Tensor() *torch.Tensor { return p.tensor }

// SetTensor replaces the value. The Param owns t from now on: sharding frees it once its rows are copied.
func (p *Param) SetTensor(t *torch.Tensor) {
	if p.trainable && t.IsLeaf() {
		t.SetRequiresGrad(true)
	}
	p.tensor = t
}

// In is the current value bound to scope s, for use in a layer.
func (p *Param) In(s *torch.Scope) *torch.Tensor { return p.tensor.In(s) }

// Shape is the shape of the whole parameter.
func (p *Param) Shape() []int64 { return append([]int64(nil), p.shape...) }

// Rows is the half-open range of rows (dimension 0) that this rank owns; all of them where the parameter is not sharded.
func (p *Param) Rows() (lo, hi int64) { return p.lo, p.hi }

// SetRows records which rows this rank owns. Sharding calls it.
func (p *Param) SetRows(lo, hi int64) { p.lo, p.hi = lo, hi }

// Replicated tells whether sharding leaves the parameter whole.
func (p *Param) Replicated() bool { return p.replicated }

// Trainable tells whether the optimiser updates the parameter.
func (p *Param) Trainable() bool { return p.trainable }

// SetTrainable freezes or unfreezes the parameter. Buffers stay frozen.
func (p *Param) SetTrainable(on bool) {
	on = on && !p.buffer
	p.trainable = on
	if p.tensor != nil && p.tensor.IsLeaf() {
		p.tensor.SetRequiresGrad(on)
	}
}

// Verbatim tells whether the parameter is a means of storage, such as packed weights or their scales, that mixed precision
// must not convert although its type may be a floating-point one.
func (p *Param) Verbatim() bool { return p.verbatim }

// SetVerbatim marks the parameter as Verbatim and returns it.
func (p *Param) SetVerbatim() *Param {
	p.verbatim = true
	return p
}

func (p *Param) rows() int64 {
	if len(p.shape) == 0 {
		return 1
	}
	return p.shape[0]
}

// Named is a parameter and its path, e.g. "model.layers.0.self_attn.q_proj.weight".
type Named struct {
	Name  string
	Param *Param
	// Shared holds the further names of a parameter that occurs more than once (tied weights).
	Shared []string
}

// NamedModule is a module and its path.
type NamedModule struct {
	Name   string
	Module any
}

var paramType = reflect.TypeFor[*Param]()

// NamedParams lists the parameters of a module in the order of declaration, each once.
func NamedParams(module any) []Named {
	var list []Named
	index := map[*Param]int{}
	walk(reflect.ValueOf(module), "", func(name string, v reflect.Value) bool {
		p, ok := v.Interface().(*Param)
		if !ok {
			return true
		}
		if at, seen := index[p]; seen {
			list[at].Shared = append(list[at].Shared, name)
			return true
		}
		index[p] = len(list)
		list = append(list, Named{Name: name, Param: p})
		return true
	})
	return list
}

// Params lists the parameters of a module in the order of declaration, each once.
func Params(module any) []*Param {
	named := NamedParams(module)
	list := make([]*Param, len(named))
	for i, n := range named {
		list[i] = n.Param
	}
	return list
}

// Modules lists the module itself and the modules inside it, outer ones first.
func Modules(module any) []NamedModule {
	var list []NamedModule
	seen := map[any]bool{}
	walk(reflect.ValueOf(module), "", func(name string, v reflect.Value) bool {
		m := v.Interface()
		if _, ok := m.(*Param); ok || seen[m] {
			return false
		}
		seen[m] = true
		list = append(list, NamedModule{name, m})
		return true
	})
	return list
}

// walk visits pointers to structs: the root, its parameters and its sub-modules, depth first in order of declaration.
// visit returns false to stay out of a module.
func walk(v reflect.Value, name string, visit func(string, reflect.Value) bool) {
	w := walker{visit: visit}
	w.value(v, name)
}

type walker struct {
	visit func(string, reflect.Value) bool
	path  []reflect.Value // the modules around the present one: a pointer back to one of them is no child
}

func (w *walker) value(v reflect.Value, name string) {
	for v.Kind() == reflect.Interface {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || v.Elem().Kind() != reflect.Struct || w.around(v) {
			return
		}
		if !w.visit(name, v) || v.Type() == paramType {
			return
		}
		w.path = append(w.path, v)
		w.fields(v.Elem(), name)
		w.path = w.path[:len(w.path)-1]
	case reflect.Struct:
		if v.CanAddr() && reaches(v.Type(), paramType, map[reflect.Type]bool{}) {
			w.value(v.Addr(), name)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			w.value(v.Index(i), join(name, fmt.Sprint(i)))
		}
	}
}

func (w *walker) around(v reflect.Value) bool {
	for _, p := range w.path {
		if p.Type() == v.Type() && p.Pointer() == v.Pointer() {
			return true
		}
	}
	return false
}

func (w *walker) fields(v reflect.Value, name string) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("torch")
		if tag == "-" || !holdsModules(f.Type) {
			continue
		}
		if f.Anonymous && !tagged && f.Type.Kind() == reflect.Struct { // exported or not, as Go promotes its fields
			w.fields(v.Field(i), name)
			continue
		}
		if !f.IsExported() {
			continue
		}
		if !tagged && !f.Anonymous {
			tag = f.Name
		}
		w.value(v.Field(i), join(name, tag))
	}
}

// holdsModules keeps walk out of fields that are plain data.
func holdsModules(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer:
		return t.Elem().Kind() == reflect.Struct && t != tensorType && t != reflect.TypeFor[*torch.Generator]()
	case reflect.Slice, reflect.Array:
		return holdsModules(t.Elem())
	case reflect.Interface, reflect.Struct:
		return true
	}
	return false
}

func join(a, b string) string {
	switch {
	case a == "":
		return b
	case b == "":
		return a
	}
	return a + "." + b
}
