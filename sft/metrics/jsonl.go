package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Writer appends events to a JSONL file. A line is written with one call, so a crash loses at most the line that is being
// written; Open removes such a torn line. Safe for concurrent use.
type Writer struct {
	mu   sync.Mutex
	file *os.File
}

// Open opens a metrics file to append to it, and creates it where it does not exist.
func Open(path string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("metrics: open: %w", err)
	}
	if err := cutTornLine(file); err != nil {
		file.Close()
		return nil, fmt.Errorf("metrics: open %s: %w", path, err)
	}
	return &Writer{file: file}, nil
}

// cutTornLine truncates the file after its last line end and leaves the offset there.
func cutTornLine(file *os.File) error {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	end := size
	buf := make([]byte, 4096)
	for end > 0 {
		n := min(end, int64(len(buf)))
		if _, err := file.ReadAt(buf[:n], end-n); err != nil {
			return err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			end += int64(i) + 1 - n
			break
		}
		end -= n
	}
	if end < size {
		if err := file.Truncate(end); err != nil {
			return err
		}
	}
	_, err = file.Seek(end, io.SeekStart)
	return err
}

// Log writes one event.
func (w *Writer) Log(e Event) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	line, err := e.MarshalJSON()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("metrics: write: %w", err)
	}
	return nil
}

// Close flushes the file to disk and closes it.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.file.Sync(), w.file.Close()); err != nil {
		return fmt.Errorf("metrics: close: %w", err)
	}
	return nil
}

// ReadFile reads the events of a metrics file in the order in which they were written. A torn last line is left out.
func ReadFile(path string) ([]Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer file.Close()
	events, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("metrics: %s:%w", path, err)
	}
	return events, nil
}

// Read reads events; see ReadFile. An error begins with the line.
func Read(r io.Reader) ([]Event, error) {
	buf := bufio.NewReader(r)
	var events []Event
	for line := 1; ; line++ {
		text, err := buf.ReadBytes('\n')
		if err == io.EOF {
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %w", line, err)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		var e Event
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("%d: %w", line, err)
		}
		events = append(events, e)
	}
}

// LatestRun removes what a resumed run has done again: where a step goes back, the events from that step on belong to a
// run that was broken off, and are dropped in favour of the later ones.
func LatestRun(events []Event) []Event {
	var out []Event
	for _, e := range events {
		for len(out) > 0 && out[len(out)-1].Step > e.Step {
			out = out[:len(out)-1]
		}
		// The same step and kind again: the first steps after a resume.
		for i := len(out) - 1; i >= 0 && out[i].Step == e.Step; i-- {
			if out[i].Kind == e.Kind {
				out = append(out[:i], out[i+1:]...)
				break
			}
		}
		out = append(out, e)
	}
	return out
}
