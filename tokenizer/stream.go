package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// StreamDecoder decodes tokens as they are generated. Text is held back while its last
// character is incomplete. It is for one goroutine.
type StreamDecoder struct {
	t           *Tokenizer
	skipSpecial bool

	buf []byte // ByteLevel: bytes not yet returned

	// Other decoders treat the start of a sequence differently, so the tokens of the last
	// text returned stay in the window as context for the next.
	window  []int32
	context int    // number of tokens of window whose text has been returned
	prefix  string // that text
}

// maxHeldTokens bounds the wait for a character that never completes.
const maxHeldTokens = 64

// Stream starts decoding a token stream. The texts that Push and Flush return, joined,
// equal Decode of all tokens.
func (t *Tokenizer) Stream(skipSpecial bool) *StreamDecoder {
	return &StreamDecoder{t: t, skipSpecial: skipSpecial}
}

// Push adds a token and returns the text that is now certain, possibly none.
func (d *StreamDecoder) Push(id int32) string {
	if d.t.bytes != nil {
		d.buf = d.t.appendBytes(d.buf, id, d.skipSpecial)
		n := len(d.buf) - incompleteTail(d.buf)
		out := lossy(d.buf[:n])
		d.buf = append(d.buf[:0], d.buf[n:]...)
		return out
	}
	d.window = append(d.window, id)
	text := d.t.Decode(d.window, d.skipSpecial)
	held := len(d.window) - d.context
	if len(text) <= len(d.prefix) || strings.HasSuffix(text, "\uFFFD") && held < maxHeldTokens {
		return ""
	}
	return d.advance(text)
}

// Flush returns the text still held back and ends the stream.
func (d *StreamDecoder) Flush() string {
	if d.t.bytes != nil {
		out := lossy(d.buf)
		d.buf = nil
		return out
	}
	text := d.t.Decode(d.window, d.skipSpecial)
	if len(text) <= len(d.prefix) {
		return ""
	}
	return d.advance(text)
}

// advance returns what text adds to prefix and moves the window.
func (d *StreamDecoder) advance(text string) string {
	out := text[len(d.prefix):]
	d.window = append(d.window[:0], d.window[d.context:]...)
	d.context = len(d.window)
	d.prefix = d.t.Decode(d.window, d.skipSpecial)
	return out
}

// incompleteTail is the number of bytes at the end of b that begin a character which more
// bytes may complete.
func incompleteTail(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if utf8.RuneStart(b[len(b)-n]) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// lossy converts b to a string. Each maximal part of a character that is not completed
// becomes one U+FFFD (Unicode's recommended practice, and that of the reference library;
// Go's conversion would give one per byte).
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			n = 1
			for n < len(b) && !utf8.FullRune(b[:n+1]) { // b[:n+1] could still begin a character
				n++
			}
		}
		out.WriteRune(r)
		b = b[n:]
	}
	return out.String()
}
