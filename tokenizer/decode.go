package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder turns token spellings back into text, one stage of a chain.
type decoder interface {
	decode(tokens []string) []string
}

// buildDecoder reads the decoder section. A ByteLevel decoder becomes a table of raw bytes.
func (t *Tokenizer) buildDecoder(raw json.RawMessage) error {
	dec, byteLevel, err := parseDecoder(raw)
	if err != nil {
		return err
	}
	if !byteLevel {
		t.dec = dec
		return nil
	}
	if len(dec) > 0 {
		return errors.New("decoder: ByteLevel cannot be combined with others")
	}
	t.bytes = make([]string, len(t.tokens))
	for id, token := range t.tokens {
		if b, ok := rawBytes(token); ok {
			t.bytes[id] = b
		} else {
			t.bytes[id] = token
		}
	}
	return nil
}

func parseDecoder(raw json.RawMessage) (all []decoder, byteLevel bool, err error) {
	if isNull(raw) {
		return nil, false, nil
	}
	var c struct {
		Type           string            `json:"type"`
		Decoders       []json.RawMessage `json:"decoders"`
		Pattern        json.RawMessage   `json:"pattern"`
		Content        string            `json:"content"`
		Start          int               `json:"start"`
		Stop           int               `json:"stop"`
		Replacement    string            `json:"replacement"`
		PrependScheme  string            `json:"prepend_scheme"`
		AddPrefixSpace *bool             `json:"add_prefix_space"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, false, fmt.Errorf("decoder: %w", err)
	}
	switch c.Type {
	case "ByteLevel":
		return nil, true, nil
	case "Sequence":
		for _, r := range c.Decoders {
			part, b, err := parseDecoder(r)
			if err != nil {
				return nil, false, err
			}
			all, byteLevel = append(all, part...), byteLevel || b
		}
		return all, byteLevel, nil
	case "Replace":
		m, err := parsePattern(c.Pattern)
		if err != nil {
			return nil, false, fmt.Errorf("decoder Replace: %w", err)
		}
		from, ok := m.(literal)
		if !ok {
			return nil, false, errors.New("decoder Replace: only a String pattern is supported")
		}
		return []decoder{replaceDecoder{string(from), c.Content}}, false, nil
	case "ByteFallback":
		return []decoder{byteFallbackDecoder{}}, false, nil
	case "Fuse":
		return []decoder{fuseDecoder{}}, false, nil
	case "Strip":
		if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop < 0 {
			return nil, false, fmt.Errorf("decoder Strip: content %q must be one character, start %d and stop %d not negative", c.Content, c.Start, c.Stop)
		}
		return []decoder{stripDecoder{c.Content, c.Start, c.Stop}}, false, nil
	case "Metaspace":
		m, err := newMetaspace(c.Replacement, c.PrependScheme, c.AddPrefixSpace)
		if err != nil {
			return nil, false, fmt.Errorf("decoder %w", err)
		}
		return []decoder{m}, false, nil
	}
	return nil, false, fmt.Errorf("decoder type %q is not supported (have ByteLevel, Sequence, Replace, ByteFallback, Fuse, Strip, Metaspace)", c.Type)
}

// Decode returns the text of ids. With skipSpecial, added tokens marked special are left out.
// Ids that no token has are ignored; bytes that are not UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	if t.bytes != nil {
		var buf []byte
		for _, id := range ids {
			buf = t.appendBytes(buf, id, skipSpecial)
		}
		return lossy(buf)
	}
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if token, ok := t.Token(id); ok && !(skipSpecial && t.IsSpecial(id)) {
			tokens = append(tokens, token)
		}
	}
	if t.dec == nil {
		return strings.Join(tokens, " ")
	}
	for _, d := range t.dec {
		tokens = d.decode(tokens)
	}
	return strings.Join(tokens, "")
}

func (t *Tokenizer) appendBytes(buf []byte, id int32, skipSpecial bool) []byte {
	if id < 0 || int(id) >= len(t.bytes) || skipSpecial && t.IsSpecial(id) {
		return buf
	}
	return append(buf, t.bytes[id]...)
}

// decoders on token spellings

type replaceDecoder struct{ from, to string }

func (d replaceDecoder) decode(tokens []string) []string {
	for i, t := range tokens {
		tokens[i] = strings.ReplaceAll(t, d.from, d.to)
	}
	return tokens
}

// byteFallbackDecoder joins runs of <0xXX> tokens into characters. A run that is not UTF-8
// becomes one U+FFFD per byte.
type byteFallbackDecoder struct{}

func (byteFallbackDecoder) decode(tokens []string) []string {
	var out []string
	var run []byte
	flush := func() {
		if len(run) == 0 {
			return
		}
		if utf8.Valid(run) {
			out = append(out, string(run))
		} else {
			out = append(out, strings.Repeat("\uFFFD", len(run)))
		}
		run = run[:0]
	}
	for _, t := range tokens {
		if b, ok := byteToken(t); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, t)
	}
	flush()
	return out
}

func byteToken(t string) (byte, bool) {
	if len(t) != 6 || !strings.HasPrefix(t, "<0x") || t[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(t[3:5], 16, 8)
	return byte(b), err == nil
}

type fuseDecoder struct{}

func (fuseDecoder) decode(tokens []string) []string { return []string{strings.Join(tokens, "")} }

// stripDecoder removes up to start and stop copies of a character from the ends of each token.
type stripDecoder struct {
	char        string
	start, stop int
}

func (d stripDecoder) decode(tokens []string) []string {
	for i, t := range tokens {
		for n := 0; n < d.start && strings.HasPrefix(t, d.char); n++ {
			t = t[len(d.char):]
		}
		for n := 0; n < d.stop && strings.HasSuffix(t, d.char); n++ {
			t = t[:len(t)-len(d.char)]
		}
		tokens[i] = t
	}
	return tokens
}

func (m metaspace) decode(tokens []string) []string {
	for i, t := range tokens {
		space := " "
		if i == 0 && m.prepend != "never" {
			space = ""
		}
		tokens[i] = strings.ReplaceAll(t, m.replacement, space)
	}
	return tokens
}
