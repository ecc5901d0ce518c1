// Package nn builds models from structs that embed Module.
//
// Fields that are tensors are parameters, or buffers where they have the tag `gotorch:"buffer"`; fields that are modules,
// and slices and arrays of either, belong to the model too. They must be exported, and the constructor calls Init:
//
//	type Net struct {
//		nn.Module
//		L1, L2 *nn.LinearModule
//	}
//
//	func NewNet() *Net {
//		n := &Net{L1: nn.Linear(100, 200, false), L2: nn.Linear(200, 10, false)}
//		n.Init(n)
//		return n
//	}
package nn

import (
	"fmt"
	"reflect"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/wangkuiyi/gotorch"
)

// IModule is a model or a layer of one: a struct that embeds Module.
type IModule interface {
	// Train switches between training and evaluation, which BatchNorm2d tells apart, in all modules below.
	Train(on bool)
	// IsTraining tells which of the two it is.
	IsTraining() bool
	// To moves parameters and buffers to a device, and converts them where dtype is given, in place.
	To(device gotorch.Device, dtype ...int8)
	// StateDict gives the parameters and buffers by name.
	StateDict() map[string]gotorch.Tensor
	// SetStateDict replaces the parameters and buffers. The names must be exactly those of StateDict.
	SetStateDict(sd map[string]gotorch.Tensor) error
	// Apply calls f with the Module inside this module, and of all modules below. Module.Outer leads back.
	Apply(f func(IModule))
	// Name is the name of the struct's type, such as "nn.LinearModule".
	Name() string
}

// Module is what structs embed, by value, to be an IModule.
type Module struct {
	outer      IModule
	isTraining bool
	name       string
}

var (
	moduleType = reflect.TypeFor[Module]()
	layerType  = reflect.TypeFor[IModule]()
	tensorType = reflect.TypeFor[gotorch.Tensor]()
)

func fail(format string, args ...any) {
	panic(&torch.Error{Op: "nn", Kind: torch.ErrArgument, Msg: fmt.Sprintf(format, args...)})
}

// Init tells m which struct embeds it; constructors call it last. The model starts in training. A second call does nothing.
func (m *Module) Init(outer IModule) {
	if m.outer != nil {
		return
	}
	v := reflect.ValueOf(outer)
	if v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		f := v.Elem().FieldByName("Module")
		if f.IsValid() && f.Type() == moduleType && f.Addr().UnsafePointer() == reflect.ValueOf(m).UnsafePointer() {
			m.outer, m.isTraining, m.name = outer, true, v.Elem().Type().String()
			return
		}
	}
	fail("Init of %T: it must be a pointer to a struct that embeds nn.Module by value, and Init be called on that Module", outer)
}

// initialised is the struct around m.
func (m *Module) initialised() IModule {
	if m.outer == nil {
		fail("the module is not initialised: its constructor calls m.Init(m)")
	}
	return m.outer
}

// Outer is the struct that embeds m.
func (m *Module) Outer() IModule { return m.outer }

// Name is the name of the struct's type, such as "nn.LinearModule".
func (m *Module) Name() string { return m.name }

// IsTraining tells whether m is in training, not in evaluation.
func (m *Module) IsTraining() bool { return m.isTraining }

// Train switches between training and evaluation, in all modules below.
func (m *Module) Train(on bool) {
	m.Apply(func(l IModule) { l.(*Module).isTraining = on })
}

// Apply calls f with m, and with the Module inside each module below, in the order of the fields.
func (m *Module) Apply(f func(IModule)) {
	outer := m.initialised()
	f(m)
	eachField(outer, func(field reflect.StructField, v reflect.Value, _ string) error {
		if l := layer(v); l != nil {
			l.Apply(f)
		}
		return nil
	})
}

// To moves parameters and buffers to a device, and converts them where dtype is given, in place: optimisers that know them
// go on with them.
func (m *Module) To(device gotorch.Device, dtype ...int8) {
	_ = m.visit(func(_ reflect.StructField, v reflect.Value, _ string, _ bool) error {
		if t := v.Interface().(gotorch.Tensor); t.T != nil {
			t.SetData(t.To(device, dtype...))
		}
		return nil
	})
}

// NamedParameters gives the parameters by name: the type of the model and the fields that lead to the tensor, such as
// "Net.L1.Weight" or "Net.Blocks[0].Bias".
func (m *Module) NamedParameters() map[string]gotorch.Tensor { return asMap(m.list(true, false)) }

// NamedBuffers gives the buffers by name.
func (m *Module) NamedBuffers() map[string]gotorch.Tensor { return asMap(m.list(false, true)) }

// Parameters gives the parameters in the order of the fields.
func (m *Module) Parameters() []gotorch.Tensor { return tensors(m.list(true, false)) }

// Buffers gives the buffers in the order of the fields.
func (m *Module) Buffers() []gotorch.Tensor { return tensors(m.list(false, true)) }

