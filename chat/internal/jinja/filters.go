package jinja

import (
	"errors"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

type filterFunc func(v any, a Args) (any, error)

// filters by name. The map is filled in init because some filters look others up.
var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"abs": func(v any, _ Args) (any, error) {
			f, i, isInt, ok := number(v)
			switch {
			case !ok:
				return nil, fmt.Errorf("bad operand type %s", typeName(v))
			case isInt:
				return max(i, -i), nil
			}
			return math.Abs(f), nil
		},
		"attr": func(v any, a Args) (any, error) {
			if r, ok := attribute(v, str(a.arg(0, "name", ""))); ok {
				return r, nil
			}
			return undefined{"attribute " + str(a.arg(0, "name", ""))}, nil
		},
		"capitalize": text(capitalize),
		"count":      lengthFilter,
		"d":          defaultFilter,
		"default":    defaultFilter,
		"dictsort":   dictSort,
		"e":          text(html.EscapeString),
		"escape":     text(html.EscapeString),
		"first":      func(v any, _ Args) (any, error) { return end(v, 0) },
		"float":      toFloat,
		"indent":     indentFilter,
		"int":        toInt,
		"items": func(v any, _ Args) (any, error) {
			switch v := v.(type) {
			case undefined:
				return NewList(), nil
			case *Dict:
				return &List{Items: v.items()}, nil
			}
			return nil, errors.New("can only get item pairs from a mapping")
		},
		"join":       join,
		"last":       func(v any, _ Args) (any, error) { return end(v, -1) },
		"length":     lengthFilter,
		"list":       func(v any, _ Args) (any, error) { return listOf(v) },
		"lower":      text(strings.ToLower),
		"map":        mapFilter,
		"max":        func(v any, a Args) (any, error) { return extreme(v, a, 1) },
		"min":        func(v any, a Args) (any, error) { return extreme(v, a, -1) },
		"reject":     func(v any, a Args) (any, error) { return selectItems(v, a, false, false) },
		"rejectattr": func(v any, a Args) (any, error) { return selectItems(v, a, true, false) },
		"select":     func(v any, a Args) (any, error) { return selectItems(v, a, false, true) },
		"selectattr": func(v any, a Args) (any, error) { return selectItems(v, a, true, true) },
		"replace": func(v any, a Args) (any, error) {
			n, ok := a.arg(2, "count", -1).(int)
			if !ok {
				n = -1
			}
			return replaced(str(v), str(a.arg(0, "old", "")), str(a.arg(1, "new", "")), n)
		},
		"reverse": func(v any, _ Args) (any, error) {
			items, err := elements(v)
			if err != nil {
				return nil, err
			}
			items = slices.Clone(items)
			slices.Reverse(items)
			if _, ok := v.(string); ok {
				return concat(items), nil
			}
			return &List{Items: items}, nil
		},
		"round":  round,
		"safe":   func(v any, _ Args) (any, error) { return str(v), nil },
		"sort":   sortFilter,
		"string": func(v any, _ Args) (any, error) { return str(v), nil },
		"sum": func(v any, a Args) (any, error) {
			items, err := elements(v)
			if err != nil {
				return nil, err
			}
			total := a.arg(1, "start", 0)
			for _, item := range items {
				if key := a.arg(0, "attribute", nil); key != nil {
					item = path(item, key)
				}
				if total, err = binary("+", total, item); err != nil {
					return nil, err
				}
			}
			return total, nil
		},
		"title":  text(title),
		"tojson": toJSON,
		"trim": func(v any, a Args) (any, error) {
			return stripBy(str(v), a.arg(0, "chars", nil), true, true), nil
		},
		"unique": unique,
		"upper":  text(strings.ToUpper),
		"wordcount": func(v any, _ Args) (any, error) {
			return len(strings.FieldsFunc(str(v), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '_' })), nil
		},
	}
}

func text(f func(string) string) filterFunc {
	return func(v any, _ Args) (any, error) { return f(str(v)), nil }
}

func concat(items []any) string {
	var out strings.Builder
	for _, i := range items {
		out.WriteString(str(i))
	}
	return out.String()
}

func lengthFilter(v any, _ Args) (any, error) { return length(v) }

