package dist

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gofsdp/gofsdp/torch"
)

// Fake is a Group without other processes, as PyTorch's FakeProcessGroup: this process is one rank of any number, and the
// collectives end at once, as if every other rank had the same values. So the memory and the communication of one rank of
// a large job can be looked at on one machine: wrap it in Counted. On meta tensors nothing is computed.
type Fake struct {
	rank, size int

	mu    sync.Mutex
	ended error // why collectives fail: aborted or closed
}

var _ Splitter = (*Fake)(nil)

// NewFake makes this process rank of size.
func NewFake(rank, size int) (*Fake, error) {
	if rank < 0 || size < 1 || rank >= size {
		return nil, fmt.Errorf("dist: rank %d of a group of %d", rank, size)
	}
	return &Fake{rank: rank, size: size}, nil
}

// Rank is the number that NewFake was given.
func (g *Fake) Rank() int { return g.rank }

// Size is the number of ranks that NewFake was given.
func (g *Fake) Size() int { return g.size }

// AllGather implements Group: out holds in Size times.
func (g *Fake) AllGather(ctx context.Context, out, in *torch.Tensor) (Work, error) {
	return g.run(ctx, OpAllGather, in, func() error {
		if err := checkAllGather(g.size, out, in); err != nil || out.Device() == torch.Meta {
			return err
		}
		return quietly(func(s *torch.Scope) {
			out.In(s).VariableData().View(int64(g.size), -1).Copy(in.In(s).Detach().Reshape(1, -1))
		})
	})
}

// ReduceScatter implements Group: out is this rank's part of in, times Size for Sum.
func (g *Fake) ReduceScatter(ctx context.Context, out, in *torch.Tensor, op ReduceOp) (Work, error) {
	return g.run(ctx, OpReduceScatter, in, func() error {
		if err := checkReduceScatter(g.size, out, in); err != nil || out.Device() == torch.Meta {
			return err
		}
		return quietly(func(s *torch.Scope) {
			n := out.Numel()
			g.reduce(out.In(s).VariableData().Copy(in.In(s).Detach().Narrow(0, int64(g.rank)*n, n)), op)
		})
	})
}

// AllReduce implements Group: t is unchanged, but times Size for Sum.
func (g *Fake) AllReduce(ctx context.Context, t *torch.Tensor, op ReduceOp) (Work, error) {
	return g.run(ctx, OpAllReduce, t, func() error {
		if err := checkTensor(t); err != nil || t.Device() == torch.Meta {
			return err
		}
		return quietly(func(s *torch.Scope) { g.reduce(t.In(s).VariableData(), op) })
	})
}

// Broadcast implements Group: t is unchanged.
func (g *Fake) Broadcast(ctx context.Context, t *torch.Tensor, root int) (Work, error) {
	return g.run(ctx, OpBroadcast, t, func() error { return errors.Join(checkRoot(g.size, root), checkTensor(t)) })
}

// Barrier implements Group.
func (g *Fake) Barrier(ctx context.Context) error {
	_, err := g.run(ctx, OpBarrier, nil, func() error { return nil })
	return err
}

// Split implements Splitter.
func (g *Fake) Split(_ context.Context, name string, ranks []int) (Group, error) {
	member, err := memberOf(ranks, g.rank, g.size)
	if err != nil {
		return nil, fmt.Errorf("dist: rank %d of %d: split %q: %w", g.rank, g.size, name, err)
	}
	return NewFake(member, len(ranks))
}

// Abort implements Group.
func (g *Fake) Abort(cause error) { g.end(abortedBy(cause)) }

// Close implements Group.
func (g *Fake) Close(context.Context) error {
	g.end(errClosed)
	return nil
}

func (g *Fake) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended == nil {
		g.ended = err
	}
}

func (g *Fake) reduce(t *torch.Tensor, op ReduceOp) {
	if op == Sum {
		t.MulScalarInPlace(float64(g.size))
	}
}

func (g *Fake) run(ctx context.Context, op Op, t *torch.Tensor, f func() error) (Work, error) {
	g.mu.Lock()
	err := g.ended
	g.mu.Unlock()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = f()
	}
	if err != nil {
		return nil, newError(ctx, op, g, t, err)
	}
	return done{}, nil
}

// quietly runs f without autograd, and frees what it made.
func quietly(f func(s *torch.Scope)) error {
	return torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			f(s)
		})
	})
}
