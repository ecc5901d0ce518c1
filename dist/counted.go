package dist

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/torch"
)

// CountedGroup is a Group that counts its collectives, and those of the groups that it is split into.
type CountedGroup struct {
	Group
	name  string
	table *countTable
}

var _ Splitter = (*CountedGroup)(nil)

// Counted wraps g. Counting costs a microsecond for each collective.
func Counted(g Group) *CountedGroup {
	return &CountedGroup{Group: g, table: &countTable{rows: map[CountKey]*countRow{}}}
}

// CountKey says which collectives a Count is about.
type CountKey struct {
	Group string // the name that Split gave, with those of the groups around it before it: "shard/inner"; "" is the outermost
	Op    Op
	Label string // of the context that they were started with
}

// Count sums collectives up. With N ranks and a whole tensor of n bytes (what all-gather puts out, reduce-scatter takes in,
// all-reduce and broadcast change), one rank sends and receives as much as the ring algorithms need, which is the least
// that is possible:
//
//	all-gather, reduce-scatter   n·(N−1)/N
//	all-reduce                   2·n·(N−1)/N, rounded up
//	broadcast                    n; the root receives nothing, the rank before it in the ring sends nothing
//	barrier                      0
//
// What a backend really moves can be more: Gloo's reduce-scatter is an all-reduce for some operators and sizes.
type Count struct {
	Calls    int64 // that started without an error
	Elements int64 // of the whole tensors
	Bytes    int64 // of the whole tensors, n
	Sent     int64 // bytes
	Received int64 // bytes
	// Wait is how long this rank stood in Work.Wait and Barrier: the part of the communication that was not overlapped.
	Wait time.Duration
}

func (c Count) plus(o Count) Count {
	return Count{c.Calls + o.Calls, c.Elements + o.Elements, c.Bytes + o.Bytes, c.Sent + o.Sent, c.Received + o.Received, c.Wait + o.Wait}
}

// CountRow is one line of Counts.
type CountRow struct {
	CountKey
	Count
}

// Counts is a snapshot of the counters, ordered by key.
type Counts []CountRow

// Total adds up the rows for which keep holds; nil keeps all of them.
func (c Counts) Total(keep func(CountKey) bool) Count {
	var sum Count
	for _, r := range c {
		if keep == nil || keep(r.CountKey) {
			sum = sum.plus(r.Count)
		}
	}
	return sum
}

// Of adds up the collectives of one kind.
func (c Counts) Of(op Op) Count { return c.Total(func(k CountKey) bool { return k.Op == op }) }

// Since leaves out what an earlier snapshot had counted already.
func (c Counts) Since(earlier Counts) Counts {
	before := make(map[CountKey]Count, len(earlier))
	for _, r := range earlier {
		before[r.CountKey] = r.Count
	}
	var out Counts
	for _, r := range c {
		b := before[r.CountKey]
		r.Count = r.plus(Count{-b.Calls, -b.Elements, -b.Bytes, -b.Sent, -b.Received, -b.Wait})
		if r.Count != (Count{}) {
			out = append(out, r)
		}
	}
	return out
}

// Counts is what was counted so far. It may be called at any time from any goroutine.
func (g *CountedGroup) Counts() Counts {
	t := g.table
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(Counts, 0, len(t.rows))
	for key, r := range t.rows {
		out = append(out, CountRow{key, r.load()})
	}
	slices.SortFunc(out, func(a, b CountRow) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Label, b.Label))
	})
	return out
}

// Unwrap is the group whose collectives are counted.
func (g *CountedGroup) Unwrap() Group { return g.Group }

type countTable struct {
	mu   sync.Mutex
	rows map[CountKey]*countRow
}

func (t *countTable) row(key CountKey) *countRow {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[key]
	if r == nil {
		r = &countRow{}
		t.rows[key] = r
	}
	return r
}

type countRow struct {
	calls, elements, bytes, sent, received, wait atomic.Int64
}

