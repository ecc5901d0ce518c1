package dist

import (
	"fmt"
	"strings"
)

// Stall says why a collective did not finish: what the first rank that noticed saw, and what it found out about the
// others. Every rank's error wraps the same one, reported through the store. It is an ErrTimeout if time ran out, and
// an ErrMismatch if the ranks run different collectives.
type Stall struct {
	Rank     int    `json:"rank"` // who noticed; numbers are those of the group
	Size     int    `json:"size"`
	Op       Op     `json:"op"` // what it waited for
	Label    string `json:"label,omitempty"`
	Seq      int64  `json:"seq"`    // how many collectives it had started in this group
	Reason   string `json:"reason"` // what it saw
	TimedOut bool   `json:"timed_out,omitempty"`
	Mismatch bool   `json:"mismatch,omitempty"` // ranks started different collectives; those that differ from Rank's are in Ranks
	// Ranks are those of which something is wrong, in order. None: all ranks had started the same collective.
	Ranks []RankState `json:"ranks,omitempty"`
}

// RankState is what the store knows about a rank.
type RankState struct {
	Rank      int    `json:"rank"`
	Last      string `json:"last"`                // what it started last, or in its place, for people
	Missing   bool   `json:"missing,omitempty"`   // it had not started the collective
	Different bool   `json:"different,omitempty"` // it had started another one in its place, or one of another size
	Silent    bool   `json:"silent,omitempty"`    // it shows no sign of life: stopped, killed, or cut off
	Left      bool   `json:"left,omitempty"`      // it has closed the group
}

// Missing are the ranks that had not started the collective.
func (s *Stall) Missing() []int {
	var ranks []int
	for _, r := range s.Ranks {
		if r.Missing {
			ranks = append(ranks, r.Rank)
		}
	}
	return ranks
}

// Error tells the whole story in one line.
func (s *Stall) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d of %d, %v: %s", s.Rank, s.Size, operation{Seq: s.Seq, Op: s.Op, Label: s.Label}.short(), s.Reason)
	if missing := s.Missing(); len(missing) > 0 {
		fmt.Fprintf(&b, "; missing: ranks %v", missing)
	}
	for _, r := range s.Ranks {
		fmt.Fprintf(&b, "; rank %d", r.Rank)
		var what []string
		if r.Left {
			what = append(what, "has left the group")
		}
		if r.Silent {
			what = append(what, "shows no sign of life")
		}
		if r.Different {
			what = append(what, "runs another collective in its place: "+r.Last)
		}
		if len(what) > 0 {
			b.WriteString(" " + strings.Join(what, " and "))
		}
		if !r.Different {
			if len(what) > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, " started last: %s", r.Last)
		}
	}
	return b.String()
}

// Is makes a stall that ran out of time an ErrTimeout, and one of ranks that differ an ErrMismatch.
func (s *Stall) Is(target error) bool {
	return target == ErrTimeout && s.TimedOut || target == ErrMismatch && s.Mismatch
}

func (o operation) short() string {
	if o.Op == "" { // aborted between collectives
		return fmt.Sprintf("after collective #%d", o.Seq)
	}
	s := fmt.Sprintf("%s #%d", o.Op, o.Seq)
	if o.Label != "" {
		s += fmt.Sprintf(" for %q", o.Label)
	}
	return s
}
