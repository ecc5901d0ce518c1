package dist

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
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
	// ConnectTimeout bounds the connecting; 0 means Timeout. The deadline of the context bounds it too.
	ConnectTimeout time.Duration
	// Check makes the ranks compare, before each collective, what they are about to run, so that a rank which runs another
	// one or another size is named at once. Without it that takes the watchdog a few seconds. Collectives then wait for all
	// ranks when they start. TORCH_DISTRIBUTED_DEBUG=DETAIL sets it as well.
	Check bool
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

	check bool
	watch *watchdog

	mu      sync.Mutex
	h       capi.Handle
	aborted error
	seq     int64 // collectives that were started
	running int   // of them, those that were not waited for
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
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = c.Timeout
	}
	connect := bounded(ctx, c.ConnectTimeout)
	fail := func(err error) error {
		return fmt.Errorf("dist: rank %d of %d: connect the process group on %s: %w", rank, size, c.Host, err)
	}
	if err := store.Set(joined(rank), []byte{1}); err != nil {
		return nil, fail(err)
	}
	type result struct {
		h   capi.Handle
		err error
	}
	opened := make(chan result, 1)
	go func() {
		var r result
		r.err = store.use(func(s capi.Handle) (err error) {
			r.h, err = capi.NewGloo(s, rank, size, connect.Milliseconds(), c.Timeout.Milliseconds(), c.Host)
			return err
		})
		opened <- r
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			if isTimeout(r.err) {
				r.err = fmt.Errorf("%w: %w", ErrTimeout, r.err)
			}
			return nil, fail(store.whoIsMissing(r.err, size))
		}
		g := &Gloo{rank: rank, size: size, timeout: c.Timeout, host: c.Host, store: store, h: r.h,
			check: c.Check || strings.EqualFold(os.Getenv("TORCH_DISTRIBUTED_DEBUG"), "DETAIL")}
		err := store.allConnected(ctx, size, connect)
		if err != nil {
			capi.FreeGroup(r.h)
			return nil, fail(err)
		}
		g.watch, err = newWatchdog(store, rank, size, c.Timeout, func(cause error) { g.abort(abortedBy(cause)) })
		if err != nil {
			capi.FreeGroup(r.h)
			return nil, fail(err)
		}
		return g, nil
	case <-ctx.Done():
		go func() { // the connecting itself cannot be ended
			if r := <-opened; r.err == nil {
				capi.FreeGroup(r.h)
			}
		}()
		return nil, fail(context.Cause(ctx))
	}
}

// allConnected returns when size ranks have called it. A rank that is connected and leaves at once would else break the
// connections of others that are still at it.
func (s *Store) allConnected(ctx context.Context, size int, timeout time.Duration) error {
	n, err := s.Add("connected", 1)
	if err == nil && n == int64(size) {
		err = s.Set("all connected", []byte{1})
	}
	if err == nil {
		_, err = s.Get(ctx, "all connected", timeout)
	}
	return err
}

// joined is the key under which a rank says that it is connecting.
func joined(rank int) string { return "joined/" + strconv.Itoa(rank) }