func (r *countRow) load() Count {
	return Count{r.calls.Load(), r.elements.Load(), r.bytes.Load(), r.sent.Load(), r.received.Load(), time.Duration(r.wait.Load())}
}

func (r *countRow) waited(since time.Time) { r.wait.Add(int64(time.Since(since))) }

// count adds one collective on whole, and makes its work measure the waiting. Facts are read before the start: whole
// belongs to the collective afterwards.
func (g *CountedGroup) count(ctx context.Context, op Op, whole *torch.Tensor, root int, start func() (Work, error)) (Work, error) {
	elements, bytes := int64(0), int64(0)
	if !whole.Freed() {
		elements = whole.Numel()
		bytes = elements * whole.DType().Size()
	}
	w, err := start()
	if err != nil {
		return nil, err
	}
	r := g.table.row(CountKey{g.name, op, Label(ctx)})
	sent, received := ringBytes(op, bytes, g.Rank(), g.Size(), root)
	r.calls.Add(1)
	r.elements.Add(elements)
	r.bytes.Add(bytes)
	r.sent.Add(sent)
	r.received.Add(received)
	return countedWork{w, r}, nil
}

// ringBytes is what a rank sends and receives for a whole tensor of n bytes, as Count documents.
func ringBytes(op Op, n int64, rank, size, root int) (sent, received int64) {
	others := int64(size - 1)
	switch op {
	case OpAllGather, OpReduceScatter:
		sent = n / int64(size) * others
		return sent, sent
	case OpAllReduce:
		sent = (2*n*others + others) / int64(size)
		return sent, sent
	case OpBroadcast:
		if place := (rank - root + size) % size; size > 1 {
			if place > 0 {
				received = n
			}
			if place < size-1 {
				sent = n
			}
		}
	}
	return sent, received
}

type countedWork struct {
	Work
	row *countRow
}

func (w countedWork) Wait(ctx context.Context) error {
	defer w.row.waited(time.Now())
	return w.Work.Wait(ctx)
}

// AllGather implements Group.
func (g *CountedGroup) AllGather(ctx context.Context, out, in *torch.Tensor) (Work, error) {
	return g.count(ctx, OpAllGather, out, 0, func() (Work, error) { return g.Group.AllGather(ctx, out, in) })
}

// ReduceScatter implements Group.
func (g *CountedGroup) ReduceScatter(ctx context.Context, out, in *torch.Tensor, op ReduceOp) (Work, error) {
	return g.count(ctx, OpReduceScatter, in, 0, func() (Work, error) { return g.Group.ReduceScatter(ctx, out, in, op) })
}

// AllReduce implements Group.
func (g *CountedGroup) AllReduce(ctx context.Context, t *torch.Tensor, op ReduceOp) (Work, error) {
	return g.count(ctx, OpAllReduce, t, 0, func() (Work, error) { return g.Group.AllReduce(ctx, t, op) })
}

// Broadcast implements Group.
func (g *CountedGroup) Broadcast(ctx context.Context, t *torch.Tensor, root int) (Work, error) {
	return g.count(ctx, OpBroadcast, t, root, func() (Work, error) { return g.Group.Broadcast(ctx, t, root) })
}

// Barrier implements Group.
func (g *CountedGroup) Barrier(ctx context.Context) error {
	r := g.table.row(CountKey{g.name, OpBarrier, Label(ctx)})
	r.calls.Add(1)
	defer r.waited(time.Now())
	return g.Group.Barrier(ctx)
}

// Split implements Splitter: the part counts into the same table, under its name.
func (g *CountedGroup) Split(ctx context.Context, name string, ranks []int) (Group, error) {
	splitter, ok := g.Group.(Splitter)
	if !ok {
		return nil, errors.New("dist: the counted group cannot be split")
	}
	part, err := splitter.Split(ctx, name, ranks)
	if err != nil {
		return nil, err
	}
	if g.name != "" {
		name = g.name + "/" + name
	}
	return &CountedGroup{Group: part, name: name, table: g.table}, nil
}
