package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
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

// JSON prints v on one line as json.dumps(v, ensure_ascii=False) does.
func JSON(v any) (string, error) { return pyJSON(v, jsonStyle{}) }

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
	case *List:
		return s.sequence(out, "[", "]", len(v.Items), newline, func(i int, newline string) error {
			return s.write(out, v.Items[i], newline)
		})
	case *Dict:
		keys := v.keys
		if s.sortKeys {
			keys = slices.Sorted(slices.Values(keys))
		}
		return s.sequence(out, "{", "}", len(keys), newline, func(i int, newline string) error {
			s.quote(out, keys[i])
			out.WriteString(s.key)
			return s.write(out, v.values[keys[i]], newline)
		})
	default:
		return fmt.Errorf("object of type %s is not JSON serializable", typeName(v))
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

// toJSON is the filter tojson as transformers defines it.
func toJSON(v any, a Args) (any, error) {
	s := jsonStyle{
		ensureASCII: truth(a.arg(0, "ensure_ascii", false)),
		sortKeys:    truth(a.arg(3, "sort_keys", false)),
	}
	switch indent := a.arg(1, "indent", nil).(type) {
	case nil:
	case int:
		s.multiline, s.indent = true, strings.Repeat(" ", min(max(indent, 0), 64))
	case string:
		s.multiline, s.indent = true, indent
	default:
		return nil, fmt.Errorf("indent must be a number or a string, not %s", typeName(indent))
	}
	if sep := a.arg(2, "separators", nil); sep != nil {
		list, ok := sep.(*List)
		if !ok || len(list.Items) != 2 {
			return nil, fmt.Errorf("separators %s are not a pair", repr(sep))
		}
		s.item, s.key = str(list.Items[0]), str(list.Items[1])
	}
	return pyJSON(v, s)
}
