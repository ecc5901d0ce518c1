package pickle

import (
	"errors"
	"fmt"
	"slices"
)

// Unpickle runs a bare pickle, not a file of torch.save, which may hold plain data, torch's dtypes, torch.Size (a *Tuple
// here) and instances of the given classes ("package.module.Class"), which become *Object. Every other global is refused.
func Unpickle(data []byte, classes []Global) (any, error) {
	known := func(g Global) bool { return slices.Contains(classes, g) }
	m := machine{data: data,
		find: func(module, name string) (Global, error) {
			if g := Global(module + "." + name); known(g) {
				return g, nil
			}
			return findGlobal(module, name)
		},
		reduce: func(f Global, args []any) (any, error) {
			switch {
			case known(f):
				return &Object{Class: f, Args: args}, nil
			case f == torchSize || f == orderedDict:
				return reduce(f, args)
			}
			return nil, errors.New("cannot be called here")
		},
		pers: func(any) (any, error) { return nil, errors.New("a persistent id in a pickle without storages") },
	}
	v, err := m.run()
	if err != nil {
		return nil, fmt.Errorf("pickle: %w", err)
	}
	return v, nil
}

// DType gives the safetensors name of one of torch's dtypes: "F32" for torch.float32.
func (g Global) DType() (name string, ok bool) {
	name, ok = dtypes[g]
	return name, ok
}

// TorchDType is the reverse of DType.
func TorchDType(name string) (g Global, ok bool) {
	for g, n := range dtypes { // names are unique: the order does not matter
		if n == name {
			return g, true
		}
	}
	return "", false
}

// Ints gives the numbers of a tuple such as a torch.Size; ok is false if v is anything else.
func Ints(v any) (list []int64, ok bool) { return ints(v) }

// storageOf is the typed storage of a dtype, or the untyped one where torch has none.
func storageOf(dtype string) Global {
	for g, n := range storageTypes {
		if n == dtype {
			return g
		}
	}
	return untypedStorage
}
