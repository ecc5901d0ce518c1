package jinja

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

func (e *literal) eval(*scope) (any, error) { return e.value, nil }

func (e *nameExpr) eval(s *scope) (any, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	if v, ok := s.get(e.name); ok {
		return v, nil
	}
	return undefined{"'" + e.name + "'"}, nil
}

func (e *listExpr) eval(s *scope) (any, error) {
	list := &List{Items: make([]any, len(e.items)), Tuple: e.tuple}
	for i, item := range e.items {
		v, err := item.eval(s)
		if err != nil {
			return nil, err
		}
		list.Items[i] = v
	}
	return s.made(list)
}

func (e *dictExpr) eval(s *scope) (any, error) {
	d := NewDict()
	for i := range e.keys {
		k, err := e.keys[i].eval(s)
		if err != nil {
			return nil, err
		}
		key, ok := k.(string)
		if !ok {
			return nil, errorAt(e.line, "dict key of type %s: only strings are supported", typeName(k))
		}
		v, err := e.values[i].eval(s)
		if err != nil {
			return nil, err
		}
		d.Set(key, v)
	}
	return s.made(d)
}

func (e *condExpr) eval(s *scope) (any, error) {
	c, err := e.cond.eval(s)
	switch {
	case err != nil:
		return nil, err
	case truth(c):
		return e.then.eval(s)
	case e.otherwise != nil:
		return e.otherwise.eval(s)
	}
	return undefined{"the inline if-expression without else"}, nil
}

func (e *logicExpr) eval(s *scope) (any, error) {
	v, err := e.left.eval(s)
	if err != nil || truth(v) == e.or {
		return v, err
	}
	return e.right.eval(s)
}

func (e *notExpr) eval(s *scope) (any, error) {
	v, err := e.of.eval(s)
	return !truth(v), err
}

func (e *compareExpr) eval(s *scope) (any, error) {
	left, err := e.first.eval(s)
	if err != nil {
		return nil, err
	}
	for i, op := range e.ops {
		right, err := e.rest[i].eval(s)
		if err != nil {
			return nil, err
		}
		ok, err := compareWith(op, left, right)
		if err != nil {
			return nil, located(e.line, err)
		}
		if !ok {
			return false, nil
		}
		left = right
	}
	return true, nil
}

func compareWith(op string, a, b any) (bool, error) {
	switch op {
	case "==":
		return equal(a, b), nil
	case "!=":
		return !equal(a, b), nil
	case "in":
		return contains(b, a)
	case "not in":
		ok, err := contains(b, a)
		return !ok, err
	}
	c, err := compare(a, b)
	switch op {
	case "<":
		return c < 0, err
	case "<=":
		return c <= 0, err
	case ">":
		return c > 0, err
	}
	return c >= 0, err
}

func (e *signExpr) eval(s *scope) (any, error) {
	v, err := e.of.eval(s)
	if err != nil {
		return nil, err
	}
	f, i, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, errorAt(e.line, "bad operand type for sign: %s", typeName(v))
	case isInt && e.negative:
		return -i, nil
	case isInt:
		return i, nil
	case e.negative:
		return -f, nil
	}
	return f, nil
}

func (e *binaryExpr) eval(s *scope) (any, error) {
	left, err := e.left.eval(s)
	if err != nil {
		return nil, err
	}
	right, err := e.right.eval(s)
	if err != nil {
		return nil, err
	}
	v, err := binary(e.op, left, right)
	if err == nil {
		v, err = s.made(v)
	}
	return v, located(e.line, err)
}

// maxRepeat bounds the result of "x" * n.
const maxRepeat = 1 << 20

func binary(op string, a, b any) (any, error) {
	if op == "~" {
		return str(a) + str(b), nil
	}
	for _, v := range []any{a, b} {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
	}
	fa, ia, intA, okA := number(a)
	fb, ib, intB, okB := number(b)
	if okA && okB {
		return arithmetic(op, fa, fb, ia, ib, intA && intB)
	}
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok && op == "+" {
			return a + b, nil
		}
		if op == "*" && intB && len(a)*max(ib, 0) <= maxRepeat && ib <= maxRepeat {
			return strings.Repeat(a, max(ib, 0)), nil
		}
		if op == "%" {
			return format(a, b)
		}
	case *List:
		if b, ok := b.(*List); ok && op == "+" && a.Tuple == b.Tuple {
			return &List{append(append([]any{}, a.Items...), b.Items...), a.Tuple}, nil
		}
	case int:
		if b, ok := b.(string); ok && op == "*" {
			return binary(op, b, a)
		}
	}
	return nil, fmt.Errorf("unsupported operand types for %s: %s and %s", op, typeName(a), typeName(b))
}

