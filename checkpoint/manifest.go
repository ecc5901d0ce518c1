package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// FormatVersion is the version of the format that this package writes, and the highest that it reads.
const FormatVersion = 1

const (
	manifestName = "checkpoint.json"
	trainerName  = "trainer_state.json"
)

// ErrIncomplete is in the errors about checkpoints with missing, cut or unreadable files.
var ErrIncomplete = errors.New("the checkpoint is incomplete")

// Manifest is what checkpoint.json holds.
type Manifest struct {
	FormatVersion int    `json:"format_version"`
	Step          int    `json:"step"`
	WorldSize     int    `json:"world_size"` // number of ranks that saved
	Files         []File `json:"files"`
}

// File is one file of a checkpoint.
type File struct {
	Path    string `json:"path"` // inside the checkpoint, with slashes
	Kind    Kind   `json:"kind,omitempty"`
	Rank    int    `json:"rank"` // that wrote it, from 0
	Size    int64  `json:"size"` // bytes
	Tensors int    `json:"tensors"`
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
	case m.Step < 0 || m.WorldSize < 1:
		return m, fmt.Errorf("step %d of %d ranks", m.Step, m.WorldSize)
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		switch {
		case f.Path == "" || !filepath.IsLocal(filepath.FromSlash(f.Path)):
			return m, fmt.Errorf("file %q lies outside the checkpoint", f.Path)
		case seen[f.Path]:
			return m, fmt.Errorf("file %q is listed twice", f.Path)
		case f.Size < 0 || f.Tensors < 0 || f.Rank < 0 || f.Rank >= m.WorldSize:
			return m, fmt.Errorf("file %q: size %d, %d tensors, rank %d of %d", f.Path, f.Size, f.Tensors, f.Rank, m.WorldSize)
		}
		seen[f.Path] = true
	}
	return m, nil
}

// readManifest reads the manifest of dir and checks that every file is there in full length.
func readManifest(dir string) (Manifest, error) {
	path := filepath.Join(dir, manifestName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return Manifest{}, err
		}
		return Manifest{}, fmt.Errorf("%s has no %s: %w", dir, manifestName, ErrIncomplete)
	}
	if err != nil {
		return Manifest{}, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: %w: %w", path, ErrIncomplete, err)
	}
	return m, m.check(dir)
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
