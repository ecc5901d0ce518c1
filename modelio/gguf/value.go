package gguf

import (
	"fmt"
	"math"
)

// ValueType is the type of a metadata value.
type ValueType uint32

// The types of metadata values.
const (
	Uint8   ValueType = 0
	Int8    ValueType = 1
	Uint16  ValueType = 2
	Int16   ValueType = 3
	Uint32  ValueType = 4
	Int32   ValueType = 5
	Float32 ValueType = 6
	Bool    ValueType = 7
	String  ValueType = 8
	Array   ValueType = 9
	Uint64  ValueType = 10
	Int64   ValueType = 11
	Float64 ValueType = 12
)

var valueTypes = [...]struct {
	name string
	size int // bytes that one value takes in the file, at least
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Uint16: {"uint16", 2}, Int16: {"int16", 2}, Uint32: {"uint32", 4},
	Int32: {"int32", 4}, Float32: {"float32", 4}, Bool: {"bool", 1}, String: {"string", 8}, Array: {"array", 12},
	Uint64: {"uint64", 8}, Int64: {"int64", 8}, Float64: {"float64", 8},
}

// String gives the format's name of the type.
func (t ValueType) String() string {
	if int64(t) < int64(len(valueTypes)) {
		return valueTypes[t].name
	}
	return fmt.Sprintf("value type %d", uint32(t))
}

// KV is one metadata entry. Value is a Go value of the type's name (uint8 ... float64, bool, string); an array is a
// slice of its elements' type ([]string, []int32, ...), an array of arrays is []any.
type KV struct {
	Key   string
	Type  ValueType
	Value any
}

// Metadata lists the entries in file order.
func (f *File) Metadata() []KV { return f.kvs }

// Value looks a metadata entry up.
func (f *File) Value(key string) (KV, bool) {
	i, ok := f.kvIndex[key]
	if !ok {
		return KV{}, false
	}
	return f.kvs[i], true
}

// ErrNoKey is what the typed getters wrap when a key is absent.
var ErrNoKey = fmt.Errorf("no such key")

func (f *File) lookUp(key string) (KV, error) {
	kv, ok := f.Value(key)
	if !ok {
		return KV{}, fmt.Errorf("gguf: %s: metadata %q: %w", f.path, key, ErrNoKey)
	}
	return kv, nil
}

func (f *File) wrongType(kv KV, want string) error {
	return fmt.Errorf("gguf: %s: metadata %q is a %v, expected %s", f.path, kv.Key, kv.Type, want)
}

// Uint gives an integer of any width that is not negative.
func (f *File) Uint(key string) (uint64, error) {
	kv, err := f.lookUp(key)
	if err != nil {
		return 0, err
	}
	if v, ok := toInt(kv.Value); ok && v >= 0 {
		return uint64(v), nil
	}
	if v, ok := kv.Value.(uint64); ok {
		return v, nil
	}
	return 0, f.wrongType(kv, "a whole number that is not negative")
}

// Float gives a number as float64; a float32 keeps its exact value.
func (f *File) Float(key string) (float64, error) {
	kv, err := f.lookUp(key)
	if err != nil {
		return 0, err
	}
	switch v := kv.Value.(type) {
	case float32:
		return float64(v), nil
	case float64:
		return v, nil
	}
	if v, ok := toInt(kv.Value); ok {
		return float64(v), nil
	}
	return 0, f.wrongType(kv, "a number")
}

// Str gives a string.
func (f *File) Str(key string) (string, error) {
	kv, err := f.lookUp(key)
	if err != nil {
		return "", err
	}
	if v, ok := kv.Value.(string); ok {
		return v, nil
	}
	return "", f.wrongType(kv, "a string")
}

// Bool gives a bool.
func (f *File) Bool(key string) (bool, error) {
	kv, err := f.lookUp(key)
	if err != nil {
		return false, err
	}
	if v, ok := kv.Value.(bool); ok {
		return v, nil
	}
	return false, f.wrongType(kv, "a bool")
}

// Strings gives an array of strings; the slice is the file's own.
func (f *File) Strings(key string) ([]string, error) {
	kv, err := f.lookUp(key)
	if err != nil {
		return nil, err
	}
	if v, ok := kv.Value.([]string); ok {
		return v, nil
	}
	return nil, f.wrongType(kv, "an array of strings")
}

// Ints gives an array of integers of any width.
func (f *File) Ints(key string) ([]int64, error) {
	kv, err := f.lookUp(key)
	if err != nil {
		return nil, err
	}
	var out []int64
	switch v := kv.Value.(type) {
	case []uint8:
		out = widen(v)
	case []int8:
		out = widen(v)
	case []uint16:
		out = widen(v)
	case []int16:
		out = widen(v)
	case []uint32:
		out = widen(v)
	case []int32:
		out = widen(v)
	case []int64:
		out = widen(v)
	case []uint64:
		for _, x := range v {
			if x > math.MaxInt64 {
				return nil, f.wrongType(kv, "numbers below 2^63")
			}
		}
		out = widen(v)
	default:
		return nil, f.wrongType(kv, "an array of whole numbers")
	}
	return out, nil
}

func widen[T uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64](v []T) []int64 {
	out := make([]int64, len(v))
	for i, x := range v {
		out[i] = int64(x)
	}
	return out
}

// toInt gives integers that fit int64.
func toInt(v any) (int64, bool) {
	switch v := v.(type) {
	case uint8:
		return int64(v), true
	case int8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	}
	return 0, false
}
