package main

import (
	"fmt"
	"regexp"
	"strings"
)

// schema is one operator, as the dispatcher prints it:
// "aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True) -> (Tensor values, Tensor indices)".
type schema struct {
	text     string
	base     string // with the namespace, "aten::topk"
	overload string
	args     []value
	results  []value
}

// value is an argument or a result.
type value struct {
	name       string // may be empty for a result
	typ        string // without alias, size and "?": "Tensor", "int[]", "Tensor?[]"
	optional   bool   // may be None
	hasDefault bool
	def        string
	alias      string // "a" where it is written to, as in "Tensor(a!)"; else empty
}

func (s *schema) fullName() string {
	if s.overload == "" {
		return s.base
	}
	return s.base + "." + s.overload
}

// written is the argument that shares alias and is written to, or nil.
func (s *schema) written(alias string) *value {
	for i := range s.args {
		if alias != "" && s.args[i].alias == alias {
			return &s.args[i]
		}
	}
	return nil
}

func parseSchema(line string) (*schema, error) {
	bad := func(what string) (*schema, error) { return nil, fmt.Errorf("schema %q: %s", line, what) }
	open := strings.IndexByte(line, '(')
	if open < 0 {
		return bad("no arguments")
	}
	s := &schema{text: line, base: line[:open]}
	if dot := strings.IndexByte(s.base, '.'); dot >= 0 {
		s.base, s.overload = s.base[:dot], s.base[dot+1:]
	}
	end := closing(line, open)
	if end < 0 {
		return bad("parentheses do not match")
	}
	for _, text := range splitList(line[open+1 : end]) {
		if text == "*" {
			continue
		}
		v, err := parseValue(text, true)
		if err != nil {
			return bad(err.Error())
		}
		s.args = append(s.args, v)
	}
	results, ok := strings.CutPrefix(line[end+1:], " -> ")
	if !ok {
		return bad("no results")
	}
	if strings.HasPrefix(results, "(") && closing(results, 0) == len(results)-1 {
		results = results[1 : len(results)-1]
	}
	for _, text := range splitList(results) {
		v, err := parseValue(text, false)
		if err != nil {
			return bad(err.Error())
		}
		s.results = append(s.results, v)
	}
	return s, nil
}

// closing gives the index of the bracket that closes the one at open, or -1.
func closing(s string, open int) int {
	end := -1
	walk(s[open:], func(i, depth int) {
		if depth == 0 && end < 0 && i > 0 {
			end = open + i
		}
	})
	return end
}

// splitList cuts at the commas that stand in no bracket and no quotes.
func splitList(s string) []string {
	var list []string
	start := 0
	add := func(end int) {
		if part := strings.TrimSpace(s[start:end]); part != "" {
			list = append(list, part)
		}
		start = end + 1
	}
	walk(s, func(i, depth int) {
		if s[i] == ',' && depth == 0 {
			add(i)
		}
	})
	add(len(s))
	return list
}

// walk visits the bytes that stand in no quotes, with the depth of brackets behind each.
func walk(s string, visit func(i, depth int)) {
	depth, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
			continue
		case c == '"':
			quoted = !quoted
			continue
		case quoted:
			continue
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		}
		visit(i, depth)
	}
}

var (
	aliasPattern = regexp.MustCompile(`\(([a-z]\w*)(!?)[^()]*\)`)
	sizePattern  = regexp.MustCompile(`\[\d+\]`)
)

func parseValue(text string, named bool) (value, error) {
	var v value
	decl, def, hasDefault := strings.Cut(text, "=")
	v.def, v.hasDefault = def, hasDefault
	v.typ = decl
	if i := strings.LastIndexByte(decl, ' '); i >= 0 && !strings.HasSuffix(decl, ")") && !strings.HasSuffix(decl, "]") {
		v.typ, v.name = decl[:i], decl[i+1:]
	} else if named {
		return v, fmt.Errorf("the argument %q has no name", text)
	}
	if strings.HasPrefix(v.typ, "Tensor") {
		if m := aliasPattern.FindStringSubmatch(v.typ); m != nil && m[2] == "!" {
			v.alias = m[1]
		}
		v.typ = aliasPattern.ReplaceAllString(v.typ, "")
	}
	v.typ = sizePattern.ReplaceAllString(v.typ, "[]")
	v.typ, v.optional = strings.CutSuffix(v.typ, "?")
	return v, nil
}
