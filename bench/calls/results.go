package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/bench/peer"
)

// results are all figures of a comparison.
type results struct {
	Machine peer.Machine `json:"machine"`
	Date    time.Time    `json:"date"`
	Rows    []row        `json:"cases"`
}

// row holds the runs of a case: for each side the nanoseconds of one call in each run.
type row struct {
	Case        string               `json:"case"`
	Title       string               `json:"title"`
	Nanoseconds map[string][]float64 `json:"ns"`
}

// order is that of the table's columns.
var order = []string{"Go", "C++", "Python"}

// markdown is a table of medians, and of Go's ratio to the others.
func (r results) markdown() string {
	var have []string
	for _, name := range order {
		if len(r.Rows) > 0 && len(r.Rows[0].Nanoseconds[name]) > 0 {
			have = append(have, name)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, one thread; nanoseconds per call, medians of %d runs in turn.\n\n", r.Machine.CPU, r.runs())
	b.WriteString("| one-element tensors |")
	for _, name := range have {
		fmt.Fprintf(&b, " %s |", name)
	}
	compared := slices.Contains(have, "Go") && len(have) > 1
	if compared {
		for _, name := range have[1:] {
			fmt.Fprintf(&b, " Go / %s |", name)
		}
	}
	b.WriteString("\n|---" + strings.Repeat("|---:", strings.Count(b.String(), "|")-2) + "|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s |", row.Title)
		for _, name := range have {
			fmt.Fprintf(&b, " %.0f |", peer.Median(row.Nanoseconds[name]))
		}
		if compared {
			for _, name := range have[1:] {
				fmt.Fprintf(&b, " %.2f |", peer.Median(row.Nanoseconds["Go"])/peer.Median(row.Nanoseconds[name]))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (r results) runs() int {
	most := 0
	for _, row := range r.Rows {
		for _, runs := range row.Nanoseconds {
			most = max(most, len(runs))
		}
	}
	return most
}
