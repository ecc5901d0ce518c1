// Package progress shows how a training run goes: one bar on a terminal, plain lines in a log file.
//
//	40% |████████            | (12/30) train  loss 1.7312  lr 1.9e-04  1,234 tok/s  3.2 GiB  left 1m20s
//
//	train step 12/30  epoch 0.40  loss 1.7312  lr 1.9e-04  grad_norm 0.91  1,234 tok/s  peak 3.2 GiB  left 1m20s
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Stats describe an optimiser step. Fields that are zero are not shown, but for the loss.
type Stats struct {
	// Step counts the optimiser steps done, from 1.
	Step int
	// Epoch is the position in the data, with a fraction.
	Epoch float64
	// Loss is the mean over the tokens of the step, in nats.
	Loss float64
	// LR is the learning rate.
	LR float64
	// GradNorm is the norm of the gradient before clipping.
	GradNorm float64
	// TokensPerSec counts tokens of all ranks.
	TokensPerSec float64
	// PeakBytes is the most memory that the device has had in use.
	PeakBytes int64
}

// Reporter writes the progress of one run. Safe for concurrent use. Errors of the writer are ignored: a closed terminal
// must not end a training run.
type Reporter struct {
	mu    sync.Mutex
	w     io.Writer
	desc  string
	total int
	bar   *progressbar.ProgressBar // nil where w is no terminal
	now   func() time.Time

	everySteps int
	everyTime  time.Duration

	first, last   Stats
	began, logged time.Time
	loggedStep    int
	done          bool
}

// New returns a reporter for a run of total optimiser steps, 0 where that is not known. desc is a word that begins every
// line. Where w is no terminal, there is a line every 10 steps and every 30 seconds, whichever comes first.
func New(w io.Writer, isTTY bool, total int, desc string) *Reporter {
	r := &Reporter{w: w, desc: desc, total: total, now: time.Now, everySteps: 10, everyTime: 30 * time.Second}
	if isTTY {
		size := total
		if size <= 0 {
			size = -1
		}
		r.bar = progressbar.NewOptions(size,
			progressbar.OptionSetWriter(w),
			progressbar.OptionSetDescription(desc),
			progressbar.OptionShowDescriptionAtLineEnd(),
			progressbar.OptionShowCount(),
			progressbar.OptionSetWidth(barWidth),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionSetElapsedTime(false),
			progressbar.OptionUseANSICodes(true),
			progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine that draws beside us
			progressbar.OptionSetTheme(progressbar.Theme{Saucer: "█", SaucerPadding: " ", BarStart: "|", BarEnd: "|"}),
		)
		_ = r.bar.RenderBlank()
	}
	return r
}

// barWidth is the width of the bar itself, in columns.
const barWidth = 20

// Every sets how often lines are written where there is no terminal: every steps steps or every d, whichever comes first.
// Zero switches the one or the other off; the last step is always written.
func (r *Reporter) Every(steps int, d time.Duration) *Reporter {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.everySteps, r.everyTime = steps, d
	return r
}

// Step reports a step.
func (r *Reporter) Step(s Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if r.began.IsZero() {
		r.began, r.first, r.logged = now, s, now
	}
	r.last = s
	if r.bar != nil {
		if now.Sub(r.logged) >= redraw || s.Step == r.first.Step || s.Step == r.total {
			r.draw(s, now)
		}
		return
	}
	bySteps := r.everySteps > 0 && s.Step%r.everySteps == 0
	byTime := r.everyTime > 0 && now.Sub(r.logged) >= r.everyTime
	if s.Step == r.first.Step || s.Step == r.total || bySteps || byTime {
		r.line(s, now)
	}
}

// redraw is the least time between two pictures of the bar.
const redraw = 50 * time.Millisecond

// draw updates the bar.
func (r *Reporter) draw(s Stats, now time.Time) {
	r.logged, r.loggedStep = now, s.Step
	r.bar.Describe(r.fit(s, now))
	if r.total > 0 {
		s.Step = min(s.Step, r.total)
	}
	_ = r.bar.Set(s.Step)
}

