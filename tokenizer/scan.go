package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// Split patterns of the supported model families, as they stand in their tokenizer.json.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// knownPatterns have a hand-written scanner: about twenty times faster than backtracking,
// and linear in the text. Tests compare the two on random text.
var knownPatterns = map[string]scanner{
	patternGPT2:   scanGPT2,
	patternLlama3: func(s string, i int) int { return scanTiktoken(s, i, 3) },
	patternQwen2:  func(s string, i int) int { return scanTiktoken(s, i, 1) },
}

// scanner returns the end of the match that starts at s[i]. These patterns match at every
// position, so consecutive matches cover the text.
type scanner func(s string, i int) int

func (f scanner) findAll(s string) ([]Span, error) {
	out := make([]Span, 0, len(s)/4+1)
	for i := 0; i < len(s); {
		j := f(s, i)
		out = append(out, Span{i, j})
		i = j
	}
	return out, nil
}

// class partitions the characters as the patterns see them.
type class uint8

const (
	other  class = iota // [^\s\p{L}\p{N}]
	letter              // \p{L}
	number              // \p{N}
	space               // \s
)

var asciiClass = func() (t [utf8.RuneSelf]class) {
	for i := range t {
		t[i] = classOf(rune(i))
	}
	return t
}()

func classOf(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

// classAt returns the class and byte length of the character at s[i].
func classAt(s string, i int) (class, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOf(r), n
}

// run returns the end of the characters of class c from s[i] on.
func run(s string, i int, c class) int {
	for i < len(s) {
		got, n := classAt(s, i)
		if got != c {
			break
		}
		i += n
	}
	return i
}

func scanGPT2(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n
		}
	}
	c, _ := classAt(s, i)
	if c != space {
		return run(s, i, c)
	}
	if s[i] == ' ' && i+1 < len(s) {
		if c, _ := classAt(s, i+1); c != space {
			return run(s, i+1, c)
		}
	}
	return blanks(s, i, run(s, i, space))
}

// scanTiktoken is the cl100k pattern with numbers cut into at most maxDigits digits.
func scanTiktoken(s string, i, maxDigits int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	c, n := classAt(s, i)
	switch c {
	case letter:
		return run(s, i, letter)
	case number:
		for range maxDigits {
			i += n
			if i == len(s) {
				break
			}
			if c, n = classAt(s, i); c != number {
				break
			}
		}
		return i
	}
	next, nextLen := other, 0
	if i+n < len(s) {
		next, nextLen = classAt(s, i+n)
	}
	if next == letter && s[i] != '\r' && s[i] != '\n' {
		return run(s, i+n, letter)
	}
	if c == other || s[i] == ' ' && next == other && nextLen > 0 {
		i = run(s, i+n, other)
		for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
			i++
		}
		return i
	}
	end := run(s, i, space)
	for j := end; j > i; j-- {
		if s[j-1] == '\r' || s[j-1] == '\n' {
			return j
		}
	}
	return blanks(s, i, end)
}

// blanks is \s+(?!\S)|\s+ for the white space s[i:end]: the last character is left for the
// word that follows, unless it is the only one.
func blanks(s string, i, end int) int {
	if end == len(s) {
		return end
	}
	_, n := utf8.DecodeLastRuneInString(s[i:end])
	if end-n > i {
		return end - n
	}
	return end
}

// contraction returns the length of what may follow an apostrophe: s t re ve m ll d.
// With fold the case is ignored; "ſ" (U+017F) folds to s.
func contraction(s string, fold bool) int {
	lower := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		if c := s[i]; fold && 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return s[i]
	}
	switch a, b := lower(0), lower(1); {
	case a == 's', a == 't', a == 'm', a == 'd':
		return 1
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 2
	}
	if fold && len(s) >= 2 && s[:2] == "ſ" {
		return 2
	}
	return 0
}
