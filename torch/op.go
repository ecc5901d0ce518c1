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

// op is an operator of the dispatcher, looked up at its first call. args is the order in which Go passes arguments.
type op struct {
	name, overload, args string
	heavy                bool // see Note [Heavy operators]
	find                 func() (capi.Handle, error)
}

// declared lists the operators that this package names, for a test that compares them with the running library.
var declared []*op

// newOp declares an operator; it is for package variables.
func newOp(name, overload, args string) *op {
	o := lookUp(name, overload, args)
	declared = append(declared, o)
	return o
}

func lookUp(name, overload, args string) *op {
	o := &op{name: name, overload: overload, args: args, heavy: isHeavy(name)}
	o.find = sync.OnceValues(func() (capi.Handle, error) {
		if err := capi.Load(); err != nil {
			return 0, err
		}
		return capi.FindOp(name, overload, args)
	})
	return o
}

type defaultArg struct{}

// Default stands for the operator's own default value of an argument.
var Default any = defaultArg{}

// call runs the operator and wraps its results in the innermost scope of its tensor arguments.
func (o *op) call(args ...any) []any {
	enc := newEncoder(o.name)
	defer enc.close()
	return decode(enc.run(o, args), enc.scope)
}

// one runs an operator with a single tensor result.
func (o *op) one(args ...any) *Tensor {
	enc := newEncoder(o.name)
	defer enc.close()
	out := enc.run(o, args)
	if len(out) < 2 || out[0] != capi.TagTensor {
		return nil
	}
	return wrapHandle(capi.Handle(out[1]), enc.scope)
}

// inPlace runs an operator for its effect on its first argument, and drops the results.
func (o *op) inPlace(args ...any) {
	for _, r := range o.call(args...) {
		switch v := r.(type) {
		case *Tensor:
			v.Free()
		case []*Tensor:
			for _, t := range v {
				t.Free()
			}
		}
	}
}

// encoder writes Go values as the value stream of gofsdp.h, and holds the tensors in it until close. Its buffers are on
// the heap, since a callback into Go during the call may move the stack, and are used again.
type encoder struct {
	op    string
	out   []int64
	used  []*Tensor
	rng   *Generator // kept reachable: the collector frees generators
	scope *Scope
	rets  [32]int64
}

var encoders = sync.Pool{New: func() any {
	return &encoder{out: make([]int64, 0, 128), used: make([]*Tensor, 0, 16)}
}}

func newEncoder(op string) *encoder {
	e := encoders.Get().(*encoder)
	e.op = op
	return e
}

// run encodes args and calls the operator; the result is valid until close.
func (e *encoder) run(o *op, args []any) []int64 {
	h, err := o.find()
	check(o.name, err)
	for _, a := range args {
		e.put(a)
	}
	if o.heavy {
		defer enterHeavy()()
	}
	out, err := capi.CallOp(h, e.out, e.rets[:])
	if err != nil {
		panic(e.explain(wrap(o.name, err)))
	}
	return out
}

func (e *encoder) tensor(t *Tensor) int64 {
	if t == nil {
		return 0
	}
	e.scope = innermost(e.op, e.scope, t)
	h := t.use(e.op)
	e.used = append(e.used, t)
	return int64(h)
}

// handles takes each tensor into use; nil gives 0.
func (e *encoder) handles(tensors []*Tensor) []capi.Handle {
	if tensors == nil {
		return nil
	}
	list := make([]capi.Handle, len(tensors))
	for i, t := range tensors {
		list[i] = capi.Handle(e.tensor(t))
	}
	return list
}

// close ends the use of the tensors and gives the buffers back.
func (e *encoder) close() {
	for _, t := range e.used {
		t.done()
	}
	runtime.KeepAlive(e.rng)
	clear(e.used)
	e.out, e.used, e.scope, e.rng = e.out[:0], e.used[:0], nil, nil
	if cap(e.out) <= 1<<12 {
		encoders.Put(e)
	}
}

func (e *encoder) explain(err error) error {
	te, ok := err.(*Error)
	if !ok || te.Cause != nil || len(e.used) == 0 {
		return err
	}
	const most = 8
	var list []string
	for i, t := range e.used {
		if i == most {
			list = append(list, fmt.Sprintf("and %d more", len(e.used)-most))
			break
		}
		list = append(list, fmt.Sprintf("%v %v", t.Shape(), t.DType()))
	}
	te.Msg += " (tensors: " + strings.Join(list, ", ") + ")"
	return te
}