func arithmetic(op string, fa, fb float64, ia, ib int, ints bool) (any, error) {
	if (op == "/" || op == "//" || op == "%") && fb == 0 {
		return nil, errors.New("division by zero")
	}
	if ints {
		switch op {
		case "+":
			return ia + ib, nil
		case "-":
			return ia - ib, nil
		case "*":
			return ia * ib, nil
		case "//":
			return int(math.Floor(fa / fb)), nil
		case "%":
			return ((ia % ib) + ib) % ib, nil
		case "**":
			if p := math.Pow(fa, fb); ib >= 0 && math.Abs(p) < 1<<53 {
				return int(p), nil
			}
		}
	}
	switch op {
	case "+":
		return fa + fb, nil
	case "-":
		return fa - fb, nil
	case "*":
		return fa * fb, nil
	case "/":
		return fa / fb, nil
	case "//":
		return math.Floor(fa / fb), nil
	case "%":
		return fa - fb*math.Floor(fa/fb), nil
	case "**":
		return math.Pow(fa, fb), nil
	}
	return nil, fmt.Errorf("unknown operator %s", op)
}

// format is Python's "…" % values for %s, %d and %%.
func format(f string, v any) (any, error) {
	args := []any{v}
	if l, ok := v.(*List); ok && l.Tuple {
		args = l.Items
	}
	var out strings.Builder
	for i := 0; i < len(f); i++ {
		if f[i] != '%' {
			out.WriteByte(f[i])
			continue
		}
		i++
		switch {
		case i < len(f) && f[i] == '%':
			out.WriteByte('%')
		case i < len(f) && (f[i] == 's' || f[i] == 'd' || f[i] == 'i') && len(args) > 0:
			out.WriteString(str(args[0]))
			args = args[1:]
		default:
			return nil, fmt.Errorf("format %q: directive or number of arguments is not supported", f)
		}
	}
	if _, mapping := v.(*Dict); len(args) > 0 && !mapping {
		return nil, fmt.Errorf("format %q: not all arguments converted", f)
	}
	return out.String(), nil
}

func (e *attrExpr) eval(s *scope) (any, error) {
	v, err := e.of.eval(s)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, errorAt(e.line, "%s has no attribute '%s': it is undefined", u.what, e.name)
	}
	if r, ok := attribute(v, e.name); ok {
		return r, nil
	}
	if r, ok := item(v, e.name); ok {
		return r, nil
	}
	return undefined{fmt.Sprintf("'%s' of the %s object", e.name, typeName(v))}, nil
}

func (e *itemExpr) eval(s *scope) (any, error) {
	v, err := e.of.eval(s)
	if err != nil {
		return nil, err
	}
	key, err := e.key.eval(s)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, errorAt(e.line, "%s has no element %s", u.what, repr(key))
	}
	if r, ok := item(v, key); ok {
		return r, nil
	}
	if name, ok := key.(string); ok {
		if r, ok := attribute(v, name); ok {
			return r, nil
		}
	}
	return undefined{fmt.Sprintf("element %s of the %s object", repr(key), typeName(v))}, nil
}

// attribute is Python's getattr: methods, and the fields of loop and namespace.
func attribute(v any, name string) (any, bool) {
	switch v := v.(type) {
	case *loop:
		return v.attr(name)
	case *namespace:
		return v.Get(name)
	case string:
		if m, ok := stringMethods[name]; ok {
			return Func(func(a Args) (any, error) { return m(v, a) }), true
		}
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return Func(func(a Args) (any, error) { return m(v, a) }), true
		}
	case *List:
		if m, ok := listMethods[name]; ok {
			return Func(func(a Args) (any, error) { return m(v, a) }), true
		}
	}
	return nil, false
}

// item is Python's subscript.
func item(v, key any) (any, bool) {
	switch v := v.(type) {
	case *Dict:
		if k, ok := key.(string); ok {
			return v.Get(k)
		}
	case *List:
		if _, i, isInt, _ := number(key); isInt {
			if i < 0 {
				i += len(v.Items)
			}
			if 0 <= i && i < len(v.Items) {
				return v.Items[i], true
			}
		}
	case string:
		if _, i, isInt, _ := number(key); isInt {
			runes := []rune(v)
			if i < 0 {
				i += len(runes)
			}
			if 0 <= i && i < len(runes) {
				return string(runes[i]), true
			}
		}
	}
	return nil, false
}