// whoIsMissing adds to err the ranks that have not begun to connect.
func (s *Store) whoIsMissing(err error, size int) error {
	missing := make(chan []int, 1)
	within(time.Second, func() {
		var ranks []int
		for rank := range size {
			if set, err := s.isSet(joined(rank)); err != nil {
				return
			} else if !set {
				ranks = append(ranks, rank)
			}
		}
		missing <- ranks
	})
	select {
	case ranks := <-missing:
		return fmt.Errorf("%w; ranks that did not begin to connect: %v", err, ranks)
	default:
		return err
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
	if err := checkAllGather(g.size, out, in); err != nil {
		return nil, newError(ctx, OpAllGather, g, in, err)
	}
	return g.start(ctx, OpAllGather, in, out.Numel(), int64(in.DType()), func(pg capi.Handle) (h capi.Handle, err error) {
		out.WithHandle(func(o uintptr) {
			in.WithHandle(func(i uintptr) { h, err = capi.AllGather(pg, capi.Handle(o), capi.Handle(i)) })
		})
		return h, err
	})
}

// ReduceScatter implements Group. Gloo has no average: Avg divides after the sum.
func (g *Gloo) ReduceScatter(ctx context.Context, out, in *torch.Tensor, op ReduceOp) (Work, error) {
	if err := checkReduceScatter(g.size, out, in); err != nil {
		return nil, newError(ctx, OpReduceScatter, g, in, err)
	}
	w, err := g.start(ctx, OpReduceScatter, in, in.Numel(), code(in, int(op)), func(pg capi.Handle) (h capi.Handle, err error) {
		out.WithHandle(func(o uintptr) {
			in.WithHandle(func(i uintptr) { h, err = capi.ReduceScatter(pg, capi.Handle(o), capi.Handle(i), op.code()) })
		})
		return h, err
	})
	return g.averaged(w, err, out, op)
}

// AllReduce implements Group.
func (g *Gloo) AllReduce(ctx context.Context, t *torch.Tensor, op ReduceOp) (Work, error) {
	if err := checkTensor(t); err != nil {
		return nil, newError(ctx, OpAllReduce, g, t, err)
	}
	w, err := g.start(ctx, OpAllReduce, t, t.Numel(), code(t, int(op)), func(pg capi.Handle) (h capi.Handle, err error) {
		t.WithHandle(func(x uintptr) { h, err = capi.AllReduce(pg, capi.Handle(x), op.code()) })
		return h, err
	})
	return g.averaged(w, err, t, op)
}

// Broadcast implements Group.
func (g *Gloo) Broadcast(ctx context.Context, t *torch.Tensor, root int) (Work, error) {
	if err := errors.Join(checkRoot(g.size, root), checkTensor(t)); err != nil {
		return nil, newError(ctx, OpBroadcast, g, t, err)
	}
	return g.start(ctx, OpBroadcast, t, t.Numel(), code(t, root), func(pg capi.Handle) (h capi.Handle, err error) {
		t.WithHandle(func(x uintptr) { h, err = capi.Broadcast(pg, capi.Handle(x), root) })
		return h, err
	})
}

// Barrier implements Group.
func (g *Gloo) Barrier(ctx context.Context) error {
	return Wait(ctx)(g.start(ctx, OpBarrier, nil, 0, 0, capi.Barrier))
}

// code joins what ranks must agree on besides the kind of a collective and the number of elements.
func code(t *torch.Tensor, argument int) int64 { return int64(argument)<<8 | int64(t.DType()) }

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
	part, err := NewGloo(ctx, store, member, len(ranks), GlooConfig{Host: g.host, Timeout: g.timeout, Check: g.check})
	if err != nil {
		store.release()
		return nil, fail(err)
	}
	part.name, part.ownsStore = name, true
	return part, nil
}

// Abort implements Group. The other ranks abort too, and give cause as their reason.
func (g *Gloo) Abort(cause error) {
	if !g.abort(abortedBy(cause)) {
		return
	}
	g.mu.Lock()
	last := operation{Seq: g.seq}
	g.mu.Unlock()
	s := &Stall{Rank: g.rank, Size: g.size, Seq: last.Seq, Reason: ErrAborted.Error()}
	if cause != nil {
		s.Reason += ": " + cause.Error()
	}
	g.watch.announce(s)
}

// abort makes running and later collectives fail with cause. It returns false if that was so already.
func (g *Gloo) abort(cause error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.aborted != nil || g.h == 0 {
		return false
	}
	g.aborted = cause
	_, _ = capi.AbortGroup(g.h) // where it is not possible, Gloo's own timeout ends the work
	return true
}

// Close implements Group. Collectives that nobody has waited for are aborted.
func (g *Gloo) Close(context.Context) error {
	g.mu.Lock()
	h, running, aborted := g.h, g.running, g.aborted
	g.h = 0
	g.mu.Unlock()
	if h == 0 {
		return nil
	}
	if running > 0 {
		_, _ = capi.AbortGroup(h)
	}
	g.watch.close(aborted == nil)
	capi.FreeGroup(h) // ends when the work has
	if g.ownsStore {
		g.store.release()
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

// start begins a collective on t. whole is the number of elements that all ranks must agree on, and code whatever else.
func (g *Gloo) start(ctx context.Context, op Op, t *torch.Tensor, whole, code int64, f func(capi.Handle) (capi.Handle, error)) (Work, error) {
	what, err := g.begin(ctx, operation{Op: op, Label: Label(ctx), Elements: whole, Code: code})
	if err == nil && g.check {
		err = g.compare(ctx, what, t, code)
	}
	if err != nil {
		var failed *Error
		if errors.As(err, &failed) {
			return nil, err
		}
		return nil, newError(ctx, op, g, t, err)
	}
	h, err := g.launch(f)
	if err != nil {
		return nil, newError(ctx, op, g, t, err)
	}
	return newGlooWork(g, h, what, t), nil
}

// begin gives a collective its number.
func (g *Gloo) begin(ctx context.Context, what operation) (operation, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(ctx); err != nil {
		return what, err
	}
	g.seq++
	what.Seq = g.seq
	g.watch.started(what)
	return what, nil
}

func (g *Gloo) usable(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case g.aborted != nil:
		return g.aborted
	case g.h == 0:
		return errClosed
	}
	return nil
}

// launch calls f, which starts native work.
func (g *Gloo) launch(f func(capi.Handle) (capi.Handle, error)) (capi.Handle, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(context.Background()); err != nil {
		return 0, err
	}
	h, err := f(g.h)
	if err == nil {
		g.running++
	}
	return h, err
}

// ended counts work that was waited for.
func (g *Gloo) ended() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
}

// cause is why the group was aborted, or nil.
func (g *Gloo) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.aborted
}
