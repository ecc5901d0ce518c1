package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites text before it is split, keeping track of where bytes came from.
type normalizer interface {
	normalize(piece) (piece, error)
}

func parseNormalizer(raw json.RawMessage) ([]normalizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	var c struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
		Prepend     string            `json:"prepend"`
		Pattern     json.RawMessage   `json:"pattern"`
		Content     string            `json:"content"`
		StripLeft   bool              `json:"strip_left"`
		StripRight  bool              `json:"strip_right"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	switch c.Type {
	case "Sequence":
		var all []normalizer
		for _, r := range c.Normalizers {
			n, err := parseNormalizer(r)
			if err != nil {
				return nil, err
			}
			all = append(all, n...)
		}
		return all, nil
	case "NFC":
		return []normalizer{unicodeForm(norm.NFC)}, nil
	case "NFD":
		return []normalizer{unicodeForm(norm.NFD)}, nil
	case "NFKC":
		return []normalizer{unicodeForm(norm.NFKC)}, nil
	case "NFKD":
		return []normalizer{unicodeForm(norm.NFKD)}, nil
	case "Lowercase":
		return []normalizer{lowercase{}}, nil
	case "Prepend":
		return []normalizer{prependText(c.Prepend)}, nil
	case "Strip":
		return []normalizer{strip{c.StripLeft, c.StripRight}}, nil
	case "Replace":
		m, err := parsePattern(c.Pattern)
		if err != nil {
			return nil, fmt.Errorf("normalizer Replace: %w", err)
		}
		return []normalizer{replace{m, c.Content}}, nil
	}
	return nil, fmt.Errorf("normalizer type %q is not supported (have Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Strip, Replace)", c.Type)
}

// unicodeForm maps each combining sequence to its normal form. Sequences of more than 30
// combining marks are broken up as Unicode's stream-safe format asks.
type unicodeForm norm.Form

func (f unicodeForm) normalize(p piece) (piece, error) {
	form := norm.Form(f)
	if form.IsNormalString(p.text) {
		return p, nil
	}
	w := newRewriter(p)
	var it norm.Iter
	it.InitString(form, p.text)
	for !it.Done() {
		i := it.Pos()
		s := it.Next()
		if j := it.Pos(); string(s) == p.text[i:j] {
			w.keep(i, j)
		} else {
			w.put(string(s), i, j)
		}
	}
	return w.piece(), nil
}

type lowercase struct{}

func (lowercase) normalize(p piece) (piece, error) {
	w := newRewriter(p)
	for i, r := range p.text {
		n := utf8.RuneLen(r)
		if r == 'İ' { // the one letter whose lower case is two characters
			w.put("i̇", i, i+n)
		} else {
			w.put(string(unicode.ToLower(r)), i, i+n)
		}
	}
	return w.piece(), nil
}

type prependText string

func (s prependText) normalize(p piece) (piece, error) {
	if p.text == "" {
		return p, nil
	}
	return prepend(p, string(s)), nil
}

type strip struct{ left, right bool }

func (s strip) normalize(p piece) (piece, error) {
	i, j := 0, len(p.text)
	if s.left {
		i = j - len(strings.TrimLeftFunc(p.text, unicode.IsSpace))
	}
	if s.right {
		j = i + len(strings.TrimRightFunc(p.text[i:], unicode.IsSpace))
	}
	return p.slice(i, j), nil
}

type replace struct {
	pattern matcher
	content string
}

func (r replace) normalize(p piece) (piece, error) {
	found, err := r.pattern.findAll(p.text)
	if err != nil || len(found) == 0 {
		return p, err
	}
	w := newRewriter(p)
	at := 0
	for _, m := range found {
		w.keep(at, m.Start)
		w.put(r.content, m.Start, m.End)
		at = m.End
	}
	w.keep(at, len(p.text))
	return w.piece(), nil
}
