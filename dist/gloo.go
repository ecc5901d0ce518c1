package dist

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/capi"
	"github.com/gofsdp/gofsdp/torch"
)

// GlooConfig are the settings of NewGloo. The zero value works on one machine.
type GlooConfig struct {
	// Host is a name or address of this machine, which chooses the network interface. Empty: the loopback interface.
	Host string
	// Timeout bounds every collective; 0 means DefaultTimeout.
	Timeout time.Duration
}

// Gloo is a Group on CPU tensors over TCP.
type Gloo struct {
	rank, size int
	timeout    time.Duration
	host       string
	store      *Store
	ownsStore  bool
	name       string // of the part, in a group that Split made
	splits     int    // how often the group was split, so that every part has keys of its own in the store

	mu      sync.Mutex
	h       capi.Handle
	aborted error
}

var _ Splitter = (*Gloo)(nil)

// NewGloo connects this rank with the other size−1 ranks that use the same store. It returns when all are connected.
func NewGloo(ctx context.Context, store *Store, rank, size int, c GlooConfig) (*Gloo, error) {
	if rank < 0 || size < 1 || rank >= size {
		return nil, fmt.Errorf("dist: rank %d of a group of %d", rank, size)
	}
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	connect := bounded(ctx, c.Timeout)
	type result struct {
		h   capi.Handle
		err error
	}
	opened := make(chan result, 1)
	go func() {
		var r result
		r.err = store.use(func(s capi.Handle) (err error) {
			r.h, err = capi.NewGloo(s, rank, size, connect.Milliseconds(), c.Host)
			return err
		})
		opened <- r
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, fmt.Errorf("dist: rank %d of %d: connect the process group on %s: %w", rank, size, c.Host, r.err)
		}
		return &Gloo{rank: rank, size: size, timeout: c.Timeout, host: c.Host, store: store, h: r.h}, nil
	case <-ctx.Done():
		go func() { // the connecting itself cannot be ended
			if r := <-opened; r.err == nil {
				capi.FreeGroup(r.h)
			}
		}()
		return nil, fmt.Errorf("dist: rank %d of %d: connect the process group on %s: %w", rank, size, c.Host, context.Cause(ctx))
	}
}

// Init connects this process as env describes it: a process group over Gloo, or a group of one rank without any network
// where there is only one. The returned close function leaves the group and the store.
func Init(ctx context.Context, env Env, timeout time.Duration) (Group, func(context.Context) error, error) {
	if env.WorldSize == 1 {
		return NewSingle(), func(context.Context) error { return nil }, nil
	}
	store, err := Connect(ctx, env, timeout)
	if err != nil {
		return nil, nil, err
	}
	host, err := localAddress(env.MasterAddr)
	if err != nil {
		store.release()
		return nil, nil, err
	}
	g, err := NewGloo(ctx, store, env.Rank, env.WorldSize, GlooConfig{Host: host, Timeout: timeout})
	if err != nil {
		store.release()
		return nil, nil, err
	}
	return g, func(ctx context.Context) error { return errors.Join(g.Close(ctx), store.Close(ctx)) }, nil
}

