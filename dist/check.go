package dist

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/capi"
	"github.com/gofsdp/gofsdp/torch"
)

// ErrMismatch is the reason of collectives that not every rank started alike. With GlooConfig.Check it is found before they
// start; without, such collectives do not end, and the watchdog finds it a few seconds later.
var ErrMismatch = errors.New("the ranks run different collectives")

// ops numbers the collectives for the comparison.
var ops = []Op{OpAllGather, OpReduceScatter, OpAllReduce, OpBroadcast, OpBarrier}

// compare lets all ranks see what each of them is about to run, and fails on all of them if that differs. It runs an
// all-gather of four numbers, which waits for every rank.
func (g *Gloo) compare(ctx context.Context, what operation, t *torch.Tensor, code int64) error {
	const width = 4
	number := int64(-1)
	for i, op := range ops {
		if op == what.Op {
			number = int64(i)
		}
	}
	mine := torch.FromSlice([]int64{what.Seq, number, what.Elements, code})
	defer mine.Free()
	all := torch.Empty(torch.Int64, int64(g.size)*width)
	defer all.Free()
	h, err := g.launch(func(pg capi.Handle) (h capi.Handle, err error) {
		all.WithHandle(func(o uintptr) {
			mine.WithHandle(func(i uintptr) { h, err = capi.AllGather(pg, capi.Handle(o), capi.Handle(i)) })
		})
		return h, err
	})
	if err != nil {
		return err
	}
	if err := newGlooWork(g, h, what, t).Wait(ctx); err != nil {
		return err
	}
	rows := torch.Slice[int64](all)
	own := rows[g.rank*width:][:width]
	for rank := range g.size {
		row := rows[rank*width:][:width]
		if [width]int64(row) != [width]int64(own) {
			err := fmt.Errorf("%w: rank %d runs %s, rank %d %s", ErrMismatch, g.rank, describe(own), rank, describe(row))
			g.Abort(err)
			return err
		}
	}
	return nil
}

// describe puts a row of compare in words.
func describe(row []int64) string {
	o := operation{Seq: row[0], Op: "an unknown collective", Elements: row[2], Code: row[3]}
	if i := row[1]; i >= 0 && int(i) < len(ops) {
		o.Op = ops[i]
	}
	return o.describe()
}

// describe is String with all that ranks must agree on.
func (o operation) describe() string {
	s := o.String()
	if o.Op == OpBarrier {
		return s
	}
	s += fmt.Sprintf(" of %v", torch.DType(o.Code&0xff))
	switch argument := o.Code >> 8; o.Op {
	case OpBroadcast:
		s += fmt.Sprintf(" from rank %d", argument)
	case OpAllReduce, OpReduceScatter:
		s += fmt.Sprintf(" (%v)", ReduceOp(argument))
	}
	return s
}
