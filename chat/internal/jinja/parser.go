package jinja

import (
	"slices"
	"strconv"
)

// maxNesting bounds the depth of expressions and blocks.
const maxNesting = 200

type parser struct {
	toks  []token
	pos   int
	depth int
}

func (p *parser) cur() token { return p.toks[p.pos] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) isOp(op string) bool     { return p.cur().kind == tokOp && p.cur().text == op }
func (p *parser) isName(name string) bool { return p.cur().kind == tokName && p.cur().text == name }

func (p *parser) acceptOp(op string) bool {
	if p.isOp(op) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) acceptName(name string) bool {
	if p.isName(name) {
		p.pos++
		return true
	}
	return false
}

// syntaxError unwinds the parser; Parse returns it as an error.
type syntaxError struct{ err error }

func (p *parser) fail(format string, args ...any) {
	panic(syntaxError{errorAt(p.cur().line, format, args...)})
}

func (p *parser) expectOp(op string) {
	if !p.acceptOp(op) {
		p.fail("expected %q, got %s", op, p.cur())
	}
}

func (p *parser) expect(k kind, what string) token {
	if p.cur().kind != k {
		p.fail("expected %s, got %s", what, p.cur())
	}
	return p.next()
}

func (p *parser) enter() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("nested deeper than %d levels", maxNesting)
	}
	return func() { p.depth-- }
}

// body parses up to one of the named tags, and leaves the parser after its name.
func (p *parser) body(ends ...string) (nodes []node, end string) {
	defer p.enter()()
	for {
		switch t := p.next(); t.kind {
		case tokEOF:
			if len(ends) == 0 {
				return nodes, ""
			}
			p.fail("template ends where %v was expected", ends)
		case tokData:
			nodes = append(nodes, &dataNode{t.text})
		case tokVarBegin:
			nodes = append(nodes, &outputNode{t.line, p.tuple()})
			p.expect(tokVarEnd, "}}")
		case tokBlockBegin:
			name := p.expect(tokName, "the name of a tag")
			if slices.Contains(ends, name.text) {
				return nodes, name.text
			}
			nodes = append(nodes, p.statement(name))
		}
	}
}

func (p *parser) endTag() { p.expect(tokBlockEnd, "%}") }

func (p *parser) block(end string) []node {
	p.endTag()
	nodes, _ := p.body(end)
	p.endTag()
	return nodes
}

func (p *parser) statement(name token) node {
	switch name.text {
	case "if":
		return p.ifTag(name.line)
	case "for":
		return p.forTag(name.line)
	case "set":
		return p.setTag(name.line)
	case "macro":
		fn := p.expect(tokName, "a macro's name").text
		m := &macroNode{line: name.line, name: fn, params: p.params()}
		m.body = p.block("endmacro")
		return m
	case "call":
		c := &callNode{line: name.line}
		if p.isOp("(") {
			c.params = p.params()
		}
		call, ok := p.expression().(*callExpr)
		if !ok {
			p.fail("call needs a call")
		}
		c.call = call
		c.body = p.block("endcall")
		return c
	case "filter":
		f := &filterNode{line: name.line}
		f.filters = p.filters(&hole{}, false)
		f.body = p.block("endfilter")
		return f
	case "with":
		w := &withNode{line: name.line}
		for p.cur().kind == tokName {
			w.names = append(w.names, p.next().text)
			p.expectOp("=")
			w.values = append(w.values, p.expression())
			if !p.acceptOp(",") {
				break
			}
		}
		w.body = p.block("endwith")
		return w
	case "generation":
		return &generationNode{p.block("endgeneration")}
	case "break", "continue":
		p.endTag()
		return &jumpNode{name.line, name.text}
	}
	p.fail("tag %q is unknown or not supported", name.text)
	return nil
}

func (p *parser) ifTag(line int) node {
	n := &ifNode{line: line}
	for {
		n.conds = append(n.conds, p.tuple())
		p.endTag()
		nodes, end := p.body("elif", "else", "endif")
		n.bodies = append(n.bodies, nodes)
		if end == "elif" {
			continue
		}
		if end == "else" {
			p.endTag()
			n.otherwise, _ = p.body("endif")
		}
		p.endTag()
		return n
	}
}

func (p *parser) forTag(line int) node {
	n := &forNode{line: line, target: p.target()}
	if !p.acceptName("in") {
		p.fail("expected in, got %s", p.cur())
	}
	n.seq = p.tupleOf(p.noCondition)
	if p.acceptName("if") {
		n.cond = p.expression()
	}
	n.recursive = p.acceptName("recursive")
	p.endTag()
	nodes, end := p.body("else", "endfor")
	n.body = nodes
	if end == "else" {
		p.endTag()
		n.otherwise, _ = p.body("endfor")
	}
	p.endTag()
	return n
}

