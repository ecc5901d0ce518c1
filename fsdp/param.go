package fsdp

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// ShardRows is the half-open range of rows that a rank owns of a parameter with the given number of rows: chunks of
// ceil(rows/size), the last ones short or empty, as torch.chunk cuts.
func ShardRows(rows int64, rank, size int) (lo, hi int64) {
	chunk := (rows + int64(size) - 1) / int64(size)
	return min(rows, chunk*int64(rank)), min(rows, chunk*int64(rank+1))
}

// param is one parameter of a unit and its two faces: the shard, a view into its piece's buffer that the optimiser
// updates, and the full tensor, an autograd leaf whose storage exists only while the unit is gathered.
//
// Note [Padding]
// Every rank's chunk is padded to ceil(rows/size) rows, so that all ranks gather equal parts. The full storage has room
// for size chunks; the full tensor is the view of its first rows, and the padding falls off.
type param struct {
	name  string
	p     *nn.Param
	dtype torch.DType
	shape []int64 // of the whole
	chunk int64   // rows per rank, padded
	lo    int64   // this rank's rows
	hi    int64

	offset int64 // in the piece's buffer, bytes
	bytes  int64 // of the padded chunk

	shard       *torch.Tensor // leaf; rows lo to hi
	full        *torch.Tensor // leaf; storage freed while sharded
	fullBytes   *torch.Tensor // the padded storage as 1-D bytes; writes through it do not count as changes
	fullStorage int64
}

func newParam(n nn.Named, rank, size int) (*param, error) {
	shape := n.Param.Shape()
	if len(shape) == 0 {
		return nil, fmt.Errorf("fsdp: parameter %s has no dimension to shard; make it a 1-D tensor of one element", n.Name)
	}
	t := n.Param.Tensor()
	if lo, hi := n.Param.Rows(); lo != 0 || hi != shape[0] {
		return nil, fmt.Errorf("fsdp: parameter %s is already sharded (rows %d to %d of %d)", n.Name, lo, hi, shape[0])
	}
	if got := t.Shape(); !slices.Equal(got, shape) {
		return nil, fmt.Errorf("fsdp: parameter %s has shape %v, was made with %v", n.Name, got, shape)
	}
	p := &param{name: n.Name, p: n.Param, dtype: t.DType(), shape: shape}
	p.lo, p.hi = ShardRows(shape[0], rank, size)
	p.chunk = (shape[0] + int64(size) - 1) / int64(size)
	p.bytes = p.chunk * p.rowBytes()
	p.fullStorage = p.bytes * int64(size)
	return p, nil
}

func (p *param) rowNumel() int64 {
	n := int64(1)
	for _, d := range p.shape[1:] {
		n *= d
	}
	return n
}

func (p *param) rowBytes() int64 { return p.rowNumel() * p.dtype.Size() }

func (p *param) shardShape() []int64 {
	s := slices.Clone(p.shape)
	s[0] = p.hi - p.lo
	return s
}

func (p *param) chunkNumel() int64 { return p.chunk * p.rowNumel() }

// makeFull makes the full leaf with a freed storage. Must run without grad.
func (p *param) makeFull(size int) {
	s := torch.NewScope(nil)
	defer s.Close()
	padded := slices.Clone(p.shape)
	padded[0] = p.chunk * int64(size)
	whole := s.Own(torch.Empty(p.dtype, padded...))
	p.full = whole.Narrow(0, 0, p.shape[0]).Detach().In(nil)
	p.full.SetRequiresGrad(p.p.Trainable())
	p.fullBytes = whole.VariableData().View(-1).ViewDType(torch.Uint8).In(nil)
	p.full.ResizeStorage(0)
}

// takeRows moves the rows that p.p holds into the piece's buffer and makes the shard a view of it. Must run without grad.
func (p *param) takeRows(buffer *torch.Tensor) error {
	t := p.p.Tensor()
	if t.Device().Type == torch.MetaType {
		return fmt.Errorf("fsdp: parameter %s was never loaded: it is still on the meta device", p.name)
	}
	s := torch.NewScope(nil)
	defer s.Close()
	shape := p.shardShape()
	if got := t.Shape(); !slices.Equal(got, shape) {
		return fmt.Errorf("fsdp: parameter %s holds shape %v, this rank's rows %d to %d need %v", p.name, got, p.lo, p.hi, shape)
	}
	if t.DType() != p.dtype {
		return fmt.Errorf("fsdp: parameter %s holds %v, was %v when wrapped", p.name, t.DType(), p.dtype)
	}
	n := (p.hi - p.lo) * p.rowBytes()
	view := buffer.In(s).Narrow(0, p.offset, n).ViewDType(p.dtype).View(shape...)
	grad := t.In(s).Grad()
	view.Copy(t.In(s).Detach())
	shard := view.Detach().In(nil)
	shard.SetRequiresGrad(p.p.Trainable())
	if grad != nil {
		shard.SetGrad(grad)
	}
	if p.shard != nil && !p.shard.IsSame(t) {
		p.shard.Free()
	}
	p.shard = shard
	p.p.SetTensor(shard)
	t.Free() // the Param owned it
	return nil
}

// piece is the unit of one collective: a buffer of this rank's chunks, gathered into all ranks' chunks.
type piece struct {
	params []*param
	buffer *torch.Tensor // uint8, this rank's padded chunks; nil until loaded
	bytes  int64
	direct bool // one parameter, gathered straight into its full storage
}

const alignment = 64

func alignUp(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

// cut groups a unit's parameters into pieces: large ones alone, the others together, in order.
func cut(params []*param, directBytes int64) []*piece {
	var list []*piece
	rest := &piece{}
	for _, p := range params {
		if directBytes > 0 && p.fullStorage >= directBytes {
			list = append(list, &piece{params: []*param{p}, bytes: p.bytes, direct: true})
			continue
		}
		p.offset = rest.bytes
		rest.bytes = alignUp(rest.bytes + p.bytes)
		rest.params = append(rest.params, p)
	}
	if len(rest.params) > 0 {
		list = append(list, rest)
	}
	return list
}

// load makes the buffer and moves the parameters' rows into it. Must run without grad.
func (c *piece) load() error {
	if c.buffer == nil {
		c.buffer = torch.Zeros(torch.Uint8, c.bytes)
	}
	for _, p := range c.params {
		if p.shard != nil && p.shard.IsSame(p.p.Tensor()) {
			continue // still the view made last time
		}
		if err := p.takeRows(c.buffer); err != nil {
			return err
		}
	}
	return nil
}
