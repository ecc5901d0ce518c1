package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Values of a template are nil (None), bool, int, float64, string, *List, *Dict, Func, and
// the engine's own undefined, *loop, *macro and *namespace.

// List is a Python list or tuple.
type List struct {
	Items []any
	Tuple bool
}

// NewList makes a list.
func NewList(items ...any) *List { return &List{Items: items} }

// Dict is a Python dict with string keys; it keeps the order of insertion.
type Dict struct {
	keys   []string
	values map[string]any
}

// NewDict makes an empty dict.
func NewDict() *Dict { return &Dict{values: map[string]any{}} }

// Set adds or replaces an entry.
func (d *Dict) Set(key string, value any) {
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = value
}

// Get returns an entry.
func (d *Dict) Get(key string) (any, bool) {
	v, ok := d.values[key]
	return v, ok
}

// Keys returns the keys in order; the slice must not be changed.
func (d *Dict) Keys() []string { return d.keys }

func (d *Dict) items() []any {
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = &List{[]any{k, d.values[k]}, true}
	}
	return out
}

// Args are the arguments of a call.
type Args struct {
	Pos   []any
	Named *Dict
}

// arg returns argument i, which may be given by name, or fallback.
func (a Args) arg(i int, name string, fallback any) any {
	if i >= 0 && i < len(a.Pos) {
		return a.Pos[i]
	}
	if a.Named != nil && name != "" {
		if v, ok := a.Named.Get(name); ok {
			return v
		}
	}
	return fallback
}

// Func is a function that a template can call.
type Func func(Args) (any, error)

// undefined is the value of a missing name, attribute or item. It prints as nothing and is
// false, but nothing can be looked up in it.
type undefined struct{ what string }

func (u undefined) err() error { return fmt.Errorf("%s is undefined", u.what) }

// namespace is the object whose attributes {% set %} may change.
type namespace struct{ *Dict }

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case undefined:
		return "undefined"
	case string:
		return "str"
	case float64:
		return "float"
	case *List:
		if v.Tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case *loop:
		return "loop"
	case *namespace:
		return "namespace"
	case Func, *macro:
		return "function"
	}
	return fmt.Sprintf("%T", v)
}

// str is Python's str.
func str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	return repr(v)
}

// repr is Python's repr.
func repr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case undefined:
		return "Undefined"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int:
		return strconv.Itoa(v)
	case float64:
		switch {
		case math.IsInf(v, 1):
			return "inf"
		case math.IsInf(v, -1):
			return "-inf"
		case math.IsNaN(v):
			return "nan"
		}
		return pyFloat(v)
	case string:
		return reprString(v)
	case *List:
		parts := make([]string, len(v.Items))
		for i, e := range v.Items {
			parts[i] = repr(e)
		}
		switch s := strings.Join(parts, ", "); {
		case !v.Tuple:
			return "[" + s + "]"
		case len(parts) == 1:
			return "(" + s + ",)"
		default:
			return "(" + s + ")"
		}
	case *Dict:
		parts := make([]string, len(v.keys))
		for i, k := range v.keys {
			parts[i] = reprString(k) + ": " + repr(v.values[k])
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return "<" + typeName(v) + ">"
}

func reprString(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var out strings.Builder
	out.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\r':
			out.WriteString(`\r`)
		case r == '\t':
			out.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&out, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\U%08x`, r)
		}
	}
	out.WriteRune(quote)
	return out.String()
}

// elements lists what a loop over v yields.
func elements(v any) ([]any, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *List:
		return v.Items, nil
	case *Dict:
		out := make([]any, len(v.keys))
		for i, k := range v.keys {
			out[i] = k
		}
		return out, nil
	case string:
		out := make([]any, 0, len(v))
		for _, r := range v {
			out = append(out, string(r))
		}
		return out, nil
	}
	return nil, fmt.Errorf("%s object is not iterable", typeName(v))
}

func length(v any) (int, error) {
	switch v := v.(type) {
	case undefined:
		return 0, nil
	case string:
		return utf8.RuneCountInString(v), nil
	case *List:
		return len(v.Items), nil
	case *Dict:
		return len(v.keys), nil
	}
	return 0, fmt.Errorf("object of type %s has no length", typeName(v))
}

// number returns v as a float, and whether it is an int (bools count as ints).
func number(v any) (f float64, i int, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int:
		return float64(v), v, true, true
	case float64:
		return v, 0, false, true
	}
	return 0, 0, false, false
}

func equal(a, b any) bool {
	if fa, ia, intA, ok := number(a); ok {
		fb, ib, intB, ok := number(b)
		if intA && intB {
			return ok && ia == ib
		}
		return ok && fa == fb
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case string:
		s, ok := b.(string)
		return ok && a == s
	case *List:
		l, ok := b.(*List)
		return ok && a.Tuple == l.Tuple && slices.EqualFunc(a.Items, l.Items, equal)
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || len(a.keys) != len(d.keys) {
			return false
		}
		for _, k := range a.keys {
			v, ok := d.values[k]
			if !ok || !equal(a.values[k], v) {
				return false
			}
		}
		return true
	case Func:
		return false
	}
	if _, ok := b.(Func); ok {
		return false
	}
	return a == b
}

// compare orders numbers, strings and lists.
func compare(a, b any) (int, error) {
	if fa, ia, intA, ok := number(a); ok {
		if fb, ib, intB, ok := number(b); ok {
			switch {
			case intA && intB && ia < ib, !(intA && intB) && fa < fb:
				return -1, nil
			case intA && intB && ia > ib, !(intA && intB) && fa > fb:
				return 1, nil
			}
			return 0, nil
		}
	}
	if sa, ok := a.(string); ok {
		if sb, ok := b.(string); ok {
			return strings.Compare(sa, sb), nil
		}
	}
	if la, ok := a.(*List); ok {
		if lb, ok := b.(*List); ok {
			for i := range min(len(la.Items), len(lb.Items)) {
				if c, err := compare(la.Items[i], lb.Items[i]); c != 0 || err != nil {
					return c, err
				}
			}
			return len(la.Items) - len(lb.Items), nil
		}
	}
	return 0, fmt.Errorf("%s and %s cannot be ordered", typeName(a), typeName(b))
}

func contains(container, v any) (bool, error) {
	switch c := container.(type) {
	case undefined:
		return false, nil
	case string:
		s, ok := v.(string)
		if !ok {
			return false, fmt.Errorf("'in <string>' requires a string, not %s", typeName(v))
		}
		return strings.Contains(c, s), nil
	case *Dict:
		s, ok := v.(string)
		if !ok {
			return false, nil
		}
		_, ok = c.values[s]
		return ok, nil
	case *List:
		return slices.ContainsFunc(c.Items, func(e any) bool { return equal(e, v) }), nil
	}
	return false, fmt.Errorf("argument of type %s is not iterable", typeName(container))
}