func (p *parser) setTag(line int) node {
	n := &setNode{line: line, target: p.target()}
	if p.acceptOp("=") {
		n.value = p.tuple()
		p.endTag()
		return n
	}
	n.filters = p.filters(&hole{}, true)
	n.body = p.block("endset")
	return n
}

// target parses what is assigned to: names, a tuple of them, or namespace.attribute.
func (p *parser) target() target {
	var t target
	for {
		if p.acceptOp("(") {
			t.parts = append(t.parts, p.target())
			p.expectOp(")")
		} else {
			one := target{name: p.expect(tokName, "a name").text}
			if p.acceptOp(".") {
				one.attr = p.expect(tokName, "an attribute").text
			}
			t.parts = append(t.parts, one)
		}
		if !p.acceptOp(",") {
			break
		}
		t.tuple = true
		if p.isName("in") || p.isOp("=") || p.isOp(")") {
			break
		}
	}
	if !t.tuple {
		return t.parts[0]
	}
	return t
}

// params parses (a, b=1).
func (p *parser) params() []param {
	var out []param
	p.expectOp("(")
	for !p.acceptOp(")") {
		if len(out) > 0 {
			p.expectOp(",")
			if p.acceptOp(")") {
				break
			}
		}
		q := param{name: p.expect(tokName, "a parameter").text}
		if p.acceptOp("=") {
			q.fallback = p.expression()
		}
		out = append(out, q)
	}
	return out
}

// tuple parses an expression, or several with commas between.
func (p *parser) tuple() expr { return p.tupleOf(p.expression) }

func (p *parser) tupleOf(one func() expr) expr {
	first := one()
	if !p.isOp(",") {
		return first
	}
	list := &listExpr{items: []expr{first}, tuple: true}
	for p.acceptOp(",") {
		if k := p.cur().kind; k == tokVarEnd || k == tokBlockEnd || p.isOp(")") {
			break
		}
		list.items = append(list.items, one())
	}
	return list
}

