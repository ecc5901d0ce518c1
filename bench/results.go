package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/bench/peer"
)

// results are all figures of a comparison.
type results struct {
	Machine  peer.Machine `json:"machine"`
	Date     time.Time    `json:"date"`
	Ranks    int          `json:"ranks"` // with one thread each
	Settings []setting    `json:"settings"`
}

// setting holds the runs of all programs with one job.
type setting struct {
	Quant     string `json:"quant"`
	Recompute bool   `json:"gradient_checkpointing"`
	NumSteps  int    `json:"num_steps"`
	Runs      []run  `json:"runs"`
}

// metrics are the rows of the table. of gives a run's values; the table shows the median over those of all runs.
var metrics = []struct {
	name, format string
	of           func(r run) []float64
}{
	{"time per step (s)", "%.2f", func(r run) []float64 { return warm(r, func(s step) float64 { return s.Wall }) }},
	{"CPU per step and rank (s)", "%.2f", func(r run) []float64 { return warm(r, func(s step) float64 { return s.CPU }) }},
	{"peak memory per rank (MiB)", "%.0f", func(r run) []float64 { return []float64{worst(r, func(e rankEnd) float64 { return e.PeakRSS })} }},
	{"launch to end of first step (s)", "%.1f", func(r run) []float64 {
		return []float64{worst(r, func(e rankEnd) float64 { return e.StartToFirstStep })}
	}},
}

// warm gives a value of every step but the first, which also allocates and compiles.
func warm(r run, value func(step) float64) []float64 {
	var out []float64
	for _, s := range r.Steps[1:] {
		out = append(out, value(s))
	}
	return out
}

// worst gives the largest value of all ranks.
func worst(r run, value func(rankEnd) float64) float64 {
	out := 0.0
	for _, end := range r.Ranks {
		out = max(out, value(end))
	}
	return out
}

// markdown is a table per setting.
func (r results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d cores; %d ranks with one thread each; medians.\n", r.Machine.CPU, r.Machine.Cores, r.Ranks)
	for _, s := range r.Settings {
		b.WriteString("\n" + s.table())
	}
	return b.String()
}

func (s setting) table() string {
	names := s.programs()
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | %s |", title(s.Quant, s.Recompute), strings.Join(names, " | "))
	if len(names) == 2 {
		b.WriteString(" ratio |")
	}
	b.WriteString("\n|---" + strings.Repeat("|---:", strings.Count(b.String(), "|")-2) + "|\n")
	for _, m := range metrics {
		fmt.Fprintf(&b, "| %s |", m.name)
		var medians []float64
		for _, name := range names {
			var values []float64
			for _, r := range s.Runs {
				if r.Program == name {
					values = append(values, m.of(r)...)
				}
			}
			medians = append(medians, peer.Median(values))
			fmt.Fprintf(&b, " "+m.format+" |", medians[len(medians)-1])
		}
		if len(names) == 2 {
			fmt.Fprintf(&b, " %.2f |", medians[0]/medians[1])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// programs are the names of those that ran, gofsdp first.
func (s setting) programs() []string {
	var names []string
	for _, r := range s.Runs {
		if !slices.Contains(names, r.Program) {
			names = append(names, r.Program)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	return names
}

// lossTolerance is relative. Both compute in fp32 from the same bits; what is left is the order of sums, which some steps
// of training amplify.
const lossTolerance = 2e-4

// compareLosses fails if two runs of a setting differ in the loss of a step.
func (r results) compareLosses() error {
	for _, s := range r.Settings {
		first := s.Runs[0]
		for _, other := range s.Runs[1:] {
			for i := range first.Steps {
				a, b := first.Steps[i].Loss, other.Steps[i].Loss
				// Written so that NaN fails.
				if !(math.Abs(a-b) <= lossTolerance*math.Abs(a)) {
					return fmt.Errorf("%s, step %d: the loss is %v with %s and %v with %s: the figures do not compare the same work",
						title(s.Quant, s.Recompute), i, a, first.Program, b, other.Program)
				}
			}
		}
	}
	return nil
}
