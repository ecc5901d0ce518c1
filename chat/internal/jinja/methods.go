package jinja

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

var errNeedsString = errors.New("argument must be a string")

// globals are the functions of every template.
var globals = map[string]any{
	"range": Func(rangeFunc),
	"dict": Func(func(a Args) (any, error) {
		d := NewDict()
		if from, ok := a.arg(0, "", nil).(*Dict); ok {
			for _, k := range from.keys {
				d.Set(k, from.values[k])
			}
		}
		if a.Named != nil {
			for _, k := range a.Named.keys {
				d.Set(k, a.Named.values[k])
			}
		}
		return d, nil
	}),
	"namespace": Func(func(a Args) (any, error) {
		ns := &namespace{NewDict()}
		for _, v := range a.Pos {
			d, ok := v.(*Dict)
			if !ok {
				return nil, fmt.Errorf("namespace takes a mapping, not %s", typeName(v))
			}
			for _, k := range d.keys {
				ns.Set(k, d.values[k])
			}
		}
		if a.Named != nil {
			for _, k := range a.Named.keys {
				ns.Set(k, a.Named.values[k])
			}
		}
		return ns, nil
	}),
}

const maxRange = 100_000 // as in jinja2's sandbox

func rangeFunc(a Args) (any, error) {
	n := [3]int{0, 0, 1}
	if len(a.Pos) < 1 || len(a.Pos) > 3 {
		return nil, fmt.Errorf("range takes one to three arguments, not %d", len(a.Pos))
	}
	for i, v := range a.Pos {
		_, x, isInt, _ := number(v)
		if !isInt {
			return nil, fmt.Errorf("range: %s is not an integer", typeName(v))
		}
		n[i] = x
	}
	if len(a.Pos) == 1 {
		n[0], n[1] = 0, n[0]
	}
	if n[2] == 0 {
		return nil, errors.New("range: step must not be zero")
	}
	out := NewList()
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
		if len(out.Items) == maxRange {
			return nil, fmt.Errorf("range of more than %d numbers", maxRange)
		}
		out.Items = append(out.Items, i)
	}
	return out, nil
}

var stringMethods = map[string]func(s string, a Args) (any, error){
	"strip":      func(s string, a Args) (any, error) { return stripBy(s, a.arg(0, "", nil), true, true), nil },
	"lstrip":     func(s string, a Args) (any, error) { return stripBy(s, a.arg(0, "", nil), true, false), nil },
	"rstrip":     func(s string, a Args) (any, error) { return stripBy(s, a.arg(0, "", nil), false, true), nil },
	"split":      func(s string, a Args) (any, error) { return split(s, a, false) },
	"rsplit":     func(s string, a Args) (any, error) { return split(s, a, true) },
	"splitlines": func(s string, a Args) (any, error) { return splitLines(s, truth(a.arg(0, "keepends", false))), nil },
	"startswith": func(s string, a Args) (any, error) { return affix(s, a, strings.HasPrefix) },
	"endswith":   func(s string, a Args) (any, error) { return affix(s, a, strings.HasSuffix) },
	"upper":      func(s string, _ Args) (any, error) { return strings.ToUpper(s), nil },
	"lower":      func(s string, _ Args) (any, error) { return strings.ToLower(s), nil },
	"title":      func(s string, _ Args) (any, error) { return title(s), nil },
	"capitalize": func(s string, _ Args) (any, error) { return capitalize(s), nil },
	"isdigit":    func(s string, _ Args) (any, error) { return all(s, unicode.IsDigit), nil },
	"isalpha":    func(s string, _ Args) (any, error) { return all(s, unicode.IsLetter), nil },
	"isspace":    func(s string, _ Args) (any, error) { return all(s, unicode.IsSpace), nil },
	"isalnum": func(s string, _ Args) (any, error) {
		return all(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }), nil
	},
	"islower": func(s string, _ Args) (any, error) { return cased(s, unicode.IsUpper), nil },
	"isupper": func(s string, _ Args) (any, error) { return cased(s, unicode.IsLower), nil },
	"replace": func(s string, a Args) (any, error) {
		from, ok1 := a.arg(0, "old", nil).(string)
		to, ok2 := a.arg(1, "new", nil).(string)
		if !ok1 || !ok2 {
			return nil, errNeedsString
		}
		n, ok := a.arg(2, "count", -1).(int)
		if !ok {
			n = -1
		}
		return replaced(s, from, to, n)
	},
	"removeprefix": func(s string, a Args) (any, error) { return strings.TrimPrefix(s, str(a.arg(0, "", ""))), nil },
	"removesuffix": func(s string, a Args) (any, error) { return strings.TrimSuffix(s, str(a.arg(0, "", ""))), nil },
	"join": func(s string, a Args) (any, error) {
		items, err := elements(a.arg(0, "", nil))
		if err != nil {
			return nil, err
		}
		parts := make([]string, len(items))
		for i, v := range items {
			p, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("join: item %d is %s, not str", i, typeName(v))
			}
			parts[i] = p
		}
		return joined(parts, s)
	},
	"find":  func(s string, a Args) (any, error) { return runeIndex(s, a, strings.Index) },
	"rfind": func(s string, a Args) (any, error) { return runeIndex(s, a, strings.LastIndex) },
	"index": func(s string, a Args) (any, error) {
		i, err := runeIndex(s, a, strings.Index)
		if err == nil && i == -1 {
			return nil, errors.New("substring not found")
		}
		return i, err
	},
	"count": func(s string, a Args) (any, error) {
		sub, ok := a.arg(0, "", nil).(string)
		if !ok {
			return nil, errNeedsString
		}
		return strings.Count(s, sub), nil
	},
	"format": func(s string, a Args) (any, error) { return braceFormat(s, a) },
}

