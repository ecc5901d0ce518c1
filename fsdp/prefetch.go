package fsdp

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
)

// BackwardPrefetch says when backward gathers the unit that comes next.
type BackwardPrefetch int

// FSDP1's modes.
const (
	// BackwardPre gathers the next unit before the gradients of the present one are computed: the most overlap, and one
	// more unit in memory. It is what fully_shard always does.
	BackwardPre BackwardPrefetch = iota
	// BackwardPost gathers the next unit when the present one is freed, before its gradients are reduced.
	BackwardPost
	// BackwardNone gathers a unit when backward needs it.
	BackwardNone
)

// ParseBackwardPrefetch reads Accelerate's names: BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH.
func ParseBackwardPrefetch(s string) (BackwardPrefetch, error) {
	switch s {
	case "BACKWARD_PRE":
		return BackwardPre, nil
	case "BACKWARD_POST":
		return BackwardPost, nil
	case "NO_PREFETCH", "":
		return BackwardNone, nil
	}
	return 0, fmt.Errorf("fsdp: backward prefetch %q: want BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH", s)
}

// Prefetch says which units are gathered ahead of the computation. The zero value is one unit ahead, both ways.
type Prefetch struct {
	// Depth is how many units ahead are gathered; 0 means 1, negative none. Forward goes by the order of the last forward.
	Depth int
	// NoForward switches off prefetching in forward (forward_prefetch=False).
	NoForward bool
	// Backward is when backward prefetches.
	Backward BackwardPrefetch
	// Limit is the most units whose all-gathers may be under way at a time, beyond the one that the computation waits
	// for; 0 is no limit. limit_all_gathers is a limit of 2.
	Limit int
}

// SetForwardPrefetch makes the units named ahead be gathered when the forward of unit name begins, in place of what follows by
// itself (set_modules_to_forward_prefetch). Without names the default is back. All ranks must set the same.
func (m *Model) SetForwardPrefetch(name string, ahead ...string) error {
	return m.setPrefetch(name, ahead, func(u *unit, list []*unit) { u.forwardAhead = list })
}

// SetBackwardPrefetch is SetForwardPrefetch for backward (set_modules_to_backward_prefetch).
func (m *Model) SetBackwardPrefetch(name string, ahead ...string) error {
	return m.setPrefetch(name, ahead, func(u *unit, list []*unit) { u.backwardAhead = list })
}

func (m *Model) setPrefetch(name string, ahead []string, set func(*unit, []*unit)) error {
	u, err := m.unitNamed(name)
	if err != nil {
		return err
	}
	var list []*unit
	for _, other := range ahead {
		next, err := m.unitNamed(other)
		if err != nil {
			return err
		}
		list = append(list, next)
	}
	set(u, list)
	return nil
}

// gatherAhead starts to gather units while Limit allows it.
func (m *Model) gatherAhead(ctx context.Context, list []*unit) error {
	for _, u := range list {
		if limit := m.config.Prefetch.Limit; limit > 0 && m.gathering() >= limit {
			return nil
		}
		if err := u.startUnshard(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gathering is the number of units whose all-gathers are under way.
func (m *Model) gathering() int {
	n := 0
	for _, u := range m.units {
		if u.state == gathering {
			n++
		}
	}
	return n
}

// prefetchForward starts to gather the units that ran after u the last time.
func (m *Model) prefetchForward(ctx context.Context, u *unit) {
	if u.forwardAhead != nil {
		torch.Throw(m.gatherAhead(ctx, u.forwardAhead))
		return
	}
	p := m.config.Prefetch
	if p.Depth < 0 || p.NoForward || !m.begun {
		return
	}
	next := 0
	if !u.root {
		at := slices.Index(m.last[min(m.position, len(m.last)):], u)
		if at < 0 {
			return
		}
		next = m.position + at + 1
	}
	m.position = next
	torch.Throw(m.gatherAhead(ctx, m.last[min(next, len(m.last)):min(next+p.Depth, len(m.last))]))
}

// prefetchBackward starts to gather the units whose backward comes after the event at place on the tape.
func (m *Model) prefetchBackward(ctx context.Context, u *unit, place int) error {
	if u.backwardAhead != nil {
		return m.gatherAhead(ctx, u.backwardAhead)
	}
	depth := m.config.Prefetch.Depth
	var list []*unit
	for i := place - 1; i >= 0 && len(list) < depth; i-- {
		if e := &m.tape[i]; e.end && !e.done && !e.use.u.noBackwardUnshard && slices.Contains(m.active, e.use.graph) {
			list = append(list, e.use.u)
		}
	}
	return m.gatherAhead(ctx, list)
}
