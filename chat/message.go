package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/gofsdp/gofsdp/chat/internal/jinja"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string // system, user, assistant, tool, …
	Content string
	// Extra holds further fields in order, such as tool_calls, name or
	// reasoning_content. A field named "content" replaces Content, for contents that
	// are null or a list of parts.
	Extra []Field
}

// Field is a named value of an Object.
type Field struct {
	Name  string
	Value any
}

// Object is a JSON object that keeps the order of its fields: templates print tools and
// tool calls in the order in which they are written.
//
// Values are nil, bool, int, float64, string, []any, Object, or json.RawMessage, which is
// parsed when a template is rendered.
type Object []Field

// UnmarshalJSON reads a message object; fields other than role and content go to Extra.
func (m *Message) UnmarshalJSON(data []byte) error {
	v, err := ParseJSON(data)
	if err != nil {
		return fmt.Errorf("chat: message: %w", err)
	}
	obj, ok := v.(Object)
	if !ok {
		return fmt.Errorf("chat: message: want an object, got %s", bytes.TrimSpace(data))
	}
	*m = Message{}
	for _, f := range obj {
		s, isString := f.Value.(string)
		switch {
		case f.Name == "role" && isString:
			m.Role = s
		case f.Name == "role":
			return fmt.Errorf("chat: message: role must be a string, got %v", f.Value)
		case f.Name == "content" && isString:
			m.Content = s
		case f.Name == "content" && !isContent(f.Value):
			return fmt.Errorf("chat: message: content must be a string, a list of parts or null, got %v", f.Value)
		default:
			m.Extra = append(m.Extra, f)
		}
	}
	if m.Role == "" {
		return errors.New("chat: message: no role")
	}
	return nil
}

// isContent tells whether a value that is no string may be a message's content: a list of parts, or null beside tool calls.
func isContent(v any) bool {
	_, parts := v.([]any)
	return parts || v == nil
}

// MarshalJSON writes role, content and the extra fields, in this order.
func (m Message) MarshalJSON() ([]byte, error) {
	v, err := toTemplate(m)
	if err != nil {
		return nil, fmt.Errorf("chat: message: %w", err)
	}
	s, err := jinja.JSON(v)
	return []byte(s), err
}

func (m Message) object() Object {
	obj := Object{{"role", m.Role}, {"content", m.Content}}
	for _, f := range m.Extra {
		if f.Name == "content" {
			obj[1].Value = f.Value
			continue
		}
		obj = append(obj, f)
	}
	return obj
}

// ParseJSON reads a JSON value into the types listed at Object, keeping the order of fields.
// Whole numbers become int, others float64.
func ParseJSON(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := parseValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("text after the value at byte %d", dec.InputOffset())
	}
	return v, nil
}

const maxDepth = 1000

func parseValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case json.Number:
		return parseNumber(tok)
	case json.Delim:
		if tok == '[' {
			list := []any{}
			for dec.More() {
				v, err := parseValue(dec, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err = dec.Token()
			return list, err
		}
		obj := Object{}
		at := map[string]int{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			v, err := parseValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			name := key.(string)
			if i, again := at[name]; again { // as in Python, the last value wins
				obj[i].Value = v
				continue
			}
			at[name] = len(obj)
			obj = append(obj, Field{name, v})
		}
		_, err = dec.Token()
		return obj, err
	}
	return tok, nil // string, bool, nil
}

func parseNumber(n json.Number) (any, error) {
	if !strings.ContainsAny(string(n), ".eE") {
		if i, err := n.Int64(); err == nil && i >= math.MinInt && i <= math.MaxInt {
			return int(i), nil
		}
	}
	f, err := n.Float64()
	return f, err
}