func defaultFilter(v any, a Args) (any, error) {
	_, missing := v.(undefined)
	if missing || truth(a.arg(1, "boolean", false)) && !truth(v) {
		return a.arg(0, "default_value", ""), nil
	}
	return v, nil
}

func end(v any, i int) (any, error) {
	items, err := elements(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return undefined{"the first or last item of an empty sequence"}, nil
	}
	return items[(i+len(items))%len(items)], nil
}

func listOf(v any) (any, error) {
	items, err := elements(v)
	return &List{Items: slices.Clone(items)}, err
}

func dictSort(v any, a Args) (any, error) {
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("%s object is not a mapping", typeName(v))
	}
	pos := 0
	if str(a.arg(1, "by", "key")) == "value" {
		pos = 1
	}
	items := d.items()
	err := sortBy(items, func(v any) any { return v.(*List).Items[pos] }, truth(a.arg(0, "case_sensitive", false)), truth(a.arg(2, "reverse", false)))
	return &List{Items: items}, err
}

// sortBy sorts stably by a key; letters' case is ignored unless sensitive.
func sortBy(items []any, key func(any) any, sensitive, reverse bool) error {
	fold := func(v any) any {
		if s, ok := v.(string); ok && !sensitive {
			return strings.ToLower(s)
		}
		return v
	}
	var failed error
	slices.SortStableFunc(items, func(a, b any) int {
		c, err := compare(fold(key(a)), fold(key(b)))
		if err != nil && failed == nil {
			failed = err
		}
		if reverse {
			return -c
		}
		return c
	})
	return failed
}

func sortFilter(v any, a Args) (any, error) {
	items, err := elements(v)
	if err != nil {
		return nil, err
	}
	items = slices.Clone(items)
	key := func(v any) any { return v }
	if attr := a.arg(2, "attribute", nil); attr != nil {
		key = func(v any) any { return path(v, attr) }
	}
	err = sortBy(items, key, truth(a.arg(1, "case_sensitive", false)), truth(a.arg(0, "reverse", false)))
	return &List{Items: items}, err
}

// path looks up "a.b.0" step by step.
func path(v, key any) any {
	name, ok := key.(string)
	if !ok {
		if r, ok := item(v, key); ok {
			return r
		}
		return undefined{"element " + repr(key)}
	}
	for part := range strings.SplitSeq(name, ".") {
		var k any = part
		if i, err := strconv.Atoi(part); err == nil {
			k = i
		}
		next, ok := item(v, k)
		if !ok {
			next, ok = attribute(v, part)
		}
		if !ok {
			return undefined{"attribute " + part}
		}
		v = next
	}
	return v
}

func unique(v any, a Args) (any, error) {
	items, err := elements(v)
	if err != nil {
		return nil, err
	}
	out := NewList()
	for _, i := range items {
		if !slices.ContainsFunc(out.Items, func(e any) bool {
			se, okE := e.(string)
			si, okI := i.(string)
			if okE && okI && !truth(a.arg(0, "case_sensitive", false)) {
				return strings.EqualFold(se, si)
			}
			return equal(e, i)
		}) {
			out.Items = append(out.Items, i)
		}
	}
	return out, nil
}

func extreme(v any, a Args, sign int) (any, error) {
	items, err := elements(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return undefined{"the extreme of an empty sequence"}, nil
	}
	best := items[0]
	for _, i := range items[1:] {
		x, y := best, i
		if attr := a.arg(1, "attribute", nil); attr != nil {
			x, y = path(best, attr), path(i, attr)
		}
		c, err := compare(y, x)
		if err != nil {
			return nil, err
		}
		if c*sign > 0 {
			best = i
		}
	}
	return best, nil
}

func join(v any, a Args) (any, error) {
	items, err := elements(v)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	for i, e := range items {
		if attr := a.arg(1, "attribute", nil); attr != nil {
			e = path(e, attr)
		}
		parts[i] = str(e)
	}
	return joined(parts, str(a.arg(0, "d", "")))
}

