package jinja

import (
	"fmt"
	"strings"
)

// extent says how large a value is: what it takes to print or compare it, however often its parts are shared.
type extent struct {
	size  int // about the bytes of its text, at most maxValue+1
	depth int // of lists and dicts in it
}

// made accounts for a value that an expression made. Values do not change once they are made, except for namespaces,
// which print as their type; so a value that is bounded here is bounded wherever it goes.
func (s *scope) made(v any) (any, error) {
	switch v := v.(type) {
	case string:
		s.run.built += len(v)
	case *List:
		s.run.built += 16 * len(v.Items)
	case *Dict:
		s.run.built += 64 * len(v.keys)
	default:
		return v, nil
	}
	e := s.run.measure(v)
	switch {
	case e.size > maxValue:
		return nil, errTooLarge
	case e.depth > maxNesting:
		return nil, fmt.Errorf("lists nested deeper than %d levels", maxNesting)
	case s.run.built > maxBuilt:
		return nil, fmt.Errorf("the template makes more than %d MiB of values", maxBuilt>>20)
	}
	return v, nil
}

func (r *run) measure(v any) extent {
	switch v := v.(type) {
	case string:
		return extent{size: min(len(v), maxValue+1)}
	case *List:
		return r.once(v, func(add func(any)) {
			for _, item := range v.Items {
				add(item)
			}
		})
	case *Dict:
		return r.once(v, func(add func(any)) {
			for _, k := range v.keys {
				add(k)
				add(v.values[k])
			}
		})
	}
	return extent{size: 8}
}

// once measures a container the first time that it is asked for: nested ones would take exponential time otherwise.
func (r *run) once(v any, parts func(add func(any))) extent {
	if e, ok := r.sizes[v]; ok {
		return e
	}
	var e extent
	parts(func(part any) {
		p := r.measure(part)
		e.size = min(e.size+p.size+4, maxValue+1)
		e.depth = max(e.depth, p.depth)
	})
	e.depth++
	if r.sizes == nil {
		r.sizes = map[any]extent{}
	}
	r.sizes[v] = e
	return e
}

var errTooLarge = fmt.Errorf("a value exceeds %d MiB", maxValue>>20)

// replaced is strings.Replace with a bound on the result.
func replaced(s, from, to string, n int) (any, error) {
	times := strings.Count(s, from)
	if n >= 0 {
		times = min(times, n)
	}
	if len(to) > 0 && times > maxValue/len(to) {
		return nil, errTooLarge
	}
	return strings.Replace(s, from, to, n), nil
}

// joined is strings.Join with a bound on the result.
func joined(parts []string, sep string) (any, error) {
	size := 0
	for _, p := range parts {
		if size += len(p) + len(sep); size > 2*maxValue {
			return nil, errTooLarge
		}
	}
	return strings.Join(parts, sep), nil
}
