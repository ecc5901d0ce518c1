package progress

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// clock advances by hand.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func reporter(w *bytes.Buffer, tty bool, total int) (*Reporter, *clock) {
	c := &clock{time.Unix(1000, 0)}
	r := New(w, tty, total, "train")
	r.now = c.now
	return r, c
}

func TestPlainLinesEveryNStepsAndSeconds(t *testing.T) {
	var out bytes.Buffer
	r, c := reporter(&out, false, 25)
	r.Every(10, time.Minute)
	for step := 1; step <= 25; step++ {
		r.Step(Stats{Step: step, Epoch: 0.5, Loss: 1.5, LR: 2e-4, GradNorm: 0.912, TokensPerSec: 12345.6, PeakBytes: 3<<30 + 200<<20})
		if step == 12 {
			r.Note("eval loss 1.4000")
			c.t = c.t.Add(time.Minute)
		}
		c.t = c.t.Add(time.Second)
	}
	r.Done()
	require.Equal(t, []string{
		"train step 1/25  epoch 0.50  loss 1.5000  lr 2.0e-04  grad_norm 0.912  12,346 tok/s  peak 3.2 GiB",
		"train step 10/25  epoch 0.50  loss 1.5000  lr 2.0e-04  grad_norm 0.912  12,346 tok/s  peak 3.2 GiB  left 15s",
		"eval loss 1.4000",
		"train step 13/25  epoch 0.50  loss 1.5000  lr 2.0e-04  grad_norm 0.912  12,346 tok/s  peak 3.2 GiB  left 1m12s",
		"train step 20/25  epoch 0.50  loss 1.5000  lr 2.0e-04  grad_norm 0.912  12,346 tok/s  peak 3.2 GiB  left 21s",
		"train step 25/25  epoch 0.50  loss 1.5000  lr 2.0e-04  grad_norm 0.912  12,346 tok/s  peak 3.2 GiB",
	}, strings.Split(strings.TrimSpace(out.String()), "\n"))
}

// A resumed run extrapolates from its own steps, and a run that is broken off leaves its last step.
func TestPlainLinesOfAResumedAndBrokenRun(t *testing.T) {
	var out bytes.Buffer
	r, c := reporter(&out, false, 100)
	for step := 91; step <= 93; step++ {
		r.Step(Stats{Step: step, Loss: 2})
		c.t = c.t.Add(2 * time.Second)
	}
	r.Done()
	r.Done()
	require.Equal(t, "train step 91/100  loss 2.0000\ntrain step 93/100  loss 2.0000  left 21s\n", out.String())

	out.Reset()
	r, _ = reporter(&out, false, 0)
	r.Done()
	require.Empty(t, out.String())
	r.Step(Stats{Step: 5, Loss: 1})
	require.Equal(t, "train step 5  loss 1.0000\n", out.String())
}

// screen is what a terminal shows after the given output: carriage returns and clear-line codes are obeyed.
func screen(out string) []string {
	lines := []string{""}
	for _, part := range strings.SplitAfter(strings.ReplaceAll(out, "\x1b[2K", ""), "\n") {
		text, isLine := strings.CutSuffix(part, "\n")
		for _, s := range strings.Split(text, "\r") {
			if s != "" {
				lines[len(lines)-1] = strings.TrimRight(s, " ")
			}
		}
		if isLine {
			lines = append(lines, "")
		}
	}
	return lines
}

func TestBarOnATerminal(t *testing.T) {
	var out bytes.Buffer
	r, c := reporter(&out, true, 4)
	for step := 1; step <= 4; step++ {
		r.Step(Stats{Step: step, Loss: 1.5, LR: 2e-4, TokensPerSec: 812, PeakBytes: 1 << 20})
		c.t = c.t.Add(time.Second)
		if step == 2 {
			r.Note("eval loss 1.4000")
		}
	}
	r.Done()
	lines := screen(out.String())
	require.Equal(t, "eval loss 1.4000", lines[0])
	require.Contains(t, lines[1], "100%")
	require.Contains(t, lines[1], "(4/4)")
	require.Contains(t, lines[1], "train  loss 1.5000  lr 2.0e-04  812 tok/s  1.0 MiB")
	require.Equal(t, "", lines[2])
	require.Contains(t, out.String(), "left 2s")
	require.Equal(t, 2, strings.Count(out.String(), "\n"), "one bar, one note")
	r.Note("after")
	require.True(t, strings.HasSuffix(out.String(), "\nafter\n"))
}

func TestBarOfUnknownLengthAndTooManySteps(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, total := range []int{0, 2} {
		var out bytes.Buffer
		r, _ := reporter(&out, true, total)
		for step := 1; step <= 3; step++ {
			r.Step(Stats{Step: step, Loss: 1})
		}
		r.Done()
		// The clock stands still: the first and the last step are drawn all the same.
		require.Contains(t, out.String(), "loss 1.0000")
		require.Contains(t, out.String(), map[int]string{0: "(3/-)", 2: "(2/2)"}[total])
	}
}

// A closed file does not stop a run.
func TestErrorsOfTheWriterAreIgnored(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "closed"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for _, tty := range []bool{false, true} {
		r := New(f, tty, 2, "train")
		r.Step(Stats{Step: 1})
		r.Note("x")
		r.Done()
	}
}

func TestUnits(t *testing.T) {
	require.Equal(t, "512 B", Bytes(512))
	require.Equal(t, "1.5 KiB", Bytes(1536))
	require.Equal(t, "80.0 GiB", Bytes(80<<30))
	require.Equal(t, "1,234,567", Thousands(1234567))
	require.Equal(t, "999", Thousands(999))
	require.Equal(t, "1.23", Thousands(1.234))
}
