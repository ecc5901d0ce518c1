package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"
)

// matchTimeout bounds one backtracking search, so that a hostile pattern ends in an error.
const matchTimeout = 20 * time.Second

// matcher finds every non-overlapping match in a text, in order.
type matcher interface {
	findAll(s string) ([]Span, error)
}

// literal matches a fixed string.
type literal string

func (l literal) findAll(s string) ([]Span, error) {
	var out []Span
	for at := 0; ; {
		i := strings.Index(s[at:], string(l))
		if i < 0 {
			return out, nil
		}
		out = append(out, Span{at + i, at + i + len(l)})
		at += i + len(l)
	}
}

// backtracking is a regular expression with look-around, which Go's regexp lacks.
type backtracking struct{ re *regexp2.Regexp }

func compilePattern(expr string) (matcher, error) {
	if scan, ok := knownPatterns[expr]; ok {
		return scan, nil
	}
	// The file format's engine reads \A, \z, (?i) and classes as regexp2 does; RE2 mode
	// would add ASCII-only classes and is not wanted.
	re, err := regexp2.Compile(expr, regexp2.None)
	if err != nil {
		return nil, err
	}
	re.MatchTimeout = matchTimeout
	return backtracking{re}, nil
}

func (b backtracking) findAll(s string) ([]Span, error) {
	found, err := b.re.FindAllStringIndex(s, -1)
	if err != nil {
		return nil, fmt.Errorf("pattern %q on %d bytes: %w", b.re.String(), len(s), err)
	}
	out := make([]Span, 0, len(found))
	for _, m := range found {
		if m[1] > m[0] {
			out = append(out, Span{m[0], m[1]})
		}
	}
	return out, nil
}

// parsePattern reads {"String": "…"} or {"Regex": "…"}.
func parsePattern(raw json.RawMessage) (matcher, error) {
	var p struct{ String, Regex *string }
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	switch {
	case p.String != nil && *p.String != "":
		return literal(*p.String), nil
	case p.Regex != nil:
		m, err := compilePattern(*p.Regex)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", *p.Regex, err)
		}
		return m, nil
	}
	return nil, errors.New(`pattern must be {"String": "…"} or {"Regex": "…"} and not empty`)
}
