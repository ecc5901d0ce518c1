package dist

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Note [Watchdog]
// A collective that some rank does not join never ends by itself, and the ranks that wait know nothing about the one that
// does not. So every rank tells about itself in the store: which collective it started last, and, by a counter, that it is
// alive. A goroutine does that, about once a second and not per collective, in one request; a second one looks whether
// somebody has given up. When a collective fails or runs out of time, its rank looks at everybody's counters twice, so
// that those who are stopped or gone stand out. The first rank to notice writes the report, and all ranks end with it: the
// same cause everywhere, and one reader of all the keys however many ranks there are. A store that does not answer, as when
// the process that serves it is stopped, is itself what the report says: requests to it have no timeout of their own, so
// each runs in a goroutine that is left behind.
//
// Ranks that start different collectives under one number wait for each other as well (csrc/dist.cc, Note [Tags]). They need
// not wait for the timeout: a rank that has waited for w.window looks, once, at its two neighbours' entries. Where any two
// ranks differ, two neighbours do, and the later of them looks after both are in the store. It costs nothing while
// collectives are quicker than that, and two requests per rank where they are not.

// watchdog keeps a rank's entry in the store up to date and reports failures of a group.
type watchdog struct {
	rank, size int
	store      *Store // with a prefix for the group
	every      time.Duration

	mu   sync.Mutex
	mine heartbeat // without Recent
	// recent are the collectives started last, each at the place of its number modulo the length.
	recent [recent]operation

	stop, stopped chan struct{}
}

// heartbeat is a rank's entry: JSON under "rank-N".
type heartbeat struct {
	Beat int64     `json:"beat"`
	Left bool      `json:"left,omitempty"`
	Last operation `json:"last"`
	// Recent are Last and those before it, in order: a rank may start some more after the one that differs.
	Recent []operation `json:"recent,omitempty"`
}

// recent is the number of operations that a rank tells about.
const recent = 16

// at is the operation with a number, if the rank tells about it.
func (h heartbeat) at(seq int64) (operation, bool) {
	i := slices.IndexFunc(h.Recent, func(o operation) bool { return o.Seq == seq })
	if i < 0 {
		return operation{}, false
	}
	return h.Recent[i], true
}

// differs is the first operation in which h and other are known to differ, as h started it.
func (h heartbeat) differs(other heartbeat) (operation, bool) {
	for _, mine := range h.Recent {
		if theirs, ok := other.at(mine.Seq); ok && !mine.matches(theirs) {
			return mine, true
		}
	}
	return operation{}, false
}

// operation is a collective that a rank started.
type operation struct {
	Seq      int64  `json:"seq"` // counts the group's collectives from 1
	Op       Op     `json:"op,omitempty"`
	Label    string `json:"label,omitempty"`
	Elements int64  `json:"elements,omitempty"`
	Code     int64  `json:"code,omitempty"` // whatever else ranks must agree on, see code
}

// matches tells whether two ranks run the same collective. Labels are for people.
func (o operation) matches(other operation) bool {
	return o.Op == other.Op && o.Elements == other.Elements && o.Code == other.Code
}

func (o operation) String() string {
	if o.Seq == 0 {
		return "nothing"
	}
	s := fmt.Sprintf("#%d %s", o.Seq, o.Op)
	if o.Label != "" {
		s += fmt.Sprintf(" for %q", o.Label)
	}
	if o.Op != OpBarrier {
		s += fmt.Sprintf(" of %d elements", o.Elements)
	}
	return s
}

const (
	reportKey = "report" // the Stall of the first rank that noticed
	claimKey  = "claim-" // and a collective's number: counts the ranks that noticed
)

// newWatchdog starts the goroutine; abort is called once if another rank reports a failure.
func newWatchdog(store *Store, rank, size int, timeout time.Duration, abort func(error)) (*watchdog, error) {
	s, err := store.Prefix("watchdog")
	if err != nil {
		return nil, err
	}
	w := &watchdog{rank: rank, size: size, store: s, every: min(max(timeout/10, 50*time.Millisecond), time.Second),
		stop: make(chan struct{}), stopped: make(chan struct{})}
	go w.run(abort)
	return w, nil
}