// localAddress is the address of this machine from which it reaches master.
func localAddress(master string) (string, error) {
	conn, err := net.Dial("udp", net.JoinHostPort(master, "9")) // sends nothing: it only picks a route
	if err != nil {
		return "", fmt.Errorf("dist: no route to MASTER_ADDR %q: %w", master, err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String(), nil
}

// Rank is this process's number in the group.
func (g *Gloo) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Gloo) Size() int { return g.size }

// AllGather implements Group.
func (g *Gloo) AllGather(ctx context.Context, out, in *torch.Tensor) (Work, error) {
	return g.start(ctx, OpAllGather, in, func(pg capi.Handle) (h capi.Handle, err error) {
		if err := checkAllGather(g.size, out, in); err != nil {
			return 0, err
		}
		out.WithHandle(func(o uintptr) {
			in.WithHandle(func(i uintptr) { h, err = capi.AllGather(pg, capi.Handle(o), capi.Handle(i)) })
		})
		return h, err
	})
}

// ReduceScatter implements Group. Gloo has no average: Avg divides after the sum.
func (g *Gloo) ReduceScatter(ctx context.Context, out, in *torch.Tensor, op ReduceOp) (Work, error) {
	w, err := g.start(ctx, OpReduceScatter, in, func(pg capi.Handle) (h capi.Handle, err error) {
		if err := checkReduceScatter(g.size, out, in); err != nil {
			return 0, err
		}
		out.WithHandle(func(o uintptr) {
			in.WithHandle(func(i uintptr) { h, err = capi.ReduceScatter(pg, capi.Handle(o), capi.Handle(i), op.code()) })
		})
		return h, err
	})
	return g.averaged(w, err, out, op)
}

// AllReduce implements Group.
func (g *Gloo) AllReduce(ctx context.Context, t *torch.Tensor, op ReduceOp) (Work, error) {
	w, err := g.start(ctx, OpAllReduce, t, func(pg capi.Handle) (h capi.Handle, err error) {
		t.WithHandle(func(x uintptr) { h, err = capi.AllReduce(pg, capi.Handle(x), op.code()) })
		return h, err
	})
	return g.averaged(w, err, t, op)
}

// Broadcast implements Group.
func (g *Gloo) Broadcast(ctx context.Context, t *torch.Tensor, root int) (Work, error) {
	return g.start(ctx, OpBroadcast, t, func(pg capi.Handle) (h capi.Handle, err error) {
		if root < 0 || root >= g.size {
			return 0, fmt.Errorf("root is rank %d", root)
		}
		t.WithHandle(func(x uintptr) { h, err = capi.Broadcast(pg, capi.Handle(x), root) })
		return h, err
	})
}

// Barrier implements Group.
func (g *Gloo) Barrier(ctx context.Context) error {
	return Wait(ctx)(g.start(ctx, OpBarrier, nil, capi.Barrier))
}

// Split implements Splitter. The parts meet through the store of this group, which must be open.
func (g *Gloo) Split(ctx context.Context, name string, ranks []int) (Group, error) {
	fail := func(err error) error {
		return fmt.Errorf("dist: rank %d of %d: split %q into ranks %v: %w", g.rank, g.size, name, ranks, err)
	}
	member, err := memberOf(ranks, g.rank, g.size)
	if err != nil {
		return nil, fail(err)
	}
	g.splits++
	if len(ranks) == 1 {
		return NewSingle(), nil
	}
	store, err := g.store.Prefix(fmt.Sprintf("split-%d/%s/from-%d", g.splits, name, ranks[0]))
	if err != nil {
		return nil, fail(err)
	}
	part, err := NewGloo(ctx, store, member, len(ranks), GlooConfig{Host: g.host, Timeout: g.timeout})
	if err != nil {
		store.release()
		return nil, fail(err)
	}
	part.name, part.ownsStore = name, true
	return part, nil
}

// Abort implements Group.
func (g *Gloo) Abort(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.aborted != nil || g.h == 0 {
		return
	}
	g.aborted = abortedBy(cause)
	_ = capi.AbortGroup(g.h)
}

// Close implements Group.
func (g *Gloo) Close(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.h != 0 {
		capi.FreeGroup(g.h)
		g.h = 0
		if g.ownsStore {
			g.store.release()
		}
	}
	return nil
}

func (op ReduceOp) code() int {
	switch op {
	case Min:
		return capi.ReduceMin
	case Max:
		return capi.ReduceMax
	}
	return capi.ReduceSum
}

func (g *Gloo) averaged(w Work, err error, t *torch.Tensor, op ReduceOp) (Work, error) {
	if err != nil || op != Avg {
		return w, err
	}
	return &then{Work: w, f: func() error {
		return quietly(func(s *torch.Scope) { t.In(s).VariableData().DivScalarInPlace(float64(g.size)) })
	}}, nil
}

func (g *Gloo) start(ctx context.Context, op Op, t *torch.Tensor, f func(capi.Handle) (capi.Handle, error)) (Work, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, newError(ctx, op, g, t, context.Cause(ctx))
	case g.aborted != nil:
		return nil, newError(ctx, op, g, t, g.aborted)
	case g.h == 0:
		return nil, newError(ctx, op, g, t, errClosed)
	}
	h, err := f(g.h)
	if err != nil {
		return nil, newError(ctx, op, g, t, err)
	}
	return &glooWork{g: g, h: h, op: op, label: Label(ctx), t: t, deadline: time.Now().Add(g.timeout)}, nil
}

type glooWork struct {
	g        *Gloo
	h        capi.Handle // 0 after the first Wait
	op       Op
	label    string
	t        *torch.Tensor
	deadline time.Time
	err      error // what Wait returned
}

// Wait implements Work.
func (w *glooWork) Wait(ctx context.Context) error {
	if w.h != 0 {
		w.err = w.wait(ctx)
		capi.FreeWork(w.h)
		w.h = 0
	}
	return w.err
}

// wait looks at ctx several times a second: a rank whose job is cancelled does not sit in a collective that its peers
// never join.
func (w *glooWork) wait(ctx context.Context) error {
	for {
		done, err := capi.WaitWork(w.h, 200)
		if err != nil {
			if isTimeout(err) {
				err = fmt.Errorf("%w (%v): %w", ErrTimeout, w.g.timeout, err)
			}
			return w.fail(err)
		}
		if done {
			return nil
		}
		if ctx.Err() != nil {
			err := w.fail(context.Cause(ctx))
			w.g.Abort(err)
			return err
		}
		if time.Now().After(w.deadline) {
			err := w.fail(fmt.Errorf("%w (%v)", ErrTimeout, w.g.timeout))
			w.g.Abort(err)
			return err
		}
	}
}

func (w *glooWork) fail(err error) error {
	return newError(WithLabel(context.Background(), w.label), w.op, w.g, w.t, err)
}

// then is work with something to do afterwards.
type then struct {
	Work
	f   func() error // nil once done
	err error
}

func (t *then) Wait(ctx context.Context) error {
	err := t.Work.Wait(ctx)
	if err == nil && t.f != nil {
		t.err, t.f = t.f(), nil
	}
	return errors.Join(err, t.err)
}
