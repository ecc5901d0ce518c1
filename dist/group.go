package dist

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// ReduceOp says how a collective joins the ranks' values.
type ReduceOp int

// The reductions.
const (
	Sum ReduceOp = iota
	Avg
	Min
	Max
)

// String is the operator's name.
func (op ReduceOp) String() string {
	switch op {
	case Sum:
		return "sum"
	case Avg:
		return "average"
	case Min:
		return "minimum"
	case Max:
		return "maximum"
	}
	return fmt.Sprintf("reduction %d", int(op))
}

// Group is a set of ranks that run collectives together. Every rank must start the same collectives in the same order.
// Collectives return when they are enqueued; the tensors must live and stay unchanged until Work.Wait returns.
type Group interface {
	// Rank is this process's number in the group, from 0.
	Rank() int
	// Size is the number of ranks.
	Size() int
	// AllGather fills out with in of every rank in rank order; out has Size times as many elements as in, of the same type.
	AllGather(ctx context.Context, out, in *torch.Tensor) (Work, error)
	// ReduceScatter reduces in over the ranks and leaves part number Rank of the result in out; in has Size times as many
	// elements as out, and both are 1-D.
	ReduceScatter(ctx context.Context, out, in *torch.Tensor, op ReduceOp) (Work, error)
	// AllReduce reduces t over the ranks in place.
	AllReduce(ctx context.Context, t *torch.Tensor, op ReduceOp) (Work, error)
	// Broadcast copies t of rank root to every rank.
	Broadcast(ctx context.Context, t *torch.Tensor, root int) (Work, error)
	// Barrier returns when every rank has called it.
	Barrier(ctx context.Context) error
	// Abort makes running and later collectives of this group fail with cause.
	Abort(cause error)
	// Close leaves the group. Every rank calls it.
	Close(ctx context.Context) error
}

// Work is a collective that was started.
type Work interface {
	// Wait returns when the result is there, or with the reason why it will not be. Later calls return the same; one
	// goroutine at a time may wait.
	Wait(ctx context.Context) error
}

// Wait waits for work if err, the error of starting it, is nil: dist.Wait(ctx)(g.AllReduce(ctx, t, dist.Sum)).
func Wait(ctx context.Context) func(Work, error) error {
	return func(w Work, err error) error {
		if err != nil {
			return err
		}
		return w.Wait(ctx)
	}
}