// window is how long a rank may show no sign of life before it counts as silent.
func (w *watchdog) window() time.Duration { return 5 * w.every / 2 }

func (w *watchdog) run(abort func(error)) {
	defer close(w.stopped)
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	failures := 0
	for reported := false; failures < 3; {
		err := w.publish()
		if err == nil && !reported {
			var s *Stall
			if s, err = w.report(); s != nil {
				reported = true
				abort(s)
			}
		}
		if err != nil {
			failures++ // the store is gone: whoever waits for a peer finds that out too
		} else {
			failures = 0
		}
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
	}
}

// started notes that this rank starts a collective.
func (w *watchdog) started(o operation) {
	w.mu.Lock()
	w.mine.Last = o
	w.recent[o.Seq%recent] = o
	w.mu.Unlock()
}

// entry is what this rank tells about itself.
func (w *watchdog) entry() heartbeat {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.mine
	for seq := max(1, h.Last.Seq-recent+1); seq <= h.Last.Seq; seq++ {
		h.Recent = append(h.Recent, w.recent[seq%recent])
	}
	return h
}

func (w *watchdog) publish() error {
	w.mu.Lock()
	w.mine.Beat++
	w.mu.Unlock()
	mine := w.entry()
	data, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	return w.store.Set(w.key(w.rank), data)
}

func (w *watchdog) key(rank int) string { return "rank-" + strconv.Itoa(rank) }

// close ends the goroutine. A rank that leaves in good order says so; either takes bounded time.
func (w *watchdog) close(left bool) {
	close(w.stop)
	within(time.Second, func() {
		<-w.stopped
		if left {
			w.mu.Lock()
			w.mine.Left = true
			w.mu.Unlock()
			_ = w.publish() // without a store there is nobody to tell
		}
		w.store.release()
	})
}

// report is what the first rank that noticed a failure has found; nil while nobody has.
func (w *watchdog) report() (*Stall, error) {
	var s Stall
	if found, err := w.load(reportKey, &s); !found || err != nil {
		return nil, err
	}
	return &s, nil
}

func (w *watchdog) load(key string, into any) (bool, error) {
	if set, err := w.store.isSet(key); err != nil || !set {
		return false, err
	}
	data, err := w.store.read(key)
	if err != nil {
		return false, err
	}
	return true, json.Unmarshal(data, into)
}

// findings are what a rank has learnt from the store about a collective that does not end.
type findings struct {
	ours   bool // this rank is the one that looks and reports
	last   []heartbeat
	silent []int
	report *Stall // of another rank
	err    error  // the store does not answer
}

// look finds out about mine. The first rank that asks looks at everybody's entries; the others rely on its report. It
// takes w.window, or ends without an answer from the store a second later.
func (w *watchdog) look(mine operation) findings {
	answer := make(chan findings, 1)
	go func() {
		var f findings
		var n int64
		if n, f.err = w.store.Add(claimKey+strconv.FormatInt(mine.Seq, 10), 1); n == 1 && f.err == nil {
			f.ours = true
			f.last, f.silent, f.report, f.err = w.watch()
		}
		answer <- f
	}()
	limit := w.window() + time.Second
	select {
	case f := <-answer:
		return f
	case <-time.After(limit):
		return findings{err: fmt.Errorf("no answer within %v", limit)}
	}
}

// watch looks at all ranks' entries until every rank has shown a sign of life since the first look, or for w.window.
// report is another rank's report that was there already.
func (w *watchdog) watch() (last []heartbeat, silent []int, report *Stall, err error) {
	first, err := w.snapshot()
	if err != nil {
		return nil, nil, nil, err
	}
	for deadline := time.Now().Add(w.window()); ; time.Sleep(w.every / 4) {
		if report, err = w.report(); err != nil || report != nil {
			return nil, nil, report, err
		}
		if last, err = w.snapshot(); err != nil {
			return nil, nil, nil, err
		}
		silent = nil
		for rank := range last {
			if rank != w.rank && last[rank].Beat == first[rank].Beat && !last[rank].Left {
				silent = append(silent, rank)
			}
		}
		if len(silent) == 0 || time.Now().After(deadline) {
			return last, silent, nil, nil
		}
	}
}

