package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	tokEOF kind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind kind
	text string // value of a string, spelling of the rest
	line int
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokBlockEnd:
		return "%}"
	case tokVarEnd:
		return "}}"
	case tokString:
		return strconv.Quote(t.text)
	}
	return t.text
}

// Error is a fault in a template, or one found while rendering it.
type Error struct {
	Line    int // 0 if unknown
	Message string
	Err     error // cause, may be nil
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func errorAt(line int, format string, args ...any) error {
	err := &Error{Line: line, Message: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err.Err = cause
		}
	}
	return err
}

// lexer cuts a template into tokens, with trim_blocks and lstrip_blocks in force: the newline
// after a block tag and the blanks before one on its line are dropped.
type lexer struct {
	src          string
	pos, line    int
	lineStarting bool // the last tag ended a line, or nothing came before
	out          []token
}

func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, lineStarting: true}
	for l.pos < len(l.src) {
		if err := l.step(); err != nil {
			return nil, err
		}
	}
	l.emit(tokEOF, "")
	return l.out, nil
}

func (l *lexer) emit(k kind, text string) { l.out = append(l.out, token{k, text, l.line}) }

// skip moves on by n bytes and counts lines.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
}

// step handles the text up to the next tag, and the tag.
func (l *lexer) step() error {
	rest := l.src[l.pos:]
	at := strings.Index(rest, "{")
	for at >= 0 && (at+1 == len(rest) || !strings.ContainsRune("%{#", rune(rest[at+1]))) {
		next := strings.Index(rest[at+1:], "{")
		if next < 0 {
			at = -1
		} else {
			at += 1 + next
		}
	}
	if at < 0 {
		l.emit(tokData, rest)
		l.skip(len(rest))
		return nil
	}
	l.data(rest[:at], rest[at:])
	l.skip(at)
	line := l.line
	switch l.src[l.pos+1] {
	case '#':
		return l.comment()
	case '{':
		l.tagBegin(tokVarBegin)
		return l.expression("}}", tokVarEnd, line)
	}
	if end, ok := rawTag(l.src[l.pos:], "raw"); ok {
		return l.raw(end)
	}
	l.tagBegin(tokBlockBegin)
	return l.expression("%}", tokBlockEnd, line)
}

// data emits text in front of a tag, stripped as the tag asks.
func (l *lexer) data(text, tag string) {
	sign := byte(0)
	if len(tag) > 2 {
		sign = tag[2]
	}
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	case sign != '+' && tag[1] != '{':
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.lineStarting) && strings.Trim(text[start:], " \t\v\f") == "" {
			text = text[:start]
		}
	}
	if text != "" {
		l.emit(tokData, text)
	}
}

func (l *lexer) tagBegin(k kind) {
	l.emit(k, l.src[l.pos:l.pos+2])
	l.skip(2)
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		l.skip(1)
	}
}

// tagEnd passes the end of a tag at pos, whose sign takes n bytes of it, and what the sign
// or trim_blocks removes after it.
func (l *lexer) tagEnd(sign byte, n int, trim bool) {
	start := l.pos
	l.skip(n)
	switch {
	case sign == '-':
		after := l.src[l.pos:]
		l.skip(len(after) - len(strings.TrimLeftFunc(after, unicode.IsSpace)))
	case sign != '+' && trim && strings.HasPrefix(l.src[l.pos:], "\n"):
		l.skip(1)
	}
	l.lineStarting = strings.HasSuffix(l.src[start:l.pos], "\n")
}

func (l *lexer) comment() error {
	end := strings.Index(l.src[l.pos+2:], "#}")
	if end < 0 {
		return errorAt(l.line, "comment does not end")
	}
	sign, n := byte(0), 2
	if end > 0 {
		if c := l.src[l.pos+1+end]; c == '-' || c == '+' {
			sign, n = c, 3
		}
	}
	l.skip(2 + end - (n - 2))
	l.tagEnd(sign, n, true)
	return nil
}

// rawTag recognises {% name %} at the start of s.
func rawTag(s, name string) (end int, ok bool) {
	t := strings.TrimLeft(s[2:], "-+")
	t = strings.TrimLeftFunc(t, unicode.IsSpace)
	if !strings.HasPrefix(t, name) {
		return 0, false
	}
	t = strings.TrimLeftFunc(t[len(name):], unicode.IsSpace)
	trimmed := strings.TrimLeft(t, "-+")
	if !strings.HasPrefix(trimmed, "%}") {
		return 0, false
	}
	return len(s) - len(t), true
}

// raw emits {% raw %}…{% endraw %}; end is where the sign or %} of the tag starts.
func (l *lexer) raw(end int) error {
	line := l.line
	l.skip(end)
	l.closeTag()
	for at := l.pos; ; {
		i := strings.Index(l.src[at:], "{%")
		if i < 0 {
			return errorAt(line, "raw block does not end")
		}
		if end, ok := rawTag(l.src[at+i:], "endraw"); ok {
			text := l.src[l.pos : at+i]
			l.data(text, l.src[at+i:])
			l.skip(len(text) + end)
			l.closeTag()
			return nil
		}
		at += i + 2
	}
}

