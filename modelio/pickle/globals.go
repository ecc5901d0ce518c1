package pickle

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// storageTypes gives the dtype of torch's typed storages, in safetensors' names.
var storageTypes = map[Global]string{
	"torch.DoubleStorage": "F64", "torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
	"torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16", "torch.CharStorage": "I8",
	"torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL", "torch.ComplexFloatStorage": "C64",
}

// dtypes gives torch's dtypes, which follow an untyped storage.
var dtypes = map[Global]string{
	"torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.int64": "I64",
	"torch.int32": "I32", "torch.int16": "I16", "torch.int8": "I8", "torch.uint8": "U8", "torch.bool": "BOOL",
	"torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64", "torch.complex64": "C64",
	"torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2", "torch.float8_e4m3fnuz": "F8_E4M3FNUZ",
	"torch.float8_e5m2fnuz": "F8_E5M2FNUZ", "torch.float8_e8m0fnu": "F8_E8M0",
}

const (
	orderedDict      Global = "collections.OrderedDict"
	rebuildTensor    Global = "torch._utils._rebuild_tensor_v2"
	rebuildTensor3   Global = "torch._utils._rebuild_tensor_v3"
	rebuildParameter Global = "torch._utils._rebuild_parameter"
	untypedStorage   Global = "torch.storage.UntypedStorage"
	torchSize        Global = "torch.Size"
)

// findGlobal is the list of what a pickle may name.
func findGlobal(module, name string) (Global, error) {
	g := Global(module + "." + name)
	switch g {
	case orderedDict, rebuildTensor, rebuildTensor3, rebuildParameter, untypedStorage, torchSize:
		return g, nil
	}
	if storageTypes[g] != "" || dtypes[g] != "" {
		return g, nil
	}
	return "", fmt.Errorf("the pickle names %q, which is not allowed: only weights are read, and nothing of a file is run; "+
		"save the model's state_dict, or convert it to safetensors", string(g))
}

// findClass is findGlobal for TorchScript archives, whose objects name their classes.
func findClass(module, name string) (Global, error) {
	if g := Global(module + "." + name); g.isClass() {
		return g, nil
	}
	return findGlobal(module, name)
}

func (g Global) isClass() bool { return strings.HasPrefix(string(g), "__torch__.") }

// storage is a block of bytes in the archive.
type storage struct {
	key   string
	dtype string // "" where untyped
	data  []byte
}

// reduce calls an allowed global.
func reduce(f Global, args []any) (any, error) {
	switch f {
	case orderedDict:
		return newOrderedDict(args)
	case torchSize:
		if len(args) == 1 {
			if t, ok := args[0].(*Tuple); ok {
				return t, nil
			}
		}
	case rebuildParameter:
		if len(args) >= 1 {
			if t, ok := args[0].(*Tensor); ok {
				p := *t
				if len(args) > 1 {
					p.RequiresGrad = args[1] == any(true)
				}
				return &p, nil
			}
		}
	case rebuildTensor:
		if len(args) == 6 || len(args) == 7 { // the last is metadata of strange tensors
			return newTensor(args, "")
		}
	case rebuildTensor3:
		if len(args) == 7 || len(args) == 8 {
			if g, ok := args[6].(Global); ok && dtypes[g] != "" {
				return newTensor(args, dtypes[g])
			}
		}
	default:
		if f.isClass() && len(args) == 0 {
			return &Dict{object: true}, nil
		}
		return nil, errors.New("cannot be called")
	}
	return nil, fmt.Errorf("got %d arguments of unexpected types", len(args))
}

func newOrderedDict(args []any) (*Dict, error) {
	d := &Dict{}
	if len(args) == 0 {
		return d, nil
	}
	pairs, ok := args[0].(*List)
	if !ok || len(args) > 1 {
		return nil, errors.New("got something other than a list of pairs")
	}
	for _, p := range pairs.Items {
		var kv []any
		switch p := p.(type) {
		case *Tuple:
			kv = p.Items
		case *List:
			kv = p.Items
		}
		if len(kv) != 2 {
			return nil, errors.New("got something other than a list of pairs")
		}
		d.Items = append(d.Items, Item{kv[0], kv[1]})
	}
	return d, nil
}

// newTensor checks that a view lies within its storage.
func newTensor(args []any, dtype string) (*Tensor, error) {
	s, ok := args[0].(*storage)
	offset, ok2 := args[1].(int64)
	shape, ok3 := ints(args[2])
	stride, ok4 := ints(args[3])
	if !ok || !ok2 || !ok3 || !ok4 || len(shape) != len(stride) || offset < 0 {
		return nil, errors.New("got arguments of unexpected types")
	}
	if dtype == "" {
		dtype = s.dtype
	}
	if dtype == "" || s.dtype != "" && s.dtype != dtype {
		return nil, fmt.Errorf("storage %s is of dtype %q, the tensor of %q", s.key, s.dtype, dtype)
	}
	t := &Tensor{DType: dtype, Shape: shape, RequiresGrad: args[4] == any(true), stride: stride, offset: offset, storage: s}
	t.width = int64(safetensors.BitsPerElement(dtype) / 8)
	size, err := safetensors.ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	have := int64(len(s.data)) / t.width
	if size == 0 {
		t.contiguous, t.offset = true, 0
		return t, nil
	}
	last, ok := lastElement(offset, shape, stride)
	if !ok || last >= have {
		return nil, fmt.Errorf("a tensor of shape %v, strides %v and offset %d does not fit storage %s of %d elements", shape, stride, offset, s.key, have)
	}
	const mostRepeated = 1 << 28
	if n := size / t.width; n > have && n > mostRepeated {
		return nil, fmt.Errorf("a tensor of shape %v repeats the %d elements of storage %s", shape, have, s.key)
	}
	t.contiguous = isContiguous(shape, stride)
	return t, nil
}

// lastElement is the highest index that a view reads.
func lastElement(offset int64, shape, stride []int64) (int64, bool) {
	last := uint64(offset)
	for i, d := range shape {
		if stride[i] < 0 {
			return 0, false
		}
		hi, step := bits.Mul64(uint64(d-1), uint64(stride[i]))
		if hi != 0 || step > math.MaxInt64 {
			return 0, false
		}
		if last += step; last > math.MaxInt64 {
			return 0, false
		}
	}
	return int64(last), true
}

func isContiguous(shape, stride []int64) bool {
	want := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && stride[i] != want {
			return false
		}
		want *= shape[i]
	}
	return true
}

func ints(v any) ([]int64, bool) {
	t, ok := v.(*Tuple)
	if !ok {
		return nil, false
	}
	list := make([]int64, len(t.Items))
	for i, x := range t.Items {
		if list[i], ok = x.(int64); !ok {
			return nil, false
		}
	}
	return list, true
}
