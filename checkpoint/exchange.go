package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio/dcp"
	"github.com/gofsdp/gofsdp/torch"
)

// RankError tells a rank that another one failed.
type RankError struct {
	Rank  int
	Op    string // such as "save"
	Cause string // the other rank's error
}

// Error names the rank and its reason.
func (e *RankError) Error() string {
	return fmt.Sprintf("rank %d failed to %s: %s", e.Rank, e.Op, e.Cause)
}

// report is what ranks tell each other after each stage.
type report struct {
	Error string `json:",omitempty"`
	Step  int
	Items []item `json:",omitempty"`
	Files []File `json:",omitempty"`
	// What a rank has written in PyTorch's format.
	ModelParts     []dcp.Part `json:",omitempty"`
	OptimizerParts []dcp.Part `json:",omitempty"`
}

// Agree tells every rank how op ended on every other: it returns nil where err is nil on all ranks, err itself where it
// is not nil, and a *RankError elsewhere. A collective. After loading it keeps ranks from training while one has failed.
func Agree(ctx context.Context, g dist.Group, op string, err error) error {
	_, err = share(ctx, g, op, report{}, err)
	return err
}

// errLost is in the error of share where this rank cannot know what the others do.
var errLost = errors.New("exchange the outcome with the other ranks")

// farewell is how long a rank whose context has ended tries to tell the others.
const farewell = 5 * time.Second

// share is Agree for ranks that have something to tell; the reports come in rank order.
func share(ctx context.Context, g dist.Group, op string, mine report, err error) ([]report, error) {
	if err != nil {
		mine = report{Error: err.Error()}
		if ctx.Err() != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), farewell)
			defer cancel()
		}
	}
	all, lost := exchange(ctx, g, mine)
	switch {
	case lost != nil:
		return nil, errors.Join(err, fmt.Errorf("%w: %w", errLost, lost))
	case err != nil:
		return nil, err
	}
	for rank, r := range all {
		if r.Error != "" {
			return nil, &RankError{Rank: rank, Op: op, Cause: r.Error}
		}
	}
	return all, nil
}

// exchange gives every rank the values of all, in rank order.
func exchange[T any](ctx context.Context, g dist.Group, mine T) (all []T, err error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	lengths, err := allGather(ctx, g, []int64{int64(len(text))})
	if err != nil {
		return nil, err
	}
	longest := slices.Max(lengths)
	texts, err := allGather(ctx, g, append(text, make([]byte, longest-int64(len(text)))...))
	if err != nil {
		return nil, err
	}
	all = make([]T, len(lengths))
	for rank, n := range lengths {
		part := texts[int64(rank)*longest:][:n]
		if err := json.Unmarshal(part, &all[rank]); err != nil {
			return nil, fmt.Errorf("message of rank %d: %w", rank, err)
		}
	}
	return all, nil
}

func allGather[T torch.Element](ctx context.Context, g dist.Group, values []T) (all []T, err error) {
	if failed := torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		in := s.Own(torch.FromSlice(values))
		out := s.Own(torch.Empty(in.DType(), int64(g.Size()*len(values))))
		torch.Throw(dist.Wait(ctx)(g.AllGather(ctx, out, in)))
		all = torch.Slice[T](out)
	}); failed != nil {
		return nil, failed
	}
	return all, nil
}
