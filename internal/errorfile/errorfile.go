// Package errorfile reads and writes the file in which a rank leaves the reason of its failure for its launcher:
// the one that torchrun names in TORCHELASTIC_ERROR_FILE.
package errorfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// file is torchelastic's JSON. Its readers take "message" to be either this object or a plain string.
type file struct {
	Message message `json:"message"`
}

type message struct {
	Message   string `json:"message"`
	ExtraInfo extra  `json:"extraInfo"`
}

type extra struct {
	Callstack string `json:"py_callstack"`
	Timestamp string `json:"timestamp"` // seconds since 1970
}

// Write leaves text and a stack trace in the file at path. The first rank to fail is the one that counts: a file
// that exists is kept.
func Write(path, text, stack string, at time.Time) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	data, err := json.Marshal(file{message{text, extra{stack, strconv.FormatInt(at.Unix(), 10)}}})
	if err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "error-*.json")
	if err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(data)
	if err := errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	return nil
}

// Read returns the text in the file at path, written by Write or by a Python rank.
func Read(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("error file: %w", err)
	}
	var outer struct {
		Message json.RawMessage `json:"message"`
	}
	if err := json.Unmarshal(data, &outer); err != nil {
		return "", fmt.Errorf("error file %s: %w", path, err)
	}
	var inner message
	if json.Unmarshal(outer.Message, &inner) == nil {
		return inner.Message, nil
	}
	var text string
	if err := json.Unmarshal(outer.Message, &text); err != nil {
		return "", fmt.Errorf("error file %s: message: %w", path, err)
	}
	return text, nil
}