func (e *sliceExpr) eval(s *scope) (any, error) {
	v, err := e.of.eval(s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int
	for i, part := range e.parts {
		if part == nil {
			continue
		}
		b, err := part.eval(s)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		_, n, isInt, _ := number(b)
		if !isInt {
			return nil, errorAt(e.line, "slice indices must be integers, not %s", typeName(b))
		}
		bounds[i] = &n
	}
	if bounds[2] != nil && *bounds[2] == 0 {
		return nil, errorAt(e.line, "slice step cannot be zero")
	}
	switch v := v.(type) {
	case string:
		var out []rune
		runes := []rune(v)
		for _, i := range sliceIndices(len(runes), bounds) {
			out = append(out, runes[i])
		}
		return string(out), nil
	case *List:
		out := &List{Tuple: v.Tuple}
		for _, i := range sliceIndices(len(v.Items), bounds) {
			out.Items = append(out.Items, v.Items[i])
		}
		return out, nil
	case undefined:
		return nil, located(e.line, v.err())
	}
	return nil, errorAt(e.line, "%s object cannot be sliced", typeName(v))
}

// sliceIndices lists the indices that start:stop:step selects of n elements.
func sliceIndices(n int, b [3]*int) []int {
	step := 1
	if b[2] != nil {
		step = *b[2]
	}
	low, high := 0, n // for a negative step: -1 … n-1
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(p *int, fallback int) int {
		if p == nil {
			return fallback
		}
		i := *p
		if i < 0 {
			i += n
		}
		return min(max(i, low), high)
	}
	var out []int
	if step > 0 {
		for i, stop := bound(b[0], low), bound(b[1], high); i < stop; i += step {
			out = append(out, i)
		}
		return out
	}
	for i, stop := bound(b[0], high), bound(b[1], low); i > stop; i += step {
		out = append(out, i)
	}
	return out
}

// arguments evaluates the arguments of a call.
func arguments(s *scope, list []argument) (Args, error) {
	a := Args{}
	for _, arg := range list {
		v, err := arg.value.eval(s)
		if err != nil {
			return a, err
		}
		switch {
		case arg.spread == 1:
			items, err := elements(v)
			if err != nil {
				return a, err
			}
			a.Pos = append(a.Pos, items...)
		case arg.spread == 2:
			d, ok := v.(*Dict)
			if !ok {
				return a, fmt.Errorf("argument after ** must be a mapping, not %s", typeName(v))
			}
			for _, k := range d.keys {
				a.name(k, d.values[k])
			}
		case arg.name != "":
			a.name(arg.name, v)
		default:
			a.Pos = append(a.Pos, v)
		}
	}
	return a, nil
}

func (a *Args) name(k string, v any) {
	if a.Named == nil {
		a.Named = NewDict()
	}
	a.Named.Set(k, v)
}

func (e *callExpr) eval(s *scope) (any, error) { return e.evalWith(s, nil) }

func (e *callExpr) evalWith(s *scope, caller *macro) (any, error) {
	fn, err := e.fn.eval(s)
	if err != nil {
		return nil, err
	}
	args, err := arguments(s, e.args)
	if err != nil {
		return nil, located(e.line, err)
	}
	if caller != nil {
		args.name("caller", caller)
	}
	if err := s.step(); err != nil {
		return nil, err
	}
	var v any
	switch fn := fn.(type) {
	case Func:
		v, err = fn(args)
		if list, ok := v.(*List); ok {
			s.run.steps += len(list.Items) / 16
		}
	case *macro:
		v, err = fn.invoke(s, args)
	case *loop:
		if fn.recurse == nil {
			return nil, errorAt(e.line, "the loop is not marked recursive")
		}
		v, err = fn.recurse(args)
	case undefined:
		err = fn.err()
	default:
		err = fmt.Errorf("%s object is not callable", typeName(fn))
	}
	if err == nil {
		v, err = s.made(v)
	}
	return v, located(e.line, err)
}

func (e *filterExpr) eval(s *scope) (any, error) {
	v, err := e.value.eval(s)
	if err != nil {
		return nil, err
	}
	args, err := arguments(s, e.args)
	if err != nil {
		return nil, located(e.line, err)
	}
	out, err := e.fn(v, args)
	if err == nil {
		out, err = s.made(out)
	}
	if err != nil {
		return nil, located(e.line, fmt.Errorf("filter %s: %w", e.name, err))
	}
	return out, nil
}

func (e *testExpr) eval(s *scope) (any, error) {
	v, err := e.value.eval(s)
	if err != nil {
		return nil, err
	}
	args, err := arguments(s, e.args)
	if err != nil {
		return nil, located(e.line, err)
	}
	ok, err := e.fn(v, args)
	if err != nil {
		return nil, located(e.line, fmt.Errorf("test %s: %w", e.name, err))
	}
	return ok != e.negated, nil
}
