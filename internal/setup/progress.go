package setup

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// progress shows how far a copy is: a bar on a terminal, one line elsewhere. It is an io.Writer that counts.
type progress struct {
	out   io.Writer
	label string
	tty   bool
	total uint64
	done  uint64
	drawn time.Time
}

func newProgress(out io.Writer, label string) *progress {
	return &progress{out: out, label: label, tty: isTerminal(out)}
}

func (p *progress) start(total uint64) {
	p.total = total
	if !p.tty {
		fmt.Fprintf(p.out, "%s (%.0f MB)\n", p.label, float64(total)/1e6)
	}
}

// Write counts the bytes that pass.
func (p *progress) Write(b []byte) (int, error) {
	p.done += uint64(len(b))
	if p.tty && time.Since(p.drawn) > 100*time.Millisecond {
		p.draw()
	}
	return len(b), nil
}

func (p *progress) finish() {
	if p.tty {
		p.draw()
		fmt.Fprintln(p.out)
	}
}

func (p *progress) draw() {
	const width = 30
	p.drawn = time.Now()
	part := 1.0
	if p.total > 0 {
		part = float64(p.done) / float64(p.total)
	}
	full := min(int(part*width), width)
	fmt.Fprintf(p.out, "\r%-36s [%s%s] %3.0f %%", p.label, strings.Repeat("=", full), strings.Repeat(" ", width-full), part*100)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	var settings syscall.Termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	return errno == 0
}

// lineFilter passes on those of the lines written to it that keep wants.
type lineFilter struct {
	out  io.Writer
	keep func(line string) bool
	rest []byte
}

// Write splits b into lines; an unfinished last one waits for the next call.
func (f *lineFilter) Write(b []byte) (int, error) {
	f.rest = append(f.rest, b...)
	for {
		end := strings.IndexByte(string(f.rest), '\n')
		if end < 0 {
			return len(b), nil
		}
		line := string(f.rest[:end])
		f.rest = f.rest[end+1:]
		if f.keep(line) {
			if _, err := fmt.Fprintln(f.out, line); err != nil {
				return 0, err
			}
		}
	}
}
