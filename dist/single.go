package dist

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// Single is the group of one rank: collectives are copies.
type Single struct{}

var _ Splitter = Single{}

// NewSingle makes a group of one rank.
func NewSingle() Single { return Single{} }

// Rank implements Group.
func (Single) Rank() int { return 0 }

// Size implements Group.
func (Single) Size() int { return 1 }

type done struct{}

func (done) Wait(context.Context) error { return nil }

// AllGather implements Group.
func (Single) AllGather(_ context.Context, out, in *torch.Tensor) (Work, error) {
	return done{}, copyInto(out, in)
}

// ReduceScatter implements Group.
func (Single) ReduceScatter(_ context.Context, out, in *torch.Tensor, _ ReduceOp) (Work, error) {
	return done{}, copyInto(out, in)
}

// AllReduce implements Group.
func (Single) AllReduce(context.Context, *torch.Tensor, ReduceOp) (Work, error) { return done{}, nil }

// Broadcast implements Group.
func (Single) Broadcast(context.Context, *torch.Tensor, int) (Work, error) { return done{}, nil }

// Split implements Splitter: the one part is the group itself.
func (g Single) Split(_ context.Context, name string, ranks []int) (Group, error) {
	if _, err := memberOf(ranks, 0, 1); err != nil {
		return nil, fmt.Errorf("dist: rank 0 of 1: split %q: %w", name, err)
	}
	return g, nil
}

// Barrier implements Group.
func (Single) Barrier(context.Context) error { return nil }

// Abort implements Group.
func (Single) Abort(error) {}

// Close implements Group.
func (Single) Close(context.Context) error { return nil }

func copyInto(out, in *torch.Tensor) error {
	return quietly(func(s *torch.Scope) {
		out.In(s).VariableData().View(-1).Copy(in.In(s).Detach().Reshape(-1))
	})
}