func (w *watchdog) snapshot() ([]heartbeat, error) {
	out := make([]heartbeat, w.size)
	for rank := range out {
		if _, err := w.load(w.key(rank), &out[rank]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// conclude says why the collective mine did not end well, as all ranks will: reason is what this rank saw of it.
func (w *watchdog) conclude(mine operation, reason string, timedOut bool, f findings) *Stall {
	if f.report != nil {
		return f.report
	}
	s := &Stall{Rank: w.rank, Size: w.size, Op: mine.Op, Label: mine.Label, Seq: mine.Seq, Reason: reason, TimedOut: timedOut}
	if f.err != nil {
		s.Reason += fmt.Sprintf("; the store, which rank 0 or the launcher serves, tells nothing: %v", f.err)
		return s
	}
	if f.ours {
		if s.examine(mine, f.last, f.silent); timedOut && len(s.Ranks) == 0 {
			s.Reason += ", though every rank has started it and shows signs of life"
		}
		return w.announce(s)
	}
	return w.reported(s)
}

// disagreement is the report if a neighbour has started another collective than this rank under the same number.
func (w *watchdog) disagreement() *Stall {
	mine := w.entry()
	var what operation
	for _, rank := range []int{(w.rank + 1) % w.size, (w.rank + w.size - 1) % w.size} {
		var theirs heartbeat
		if found, err := w.load(w.key(rank), &theirs); !found || err != nil {
			continue // a store that is gone is the timeout's business
		}
		if o, differs := mine.differs(theirs); differs && (what.Seq == 0 || o.Seq < what.Seq) {
			what = o
		}
	}
	if what.Seq == 0 {
		return nil
	}
	last, err := w.snapshot()
	if err != nil {
		return nil
	}
	s := &Stall{Rank: w.rank, Size: w.size, Op: what.Op, Label: what.Label, Seq: what.Seq, Mismatch: true,
		Reason: fmt.Sprintf("%v: this one %s", ErrMismatch, what.describe())}
	s.examine(what, last, nil)
	return w.announce(s)
}

// announce makes s the group's report, and returns the one that was there already, if any.
func (w *watchdog) announce(s *Stall) *Stall {
	earlier := make(chan *Stall, 1)
	within(time.Second, func() {
		if r, err := w.report(); err != nil || r != nil {
			earlier <- r
			return
		}
		if data, err := json.Marshal(s); err == nil {
			_ = w.store.Set(reportKey, data) // if the store has gone meanwhile, nobody is left to read it
		}
	})
	select {
	case r := <-earlier:
		if r != nil {
			return r
		}
	default:
	}
	return s
}

// reported is the group's report, or otherwise if it does not come.
func (w *watchdog) reported(otherwise *Stall) *Stall {
	answer := make(chan *Stall, 1)
	limit := w.window() + 2*time.Second
	within(limit, func() {
		if w.store.await(context.Background(), reportKey, time.Now().Add(limit)) != nil {
			return
		}
		if s, err := w.report(); err == nil && s != nil {
			answer <- s
		}
	})
	select {
	case s := <-answer:
		return s
	default:
		return otherwise
	}
}

// examine sorts the ranks by what they say about the collective mine.
func (s *Stall) examine(mine operation, last []heartbeat, silent []int) {
	for rank, h := range last {
		if rank == s.Rank {
			continue
		}
		r := RankState{Rank: rank, Last: h.Last.String(), Left: h.Left, Silent: slices.Contains(silent, rank)}
		if theirs, ok := h.at(mine.Seq); ok && !theirs.matches(mine) {
			r.Different, r.Last = true, theirs.describe()
		}
		r.Missing = h.Last.Seq < mine.Seq
		if r.Missing || r.Different || r.Left || r.Silent {
			s.Ranks = append(s.Ranks, r)
		}
	}
}

// within runs f in a goroutine and waits for it at most for d; false means that it still runs.
func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}
