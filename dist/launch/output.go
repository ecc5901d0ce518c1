package launch

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// maxLine is where a line is cut that does not end: a progress bar draws the same one over and over.
const maxLine = 64 << 10

// lineWriter writes whole lines with a prefix, so that the output of ranks does not mix within a line. With an
// empty prefix it passes everything on at once. It remembers the last line that was not empty.
type lineWriter struct {
	out    io.Writer
	mu     *sync.Mutex // shared by all writers to out
	prefix string
	rest   []byte // a line that has no end yet
	last   string
	crash  string // how a Go program said that it crashed; registers and stacks follow
}

// Write never fails: a broken terminal must not stop the training.
func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.prefix == "" {
		_, _ = w.out.Write(b)
	}
	w.rest = append(w.rest, b...)
	for {
		end := bytes.IndexByte(w.rest, '\n')
		if end < 0 && len(w.rest) < maxLine {
			return len(b), nil
		}
		if end < 0 {
			end = len(w.rest) - 1
		}
		w.line(w.rest[:end+1])
		w.rest = w.rest[end+1:]
	}
}

// flush writes a last line that did not end.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		w.line(w.rest)
		w.rest = nil
	}
}

func (w *lineWriter) line(b []byte) {
	if text := strings.TrimSpace(string(b)); text != "" {
		w.last = text
		if w.crash == "" && isCrash(text) {
			w.crash = text
		}
	}
	if w.prefix == "" {
		return
	}
	line := append([]byte(w.prefix), bytes.TrimRight(b, "\n")...)
	_, _ = w.out.Write(append(line, '\n'))
}

func isCrash(line string) bool {
	for _, start := range []string{"panic: ", "fatal error: ", "SIGSEGV: ", "SIGBUS: ", "SIGFPE: ", "SIGABRT: "} {
		if strings.HasPrefix(line, start) {
			return true
		}
	}
	return false
}

func value(env []string, name string) string {
	found := ""
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			found = v
		}
	}
	return found
}