// expression parses a if b else c, and all that binds tighter.
func (p *parser) expression() expr {
	defer p.enter()()
	e := p.noCondition()
	for p.isName("if") {
		line := p.next().line
		c := &condExpr{line: line, then: e, cond: p.noCondition()}
		if p.acceptName("else") {
			c.otherwise = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) noCondition() expr { return p.or() }

func (p *parser) or() expr {
	e := p.and()
	for p.acceptName("or") {
		e = &logicExpr{e, p.and(), true}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.acceptName("and") {
		e = &logicExpr{e, p.not(), false}
	}
	return e
}

func (p *parser) not() expr {
	if p.acceptName("not") {
		defer p.enter()()
		return &notExpr{p.not()}
	}
	return p.comparison()
}

func (p *parser) comparison() expr {
	first := p.sum()
	var c *compareExpr
	for {
		t := p.cur()
		op := ""
		switch {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
			p.next()
		case p.isName("in"):
			op = "in"
			p.next()
		case p.isName("not") && p.toks[p.pos+1].kind == tokName && p.toks[p.pos+1].text == "in":
			op = "not in"
			p.pos += 2
		}
		if op == "" {
			if c == nil {
				return first
			}
			return c
		}
		if c == nil {
			c = &compareExpr{line: t.line, first: first}
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
}

// binary parses left-associative operators.
func (p *parser) binary(operand func() expr, ops ...string) expr {
	e := operand()
	for p.cur().kind == tokOp && slices.Contains(ops, p.cur().text) {
		t := p.next()
		e = &binaryExpr{t.line, t.text, e, operand()}
	}
	return e
}

func (p *parser) sum() expr     { return p.binary(p.concat, "+", "-") }
func (p *parser) concat() expr  { return p.binary(p.product, "~") }
func (p *parser) product() expr { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() expr {
	return p.binary(func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(filtered bool) expr {
	defer p.enter()()
	t := p.cur()
	var e expr
	if p.acceptOp("-") || p.acceptOp("+") {
		e = &signExpr{t.line, t.text == "-", p.unary(false)}
	} else {
		e = p.postfix(p.primary())
	}
	if filtered {
		e = p.filters(e, true)
	}
	return e
}

func (p *parser) primary() expr {
	switch t := p.next(); t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &literal{true}
		case "false", "False":
			return &literal{false}
		case "none", "None":
			return &literal{nil}
		}
		return &nameExpr{t.line, t.text}
	case tokString:
		s := t.text
		for p.cur().kind == tokString {
			s += p.next().text
		}
		return &literal{s}
	case tokInt:
		i, err := strconv.Atoi(t.text)
		if err != nil {
			p.fail("integer %s is out of range", t.text)
		}
		return &literal{i}
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.fail("number %s is out of range", t.text)
		}
		return &literal{f}
	case tokOp:
		switch t.text {
		case "(":
			if p.acceptOp(")") {
				return &listExpr{tuple: true}
			}
			e := p.tuple()
			p.expectOp(")")
			return e
		case "[":
			list := &listExpr{}
			for !p.acceptOp("]") {
				if len(list.items) > 0 {
					p.expectOp(",")
					if p.acceptOp("]") {
						break
					}
				}
				list.items = append(list.items, p.expression())
			}
			return list
		case "{":
			d := &dictExpr{line: t.line}
			for !p.acceptOp("}") {
				if len(d.keys) > 0 {
					p.expectOp(",")
					if p.acceptOp("}") {
						break
					}
				}
				d.keys = append(d.keys, p.expression())
				p.expectOp(":")
				d.values = append(d.values, p.expression())
			}
			return d
		}
	}
	p.pos--
	p.fail("unexpected %s", p.cur())
	return nil
}

func (p *parser) postfix(e expr) expr {
	for {
		t := p.cur()
		switch {
		case p.acceptOp("."):
			a := p.next()
			switch a.kind {
			case tokName:
				e = &attrExpr{t.line, e, a.text}
			case tokInt:
				i, _ := strconv.Atoi(a.text)
				e = &itemExpr{t.line, e, &literal{i}}
			default:
				p.fail("expected a name after the dot, got %s", a)
			}
		case p.acceptOp("["):
			e = p.subscript(t.line, e)
		case p.isOp("("):
			e = &callExpr{t.line, e, p.args()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(line int, e expr) expr {
	var parts [3]expr
	n := 0
	slice := false
	for !p.isOp("]") {
		if p.acceptOp(":") {
			slice = true
			if n++; n > 2 {
				p.fail("slice with more than three parts")
			}
			continue
		}
		if parts[n] != nil {
			p.fail("expected %q, got %s", "]", p.cur())
		}
		parts[n] = p.expression()
	}
	p.expectOp("]")
	if slice {
		return &sliceExpr{line, e, parts}
	}
	if parts[0] == nil {
		p.fail("empty subscript")
	}
	return &itemExpr{line, e, parts[0]}
}

func (p *parser) args() (out []argument) {
	p.expectOp("(")
	for !p.acceptOp(")") {
		if len(out) > 0 {
			p.expectOp(",")
			if p.acceptOp(")") {
				break
			}
		}
		var a argument
		switch next := p.toks[min(p.pos+1, len(p.toks)-1)]; {
		case p.acceptOp("*"):
			a.spread = 1
		case p.acceptOp("**"):
			a.spread = 2
		case p.cur().kind == tokName && next.kind == tokOp && next.text == "=":
			a.name = p.next().text
			p.next()
		}
		a.value = p.expression()
		out = append(out, a)
	}
	return out
}

// filters parses |filter and, if tests are allowed, is-test suffixes.
func (p *parser) filters(e expr, tests bool) expr {
	if _, ok := e.(*hole); ok && !tests { // {% filter name %} has no leading bar
		e = p.filter(e)
	}
	for {
		switch {
		case p.acceptOp("|"):
			e = p.filter(e)
		case tests && p.acceptName("is"):
			e = p.test(e)
		case p.isOp("("):
			e = &callExpr{p.cur().line, e, p.args()}
		default:
			return e
		}
	}
}

func (p *parser) filter(e expr) expr {
	t := p.expect(tokName, "a filter's name")
	f, ok := filters[t.text]
	if !ok {
		p.fail("filter %q is unknown or not supported", t.text)
	}
	x := &filterExpr{line: t.line, name: t.text, fn: f, value: e}
	if p.isOp("(") {
		x.args = p.args()
	}
	return x
}

func (p *parser) test(e expr) expr {
	negated := p.acceptName("not")
	t := p.expect(tokName, "a test's name")
	f, ok := tests[t.text]
	if !ok {
		p.fail("test %q is unknown or not supported", t.text)
	}
	x := &testExpr{line: t.line, name: t.text, fn: f, value: e, negated: negated}
	switch c := p.cur(); {
	case p.isOp("("):
		x.args = p.args()
	case c.kind == tokString, c.kind == tokInt, c.kind == tokFloat, p.isOp("["), p.isOp("{"),
		c.kind == tokName && !slices.Contains([]string{"else", "or", "and", "is", "if", "in", "not", "recursive"}, c.text):
		x.args = []argument{{value: p.postfix(p.primary())}}
	}
	return x
}