func (e *encoder) put(a any) {
	switch v := a.(type) {
	case nil:
		e.out = append(e.out, capi.TagNone)
	case *Tensor:
		if v == nil {
			e.out = append(e.out, capi.TagNone)
			return
		}
		e.out = append(e.out, capi.TagTensor, e.tensor(v))
	case int:
		e.out = append(e.out, capi.TagInt, int64(v))
	case int64:
		e.out = append(e.out, capi.TagInt, v)
	case float64:
		e.out = append(e.out, capi.TagDouble, int64(math.Float64bits(v)))
	case float32:
		e.out = append(e.out, capi.TagDouble, int64(math.Float64bits(float64(v))))
	case bool:
		e.out = append(e.out, capi.TagBool, b2i(v))
	case string:
		e.out = append(e.out, capi.TagString, int64(len(v)))
		padded := append([]byte(v), make([]byte, (8-len(v)%8)%8)...)
		for i := 0; i < len(padded); i += 8 {
			e.out = append(e.out, int64(binary.NativeEndian.Uint64(padded[i:])))
		}
	case []int64:
		e.out = append(append(e.out, capi.TagIntList, int64(len(v))), v...)
	case []int:
		e.out = append(e.out, capi.TagIntList, int64(len(v)))
		for _, x := range v {
			e.out = append(e.out, int64(x))
		}
	case []float64:
		e.out = append(e.out, capi.TagDoubleList, int64(len(v)))
		for _, x := range v {
			e.out = append(e.out, int64(math.Float64bits(x)))
		}
	case []bool:
		e.out = append(e.out, capi.TagBoolList, int64(len(v)))
		for _, x := range v {
			e.out = append(e.out, b2i(x))
		}
	case []*Tensor:
		e.out = append(e.out, capi.TagTensorList, int64(len(v)))
		for _, t := range v {
			e.out = append(e.out, e.tensor(t))
		}
	case DType:
		e.out = append(e.out, capi.TagInt, int64(v))
	case Device:
		index := v.Index
		if v.Type == CPUType {
			index = -1 // libtorch takes cpu:0 for another device than cpu, and copies
		}
		e.out = append(e.out, capi.TagDevice, int64(v.Type), int64(index))
	case *Generator:
		if v == nil {
			e.out = append(e.out, capi.TagNone)
			return
		}
		e.out = append(e.out, capi.TagGenerator, int64(v.h))
		e.rng = v
	case defaultArg:
		e.out = append(e.out, capi.TagDefault)
	default:
		fail(e.op, ErrArgument, "arguments of type %T cannot be passed", a)
	}
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// wrapAll gives the tensors of handles in scope; 0 gives nil.
func wrapAll(handles []capi.Handle, scope *Scope) []*Tensor {
	list := make([]*Tensor, len(handles))
	for i, h := range handles {
		list[i] = wrapHandle(h, scope)
	}
	return list
}

// decode turns a stream of results into Go values.
func decode(s []int64, scope *Scope) []any {
	var list []any
	for len(s) > 0 {
		tag := s[0]
		s = s[1:]
		switch tag {
		case capi.TagNone:
			list = append(list, nil)
		case capi.TagTensor:
			list = append(list, wrapHandle(capi.Handle(s[0]), scope))
			s = s[1:]
		case capi.TagInt:
			list = append(list, s[0])
			s = s[1:]
		case capi.TagDouble:
			list = append(list, math.Float64frombits(uint64(s[0])))
			s = s[1:]
		case capi.TagBool:
			list = append(list, s[0] != 0)
			s = s[1:]
		case capi.TagTensorList:
			n := s[0]
			ts := make([]*Tensor, n)
			for i := range ts {
				ts[i] = wrapHandle(capi.Handle(s[1+i]), scope)
			}
			list = append(list, ts)
			s = s[1+n:]
		case capi.TagIntList:
			n := s[0]
			list = append(list, append([]int64(nil), s[1:1+n]...))
			s = s[1+n:]
		default:
			panic(fmt.Sprintf("torch: unknown result tag %d", tag))
		}
	}
	return list
}

var namedOps sync.Map // "name.overload" -> *op

// Call runs any operator of the dispatcher, e.g. Call("aten::addmm", bias, x, w, 1.0, 1.0). The name may carry an
// overload ("aten::add.Tensor"). Arguments come in the order of the schema; trailing ones may be left out, and Default
// stands for a default in between. Results are *Tensor, []*Tensor, int64, float64, bool, []int64 or nil.
func Call(name string, args ...any) []any {
	v, ok := namedOps.Load(name)
	if !ok {
		base, overload := name, ""
		if i := strings.LastIndex(name, "."); i >= 0 {
			base, overload = name[:i], name[i+1:]
		}
		v, _ = namedOps.LoadOrStore(name, lookUp(base, overload, ""))
	}
	return v.(*op).call(args...)
}

// CallOne is Call for operators with one tensor result.
func CallOne(name string, args ...any) *Tensor {
	out := Call(name, args...)
	if len(out) == 0 {
		return nil
	}
	t, _ := out[0].(*Tensor)
	return t
}

// Schema prints an operator's schema as the running library declares it; name is as in Call.
func Schema(name string) (string, error) {
	if err := capi.Load(); err != nil {
		return "", err
	}
	base, overload := name, ""
	if i := strings.LastIndex(name, "."); i >= 0 {
		base, overload = name[:i], name[i+1:]
	}
	return capi.OpSchema(base, overload)
}