// closeTag passes "%}", "-%}" or "+%}" at pos.
func (l *lexer) closeTag() {
	if c := l.src[l.pos]; c == '-' || c == '+' {
		l.tagEnd(c, 3, true)
		return
	}
	l.tagEnd(0, 2, true)
}

// operators, longest first.
var operators = []string{"//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}", "<", ">", "=", ".", ":", "|", ",", ";"}

// expression emits the tokens of a tag up to its end.
func (l *lexer) expression(end string, endKind kind, line int) error {
	depth := 0
	for {
		rest := l.src[l.pos:]
		if trimmed := strings.TrimLeftFunc(rest, unicode.IsSpace); len(trimmed) < len(rest) {
			l.skip(len(rest) - len(trimmed))
			continue
		}
		if rest == "" {
			return errorAt(line, "tag does not end, missing %s", end)
		}
		if depth == 0 {
			if strings.HasPrefix(rest, end) {
				l.emit(endKind, end)
				l.tagEnd(0, 2, endKind == tokBlockEnd)
				return nil
			}
			if (rest[0] == '-' || rest[0] == '+' && endKind == tokBlockEnd) && strings.HasPrefix(rest[1:], end) {
				l.emit(endKind, end)
				l.tagEnd(rest[0], 3, endKind == tokBlockEnd)
				return nil
			}
		}
		n, err := l.token(rest)
		if err != nil {
			return err
		}
		if last := l.out[len(l.out)-1]; last.kind == tokOp {
			switch last.text {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			}
			if depth < 0 {
				return errorAt(l.line, "unexpected %q", last.text)
			}
		}
		l.skip(n)
	}
}

// token emits the token at the start of s and returns its length.
func (l *lexer) token(s string) (int, error) {
	r, _ := utf8.DecodeRuneInString(s)
	switch {
	case r == '_' || unicode.IsLetter(r):
		n := strings.IndexFunc(s, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if n < 0 {
			n = len(s)
		}
		l.emit(tokName, s[:n])
		return n, nil
	case '0' <= r && r <= '9':
		return l.number(s)
	case r == '"' || r == '\'':
		return l.stringLiteral(s)
	}
	for _, op := range operators {
		if strings.HasPrefix(s, op) {
			l.emit(tokOp, op)
			return len(op), nil
		}
	}
	return 0, errorAt(l.line, "unexpected character %q", r)
}

func (l *lexer) number(s string) (int, error) {
	digits := func(i int) int {
		for i < len(s) && ('0' <= s[i] && s[i] <= '9' || s[i] == '_') {
			i++
		}
		return i
	}
	n, k := digits(0), tokInt
	if n+1 < len(s) && s[n] == '.' && '0' <= s[n+1] && s[n+1] <= '9' {
		n, k = digits(n+1), tokFloat
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		m := n + 1
		if m < len(s) && (s[m] == '+' || s[m] == '-') {
			m++
		}
		if e := digits(m); e > m {
			n, k = e, tokFloat
		}
	}
	l.emit(k, strings.ReplaceAll(s[:n], "_", ""))
	return n, nil
}

func (l *lexer) stringLiteral(s string) (int, error) {
	var out strings.Builder
	for i := 1; i < len(s); {
		switch c := s[i]; {
		case c == s[0]:
			l.emit(tokString, out.String())
			return i + 1, nil
		case c == '\\' && i+1 < len(s):
			n, err := unescape(&out, s[i:])
			if err != nil {
				return 0, errorAt(l.line, "%v", err)
			}
			i += n
		default:
			out.WriteByte(c)
			i++
		}
	}
	return 0, errorAt(l.line, "string does not end")
}

// unescape writes the character that the Python escape at the start of s stands for.
func unescape(out *strings.Builder, s string) (int, error) {
	const simple, values = `abfnrtv\'"`, "\a\b\f\n\r\t\v\\'\""
	if i := strings.IndexByte(simple, s[1]); i >= 0 {
		out.WriteByte(values[i])
		return 2, nil
	}
	switch c := s[1]; {
	case c == '\n':
		return 2, nil
	case '0' <= c && c <= '7':
		n := 2
		for n < len(s) && n < 4 && '0' <= s[n] && s[n] <= '7' {
			n++
		}
		v, _ := strconv.ParseUint(s[1:n], 8, 32)
		out.WriteRune(rune(v))
		return n, nil
	case c == 'x' || c == 'u' || c == 'U':
		n := map[byte]int{'x': 4, 'u': 6, 'U': 10}[c]
		if len(s) < n {
			return 0, fmt.Errorf("truncated escape \\%c", c)
		}
		v, err := strconv.ParseUint(s[2:n], 16, 32)
		if err != nil || v > unicode.MaxRune {
			return 0, fmt.Errorf("bad escape %q", s[:n])
		}
		out.WriteRune(rune(v))
		return n, nil
	}
	out.WriteByte('\\')
	return 1, nil
}
