package torch

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Kinds of Error, for errors.Is.
var (
	ErrOutOfMemory = errors.New("out of memory")
	ErrArgument    = errors.New("invalid argument")
	ErrFreed       = errors.New("tensor was freed")
	ErrScope       = errors.New("tensors of unrelated scopes")
	ErrLibrary     = errors.New("libgofsdp is not available")
	ErrTimeout     = errors.New("timed out")
	ErrCollective  = errors.New("collective failed")
)

// Error is what operators panic with and Try returns.
type Error struct {
	Op    string // the operator, e.g. "aten::matmul"
	Msg   string // libtorch's message, or ours
	Kind  error  // one of the sentinel errors above, or nil
	Cause error  // the Go error, where a callback failed inside libtorch
}

// Error gives the operator and the message.
func (e *Error) Error() string {
	msg := e.Msg
	if e.Cause != nil {
		msg = e.Cause.Error()
	}
	return fmt.Sprintf("torch: %s: %s", strings.TrimPrefix(e.Op, "aten::"), msg)
}

// Unwrap leads to the kind and to the cause.
func (e *Error) Unwrap() []error {
	var list []error
	if e.Kind != nil {
		list = append(list, e.Kind)
	}
	if e.Cause != nil {
		list = append(list, e.Cause)
	}
	return list
}

// wrap makes a *Error of an error of capi.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	var ce *capi.Error
	if !errors.As(err, &ce) {
		return &Error{Op: op, Msg: err.Error(), Kind: ErrLibrary, Cause: err}
	}
	e := &Error{Op: op, Msg: strings.TrimSpace(ce.Message), Cause: ce.Cause}
	switch ce.Kind {
	case capi.KindOOM:
		e.Kind = ErrOutOfMemory
	case capi.KindTorch:
		e.Kind = ErrArgument
	case capi.KindNoSymbol:
		e.Kind = ErrLibrary
	case capi.KindDist:
		e.Kind = ErrCollective
	case capi.KindTimeout:
		e.Kind = ErrTimeout
	}
	return e
}

// check panics with a *Error if err is not nil.
func check(op string, err error) {
	if err != nil {
		panic(wrap(op, err))
	}
}

// fail panics with a *Error.
func fail(op string, kind error, format string, args ...any) {
	panic(&Error{Op: op, Kind: kind, Msg: fmt.Sprintf(format, args...)})
}

// failure carries any error through code that cannot return one, up to the next Try.
type failure struct{ err error }

func (f failure) Error() string { return f.err.Error() }
func (f failure) Unwrap() error { return f.err }

// Throw leaves the running operator code with err; the Try around it, or the Backward around it, returns err. Hooks and
// layers use it for failures of I/O and communication. A nil err does nothing.
func Throw(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Try runs f and returns the *Error with which an operator in it panicked, or the error given to Throw. Other panics
// pass through: they are bugs.
func Try(f func()) (err error) {
	defer Catch(&err)
	f()
	return nil
}

// Catch is Try for a whole function with a named error result, deferred at its top:
//
//	func Load(path string) (m *Model, err error) {
//		defer torch.Catch(&err)
//
// The panic of an operator below, out of memory for one, becomes the function's error.
func Catch(err *error) {
	switch v := recover().(type) {
	case nil:
	case *Error:
		*err = v
	case failure:
		*err = v.err
	default:
		panic(v)
	}
}
