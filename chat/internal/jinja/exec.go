package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// Marks written around the output of {% generation %} when Options.Marks is set. They are
// noncharacters, which no text meant for exchange contains.
const (
	MarkStart = "\uFDD0"
	MarkEnd   = "\uFDD1"
)

// Limits on one rendering, against templates that never end.
const (
	maxSteps  = 2_000_000 // a turn of a conversation takes about a hundred
	maxOutput = 256 << 20 // bytes
	maxValue  = 64 << 20  // bytes of one string, or of a list or dict as it would be printed
	maxBuilt  = 1 << 30   // bytes of all strings and lists that expressions make
	maxCalls  = 200       // depth of macros and recursive loops
)

// Template is a parsed template. It is safe for concurrent use.
type Template struct{ body []node }

// Options of Render.
type Options struct {
	Marks bool // write MarkStart and MarkEnd around generation blocks
}

// Parse reads a template. Errors are of type *Error and name the line.
func Parse(src string) (t *Template, err error) {
	toks, err := lex(src)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(syntaxError)
			if !ok {
				panic(r)
			}
			t, err = nil, s.err
		}
	}()
	p := &parser{toks: toks}
	body, _ := p.body()
	return &Template{body}, nil
}

// Render runs the template with the given variables.
func (t *Template) Render(vars map[string]any, opts Options) (string, error) {
	run := &run{marks: opts.Marks}
	var out strings.Builder
	top := &scope{run: run, out: &out, vars: map[string]any{}}
	for name, v := range globals {
		top.vars[name] = v
	}
	for name, v := range vars {
		top.vars[name] = v
	}
	if err := execAll(t.body, top.child()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// run is the state of one rendering.
type run struct {
	marks   bool
	steps   int
	written int
	built   int
	sizes   map[any]extent // of lists and dicts that were measured
	calls   int
}

// scope holds the variables of a block and where its output goes.
type scope struct {
	run    *run
	out    *strings.Builder
	vars   map[string]any
	parent *scope
}

func (s *scope) child() *scope {
	return &scope{run: s.run, out: s.out, parent: s}
}

func (s *scope) set(name string, v any) {
	if s.vars == nil {
		s.vars = map[string]any{}
	}
	s.vars[name] = v
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) write(text string) error {
	if s.run.written += len(text); s.run.written > maxOutput {
		return fmt.Errorf("output exceeds %d MiB", maxOutput>>20)
	}
	s.out.WriteString(text)
	return nil
}

func (s *scope) step() error {
	if s.run.steps++; s.run.steps > maxSteps {
		return errors.New("the template takes too many steps")
	}
	return nil
}

// capture runs f with the output going to a string.
func (s *scope) capture(f func(*scope) error) (string, error) {
	sub := s.child()
	sub.out = &strings.Builder{}
	err := f(sub)
	return sub.out.String(), err
}

func execAll(nodes []node, s *scope) error {
	for _, n := range nodes {
		if err := s.step(); err != nil {
			return err
		}
		if err := n.exec(s); err != nil {
			return err
		}
	}
	return nil
}

// located adds a line to an error that has none.
func located(line int, err error) error {
	if e := (*Error)(nil); err == nil || errors.As(err, &e) || errors.Is(err, errBreak) || errors.Is(err, errContinue) {
		return err
	}
	return &Error{Line: line, Message: err.Error(), Err: err}
}

func (n *dataNode) exec(s *scope) error { return s.write(n.text) }

func (n *outputNode) exec(s *scope) error {
	v, err := n.value.eval(s)
	if err != nil {
		return located(n.line, err)
	}
	return located(n.line, s.write(str(v)))
}

func (n *ifNode) exec(s *scope) error {
	for i, c := range n.conds {
		v, err := c.eval(s)
		if err != nil {
			return located(n.line, err)
		}
		if truth(v) {
			return execAll(n.bodies[i], s)
		}
	}
	return execAll(n.otherwise, s)
}

func (n *setNode) exec(s *scope) error {
	var v any
	var err error
	if n.value != nil {
		v, err = n.value.eval(s)
	} else {
		v, err = filtered(s, n.body, n.filters)
	}
	if err == nil {
		err = assign(s, n.target, v)
	}
	return located(n.line, err)
}

// filtered renders body and passes it through filters around a hole.
func filtered(s *scope, body []node, filters expr) (any, error) {
	text, err := s.capture(func(sub *scope) error { return execAll(body, sub) })
	if err != nil {
		return nil, err
	}
	s = s.child()
	s.set(holeName, text)
	return filters.eval(s)
}

const holeName = "filtered text" // no Jinja name

func (*hole) eval(s *scope) (any, error) {
	v, _ := s.get(holeName)
	return v, nil
}

func (n *filterNode) exec(s *scope) error {
	v, err := filtered(s, n.body, n.filters)
	if err != nil {
		return located(n.line, err)
	}
	return s.write(str(v))
}

func assign(s *scope, t target, v any) error {
	switch {
	case t.tuple:
		items, err := elements(v)
		if err != nil {
			return err
		}
		if len(items) != len(t.parts) {
			return fmt.Errorf("cannot unpack %d values into %d names", len(items), len(t.parts))
		}
		for i, part := range t.parts {
			if err := assign(s, part, items[i]); err != nil {
				return err
			}
		}
	case t.attr != "":
		obj, _ := s.get(t.name)
		ns, ok := obj.(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign to %s.%s: only namespace objects have attributes that can be set", t.name, t.attr)
		}
		ns.Set(t.attr, v)
	default:
		s.set(t.name, v)
	}
	return nil
}

func (n *withNode) exec(s *scope) error {
	sub := s.child()
	for i, name := range n.names {
		v, err := n.values[i].eval(s)
		if err != nil {
			return located(n.line, err)
		}
		sub.set(name, v)
	}
	return execAll(n.body, sub)
}

func (n *generationNode) exec(s *scope) error {
	// As in transformers, the block is a call: what it sets stays inside.
	text, err := s.capture(func(sub *scope) error { return execAll(n.body, sub) })
	if err != nil {
		return err
	}
	if s.run.marks {
		text = MarkStart + text + MarkEnd
	}
	return s.write(text)
}

var (
	errBreak    = errors.New("break outside a loop")
	errContinue = errors.New("continue outside a loop")
)

func (n *jumpNode) exec(*scope) error {
	if n.kind == "break" {
		return errBreak
	}
	return errContinue
}

// loop is the variable of that name inside a for block.
type loop struct {
	items   []any
	index0  int
	depth0  int
	last    []any // arguments of the last call to changed
	recurse Func  // nil unless the loop is recursive
}

func (l *loop) attr(name string) (any, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return l.index0 + 1, true
	case "index0":
		return l.index0, true
	case "revindex":
		return n - l.index0, true
	case "revindex0":
		return n - l.index0 - 1, true
	case "first":
		return l.index0 == 0, true
	case "last":
		return l.index0 == n-1, true
	case "length":
		return n, true
	case "depth":
		return l.depth0 + 1, true
	case "depth0":
		return l.depth0, true
	case "previtem":
		if l.index0 > 0 {
			return l.items[l.index0-1], true
		}
		return undefined{"loop.previtem"}, true
	case "nextitem":
		if l.index0 < n-1 {
			return l.items[l.index0+1], true
		}
		return undefined{"loop.nextitem"}, true
	case "cycle":
		return Func(func(a Args) (any, error) {
			if len(a.Pos) == 0 {
				return nil, errors.New("loop.cycle needs arguments")
			}
			return a.Pos[l.index0%len(a.Pos)], nil
		}), true
	case "changed":
		return Func(func(a Args) (any, error) {
			same := l.last != nil && equal(&List{Items: l.last}, &List{Items: a.Pos})
			l.last = append([]any{}, a.Pos...)
			return !same, nil
		}), true
	}
	return nil, false
}

func (n *forNode) exec(s *scope) error {
	seq, err := n.seq.eval(s)
	if err != nil {
		return located(n.line, err)
	}
	return located(n.line, n.loop(s, seq, 0))
}

func (n *forNode) loop(s *scope, seq any, depth int) error {
	items, err := elements(seq)
	if err != nil {
		return err
	}
	if n.cond != nil {
		var kept []any
		for _, item := range items {
			sub := s.child()
			if err := assign(sub, n.target, item); err != nil {
				return err
			}
			v, err := n.cond.eval(sub)
			if err != nil {
				return err
			}
			if truth(v) {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		return execAll(n.otherwise, s.child())
	}
	l := &loop{items: items, depth0: depth}
	if n.recursive {
		l.recurse = func(a Args) (any, error) {
			return s.call(func() (any, error) {
				return s.capture(func(sub *scope) error { return n.loop(sub, a.arg(0, "", nil), depth+1) })
			})
		}
	}
	for i, item := range items {
		if err := s.step(); err != nil {
			return err
		}
		l.index0 = i
		sub := s.child()
		sub.set("loop", l)
		if err := assign(sub, n.target, item); err != nil {
			return err
		}
		err := execAll(n.body, sub)
		if errors.Is(err, errBreak) {
			break
		}
		if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	return nil
}

// call bounds the depth of calls.
func (s *scope) call(f func() (any, error)) (any, error) {
	if s.run.calls++; s.run.calls > maxCalls {
		return nil, fmt.Errorf("calls nested deeper than %d", maxCalls)
	}
	defer func() { s.run.calls-- }()
	return f()
}

// macro is a callable block.
type macro struct {
	name   string
	params []param
	body   []node
	scope  *scope // where it was defined
}

func (n *macroNode) exec(s *scope) error {
	s.set(n.name, &macro{n.name, n.params, n.body, s})
	return nil
}

func (m *macro) invoke(s *scope, a Args) (any, error) {
	return s.call(func() (any, error) {
		return m.scope.capture(func(sub *scope) error {
			used := map[string]bool{}
			for i, p := range m.params {
				switch named, given := any(nil), false; {
				case i < len(a.Pos):
					sub.set(p.name, a.Pos[i])
				default:
					if a.Named != nil {
						named, given = a.Named.Get(p.name)
					}
					switch {
					case given:
						sub.set(p.name, named)
						used[p.name] = true
					case p.fallback != nil:
						v, err := p.fallback.eval(sub)
						if err != nil {
							return err
						}
						sub.set(p.name, v)
					default:
						sub.set(p.name, undefined{"parameter " + p.name})
					}
				}
			}
			var rest []any
			if len(a.Pos) > len(m.params) {
				rest = a.Pos[len(m.params):]
			}
			extra := NewDict()
			if a.Named != nil {
				for _, k := range a.Named.Keys() {
					v, _ := a.Named.Get(k)
					if k == "caller" {
						sub.set("caller", v)
					} else if !used[k] {
						extra.Set(k, v)
					}
				}
			}
			sub.set("varargs", &List{rest, true})
			sub.set("kwargs", extra)
			return execAll(m.body, sub)
		})
	})
}

func (n *callNode) exec(s *scope) error {
	caller := &macro{"caller", n.params, n.body, s}
	v, err := n.call.evalWith(s, caller)
	if err != nil {
		return located(n.line, err)
	}
	return s.write(str(v))
}
