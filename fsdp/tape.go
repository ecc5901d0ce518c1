package fsdp

import (
	"context"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
)

// use is one forward of a unit.
type use struct {
	u        *unit
	graph    int  // forwards of the root are numbered; so are those of units outside it
	begin    int  // places of its events on the tape; -1 when they are off it
	end      int  //
	recorded bool // some output requires grad
	ended    bool // its forward is over
	done     bool // post-backward ran
}

// event is the begin or the end of a unit's forward.
type event struct {
	use  *use
	end  bool
	done bool // backward has passed it
}

// Note [The tape]
// The events of forward are written down in order; backward goes through them from the last to the first: the end of a
// unit's forward becomes its pre-backward (gather), the begin its post-backward (reduce). Autograd calls these at the right
// time, with three exceptions: a unit none of whose inputs needs gradients has no node to call post-backward; a unit whose
// output this rank's loss does not depend on is not reached at all; and a unit that this rank left out (Config.Branches)
// has no graph. Other ranks may reach the same unit and wait for this one.
//
// So each event first makes up for those after it on the tape that have not happened: it gathers, and reduces zeros. That
// they will not happen any more, and that the unit's gradients are complete, follows from the order in which autograd runs
// nodes: of those that are ready, the one that was made last. A node's users were made after it. So when a node runs, every
// node that was made after it, and that the backward reaches, has run. Accumulation into leaves runs at once.
//
// Several forwards may wait for a backward at the same time, and a backward need not be of all of them. Only events of
// graphs that the running backward has entered are made up for.

func (m *Model) beginUse(u *unit) *use {
	s := &use{u: u, graph: m.graph, begin: len(m.tape), end: -1}
	if m.queued { // recomputed by the running backward
		s.graph = m.entered
	}
	m.tape = append(m.tape, event{use: s})
	u.open++
	return s
}

// endUse ends a use; where nothing was recorded there will be no backward.
func (m *Model) endUse(s *use) {
	if !s.recorded {
		s.u.open--
		if s.begin >= 0 {
			m.tape[s.begin].done = true
		}
		if s.begin == len(m.tape)-1 {
			m.tape = m.tape[:s.begin]
		}
		s.begin, s.done = -1, true
		return
	}
	s.end, s.ended = len(m.tape), true
	m.tape = append(m.tape, event{use: s, end: true})
}

// enter notes that the running backward has reached a graph.
func (m *Model) enter(s *use) {
	m.entered = s.graph
	if !slices.Contains(m.active, s.graph) {
		m.active = append(m.active, s.graph)
	}
	if !m.queued {
		m.queued = true
		torch.QueueCallback(m.final)
	}
}

// preBackward is the backward of the end of a use: autograd is about to need the unit's parameters.
func (m *Model) preBackward(s *use) error {
	m.enter(s)
	if s.end >= 0 {
		if err := m.catchUp(s.end); err != nil {
			return err
		}
		m.tape[s.end].done = true
	}
	defer m.trimTape()
	return m.gatherForBackward(s)
}

func (m *Model) gatherForBackward(s *use) error {
	if !s.u.noBackwardUnshard {
		if err := s.u.unshard(m.ctx, false); err != nil {
			return err
		}
	}
	if m.config.Prefetch.Backward == BackwardPre {
		return m.prefetchBackward(m.ctx, s.u, s.end)
	}
	return nil
}

// postBackward is the backward of the begin of a use: the unit's gradients are complete for this use.
func (m *Model) postBackward(s *use) error {
	m.enter(s)
	if s.begin >= 0 {
		if err := m.catchUp(s.begin); err != nil {
			return err
		}
		m.tape[s.begin].done = true
	}
	defer m.trimTape()
	return m.finishUse(s)
}

// trimTape takes the last events off the tape that backward has passed, so that each event looks at few others.
func (m *Model) trimTape() {
	for n := len(m.tape); n > 0 && m.tape[n-1].done; n-- {
		if e := m.tape[n-1]; e.end {
			e.use.end = -1
		} else {
			e.use.begin = -1
		}
		m.tape = m.tape[:n-1]
	}
}

func (m *Model) finishUse(s *use) error {
	if !s.done {
		s.done = true
		s.u.open--
	}
	return s.u.postBackward(s.begin)
}

// catchUp makes up for the events after place that autograd did not bring.
func (m *Model) catchUp(place int) error {
	for i := len(m.tape) - 1; i > place; i-- {
		e := &m.tape[i]
		if e.done || !slices.Contains(m.active, e.use.graph) || !e.use.ended {
			continue // the last is a unit whose forward is not over
		}
		e.done = true
		var err error
		if e.end {
			err = m.gatherForBackward(e.use)
		} else {
			err = m.finishUse(e.use)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// passBranches takes part in gathering the units that come before u in the order of declaration and that this rank has
// left out. u nil is the end of forward.
func (m *Model) passBranches(ctx context.Context, u *unit) error {
	if !m.config.Branches || u != nil && u.root {
		return nil
	}
	to := len(m.units) - 1 // the root is the last
	if u != nil {
		to = u.number
	}
	for m.passed < to {
		if err := m.leaveOut(ctx, m.units[m.passed]); err != nil {
			return err
		}
	}
	if u != nil {
		m.passed = max(m.passed, u.number+1)
	}
	return nil
}

// leaveOut does what the other ranks wait for when a unit does not run here: it gathers it and those inside, and writes
// their uses on the tape.
func (m *Model) leaveOut(ctx context.Context, u *unit) error {
	m.passed = u.number + 1
	m.now = append(m.now, u)
	if err := u.checkOrder(ctx, torch.GradEnabled()); err != nil {
		return err
	}
	if err := u.startUnshard(ctx); err != nil {
		return err
	}
	u.drop(ctx)
	m.prefetchForward(ctx, u)
	var s *use
	if torch.GradEnabled() {
		s = m.beginUse(u)
		s.recorded = true
	}
	for _, inner := range u.inside {
		if m.passed <= inner.number {
			if err := m.leaveOut(ctx, inner); err != nil {
				return err
			}
		}
	}
	if s != nil {
		m.endUse(s)
	}
	return nil
}

// abandoned is how many forwards later a forward counts as one whose backward will never come.
const abandoned = 4096

// cleanTape drops the events of the graphs whose backward is over.
func (m *Model) cleanTape() {
	m.dropEvents(func(s *use) bool { return slices.Contains(m.active, s.graph) })
	m.active = m.active[:0]
}

// pruneTape drops the events of forwards that never had a backward.
func (m *Model) pruneTape() {
	if len(m.tape) > 0 && m.graph-m.tape[0].use.graph > abandoned {
		m.dropEvents(func(s *use) bool { return m.graph-s.graph > abandoned })
	}
}

func (m *Model) dropEvents(over func(*use) bool) {
	for _, e := range m.tape {
		if !over(e.use) {
			continue
		}
		if !e.use.done {
			e.use.done = true
			e.use.u.open--
		}
		e.use.begin, e.use.end = -1, -1
	}
	m.tape = slices.DeleteFunc(m.tape, func(e event) bool { return over(e.use) })
	for i, e := range m.tape {
		if e.end {
			e.use.end = i
		} else {
			e.use.begin = i
		}
	}
}

// isPending tells whether the running backward has yet to come to a forward of u that was recorded.
func (m *Model) isPending(u *unit) bool {
	return u.open > 0 && slices.ContainsFunc(m.tape, func(e event) bool {
		return e.use.u == u && !e.use.done && slices.Contains(m.active, e.use.graph)
	})
}