// stripBy removes white space, or the characters of chars, from the chosen ends.
func stripBy(s string, chars any, left, right bool) string {
	cut := unicode.IsSpace
	if set, ok := chars.(string); ok {
		cut = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s
}

func split(s string, a Args, fromRight bool) (any, error) {
	limit, ok := a.arg(1, "maxsplit", -1).(int)
	if !ok {
		return nil, errors.New("maxsplit must be an integer")
	}
	var parts []string
	switch sep := a.arg(0, "sep", nil).(type) {
	case nil:
		if limit >= 0 {
			return nil, errors.New("split at white space with a limit is not supported")
		}
		parts = strings.Fields(s)
	case string:
		if sep == "" {
			return nil, errors.New("empty separator")
		}
		parts = strings.Split(s, sep)
		if extra := len(parts) - 1 - limit; limit >= 0 && extra > 0 {
			if fromRight {
				parts = append([]string{strings.Join(parts[:extra+1], sep)}, parts[extra+1:]...)
			} else {
				parts = append(parts[:limit:limit], strings.Join(parts[limit:], sep))
			}
		}
	default:
		return nil, errNeedsString
	}
	out := NewList()
	for _, p := range parts {
		out.Items = append(out.Items, p)
	}
	return out, nil
}

func splitLines(s string, keep bool) *List {
	out := NewList()
	for s != "" {
		i := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			out.Items = append(out.Items, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		if keep {
			out.Items = append(out.Items, s[:i+n])
		} else {
			out.Items = append(out.Items, s[:i])
		}
		s = s[i+n:]
	}
	return out
}

func affix(s string, a Args, has func(s, affix string) bool) (any, error) {
	switch v := a.arg(0, "", nil).(type) {
	case string:
		return has(s, v), nil
	case *List:
		for _, e := range v.Items {
			if p, ok := e.(string); ok && has(s, p) {
				return true, nil
			}
		}
		return false, nil
	}
	return nil, errNeedsString
}

func all(s string, is func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
}

func runeIndex(s string, a Args, index func(s, sub string) int) (any, error) {
	sub, ok := a.arg(0, "", nil).(string)
	if !ok {
		return nil, errNeedsString
	}
	i := index(s, sub)
	if i < 0 {
		return -1, nil
	}
	return utf8.RuneCountInString(s[:i]), nil
}

// braceFormat is str.format for {}, {0} and {name} without format specifications.
func braceFormat(s string, a Args) (any, error) {
	var out strings.Builder
	next := 0
	for i := 0; i < len(s); i++ {
		if strings.HasPrefix(s[i:], "{{") || strings.HasPrefix(s[i:], "}}") {
			out.WriteByte(s[i])
			i++
			continue
		}
		if s[i] != '{' {
			out.WriteByte(s[i])
			continue
		}
		end := strings.IndexByte(s[i:], '}')
		if end < 0 {
			return nil, errors.New("format: single '{'")
		}
		field := s[i+1 : i+end]
		i += end
		var v any
		ok := false
		switch {
		case field == "":
			if ok = next < len(a.Pos); ok {
				v = a.Pos[next]
				next++
			}
		case all(field, unicode.IsDigit):
			n := 0
			if next > 0 {
				return nil, errors.New("format: {} and numbered fields are mixed")
			}
			_, err := fmt.Sscan(field, &n)
			if ok = err == nil && n < len(a.Pos); ok {
				v = a.Pos[n]
			}
		case a.Named != nil:
			v, ok = a.Named.Get(field)
		}
		if !ok {
			return nil, fmt.Errorf("format: field {%s} is missing or not supported", field)
		}
		out.WriteString(str(v))
	}
	return out.String(), nil
}

var dictMethods = map[string]func(d *Dict, a Args) (any, error){
	"items": func(d *Dict, _ Args) (any, error) { return &List{Items: d.items()}, nil },
	"keys":  func(d *Dict, _ Args) (any, error) { return listOf(d) },
	"values": func(d *Dict, _ Args) (any, error) {
		out := NewList()
		for _, k := range d.keys {
			out.Items = append(out.Items, d.values[k])
		}
		return out, nil
	},
	"get": func(d *Dict, a Args) (any, error) {
		if v, ok := item(d, a.arg(0, "", nil)); ok {
			return v, nil
		}
		return a.arg(1, "", nil), nil
	},
	"copy": func(d *Dict, _ Args) (any, error) {
		out := NewDict()
		for _, k := range d.keys {
			out.Set(k, d.values[k])
		}
		return out, nil
	},
}

var listMethods = map[string]func(l *List, a Args) (any, error){
	"index": func(l *List, a Args) (any, error) {
		for i, e := range l.Items {
			if equal(e, a.arg(0, "", nil)) {
				return i, nil
			}
		}
		return nil, errors.New("value is not in list")
	},
	"count": func(l *List, a Args) (any, error) {
		n := 0
		for _, e := range l.Items {
			if equal(e, a.arg(0, "", nil)) {
				n++
			}
		}
		return n, nil
	},
	"copy": func(l *List, _ Args) (any, error) { return listOf(l) },
}
