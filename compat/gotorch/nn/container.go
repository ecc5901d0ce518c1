package nn

import (
	"reflect"

	"github.com/wangkuiyi/gotorch"
)

// SequentialModule calls one module after the other.
type SequentialModule struct {
	Module
	Modules []IModule
}

// Sequential makes a SequentialModule. Each module has a method Forward that takes what the one before it returns.
func Sequential(modules ...IModule) *SequentialModule {
	s := &SequentialModule{Modules: modules}
	s.Init(s)
	return s
}

// Forward gives inputs to the first module, its results to the next, and so on; the last has one result.
func (s *SequentialModule) Forward(inputs ...interface{}) interface{} {
	if len(s.Modules) == 0 {
		fail("Forward of a Sequential without modules")
	}
	values := make([]reflect.Value, len(inputs))
	for i, x := range inputs {
		values[i] = reflect.ValueOf(x)
	}
	for i, m := range s.Modules {
		values = forward(i, m, values)
	}
	if len(values) != 1 {
		fail("the last module of a Sequential gives %d results, not one", len(values))
	}
	return values[0].Interface()
}

func forward(i int, m IModule, values []reflect.Value) []reflect.Value {
	f := reflect.ValueOf(m).MethodByName("Forward")
	if !f.IsValid() {
		fail("module %d of a Sequential, a %T, has no method Forward", i, m)
	}
	t := f.Type()
	if t.IsVariadic() { // of another Sequential: it takes anything
		return unwrap(f.Call(values))
	}
	if t.NumIn() != len(values) {
		fail("module %d of a Sequential, a %T, takes %d values, but gets %d", i, m, t.NumIn(), len(values))
	}
	for j, v := range values {
		if !v.IsValid() || !v.Type().AssignableTo(t.In(j)) {
			fail("module %d of a Sequential, a %T, takes a %v, but gets a %v", i, m, t.In(j), v)
		}
	}
	return unwrap(f.Call(values))
}

// unwrap replaces results of interface types by what is in them.
func unwrap(values []reflect.Value) []reflect.Value {
	for i, v := range values {
		if v.Kind() == reflect.Interface {
			values[i] = v.Elem()
		}
	}
	return values
}

// FunctionalModule is a function as a module.
type FunctionalModule struct {
	Module
	Function func(gotorch.Tensor) gotorch.Tensor
}

// Functional makes a FunctionalModule of f.
func Functional(f func(gotorch.Tensor) gotorch.Tensor) *FunctionalModule {
	m := &FunctionalModule{Function: f}
	m.Init(m)
	return m
}

// Forward calls the function.
func (f *FunctionalModule) Forward(input gotorch.Tensor) gotorch.Tensor { return f.Function(input) }
