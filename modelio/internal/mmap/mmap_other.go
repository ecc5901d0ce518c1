//go:build !unix

package mmap

import (
	"io"
	"os"
)

// Without mmap the file is read whole; the rest of the package behaves alike.
func mapFile(f *os.File, size int) ([]byte, error) {
	b := make([]byte, size)
	_, err := io.ReadFull(f, b)
	return b, err
}

func releasePages([]byte) error { return nil }

func unmap([]byte) error { return nil }