// line writes the line of a step.
func (r *Reporter) line(s Stats, now time.Time) {
	r.logged, r.loggedStep = now, s.Step
	parts := r.parts(s, now, true)
	fmt.Fprintf(r.w, "%s step %s  %s\n", r.desc, r.count(s.Step), strings.Join(parts, "  "))
}

func (r *Reporter) count(step int) string {
	if r.total > 0 {
		return fmt.Sprintf("%d/%d", step, r.total)
	}
	return fmt.Sprint(step)
}

// parts are the numbers of a step, the most important ones first.
func (r *Reporter) parts(s Stats, now time.Time, long bool) []string {
	var parts []string
	if long && s.Epoch != 0 {
		parts = append(parts, fmt.Sprintf("epoch %.2f", s.Epoch))
	}
	parts = append(parts, fmt.Sprintf("loss %.4f", s.Loss))
	if s.LR != 0 {
		parts = append(parts, fmt.Sprintf("lr %.1e", s.LR))
	}
	if long && s.GradNorm != 0 {
		parts = append(parts, fmt.Sprintf("grad_norm %.3g", s.GradNorm))
	}
	if s.TokensPerSec != 0 {
		parts = append(parts, Thousands(s.TokensPerSec)+" tok/s")
	}
	if s.PeakBytes != 0 {
		peak := Bytes(s.PeakBytes)
		if long {
			peak = "peak " + peak
		}
		parts = append(parts, peak)
	}
	if left, ok := r.left(s.Step, now); ok {
		parts = append(parts, "left "+left.String())
	}
	return parts
}

// left extrapolates from the steps that this process has done, so that a resumed run is not taken for a fast one.
func (r *Reporter) left(step int, now time.Time) (time.Duration, bool) {
	done := step - r.first.Step
	if r.total <= 0 || done <= 0 || step >= r.total {
		return 0, false
	}
	left := time.Duration(float64(now.Sub(r.began)) / float64(done) * float64(r.total-step))
	return left.Round(time.Second), true
}

// fit renders the text beside the bar, without what does not fit: a bar that wraps cannot be redrawn.
func (r *Reporter) fit(s Stats, now time.Time) string {
	width := 120
	if f, ok := r.w.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			width = w
		}
	}
	// " 100% |" bar "| (" count ") "
	room := width - 1 - barWidth - len(" 100% || () ") - len(r.count(s.Step))
	text := r.desc
	for _, part := range r.parts(s, now, false) {
		if utf8.RuneCountInString(text)+2+len(part) <= room {
			text += "  " + part
		}
	}
	return text
}

// Note writes a line of its own, such as the result of an evaluation.
func (r *Reporter) Note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bar == nil || r.done {
		fmt.Fprintln(r.w, text)
		return
	}
	_ = r.bar.Clear()
	fmt.Fprintf(r.w, "%s\n", text)
	_ = r.bar.RenderBlank()
}

// Done ends the report and leaves the last state on the screen. Further steps are ignored by a bar.
func (r *Reporter) Done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return
	}
	r.done = true
	unseen := !r.began.IsZero() && r.loggedStep != r.last.Step
	switch {
	case r.bar != nil:
		if unseen {
			r.draw(r.last, r.now())
		}
		fmt.Fprintln(r.w)
	case unseen:
		r.line(r.last, r.now())
	}
}

// Bytes renders a size with binary units: 3.2 GiB.
func Bytes(n int64) string {
	x, unit := float64(n), 0
	for x >= 1024 && unit < len(units)-1 {
		x /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", x, units[unit])
}

var units = [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}

// Thousands renders a rate of at least 100 in whole numbers with separators, 12,345, and a lower one as 1.23.
func Thousands(x float64) string {
	if !(x >= 100 && x < 1e15) {
		return fmt.Sprintf("%.3g", x)
	}
	digits := fmt.Sprintf("%.0f", x)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
