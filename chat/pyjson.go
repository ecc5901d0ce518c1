package chat

import (
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// jsonStyle holds the arguments of Python's json.dumps. The zero value is the default of
// transformers: one line, ", " and ": ", non-ASCII characters as they are.
type jsonStyle struct {
	indent      string // of one level; "" with multiline false means one line
	multiline   bool
	item, key   string // separators; "" means the default
	ensureASCII bool
	sortKeys    bool
}

// pyJSON prints v as json.dumps does.
func pyJSON(v any, s jsonStyle) (string, error) {
	if s.item == "" {
		s.item = ", "
		if s.multiline {
			s.item = ","
		}
	}
	if s.key == "" {
		s.key = ": "
	}
	var out strings.Builder
	err := s.write(&out, v, "\n")
	return out.String(), err
}

func (s jsonStyle) write(out *strings.Builder, v any, newline string) error {
	switch v := v.(type) {
	case nil:
		out.WriteString("null")
	case bool:
		out.WriteString(strconv.FormatBool(v))
	case int:
		out.WriteString(strconv.Itoa(v))
	case float64:
		out.WriteString(pyFloat(v))
	case string:
		s.quote(out, v)
	case json.RawMessage:
		parsed, err := ParseJSON(v)
		if err != nil {
			return err
		}
		return s.write(out, parsed, newline)
	case []any:
		return s.sequence(out, "[", "]", len(v), newline, func(i int, newline string) error {
			return s.write(out, v[i], newline)
		})
	case Object:
		if s.sortKeys {
			v = append(Object{}, v...)
			sort.SliceStable(v, func(i, j int) bool { return v[i].Name < v[j].Name })
		}
		return s.sequence(out, "{", "}", len(v), newline, func(i int, newline string) error {
			s.quote(out, v[i].Name)
			out.WriteString(s.key)
			return s.write(out, v[i].Value, newline)
		})
	default:
		return fmt.Errorf("value of type %T is not JSON serializable", v)
	}
	return nil
}

func (s jsonStyle) sequence(out *strings.Builder, open, end string, n int, newline string, item func(int, string) error) error {
	inner := newline + s.indent
	out.WriteString(open)
	for i := range n {
		if i > 0 {
			out.WriteString(s.item)
		}
		if s.multiline {
			out.WriteString(inner)
		}
		if err := item(i, inner); err != nil {
			return err
		}
	}
	if s.multiline && n > 0 {
		out.WriteString(newline)
	}
	out.WriteString(end)
	return nil
}

func (s jsonStyle) quote(out *strings.Builder, text string) {
	out.WriteByte('"')
	for _, r := range text {
		switch r {
		case '"':
			out.WriteString(`\"`)
		case '\\':
			out.WriteString(`\\`)
		case '\n':
			out.WriteString(`\n`)
		case '\r':
			out.WriteString(`\r`)
		case '\t':
			out.WriteString(`\t`)
		case '\b':
			out.WriteString(`\b`)
		case '\f':
			out.WriteString(`\f`)
		default:
			switch {
			case r < 0x20 || s.ensureASCII && 0x7e < r && r < 0x10000 && r != 0x7f:
				fmt.Fprintf(out, `\u%04x`, r)
			case s.ensureASCII && r >= 0x10000:
				hi, lo := utf16.EncodeRune(r)
				fmt.Fprintf(out, `\u%04x\u%04x`, hi, lo)
			default:
				out.WriteRune(r)
			}
		}
	}
	out.WriteByte('"')
}

// pyFloat is Python's repr of a float.
func pyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// toEngine converts a value to what gonja works with; objects become its ordered Dict.
func toEngine(v any) (any, error) {
	switch v := v.(type) {
	case json.RawMessage:
		parsed, err := ParseJSON(v)
		if err != nil {
			return nil, err
		}
		return toEngine(parsed)
	case Message:
		return toEngine(v.object())
	case Object:
		d := exec.NewDict()
		for _, f := range v {
			e, err := toEngine(f.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			d.Pairs = append(d.Pairs, &exec.Pair{Key: exec.AsValue(f.Name), Value: exec.AsValue(e)})
		}
		return d, nil
	case []any:
		list := make([]any, len(v))
		for i := range v {
			e, err := toEngine(v[i])
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			list[i] = e
		}
		return list, nil
	case string:
		if !utf8.ValidString(v) {
			return nil, fmt.Errorf("%q is not valid UTF-8", v)
		}
		return v, nil
	case nil, bool, int, float64:
		return v, nil
	}
	return nil, fmt.Errorf("values of type %T cannot be given to a template", v)
}

// fromEngine is the inverse of toEngine, for values that templates made as well.
func fromEngine(v *exec.Value) (any, error) {
	switch {
	case v == nil || v.IsNil():
		return nil, nil
	case v.IsError():
		return nil, v
	case v.IsBool():
		return v.Bool(), nil
	case v.IsInteger():
		return v.Integer(), nil
	case v.IsFloat():
		return v.Float(), nil
	case v.IsString():
		return v.String(), nil
	case v.IsList():
		list := []any{}
		for i := range v.Len() {
			e, err := fromEngine(exec.ToValue(v.Index(i).Interface()))
			if err != nil {
				return nil, err
			}
			list = append(list, e)
		}
		return list, nil
	case v.IsDict():
		obj := Object{}
		for _, p := range dictPairs(v) {
			e, err := fromEngine(p.Value)
			if err != nil {
				return nil, err
			}
			obj = append(obj, Field{p.Key.String(), e})
		}
		return obj, nil
	}
	return nil, fmt.Errorf("object %s is not JSON serializable", v.String())
}

// dictPairs lists the entries of a dict in order. Go maps (gonja's namespace) go by name.
func dictPairs(v *exec.Value) []*exec.Pair {
	var pairs []*exec.Pair
	for _, key := range v.Keys() {
		val, _ := v.GetItem(key.Interface())
		pairs = append(pairs, &exec.Pair{Key: key, Value: exec.ToValue(val)})
	}
	return pairs
}
