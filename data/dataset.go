package data

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
)

// Options of OpenWith. The zero value is what Open uses.
type Options struct {
	// TextField is the field of plain text rows (TRL's dataset_text_field); "" means "text".
	TextField string
	// Roles are the accepted roles of messages; nil means DefaultRoles.
	Roles []string
	// MaxRowBytes bounds one row, so that a file without line ends cannot fill the memory; 0 means 64 MiB.
	MaxRowBytes int
}

// Dataset is an indexed JSONL file. Rows are read from the file when they are asked for; only their places (24 bytes
// each) are in memory. All methods but Close may be called concurrently.
type Dataset struct {
	path string
	file *os.File
	opts Options
	kind Kind
	rows []place
}

// place is where a row stands in the file.
type place struct {
	off       int64
	len       int32
	line, col int32 // 1-based, of the first byte
}

// RowError is a fault of one row.
type RowError struct {
	Path string
	// Line and Col are 1-based; Col counts bytes, as compilers do.
	Line, Col int
	Msg       string
}

func (e *RowError) Error() string {
	return fmt.Sprintf("data: %s:%d:%d: %s", e.Path, e.Line, e.Col, e.Msg)
}

// Open indexes and checks a JSONL file, or a file that is one JSON array of rows. The first fault of the file is
// returned as a *RowError.
func Open(path string) (*Dataset, error) { return OpenWith(path, Options{}) }

// OpenWith is Open with options.
func OpenWith(path string, opts Options) (*Dataset, error) {
	if opts.TextField == "" {
		opts.TextField = "text"
	}
	if opts.Roles == nil {
		opts.Roles = DefaultRoles
	}
	if opts.MaxRowBytes == 0 {
		opts.MaxRowBytes = 64 << 20
	}
	opts.MaxRowBytes = min(opts.MaxRowBytes, math.MaxInt32)
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("data: open: %w", err)
	}
	d := &Dataset{path: path, file: file, opts: opts}
	if err := d.index(); err != nil {
		file.Close()
		return nil, err
	}
	return d, nil
}

// index walks the file once.
func (d *Dataset) index() error {
	s := &rowScanner{r: bufio.NewReaderSize(d.file, 1<<20), max: d.opts.MaxRowBytes, line: 1, col: 1}
	for {
		at, src, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		var fault *posError
		if errors.As(err, &fault) {
			return d.fault(at, src, fault)
		}
		if err != nil {
			return fmt.Errorf("data: read %s: %w", d.path, err)
		}
		row, fault := parseRow(src, d.opts)
		if fault != nil {
			return d.fault(at, src, fault)
		}
		if d.kind == 0 {
			d.kind = row.Kind
		} else if row.Kind != d.kind {
			return d.fault(at, src, errAt(0, "the row has %s, but the first row (line %d) has %s: all rows must have one shape",
				row.Kind, d.rows[0].line, d.kind))
		}
		d.rows = append(d.rows, at)
	}
	if len(d.rows) == 0 {
		return fmt.Errorf("data: %s has no rows", d.path)
	}
	return nil
}

func parseRow(src []byte, opts Options) (Row, *posError) {
	v, fault := parseJSON(src)
	if fault != nil {
		return Row{}, fault
	}
	return decodeRow(src, v, opts)
}

// fault places an error within a row.
func (d *Dataset) fault(at place, src []byte, e *posError) error {
	before := src[:min(e.off, len(src))]
	line, col := int(at.line), int(at.col)+e.off
	if n := bytes.Count(before, []byte{'\n'}); n > 0 {
		line += n
		col = e.off - bytes.LastIndexByte(before, '\n')
	}
	return &RowError{Path: d.path, Line: line, Col: col, Msg: e.msg}
}

// Path returns the path that the dataset was opened with.
func (d *Dataset) Path() string { return d.path }

// Kind returns the shape that all rows have.
func (d *Dataset) Kind() Kind { return d.kind }

// Len returns the number of rows.
func (d *Dataset) Len() int { return len(d.rows) }

// Line returns the line (1-based) on which row i begins.
func (d *Dataset) Line(i int) int { return int(d.rows[i].line) }

// Row reads row i, from 0. It fails where the file has changed since Open.
func (d *Dataset) Row(i int) (Row, error) {
	if i < 0 || i >= len(d.rows) {
		return Row{}, fmt.Errorf("data: row %d of %s, which has %d rows", i, d.path, len(d.rows))
	}
	at := d.rows[i]
	src := make([]byte, at.len)
	if _, err := d.file.ReadAt(src, at.off); err != nil {
		return Row{}, fmt.Errorf("data: read %s:%d: %w", d.path, at.line, err)
	}
	row, fault := parseRow(src, d.opts)
	if fault != nil {
		return Row{}, d.fault(at, src, fault)
	}
	return row, nil
}

// All yields the rows in order, and stops after the first error.
func (d *Dataset) All() iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for i := range d.rows {
			row, err := d.Row(i)
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// Close closes the file.
func (d *Dataset) Close() error { return d.file.Close() }