func mapFilter(v any, a Args) (any, error) {
	if !truth(v) { // also None, as in jinja2
		return NewList(), nil
	}
	items, err := elements(v)
	if err != nil {
		return nil, err
	}
	out := NewList()
	if attr := a.arg(-1, "attribute", nil); attr != nil {
		for _, e := range items {
			r := path(e, attr)
			if _, missing := r.(undefined); missing {
				r = a.arg(-1, "default", r)
			}
			out.Items = append(out.Items, r)
		}
		return out, nil
	}
	name := str(a.arg(0, "", ""))
	f, ok := filters[name]
	if !ok {
		return nil, fmt.Errorf("no filter named %q", name)
	}
	for _, e := range items {
		r, err := f(e, Args{a.Pos[1:], a.Named})
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, r)
	}
	return out, nil
}

// selectItems keeps the items, or those whose attribute passes a test, if pass is true, and
// the others if it is false.
func selectItems(v any, a Args, byAttr, pass bool) (any, error) {
	if !truth(v) { // also None, as in jinja2
		return NewList(), nil
	}
	items, err := elements(v)
	if err != nil {
		return nil, err
	}
	value := func(e any) any { return e }
	pos := a.Pos
	if byAttr {
		if len(pos) == 0 {
			return nil, errors.New("missing the name of an attribute")
		}
		attr := pos[0]
		value = func(e any) any { return path(e, attr) }
		pos = pos[1:]
	}
	check := func(v any) (bool, error) { return truth(v), nil }
	if len(pos) > 0 {
		test, ok := tests[str(pos[0])]
		if !ok {
			return nil, fmt.Errorf("no test named %q", str(pos[0]))
		}
		check = func(v any) (bool, error) { return test(v, Args{Pos: pos[1:]}) }
	}
	out := NewList()
	for _, e := range items {
		ok, err := check(value(e))
		if err != nil {
			return nil, err
		}
		if ok == pass {
			out.Items = append(out.Items, e)
		}
	}
	return out, nil
}

func indentFilter(v any, a Args) (any, error) {
	pad, ok := a.arg(0, "width", 4).(string)
	if !ok {
		n, _ := a.arg(0, "width", 4).(int)
		pad = strings.Repeat(" ", min(max(n, 0), 1000))
	}
	first, blank := truth(a.arg(1, "first", false)), truth(a.arg(2, "blank", false))
	lines := strings.Split(str(v), "\n")
	if len(pad) > 0 && len(lines) > maxValue/len(pad) {
		return nil, errTooLarge
	}
	for i, line := range lines {
		if (i > 0 || first) && (line != "" || blank || i == 0) {
			lines[i] = pad + line
		}
	}
	return strings.Join(lines, "\n"), nil
}

func toInt(v any, a Args) (any, error) {
	if f, i, isInt, ok := number(v); ok {
		if isInt {
			return i, nil
		}
		if math.Abs(f) < 1<<62 {
			return int(f), nil
		}
	}
	if s, ok := v.(string); ok {
		base, _ := a.arg(1, "base", 10).(int)
		if i, err := strconv.ParseInt(strings.TrimSpace(s), base, 64); err == nil {
			return int(i), nil
		}
		if f, err := strconv.ParseFloat(strings.TrimSpace(s), 64); err == nil && math.Abs(f) < 1<<62 {
			return int(f), nil
		}
	}
	return a.arg(0, "default", 0), nil
}

func toFloat(v any, a Args) (any, error) {
	if f, _, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimSpace(s), 64); err == nil {
			return f, nil
		}
	}
	return a.arg(0, "default", 0.0), nil
}

func round(v any, a Args) (any, error) {
	f, _, _, ok := number(v)
	if !ok {
		return nil, fmt.Errorf("%s is not a number", typeName(v))
	}
	digits, _ := a.arg(0, "precision", 0).(int)
	scale := math.Pow(10, float64(digits))
	switch str(a.arg(1, "method", "common")) {
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return math.RoundToEven(f*scale) / scale, nil
}

func capitalize(s string) string {
	for i, r := range s {
		if i == 0 {
			return string(unicode.ToTitle(r)) + strings.ToLower(s[len(string(r)):])
		}
	}
	return s
}

func title(s string) string {
	var out strings.Builder
	inWord := false
	for _, r := range s {
		if inWord {
			r = unicode.ToLower(r)
		} else {
			r = unicode.ToTitle(r)
		}
		inWord = unicode.IsLetter(r)
		out.WriteRune(r)
	}
	return out.String()
}
