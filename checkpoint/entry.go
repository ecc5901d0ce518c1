package checkpoint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// Kind is a part of a checkpoint and the name of its folder.
type Kind string

// The kinds.
const (
	Model     Kind = "model"
	Optimizer Kind = "optimizer"
	RankState Kind = "rank_state"
)

// Entry is a tensor of which this rank holds the rows Lo up to, not including, Hi along dimension 0.
//
// Ranks may hold any rows, as long as together they hold all: disjoint ranges, none at all, or equal ranges. Equal ranges
// must have equal contents, because only the first of these ranks writes them: a replicated tensor has Lo 0 and Hi
// Shape[0] on every rank. Scalars (no dimensions) are always replicated; their Lo and Hi are not looked at.
type Entry struct {
	Name   string
	Tensor *torch.Tensor // this rank's rows, on any device but meta
	Shape  []int64       // of the whole tensor
	Lo, Hi int64
}

// Whole is the entry of a tensor that this rank holds whole.
func Whole(name string, t *torch.Tensor) Entry {
	e := Entry{Name: name, Tensor: t, Shape: t.Shape()}
	e.Hi = rowsOf(e.Shape)
	return e
}

// ModelEntries lists a sharded model's parameters, or those for which want is true (such as the trainable ones).
func ModelEntries(m *fsdp.Model, want func(fsdp.Shard) bool) []Entry {
	var list []Entry
	for s := range m.Shards() {
		if want == nil || want(s) {
			list = append(list, Entry{Name: s.Name, Tensor: s.Tensor, Shape: s.Shape, Lo: s.Lo, Hi: s.Hi})
		}
	}
	return list
}

// OptimizerEntries lists the optimiser's state tensors as <parameter>.<state>. named gives the parameters' names. The
// optimiser makes its state at the first step: call its InitState before loading into the entries, and before saving
// where ranks differ in the parameters that had gradients.
func OptimizerEntries(o optim.Optimizer, named []nn.Named) ([]Entry, error) {
	names := make(map[*nn.Param]string, len(named))
	for _, n := range named {
		names[n.Param] = n.Name
	}
	var list []Entry
	for _, s := range o.State() {
		name, ok := names[s.Param]
		if !ok {
			return nil, fmt.Errorf("checkpoint: the optimiser's state %v belongs to a parameter without a name", s)
		}
		e := Entry{Name: name + "." + s.Name, Tensor: s.Tensor}
		if s.Tensor.Dim() > 0 {
			e.Shape = s.Param.Shape()
			e.Lo, e.Hi = s.Param.Rows()
		}
		list = append(list, e)
	}
	return list, nil
}

// Snapshot is what a rank saves. Model and Optimizer are the sharded tensors. RankState are this rank's own, whole, such
// as the state of its random generator. Trainer is written as JSON by rank 0 and must be the same on all ranks; nil
// writes none. Groups are for PyTorch: see Group.
type Snapshot struct {
	Model     []Entry
	Optimizer []Entry
	RankState []Entry
	Trainer   any
	Groups    []Group
}

// item is an entry as ranks describe it to each other.
type item struct {
	Kind  Kind
	Name  string
	DType string
	Shape []int64
	Lo    int64
	Hi    int64
}

func rowsOf(shape []int64) int64 {
	if len(shape) == 0 {
		return 1
	}
	return shape[0]
}

// describe checks an entry against the tensor behind it.
func describe(kind Kind, e Entry) (it item, err error) {
	if e.Name == "" {
		return it, fmt.Errorf("a %s entry has no name", kind)
	}
	fail := func(format string, args ...any) (item, error) {
		return it, fmt.Errorf("%s tensor %q: %s", kind, e.Name, fmt.Sprintf(format, args...))
	}
	if e.Tensor == nil {
		return fail("it is nil")
	}
	var local []int64
	var dtype torch.DType
	var device torch.Device
	var freed bool
	if err := torch.Try(func() {
		local, dtype, device = e.Tensor.Shape(), e.Tensor.DType(), e.Tensor.Device()
		freed = e.Tensor.Numel() > 0 && e.Tensor.StorageBytes() == 0
	}); err != nil {
		return it, fmt.Errorf("%s tensor %q: %w", kind, e.Name, err)
	}
	lo, hi := e.Lo, e.Hi
	if len(e.Shape) == 0 {
		lo, hi = 0, 1
	}
	want := slices.Clone(e.Shape)
	if len(want) > 0 {
		want[0] = hi - lo
	}
	name := dtype.Safetensors()
	switch {
	case lo < 0 || hi < lo || hi > rowsOf(e.Shape):
		return fail("rows %d to %d of shape %v", lo, hi, e.Shape)
	case !slices.Equal(local, want):
		return fail("it has shape %v, rows %d to %d of %v need %v", local, lo, hi, e.Shape, want)
	case device.Type == torch.MetaType:
		return fail("it is on the meta device: it has no data")
	case freed:
		return fail("its storage is freed")
	case safetensors.BitsPerElement(name) == 0:
		return fail("safetensors files have no dtype for %v", dtype)
	}
	return item{Kind: kind, Name: e.Name, DType: name, Shape: slices.Clone(e.Shape), Lo: lo, Hi: hi}, nil
}

// describeAll describes the entries of one kind, whose names must differ.
func describeAll(kind Kind, entries []Entry) ([]item, error) {
	items := make([]item, len(entries))
	seen := make(map[string]bool, len(entries))
	var faults faults
	for i, e := range entries {
		var err error
		items[i], err = describe(kind, e)
		if err == nil && seen[e.Name] {
			err = fmt.Errorf("%s tensor %q: it is listed twice", kind, e.Name)
		}
		seen[e.Name] = true
		faults.add(err)
	}
	return items, faults.err()
}

// faults collects errors and keeps the first few: a wrong model has one for every tensor.
type faults struct {
	list []error
	more int
}

func (f *faults) add(err error) {
	switch {
	case err == nil:
	case len(f.list) < 5:
		f.list = append(f.list, err)
	default:
		f.more++
	}
}

func (f *faults) err() error {
	if f.more > 0 {
		return errors.Join(append(f.list, fmt.Errorf("and %d more", f.more))...)
	}
	return errors.Join(f.list...)
}
