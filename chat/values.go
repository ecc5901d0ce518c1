package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofsdp/gofsdp/chat/internal/jinja"
)

// toTemplate converts a value to those of the template engine.
func toTemplate(v any) (any, error) {
	switch v := v.(type) {
	case json.RawMessage:
		parsed, err := ParseJSON(v)
		if err != nil {
			return nil, err
		}
		return toTemplate(parsed)
	case Message:
		return toTemplate(v.object())
	case Object:
		d := jinja.NewDict()
		for _, f := range v {
			e, err := toTemplate(f.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			d.Set(f.Name, e)
		}
		return d, nil
	case []any:
		list := jinja.NewList()
		for i := range v {
			e, err := toTemplate(v[i])
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			list.Items = append(list.Items, e)
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

// strftime formats t as Python's strftime in the C locale.
func strftime(t time.Time, format string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		pad := true
		if format[i] == '-' && i+1 < len(format) {
			pad = false
			i++
		}
		layout, ok := strftimeLayouts[format[i]]
		switch {
		case format[i] == '%':
			out.WriteByte('%')
		case format[i] == 'j':
			fmt.Fprintf(&out, "%03d", t.YearDay())
		case !ok:
			return "", fmt.Errorf("strftime: %%%c is not supported", format[i])
		case pad:
			out.WriteString(t.Format(layout))
		default:
			out.WriteString(strings.TrimPrefix(t.Format(layout), "0"))
		}
	}
	return out.String(), nil
}

var strftimeLayouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'B': "January", 'b': "Jan", 'd': "02", 'A': "Monday", 'a': "Mon",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'f': "000000", 'z': "-0700", 'Z': "MST",
	'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'e': "_2",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}
