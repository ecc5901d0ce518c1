package modelio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
)

// Folder is a model folder that is being made. It has its name only when it is complete.
type Folder struct {
	out, tmp string
	done     bool
}

// CreateFolder begins the folder out, which must not exist or be empty. Call Commit or Abort in the end.
func CreateFolder(out string) (*Folder, error) {
	f, err := createFolder(out)
	if err != nil {
		return nil, fmt.Errorf("modelio: create %s: %w", out, err)
	}
	return f, nil
}

func createFolder(out string) (*Folder, error) {
	out, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return nil, errors.New("the folder is not empty: remove it, or give another one")
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	parent := filepath.Dir(out)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(out)+".tmp-*")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, errors.Join(err, os.Remove(tmp))
	}
	return &Folder{out: out, tmp: tmp}, nil
}

// Dir is where the files are written meanwhile.
func (f *Folder) Dir() string { return f.tmp }

// Commit gives the folder its name.
func (f *Folder) Commit() error {
	err := os.Remove(f.out)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = os.Rename(f.tmp, f.out)
	}
	if err != nil {
		return fmt.Errorf("modelio: create %s: %w", f.out, err)
	}
	f.done = true
	return atomicfile.SyncDir(filepath.Dir(f.out))
}

// Abort removes what was written. After Commit it does nothing, so that it can be deferred.
func (f *Folder) Abort() {
	if !f.done {
		f.done = true
		os.RemoveAll(f.tmp)
	}
}

// textFiles are the files of a model folder that training does not change.
var textFiles = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
	"generation_config.json",
}

// CopyTexts copies the tokenizer, the chat template and the settings of generation from one model folder to another, as far
// as they are there.
func CopyTexts(from, to string) error {
	for _, name := range textFiles {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("modelio: copy %s: %w", name, err)
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := atomicfile.Create(to)
	if err != nil {
		return err
	}
	defer out.Abort()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Commit()
}
