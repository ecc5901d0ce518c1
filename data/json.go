package data

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// kind is the JSON type of a value.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
)

func (k kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// value is a parsed JSON value that remembers where it stood, so that an error about its meaning can point at it.
type value struct {
	kind     kind
	off, end int      // bytes off..end of the source
	str      string   // decoded text of a string
	items    []value  // elements of an array, values of an object
	keys     []string // keys of an object, in the order of items
}

// field returns the value of a key, or nil. Of repeated keys the last one counts, as in encoding/json.
func (v *value) field(key string) *value {
	for i := len(v.keys) - 1; i >= 0; i-- {
		if v.keys[i] == key {
			return &v.items[i]
		}
	}
	return nil
}

// posError is an error at a byte offset of the source.
type posError struct {
	off int
	msg string
}

func (e *posError) Error() string { return e.msg }

func errAt(off int, format string, args ...any) *posError {
	return &posError{off, fmt.Sprintf(format, args...)}
}

// maxDepth bounds the nesting of a row, so that a hostile one cannot exhaust the stack.
const maxDepth = 200

// parseJSON parses exactly one value that fills src but for white space.
func parseJSON(src []byte) (*value, *posError) {
	if off := invalidUTF8(src); off >= 0 {
		return nil, errAt(off, "invalid UTF-8 (byte 0x%02x)", src[off])
	}
	p := parser{src: src}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.at < len(src) {
		return nil, errAt(p.at, "unexpected %s after the end of the row", p.peek())
	}
	return &v, nil
}

// invalidUTF8 returns the offset of the first byte that is no UTF-8, or -1.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

type parser struct {
	src []byte
	at  int
}

func (p *parser) space() {
	for p.at < len(p.src) {
		switch p.src[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

// peek describes the next character for an error message.
func (p *parser) peek() string {
	if p.at >= len(p.src) {
		return "end of the row"
	}
	r, _ := utf8.DecodeRune(p.src[p.at:])
	return fmt.Sprintf("%q", r)
}

// skip consumes c after white space and tells whether it was there.
func (p *parser) skip(c byte) bool {
	p.space()
	if p.at < len(p.src) && p.src[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(depth int) (v value, err *posError) {
	p.space()
	v.off = p.at
	if depth > maxDepth {
		return v, errAt(p.at, "more than %d levels of nesting", maxDepth)
	}
	if p.at >= len(p.src) {
		return v, errAt(p.at, "the JSON ends too early: want a value")
	}
	switch c := p.src[p.at]; {
	case c == '{':
		err = p.object(&v, depth)
	case c == '[':
		err = p.array(&v, depth)
	case c == '"':
		v.kind = kindString
		v.str, err = p.string()
	case c == '-' || '0' <= c && c <= '9':
		v.kind = kindNumber
		err = p.number()
	default:
		err = p.word(&v)
	}
	v.end = p.at
	return v, err
}

func (p *parser) object(v *value, depth int) *posError {
	v.kind = kindObject
	p.at++
	if p.skip('}') {
		return nil
	}
	for {
		p.space()
		if p.at >= len(p.src) || p.src[p.at] != '"' {
			return p.want("a key in double quotes")
		}
		key, err := p.string()
		if err != nil {
			return err
		}
		if !p.skip(':') {
			return p.want("':' after the key")
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		v.keys, v.items = append(v.keys, key), append(v.items, item)
		switch {
		case p.skip(','):
		case p.skip('}'):
			return nil
		default:
			return p.want("',' or '}'")
		}
	}
}

func (p *parser) array(v *value, depth int) *posError {
	v.kind = kindArray
	p.at++
	if p.skip(']') {
		return nil
	}
	for {
		item, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		v.items = append(v.items, item)
		switch {
		case p.skip(','):
		case p.skip(']'):
			return nil
		default:
			return p.want("',' or ']'")
		}
	}
}

// want is the error that something else stands where what should.
func (p *parser) want(what string) *posError {
	if p.at >= len(p.src) {
		return errAt(p.at, "the JSON ends too early: want %s", what)
	}
	return errAt(p.at, "unexpected %s: want %s", p.peek(), what)
}

// string reads a string literal. Escapes are decoded by encoding/json, which also replaces lone surrogates by U+FFFD.
func (p *parser) string() (string, *posError) {
	start := p.at
	escaped := false
	for p.at++; p.at < len(p.src); p.at++ {
		switch c := p.src[p.at]; {
		case c == '"':
			p.at++
			lit := p.src[start:p.at]
			if !escaped {
				return string(lit[1 : len(lit)-1]), nil
			}
			var s string
			if err := json.Unmarshal(lit, &s); err != nil {
				return "", errAt(start, "bad escape in a string: %v", err)
			}
			return s, nil
		case c == '\\':
			escaped = true
			p.at++
		case c < 0x20:
			return "", errAt(p.at, "control character 0x%02x in a string: write it as an escape", c)
		}
	}
	p.at = len(p.src)
	return "", errAt(p.at, "the JSON ends too early: a string that began at byte %d of the row is not closed", start+1)
}

func (p *parser) number() *posError {
	start := p.at
	for p.at < len(p.src) {
		switch c := p.src[p.at]; {
		case '0' <= c && c <= '9', c == '-', c == '+', c == '.', c == 'e', c == 'E':
			p.at++
			continue
		}
		break
	}
	if !json.Valid(p.src[start:p.at]) {
		return errAt(start, "%q is not a number", p.src[start:p.at])
	}
	return nil
}

func (p *parser) word(v *value) *posError {
	for _, w := range [...]struct {
		text string
		kind kind
	}{{"null", kindNull}, {"true", kindBool}, {"false", kindBool}} {
		if rest := p.src[p.at:]; len(rest) >= len(w.text) && string(rest[:len(w.text)]) == w.text {
			p.at += len(w.text)
			v.kind = w.kind
			return nil
		}
	}
	return p.want("a value")
}
