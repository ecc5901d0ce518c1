package torch

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Invocation is one call of an Op under way: a method for each argument, in the order of Op.Args, then one of Tensor,
// Tensors, Run and Drop, which runs the operator and panics with a *Error as every operator does. No argument method
// panics; what is wrong with an argument is reported by the last method. An Invocation is used once.
//
// Methods that begin with Opt take a pointer, slice or interface of which nil stands for the operator's own default (None
// for an argument that may be None and has no default). Those that begin with Nonzero do the same for the zero value, and
// are meant for arguments whose default it is.
type Invocation struct {
	name  string
	op    *Op
	out   []int64 // the value stream of gofsdp.h
	used  []*Tensor
	rng   *Generator // kept reachable: the collector frees generators
	scope *Scope
	err   error // the first fault of an argument
	rets  [32]int64
}

// Invocations are on the heap, since a callback into Go during the call may move the stack, and are used again.
var invocations = sync.Pool{New: func() any {
	return &Invocation{out: make([]int64, 0, 128), used: make([]*Tensor, 0, 16)}
}}

func newInvocation(name string) *Invocation {
	c := invocations.Get().(*Invocation)
	c.name = name
	return c
}

// Begin starts a call of the operator.
func (o *Op) Begin() *Invocation {
	c := invocations.Get().(*Invocation)
	c.name, c.op = o.Name, o
	return c
}

// close ends the use of the tensors and gives the buffers back.
func (c *Invocation) close() {
	for _, t := range c.used {
		t.done()
	}
	runtime.KeepAlive(c.rng)
	clear(c.used)
	c.op, c.out, c.used, c.scope, c.rng, c.err = nil, c.out[:0], c.used[:0], nil, nil, nil
	if cap(c.out) <= 1<<12 {
		invocations.Put(c)
	}
}

// run calls the operator; the result is valid until close.
func (c *Invocation) run() []int64 { return c.runInto(c.rets[:]) }

func (c *Invocation) runInto(rets []int64) []int64 {
	h, err := c.op.find()
	check(c.name, err)
	if c.err != nil {
		panic(c.err)
	}
	if c.op.heavy {
		defer enterHeavy()()
	}
	calls.enter()
	out, err := capi.CallOp(h, c.out, rets)
	calls.leave()
	if err != nil {
		panic(c.explain(wrap(c.name, err)))
	}
	return out
}

// Tensor runs an operator that has one tensor as its result.
func (c *Invocation) Tensor() *Tensor {
	defer c.close()
	out := c.run()
	if len(out) < 2 || out[0] != capi.TagTensor {
		return nil
	}
	return wrapHandle(capi.Handle(out[1]), c.scope)
}

// Tensors runs an operator that has one list of tensors as its result.
func (c *Invocation) Tensors() []*Tensor {
	defer c.close()
	r := Results{words: c.run(), scope: c.scope}
	return r.Tensors()
}

// Drop runs an operator for its effect on its arguments, and drops the results.
func (c *Invocation) Drop() {
	defer c.close()
	c.runInto(nil)
}

// Run runs the operator; the results must all be read.
func (c *Invocation) Run() Results {
	defer c.close()
	return Results{words: append([]int64(nil), c.run()...), scope: c.scope}
}

func (c *Invocation) results() []any {
	defer c.close()
	r := Results{words: c.run(), scope: c.scope}
	return r.all()
}

func (c *Invocation) fault(kind error, format string, args ...any) {
	if c.err == nil {
		c.err = &Error{Op: c.name, Kind: kind, Msg: fmt.Sprintf(format, args...)}
	}
}

func (c *Invocation) explain(err error) error {
	te, ok := err.(*Error)
	if !ok || te.Cause != nil || len(c.used) == 0 {
		return err
	}
	const most = 8
	var list []string
	for i, t := range c.used {
		if i == most {
			list = append(list, fmt.Sprintf("and %d more", len(c.used)-most))
			break
		}
		list = append(list, fmt.Sprintf("%v %v", t.Shape(), t.DType()))
	}
	te.Msg += " (tensors: " + strings.Join(list, ", ") + ")"
	return te
}

// tensor takes t into use and gives its handle; nil gives 0.
func (c *Invocation) tensor(t *Tensor) int64 {
	if t == nil || c.err != nil {
		return 0
	}
	scope, ok := innermost(c.scope, t.scope)
	if !ok {
		c.fault(ErrScope, "arguments belong to scopes of which neither contains the other; bind them with In")
		return 0
	}
	if t.cell == nil {
		c.fault(ErrArgument, "tensor is nil")
		return 0
	}
	h := t.cell.use()
	if h == 0 {
		c.fault(ErrFreed, freedMessage)
		return 0
	}
	c.scope = scope
	c.used = append(c.used, t)
	return int64(h)
}

// handles takes each tensor into use; nil gives 0. It panics where one cannot be used.
func (c *Invocation) handles(tensors []*Tensor) []capi.Handle {
	if tensors == nil {
		return nil
	}
	list := make([]capi.Handle, len(tensors))
	for i, t := range tensors {
		list[i] = capi.Handle(c.tensor(t))
	}
	if c.err != nil {
		panic(c.err)
	}
	return list
}

func (c *Invocation) words(w ...int64) *Invocation {
	c.out = append(c.out, w...)
	return c
}

func (c *Invocation) text(s string) {
	c.out = append(c.out, int64(len(s)))
	for len(s) >= 8 {
		c.out = append(c.out, int64(binary.NativeEndian.Uint64([]byte(s[:8]))))
		s = s[8:]
	}
	if len(s) > 0 {
		var last [8]byte
		copy(last[:], s)
		c.out = append(c.out, int64(binary.NativeEndian.Uint64(last[:])))
	}
}

// put appends an argument of any type that the stream can carry.
func (c *Invocation) put(a any) {
	switch v := a.(type) {
	case nil:
		c.words(capi.TagNone)
	case *Tensor:
		c.T(v)
	case int:
		c.Int(int64(v))
	case int64:
		c.Int(v)
	case float64:
		c.Float(v)
	case float32:
		c.Float(float64(v))
	case bool:
		c.Bool(v)
	case complex128:
		c.complex(v)
	case string:
		c.Str(v)
	case []int64:
		c.Ints(v)
	case []int:
		c.words(capi.TagIntList, int64(len(v)))
		for _, x := range v {
			c.words(int64(x))
		}
	case []float64:
		c.Floats(v)
	case []bool:
		c.Bools(v)
	case []string:
		c.Strs(v)
	case []Number:
		c.Numbers(v)
	case []*Tensor:
		c.Ts(v)
	case DType:
		c.DType(v)
	case Layout:
		c.Layout(v)
	case MemoryFormat:
		c.MemoryFormat(v)
	case Device:
		c.Device(v)
	case *Generator:
		if v == nil {
			c.words(capi.TagNone)
			return
		}
		c.OptGenerator(v)
	case defaultArg:
		c.words(capi.TagDefault)
	default:
		c.fault(ErrArgument, "arguments of type %T cannot be passed", a)
	}
}

func (c *Invocation) complex(v complex128) *Invocation {
	return c.words(capi.TagComplex, bits(real(v)), bits(imag(v)))
}

func bits(v float64) int64 { return int64(math.Float64bits(v)) }

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
