// Package atomicfile writes files that appear under their name only when they are complete.
package atomicfile

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// File is a file being written under a temporary name beside its final one.
type File struct {
	*os.File
	path string
	done bool
}

// Create opens a temporary file in path's folder. Commit gives it its name; Abort removes it.
func Create(path string) (*File, error) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	f, err := os.CreateTemp(dir, "."+base+".tmp-*")
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	return &File{File: f, path: path}, nil
}

// Commit flushes the file to disk and renames it to its final name. On error the temporary file is removed.
func (f *File) Commit() error {
	if f.done {
		return fmt.Errorf("commit %s: %w", f.path, os.ErrClosed)
	}
	// CreateTemp makes files private; a result should be as readable as its neighbours usually are.
	err := f.Chmod(0o644)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	f.done = true
	if err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("commit %s: %w", f.path, err)
	}
	return SyncDir(filepath.Dir(f.path))
}

// Abort drops the file. After Commit it does nothing, so that it can be deferred.
func (f *File) Abort() {
	if f.done {
		return
	}
	f.done = true
	f.Close()
	os.Remove(f.Name())
}

// Write puts data into the file at path in one step.
func Write(path string, data []byte) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.File.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Commit()
}

// SyncDir makes renames in dir durable. Systems that cannot sync a folder are left as they are.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some network file systems refuse fsync on folders; the rename itself has been done.
	_ = d.Sync()
	return nil
}
