package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"unicode/utf8"
)

// MaxHeaderSize is the longest JSON header that the format allows, in bytes.
const MaxHeaderSize = 100_000_000

const metadataKey = "__metadata__"

// KV is one entry of a header's metadata.
type KV struct {
	Key, Value string
}

// FormatError says what is wrong with a file, and where.
type FormatError struct {
	File   string // path of the file
	Offset int64  // byte offset in the file
	Msg    string // what is wrong
}

// Error names the file, the offset and the fault.
func (e *FormatError) Error() string {
	return fmt.Sprintf("safetensors: %s: byte %d: %s", e.File, e.Offset, e.Msg)
}

// entry is one tensor of the header; begin and end count from the start of the data.
type entry struct {
	name       string
	dtype      string
	shape      []int64
	begin, end int64
}

// header is a validated header. Its entries are in file order: by offset, then as the JSON lists them.
type header struct {
	entries   []entry
	metadata  []KV
	dataStart int64
}

// parseHeader validates the head of a file of the given size; data holds at least the head.
func parseHeader(file string, data []byte, size int64) (*header, error) {
	fail := func(off int64, format string, args ...any) error {
		return &FormatError{File: file, Offset: off, Msg: fmt.Sprintf(format, args...)}
	}
	if size < 8 {
		return nil, fail(size, "the file ends inside the 8-byte header length")
	}
	n := binary.LittleEndian.Uint64(data)
	switch {
	case bytes.HasPrefix(data, []byte("version https://git-lfs.")):
		return nil, fail(0, "this is a Git LFS pointer, not the file itself: fetch it with git lfs pull")
	case n > MaxHeaderSize:
		return nil, fail(0, "header length %d is over the limit of %d: not a safetensors file?", n, MaxHeaderSize)
	case int64(n) > size-8:
		return nil, fail(size, "the file ends inside its header of %d bytes", n)
	case n == 0 || data[8] != '{':
		return nil, fail(8, "the header does not start with '{'")
	}
	text := data[8 : 8+n]
	if !utf8.Valid(text) {
		return nil, fail(8, "the header is not UTF-8")
	}
	h := &header{dataStart: 8 + int64(n)}
	if err := h.decode(text); err != nil {
		var at *jsonFault
		off := int64(8)
		if errors.As(err, &at) {
			off += at.offset
		}
		return nil, fail(off, "header: %v", err)
	}
	return h, h.checkLayout(size-h.dataStart, fail)
}

// checkLayout orders the entries by offset and proves that they tile the data.
func (h *header) checkLayout(dataSize int64, fail func(int64, string, ...any) error) error {
	sort.SliceStable(h.entries, func(i, j int) bool {
		a, b := h.entries[i], h.entries[j]
		return a.begin < b.begin || a.begin == b.begin && a.end < b.end
	})
	next := int64(0)
	for _, e := range h.entries {
		if e.begin != next || e.end < e.begin {
			return fail(h.dataStart+min(next, dataSize), "tensor %q has offsets [%d,%d], expected them to start at %d: the data has a hole or an overlap",
				e.name, e.begin, e.end, next)
		}
		want, err := ByteSize(e.dtype, e.shape)
		if err != nil {
			return fail(h.dataStart+min(e.begin, dataSize), "tensor %q: %v", e.name, err)
		}
		if want != e.end-e.begin {
			return fail(h.dataStart+min(e.begin, dataSize), "tensor %q: %s%v needs %d bytes, its offsets [%d,%d] hold %d",
				e.name, e.dtype, e.shape, want, e.begin, e.end, e.end-e.begin)
		}
		next = e.end
	}
	switch {
	case next > dataSize:
		return fail(h.dataStart+dataSize, "the file ends after %d of %d data bytes: truncated", dataSize, next)
	case next < dataSize:
		return fail(h.dataStart+next, "%d bytes follow the last tensor", dataSize-next)
	}
	return nil
}

// jsonFault is a fault at a byte of the JSON text.
type jsonFault struct {
	offset int64
	err    error
}

func (e *jsonFault) Error() string { return e.err.Error() }
func (e *jsonFault) Unwrap() error { return e.err }

// headerDecoder walks the header token by token: order and duplicate keys matter, which a map would hide.
type headerDecoder struct {
	*json.Decoder
}

func (h *header) decode(text []byte) error {
	d := headerDecoder{json.NewDecoder(bytes.NewReader(text))}
	d.UseNumber()
	seen := make(map[string]bool)
	err := d.object(func(key string) error {
		if seen[key] {
			return fmt.Errorf("the name %q appears twice", key)
		}
		seen[key] = true
		if key == metadataKey {
			return d.metadata(h)
		}
		e := entry{name: key}
		if err := d.tensor(&e); err != nil {
			return fmt.Errorf("tensor %q: %w", key, err)
		}
		h.entries = append(h.entries, e)
		return nil
	})
	if err == nil {
		if _, terr := d.Token(); terr != io.EOF {
			err = errors.New("text follows the closing brace")
		}
	}
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the JSON text ends too early")
		}
		return &jsonFault{offset: d.InputOffset(), err: err}
	}
	return nil
}

// object reads an object and calls member before each value, which member must consume.
func (d headerDecoder) object(member func(key string) error) error {
	if err := d.delim('{'); err != nil {
		return err
	}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return err
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("unexpected %v where a name should be", tok)
		}
		if err := member(key); err != nil {
			return err
		}
	}
	return d.delim('}')
}

func (d headerDecoder) delim(want json.Delim) error {
	tok, err := d.Token()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("found %v, expected %v", tok, want)
	}
	return nil
}

func (d headerDecoder) metadata(h *header) error {
	h.metadata = []KV{}
	return d.object(func(key string) error {
		tok, err := d.Token()
		if err != nil {
			return err
		}
		value, ok := tok.(string)
		if !ok {
			return fmt.Errorf("%s: the value of %q is not a string", metadataKey, key)
		}
		h.metadata = append(h.metadata, KV{key, value})
		return nil
	})
}

func (d headerDecoder) tensor(e *entry) error {
	var haveDType, haveShape, haveOffsets bool
	err := d.object(func(key string) error {
		switch key {
		case "dtype":
			tok, err := d.Token()
			if err != nil {
				return err
			}
			s, ok := tok.(string)
			if !ok || BitsPerElement(s) == 0 {
				return fmt.Errorf("unknown dtype %q", fmt.Sprint(tok))
			}
			e.dtype, haveDType = s, true
			return nil
		case "shape":
			haveShape = true
			return d.ints(&e.shape)
		case "data_offsets":
			var span []int64
			if err := d.ints(&span); err != nil {
				return err
			}
			if len(span) != 2 {
				return fmt.Errorf("data_offsets holds %d numbers, expected 2", len(span))
			}
			e.begin, e.end, haveOffsets = span[0], span[1], true
			return nil
		}
		var ignored json.RawMessage
		return d.Decode(&ignored)
	})
	if err != nil {
		return err
	}
	if !haveDType || !haveShape || !haveOffsets {
		return errors.New("dtype, shape and data_offsets are all required")
	}
	return nil
}

// ints reads an array of whole numbers that are not negative.
func (d headerDecoder) ints(dst *[]int64) error {
	if err := d.delim('['); err != nil {
		return err
	}
	out := []int64{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return fmt.Errorf("found %v, expected a whole number", tok)
		}
		v, err := strconv.ParseUint(num.String(), 10, 64)
		if err != nil || v > math.MaxInt64 {
			return fmt.Errorf("found %s, expected a whole number below 2^63", num)
		}
		out = append(out, int64(v))
	}
	*dst = out
	return d.delim(']')
}
