package dist

import "context"

// Op is a kind of collective, as errors and counters name it.
type Op string

// The collectives of Group.
const (
	OpAllGather     Op = "all-gather"
	OpReduceScatter Op = "reduce-scatter"
	OpAllReduce     Op = "all-reduce"
	OpBroadcast     Op = "broadcast"
	OpBarrier       Op = "barrier"
)

type labelKey struct{}

// WithLabel names what the collectives started with the returned context are for, such as an FSDP unit. Errors and
// counters repeat it.
func WithLabel(ctx context.Context, label string) context.Context {
	return context.WithValue(ctx, labelKey{}, label)
}

// Label is the name that WithLabel gave, or "".
func Label(ctx context.Context) string {
	label, _ := ctx.Value(labelKey{}).(string)
	return label
}
