// Package mmap maps whole files into memory, read-only.
//
// The bytes of a mapping belong to the operating system's page cache: they cost no Go memory, and Release hands
// pages back once they have been used. A file must not be shortened while it is mapped.
package mmap

import (
	"fmt"
	"os"
)

// Mapping is a file's contents in memory.
type Mapping struct {
	data []byte
}

// Open maps the regular file at path. An empty file gives an empty mapping.
func Open(path string) (*Mapping, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("map %s: not a regular file", path)
	}
	size := info.Size()
	if size == 0 {
		return &Mapping{}, nil
	}
	if int64(int(size)) != size {
		return nil, fmt.Errorf("map %s: %d bytes do not fit this machine's address space", path, size)
	}
	data, err := mapFile(f, int(size))
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &Mapping{data: data}, nil
}

// Bytes returns the file's contents. Writing to them, or using them after Close, is a fault.
func (m *Mapping) Bytes() []byte { return m.data }

// Release tells the system that the pages under bytes [off, off+n) are not needed at present. They stay readable, and
// are read from the file again when touched.
func (m *Mapping) Release(off, n int) error {
	if n <= 0 || off < 0 || off > len(m.data) || n > len(m.data)-off {
		return nil
	}
	page := os.Getpagesize()
	start := off - off%page
	return releasePages(m.data[start : off+n])
}

// Close unmaps the file. A second call does nothing.
func (m *Mapping) Close() error {
	data := m.data
	m.data = nil
	if len(data) == 0 {
		return nil
	}
	return unmap(data)
}
