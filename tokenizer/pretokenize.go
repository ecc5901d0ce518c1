package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// splitter cuts a piece into smaller ones and hands them on in order. Empty pieces are dropped.
type splitter interface {
	split(p piece, next func(piece) error) error
}

// parsePreTokenizer returns the splitters and whether the words end up as bytes (ByteLevel).
func parsePreTokenizer(raw json.RawMessage) (all []splitter, byteLevel bool, err error) {
	if isNull(raw) {
		return nil, false, nil
	}
	var c struct {
		Type             string            `json:"type"`
		PreTokenizers    []json.RawMessage `json:"pretokenizers"`
		AddPrefixSpace   *bool             `json:"add_prefix_space"`
		UseRegex         *bool             `json:"use_regex"`
		IndividualDigits bool              `json:"individual_digits"`
		Pattern          json.RawMessage   `json:"pattern"`
		Behavior         string            `json:"behavior"`
		Invert           bool              `json:"invert"`
		Replacement      string            `json:"replacement"`
		PrependScheme    string            `json:"prepend_scheme"`
		Split            *bool             `json:"split"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, false, fmt.Errorf("pre_tokenizer: %w", err)
	}
	orTrue := func(b *bool) bool { return b == nil || *b }
	switch c.Type {
	case "Sequence":
		for _, r := range c.PreTokenizers {
			if byteLevel {
				return nil, false, fmt.Errorf("pre_tokenizer Sequence: ByteLevel must be the last member")
			}
			part, b, err := parsePreTokenizer(r)
			if err != nil {
				return nil, false, err
			}
			all, byteLevel = append(all, part...), b
		}
		return all, byteLevel, nil
	case "ByteLevel":
		if orTrue(c.AddPrefixSpace) {
			all = append(all, prefixSpace{})
		}
		if orTrue(c.UseRegex) {
			all = append(all, splitPattern{scanner(scanGPT2), isolated, false})
		}
		return all, true, nil
	case "Digits":
		how := contiguous
		if c.IndividualDigits {
			how = isolated
		}
		return []splitter{splitPattern{runeMatcher(unicode.IsNumber), how, false}}, false, nil
	case "Split":
		m, err := parsePattern(c.Pattern)
		if err != nil {
			return nil, false, fmt.Errorf("pre_tokenizer Split: %w", err)
		}
		how := slices.Index(behaviors, c.Behavior)
		if how < 0 {
			return nil, false, fmt.Errorf("pre_tokenizer Split: behavior %q is not one of %v", c.Behavior, behaviors)
		}
		return []splitter{splitPattern{m, behavior(how), c.Invert}}, false, nil
	case "Metaspace":
		m, err := newMetaspace(c.Replacement, c.PrependScheme, c.AddPrefixSpace)
		if err != nil {
			return nil, false, fmt.Errorf("pre_tokenizer %w", err)
		}
		all = append(all, m)
		if orTrue(c.Split) {
			all = append(all, splitPattern{literal(m.replacement), mergedWithNext, false})
		}
		return all, false, nil
	case "WhitespaceSplit":
		return []splitter{splitPattern{runeMatcher(unicode.IsSpace), removed, false}}, false, nil
	}
	return nil, false, fmt.Errorf("pre_tokenizer type %q is not supported (have Sequence, ByteLevel, Digits, Split, Metaspace, WhitespaceSplit)", c.Type)
}

// behavior says what becomes of the matches of a Split.
type behavior int

const (
	removed behavior = iota
	isolated
	mergedWithPrevious
	mergedWithNext
	contiguous
)

var behaviors = []string{"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}

// splitPattern cuts around the matches of a pattern.
type splitPattern struct {
	pattern matcher
	how     behavior
	invert  bool
}

func (s splitPattern) split(p piece, next func(piece) error) error {
	// The common case needs no list: every match is a word and they cover the text.
	if scan, ok := s.pattern.(scanner); ok && s.how == isolated {
		for i := 0; i < len(p.text); {
			j := scan(p.text, i)
			if err := next(p.slice(i, j)); err != nil {
				return err
			}
			i = j
		}
		return nil
	}
	found, err := s.pattern.findAll(p.text)
	if err != nil {
		return err
	}
	for _, part := range s.how.apply(cover(found, len(p.text), s.invert)) {
		if part.End > part.Start {
			if err := next(p.slice(part.Start, part.End)); err != nil {
				return err
			}
		}
	}
	return nil
}

// part is a stretch of text that matched or did not.
type part struct {
	Span
	match bool
}

// cover returns matches and gaps in order, covering [0, n).
func cover(found []Span, n int, invert bool) []part {
	parts := make([]part, 0, 2*len(found)+1)
	at := 0
	for _, m := range found {
		if m.Start > at {
			parts = append(parts, part{Span{at, m.Start}, invert})
		}
		parts = append(parts, part{m, !invert})
		at = m.End
	}
	if at < n {
		parts = append(parts, part{Span{at, n}, invert})
	}
	return parts
}

func (b behavior) apply(parts []part) []part {
	out := parts[:0:0]
	switch b {
	case isolated:
		return parts
	case removed:
		for _, p := range parts {
			if !p.match {
				out = append(out, p)
			}
		}
	case contiguous:
		for i, p := range parts {
			if i > 0 && parts[i-1].match == p.match {
				out[len(out)-1].End = p.End
			} else {
				out = append(out, p)
			}
		}
	case mergedWithPrevious:
		for i, p := range parts {
			if p.match && i > 0 && !parts[i-1].match {
				out[len(out)-1].End = p.End
			} else {
				out = append(out, p)
			}
		}
	case mergedWithNext:
		for i := len(parts) - 1; i >= 0; i-- {
			p := parts[i]
			if p.match && i+1 < len(parts) && !parts[i+1].match {
				out[len(out)-1].Start = p.Start
			} else {
				out = append(out, p)
			}
		}
		slices.Reverse(out)
	}
	return out
}

// runeMatcher matches single characters.
type runeMatcher func(rune) bool

func (f runeMatcher) findAll(s string) ([]Span, error) {
	var out []Span
	for i, r := range s {
		if f(r) {
			out = append(out, Span{i, i + utf8.RuneLen(r)})
		}
	}
	return out, nil
}

// prefixSpace puts a space in front of a piece that has none.
type prefixSpace struct{}

func (prefixSpace) split(p piece, next func(piece) error) error {
	if !strings.HasPrefix(p.text, " ") {
		p = prepend(p, " ")
	}
	return next(p)
}

// metaspace replaces spaces by a visible character, as SentencePiece does.
type metaspace struct {
	replacement string
	prepend     string // always, first, never
}

func newMetaspace(replacement, scheme string, addPrefixSpace *bool) (metaspace, error) {
	if utf8.RuneCountInString(replacement) != 1 {
		return metaspace{}, fmt.Errorf("replacement %q of Metaspace is not one character", replacement)
	}
	switch scheme {
	case "":
		scheme = "always"
		if addPrefixSpace != nil && !*addPrefixSpace {
			scheme = "never"
		}
	case "always", "first", "never":
	default:
		return metaspace{}, fmt.Errorf("prepend_scheme %q of Metaspace is not one of always, first, never", scheme)
	}
	return metaspace{replacement, scheme}, nil
}

func (m metaspace) split(p piece, next func(piece) error) error {
	p, _ = replace{literal(" "), m.replacement}.normalize(p)
	first := p.at(0).Start == 0
	if (m.prepend == "always" || m.prepend == "first" && first) && !strings.HasPrefix(p.text, m.replacement) {
		p = prepend(p, m.replacement)
	}
	return next(p)
}
