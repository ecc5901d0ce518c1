package dist

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// Error is a collective that failed on this rank.
type Error struct {
	Op    Op
	Label string // what the collective was for: WithLabel
	Rank  int
	Size  int
	Shape []int64
	Err   error
}

// Error names the rank, the collective and what it was for.
func (e *Error) Error() string {
	label := ""
	if e.Label != "" {
		label = fmt.Sprintf(" for %q", e.Label)
	}
	return fmt.Sprintf("dist: rank %d of %d: %s%s of shape %v: %v", e.Rank, e.Size, e.Op, label, e.Shape, e.Err)
}

// Unwrap leads to the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrAborted is the reason of collectives after Abort.
var ErrAborted = errors.New("process group was aborted")

// ErrTimeout is the reason of collectives, and of connecting, that some rank did not join in time.
var ErrTimeout = errors.New("timed out: a rank did not take part, or is stuck")

var errClosed = errors.New("the process group is closed")

// abortedBy is ErrAborted with its cause.
func abortedBy(cause error) error {
	if cause == nil {
		return ErrAborted
	}
	return fmt.Errorf("%w: %w", ErrAborted, cause)
}

func newError(ctx context.Context, op Op, g Group, t *torch.Tensor, err error) *Error {
	e := &Error{Op: op, Label: Label(ctx), Rank: g.Rank(), Size: g.Size(), Err: err}
	if t != nil && !t.Freed() {
		e.Shape = t.Shape()
	}
	return e
}

func checkAllGather(size int, out, in *torch.Tensor) error {
	if err := errors.Join(checkTensor(out), checkTensor(in)); err != nil {
		return err
	}
	if out.Numel() != int64(size)*in.Numel() || out.DType() != in.DType() || out.Device() != in.Device() {
		return fmt.Errorf("out is %v, needs %d elements of %v on %v", out, int64(size)*in.Numel(), in.DType(), in.Device())
	}
	return nil
}

func checkReduceScatter(size int, out, in *torch.Tensor) error {
	if err := errors.Join(checkTensor(out), checkTensor(in)); err != nil {
		return err
	}
	if in.Numel() != int64(size)*out.Numel() || out.DType() != in.DType() || out.Device() != in.Device() || in.Dim() != 1 || out.Dim() != 1 {
		return fmt.Errorf("out is %v, needs to be one of %d equal parts of 1-D %v", out, size, in)
	}
	return nil
}

func checkRoot(size, root int) error {
	if root < 0 || root >= size {
		return fmt.Errorf("root is rank %d", root)
	}
	return nil
}

func checkTensor(t *torch.Tensor) error {
	if t.Freed() {
		return errors.New("the tensor was freed")
	}
	return nil
}
