package torch

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Op is an operator of the dispatcher, looked up in the running library at its first call. Arguments are matched by name
// there, so that one build of a program works with libraries whose schemas differ. Package aten has every operator of
// libtorch as a typed function; an Op of one's own does the same for an operator that another library registers:
//
//	var opScale = torch.Op{Name: "mylib::scale", Args: "self,factor"}
//
//	func Scale(x *torch.Tensor, factor float64) *torch.Tensor { return opScale.Begin().T(x).Float(factor).Tensor() }
type Op struct {
	Name     string // with its namespace, e.g. "aten::add"
	Overload string // e.g. "Tensor", or ""
	Args     string // the arguments in the order in which Go passes them, comma separated; "" is the schema's order

	handle atomic.Int64 // 0 until the first call
	mu     sync.Mutex   // held while the operator is looked up
	heavy  bool         // see Note [Heavy operators]
}

// declared lists the operators that this package names, for a test that compares them with the running library.
var declared []*Op

// newOp declares an operator; it is for package variables.
func newOp(name, overload, args string) *Op {
	o := &Op{Name: name, Overload: overload, Args: args}
	declared = append(declared, o)
	return o
}

func (o *Op) find() (capi.Handle, error) {
	if h := o.handle.Load(); h != 0 {
		return capi.Handle(h), nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.handle.Load(); h != 0 {
		return capi.Handle(h), nil
	}
	if err := capi.Load(); err != nil {
		return 0, err
	}
	h, err := capi.FindOp(o.Name, o.Overload, o.Args)
	if err == nil {
		o.heavy = isHeavy(o.Name)
		o.handle.Store(int64(h))
	}
	return h, err
}

type defaultArg struct{}

// Default stands for the operator's own default value of an argument.
var Default any = defaultArg{}

// call runs the operator and wraps its results in the innermost scope of its tensor arguments.
func (o *Op) call(args ...any) []any { return o.begin(args).results() }

// one runs an operator with a single tensor result.
func (o *Op) one(args ...any) *Tensor { return o.begin(args).Tensor() }

// inPlace runs an operator for its effect on its first argument.
func (o *Op) inPlace(args ...any) { o.begin(args).Drop() }

func (o *Op) begin(args []any) *Invocation {
	c := o.Begin()
	for _, a := range args {
		c.put(a)
	}
	return c
}

var namedOps sync.Map // "name.overload" -> *Op

// Call runs any operator of the dispatcher, e.g. Call("aten::addmm", bias, x, w, 1.0, 1.0). The name may carry an
// overload ("aten::add.Tensor"). Arguments come in the order of the schema; trailing ones may be left out, and Default
// stands for a default in between. Results are *Tensor, []*Tensor, int64, float64, bool, complex128, string, []int64,
// []float64, []bool, Device or nil. Package aten has the operators of libtorch with typed arguments and results.
func Call(name string, args ...any) []any {
	v, ok := namedOps.Load(name)
	if !ok {
		base, overload := splitName(name)
		v, _ = namedOps.LoadOrStore(name, &Op{Name: base, Overload: overload})
	}
	return v.(*Op).call(args...)
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
	return capi.OpSchema(splitName(name))
}

func splitName(name string) (base, overload string) {
	if i := strings.LastIndex(name, "."); i >= 0 {
		return name[:i], name[i+1:]
	}
	return name, ""
}
