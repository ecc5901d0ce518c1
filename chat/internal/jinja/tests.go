package jinja

import (
	"errors"
	"strings"
	"unicode"
)

type testFunc func(v any, a Args) (bool, error)

var tests map[string]testFunc

func init() {
	is := func(f func(any) bool) testFunc { return func(v any, _ Args) (bool, error) { return f(v), nil } }
	cmp := func(op string) testFunc {
		return func(v any, a Args) (bool, error) {
			if len(a.Pos) != 1 {
				return false, errors.New("needs one argument")
			}
			return compareWith(op, v, a.Pos[0])
		}
	}
	remainder := func(v any, by int) (int, bool) {
		_, i, isInt, _ := number(v)
		if !isInt || by == 0 {
			return 0, false
		}
		return i % by, true
	}
	isUndefined := func(v any) bool { _, ok := v.(undefined); return ok }
	isString := func(v any) bool { _, ok := v.(string); return ok }
	isBool := func(v any) bool { _, ok := v.(bool); return ok }
	isMapping := func(v any) bool { _, ok := v.(*Dict); return ok }
	isSequence := func(v any) bool { _, err := length(v); return err == nil && !isUndefined(v) }
	tests = map[string]testFunc{
		"boolean": is(isBool),
		"callable": is(func(v any) bool {
			switch v.(type) {
			case Func, *macro:
				return true
			}
			return false
		}),
		"defined": is(func(v any) bool { return !isUndefined(v) }),
		"divisibleby": func(v any, a Args) (bool, error) {
			by, _ := a.arg(0, "num", 0).(int)
			r, ok := remainder(v, by)
			if !ok {
				return false, errors.New("needs integers, and a divisor other than zero")
			}
			return r == 0, nil
		},
		"eq": cmp("=="), "equalto": cmp("=="), "==": cmp("=="),
		"even":   is(func(v any) bool { r, ok := remainder(v, 2); return ok && r == 0 }),
		"false":  is(func(v any) bool { return v == false }),
		"filter": is(func(v any) bool { _, ok := filters[str(v)]; return ok }),
		"float":  is(func(v any) bool { _, ok := v.(float64); return ok }),
		"ge":     cmp(">="), ">=": cmp(">="),
		"gt": cmp(">"), "greaterthan": cmp(">"), ">": cmp(">"),
		"in":       cmp("in"),
		"integer":  is(func(v any) bool { _, ok := v.(int); return ok }),
		"iterable": is(func(v any) bool { _, err := elements(v); return err == nil }),
		"le":       cmp("<="), "<=": cmp("<="),
		"lower": is(func(v any) bool { return cased(str(v), unicode.IsUpper) }),
		"lt":    cmp("<"), "lessthan": cmp("<"), "<": cmp("<"),
		"mapping": is(isMapping),
		"ne":      cmp("!="), "!=": cmp("!="),
		"none":   is(func(v any) bool { return v == nil }),
		"number": is(func(v any) bool { _, _, _, ok := number(v); return ok }),
		"odd":    is(func(v any) bool { r, ok := remainder(v, 2); return ok && r != 0 }),
		"sameas": func(v any, a Args) (bool, error) {
			other := a.arg(0, "other", nil)
			return typeName(v) == typeName(other) && equal(v, other), nil
		},
		"sequence":  is(isSequence),
		"string":    is(isString),
		"test":      is(func(v any) bool { _, ok := tests[str(v)]; return ok }),
		"true":      is(func(v any) bool { return v == true }),
		"undefined": is(isUndefined),
		"upper":     is(func(v any) bool { return cased(str(v), unicode.IsLower) }),
	}
}

// cased is Python's islower and isupper: there are letters, and none of the wrong case.
func cased(s string, wrong func(rune) bool) bool {
	return strings.IndexFunc(s, func(r rune) bool { return unicode.IsLower(r) || unicode.IsUpper(r) }) >= 0 &&
		strings.IndexFunc(s, wrong) < 0
}