// StateDict gives the parameters and buffers by name.
func (m *Module) StateDict() map[string]gotorch.Tensor { return asMap(m.list(true, true)) }

// SetStateDict replaces the parameters and buffers by those of sd, without a copy. Both must have the same names; an error
// leaves the model as it was. An optimiser that had the parameters keeps the old ones: make it afterwards.
func (m *Module) SetStateDict(sd map[string]gotorch.Tensor) error {
	type change struct {
		field  reflect.Value
		tensor gotorch.Tensor
	}
	var changes []change
	used := map[string]bool{}
	err := m.visit(func(f reflect.StructField, v reflect.Value, prefix string, noSuffix bool) error {
		if v.Interface().(gotorch.Tensor).T == nil {
			return nil
		}
		name := tensorName(f, prefix, noSuffix)
		t, ok := sd[name]
		if !ok {
			return fmt.Errorf("nn: the state dict has no tensor %q", name)
		}
		changes = append(changes, change{v, t})
		used[name] = true
		return nil
	})
	if err != nil {
		return err
	}
	first := ""
	for name := range sd { // in any order: the least is reported
		if !used[name] && (first == "" || name < first) {
			first = name
		}
	}
	if first != "" {
		return fmt.Errorf("nn: the model has no tensor %q, which the state dict holds", first)
	}
	for _, c := range changes {
		c.field.Set(reflect.ValueOf(c.tensor))
	}
	return nil
}

// Visitor is called with a tensor of a model: the field, or slice field, that it is in, its value, and its name. Unless
// noSuffix is set, the field's name follows prefix. An error ends the visit.
type Visitor func(f reflect.StructField, v reflect.Value, prefix string, noSuffix bool) error

func tensorName(f reflect.StructField, prefix string, noSuffix bool) string {
	if noSuffix {
		return prefix
	}
	return prefix + "." + f.Name
}

// visit calls visitor with every tensor of the model, in the order of the fields.
func (m *Module) visit(visitor Visitor) error {
	outer := m.initialised()
	return visitTensors(outer, reflect.TypeOf(outer).Elem().Name(), visitor)
}

func visitTensors(m IModule, prefix string, visitor Visitor) error {
	return eachField(m, func(f reflect.StructField, v reflect.Value, index string) error {
		name := prefix + "." + f.Name + index
		if l := layer(v); l != nil {
			return visitTensors(l, name, visitor)
		}
		if v.Type() != tensorType {
			return nil
		}
		if index != "" {
			return visitor(f, v, name, true)
		}
		return visitor(f, v, prefix, false)
	})
}

// eachField calls visit with the fields of the struct behind m that may belong to the model, and with the elements of those
// that are slices or arrays, which have an index such as "[0]".
func eachField(m IModule, visit func(f reflect.StructField, v reflect.Value, index string) error) error {
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil
	}
	v = v.Elem()
	for i := range v.NumField() {
		f, field := v.Type().Field(i), v.Field(i)
		list := f.Type.Kind() == reflect.Slice || f.Type.Kind() == reflect.Array
		element := f.Type
		if list {
			element = f.Type.Elem()
		}
		if element != tensorType && !element.Implements(layerType) && element.Kind() != reflect.Interface || f.Type == moduleType {
			continue
		}
		if !f.IsExported() {
			if element.Kind() == reflect.Interface && !element.Implements(layerType) {
				continue
			}
			fail("field %s of %v holds a part of the model, and must be exported", f.Name, v.Type())
		}
		if !list {
			if err := visit(f, field, ""); err != nil {
				return err
			}
			continue
		}
		for j := range field.Len() {
			if err := visit(f, field.Index(j), fmt.Sprintf("[%d]", j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// layer is the module that v holds, or nil.
func layer(v reflect.Value) IModule {
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil
	}
	l, _ := v.Interface().(IModule)
	return l
}

type named struct {
	name   string
	tensor gotorch.Tensor
}

// list gives the tensors that there are.
func (m *Module) list(params, buffers bool) []named {
	var out []named
	_ = m.visit(func(f reflect.StructField, v reflect.Value, prefix string, noSuffix bool) error {
		tag, t := f.Tag.Get("gotorch"), v.Interface().(gotorch.Tensor)
		if t.T != nil && (buffers && tag == "buffer" || params && (tag == "" || tag == "param")) {
			out = append(out, named{tensorName(f, prefix, noSuffix), t})
		}
		return nil
	})
	return out
}

func asMap(list []named) map[string]gotorch.Tensor {
	m := make(map[string]gotorch.Tensor, len(list))
	for _, n := range list {
		m[n.name] = n.tensor
	}
	return m
}

func tensors(list []named) []gotorch.Tensor {
	out := make([]gotorch.Tensor, len(list))
	for i, n := range list {
		out[i] = n.tensor
	}
	return out
}
