package data

import (
	"bufio"
	"io"
)

// rowScanner cuts a file into rows: the lines of a JSONL file, or the elements of one JSON array.
type rowScanner struct {
	r         *bufio.Reader
	max       int
	off       int64
	line, col int32
	started   bool
	array     bool
	closed    bool // the array has ended
	buf       []byte
}

// next returns the place and the bytes of the next row, valid until the next call; io.EOF after the last one. A
// *posError is relative to the place.
func (s *rowScanner) next() (place, []byte, error) {
	if !s.started {
		if err := s.start(); err != nil {
			return s.here(), nil, err
		}
	}
	if s.array {
		return s.element()
	}
	return s.row()
}

func (s *rowScanner) here() place { return place{off: s.off, line: s.line, col: s.col} }

func (s *rowScanner) read() (byte, error) {
	c, err := s.r.ReadByte()
	if err != nil {
		return 0, err
	}
	s.off++
	s.col++
	if c == '\n' {
		s.line++
		s.col = 1
	}
	return c, nil
}

// unread takes back a byte that was no line end.
func (s *rowScanner) unread() {
	if s.r.UnreadByte() == nil {
		s.off--
		s.col--
	}
}

// space skips white space and returns the byte after it, which is consumed.
func (s *rowScanner) space() (byte, error) {
	for {
		c, err := s.read()
		if err != nil || c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c, err
		}
	}
}

// start skips a byte order mark and finds out whether the file is an array. Neither is part of JSONL, but both are found
// in the wild, and a row is never an array.
func (s *rowScanner) start() error {
	s.started = true
	if bom, _ := s.r.Peek(3); string(bom) == "\xef\xbb\xbf" {
		s.r.Discard(3)
		s.off += 3
	}
	c, err := s.space()
	if err != nil {
		return err
	}
	if s.array = c == '['; !s.array {
		s.unread()
	}
	return nil
}

// row returns the rest of the line, from the first byte that is no white space.
func (s *rowScanner) row() (place, []byte, error) {
	if _, err := s.space(); err != nil {
		return s.here(), nil, err
	}
	s.unread()
	at := s.here()
	s.buf = s.buf[:0]
	for {
		chunk, err := s.r.ReadSlice('\n')
		s.buf = append(s.buf, chunk...)
		if len(s.buf) > s.max {
			return at, nil, errAt(0, "the row is longer than %d bytes: is a line end missing, or is MaxRowBytes too small?", s.max)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil && err != io.EOF {
			return at, nil, err
		}
		break
	}
	s.off += int64(len(s.buf))
	s.line++
	s.col = 1
	if n := len(s.buf); s.buf[n-1] == '\n' {
		s.buf = s.buf[:n-1]
	}
	at.len = int32(len(s.buf))
	return at, s.buf, nil
}

// element returns the next element of the array. It only counts brackets outside strings: the parser checks the rest.
func (s *rowScanner) element() (place, []byte, error) {
	if s.closed {
		c, err := s.space()
		if err == nil {
			s.unread()
			err = errAt(0, "unexpected %q after the end of the array", c)
		}
		return s.here(), nil, err
	}
	c, err := s.space()
	if err != nil {
		return s.here(), nil, s.early(0, err)
	}
	if c == ']' {
		s.closed = true
		return s.element()
	}
	s.unread()
	at := s.here()
	s.buf = s.buf[:0]
	depth, inString := 0, false
	for {
		c, err := s.read()
		if err != nil {
			return at, s.buf, s.early(len(s.buf), err)
		}
		if depth == 0 && !inString && (c == ',' || c == ']') {
			s.closed = c == ']'
			break
		}
		s.buf = append(s.buf, c)
		if len(s.buf) > s.max {
			return at, nil, errAt(0, "the row is longer than %d bytes: is MaxRowBytes too small?", s.max)
		}
		switch {
		case inString && c == '\\':
			if c, err = s.read(); err != nil {
				return at, s.buf, s.early(len(s.buf), err)
			}
			s.buf = append(s.buf, c)
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	at.len = int32(len(s.buf))
	return at, s.buf, nil
}

// early turns the end of the file within the array into an error n bytes after the place of the element.
func (s *rowScanner) early(n int, err error) error {
	if err == io.EOF {
		return errAt(n, "the file ends within the array")
	}
	return err
}
