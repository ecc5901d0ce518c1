package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// FormatVersion is the version of the format that this package writes, and the highest that it reads.
//
// Version 2 has checksums; checkpoints of version 1 are read without.
const FormatVersion = 2

const (
	manifestName = "checkpoint.json"
	trainerName  = "trainer_state.json"
	formatDCP    = "dcp"
)

// ErrIncomplete is in the errors about checkpoints with missing, cut or unreadable files.
var ErrIncomplete = errors.New("the checkpoint is incomplete")

// Manifest is what checkpoint.json holds.
type Manifest struct {
	FormatVersion int    `json:"format_version"`
	Step          int    `json:"step"`
	WorldSize     int    `json:"world_size"`       // number of ranks that saved; 0: another program did
	Format        string `json:"format,omitempty"` // "dcp" for PyTorch's, else safetensors
	Files         []File `json:"files"`
	// CRC32C is the checksum of the manifest with this field empty.
	CRC32C string `json:"crc32c,omitempty"`
}

// encode gives the text of the file.
func (m Manifest) encode() ([]byte, error) {
	m.CRC32C = ""
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	m.CRC32C = checksum(text)
	if text, err = json.MarshalIndent(m, "", "  "); err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// intact tells whether the text says what encode wrote.
func (m Manifest) intact(text []byte) bool {
	again, err := m.encode()
	return err == nil && bytes.Equal(text, again)
}

// File is one file of a checkpoint.
type File struct {
	Path    string `json:"path"` // inside the checkpoint, with slashes
	Kind    Kind   `json:"kind,omitempty"`
	Rank    int    `json:"rank"` // that wrote it, from 0
	Size    int64  `json:"size"` // bytes
	Tensors int    `json:"tensors"`
	// CRC32C holds the CRC-32C of every 4 MiB of the file, eight hexadecimal digits each.
	CRC32C string `json:"crc32c,omitempty"`
}

// parseManifest reads a manifest and checks that it makes sense.
func parseManifest(data []byte) (m Manifest, err error) {
	if err := json.Unmarshal(data, &m); err != nil {
		return m, err
	}
	switch {
	case m.FormatVersion < 1:
		return m, fmt.Errorf("it has no format_version")
	case m.FormatVersion > FormatVersion:
		return m, fmt.Errorf("it has format version %d, newer than %d: update this program", m.FormatVersion, FormatVersion)
	case m.Format != "" && m.Format != formatDCP:
		return m, fmt.Errorf("it has the format %q, which this program does not know", m.Format)
	case m.Step < 0 || m.WorldSize < 1:
		return m, fmt.Errorf("step %d of %d ranks", m.Step, m.WorldSize)
	}
	if m.FormatVersion > 1 && !m.intact(data) {
		return m, fmt.Errorf("it is not what was saved: %w", ErrDamaged)
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		switch {
		case f.Path == "" || !filepath.IsLocal(filepath.FromSlash(f.Path)):
			return m, fmt.Errorf("file %q lies outside the checkpoint", f.Path)
		case seen[f.Path]:
			return m, fmt.Errorf("file %q is listed twice", f.Path)
		case m.FormatVersion > 1 && int64(len(f.CRC32C)) != 8*blocks(f.Size):
			return m, fmt.Errorf("file %q: %d digits of checksums for %d bytes", f.Path, len(f.CRC32C), f.Size)
		case f.Size < 0 || f.Tensors < 0 || f.Rank < 0 || f.Rank >= m.WorldSize:
			return m, fmt.Errorf("file %q: size %d, %d tensors, rank %d of %d", f.Path, f.Size, f.Tensors, f.Rank, m.WorldSize)
		}
		seen[f.Path] = true
	}
	return m, nil
}

// readManifest reads the manifest of dir, checks that every file is there in full length, and tells how to read them.
func readManifest(dir string) (Manifest, source, error) {
	path := filepath.Join(dir, manifestName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return Manifest{}, nil, err
		}
		if m, src, err := recognise(dir); src != nil || err != nil {
			return m, src, err
		}
		return Manifest{}, nil, fmt.Errorf("%s has no %s: %w", dir, manifestName, ErrIncomplete)
	}
	if err != nil {
		return Manifest{}, nil, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return Manifest{}, nil, fmt.Errorf("%s: %w: %w", path, ErrIncomplete, err)
	}
	src := (*Checkpoint).indexShards
	if m.Format == formatDCP {
		src = (*Checkpoint).indexDCP
	}
	return m, src, m.check(dir)
}

// check compares the files in dir with the manifest.
func (m Manifest) check(dir string) error {
	var faults faults
	for _, f := range m.Files {
		path := filepath.Join(dir, filepath.FromSlash(f.Path))
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			faults.add(fmt.Errorf("%s, which rank %d wrote, is missing: %w", path, f.Rank, ErrIncomplete))
		case err != nil:
			faults.add(err)
		case !info.Mode().IsRegular():
			faults.add(fmt.Errorf("%s is not a regular file: %w", path, ErrIncomplete))
		case info.Size() != f.Size:
			faults.add(fmt.Errorf("%s has %d bytes, rank %d wrote %d: %w", path, info.Size(), f.Rank, f.Size, ErrIncomplete))
		}
	}
	return faults.err()
}
