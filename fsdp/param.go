package fsdp

import (
	"encoding/binary"
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
//
// Note [One rank]
// Where a model is sharded over one rank and computes in the type that it stores, the full tensor is a second leaf over
// the shard's memory: nothing is gathered, copied or freed.
type param struct {
	name    string
	p       *nn.Param
	dtype   torch.DType // of the shard
	compute torch.DType // of the full tensor
	device  torch.Device
	shape   []int64 // of the whole
	chunk   int64   // rows per rank, padded
	lo      int64   // this rank's rows
	hi      int64
	aliased bool // full shares the shard's memory

	stored part // of the padded chunk in the piece's buffer
	sent   part // of the padded chunk in what is gathered; the same as stored where nothing is converted

	shard       *torch.Tensor // leaf; rows lo to hi
	full        *torch.Tensor // leaf; storage freed while sharded
	fullBytes   *torch.Tensor // the padded storage as 1-D bytes; writes through it do not count as changes
	fullStorage int64
	accumulated *torch.Tensor // gradient of micro-batches that were not reduced, where it is summed in a type of its own
}

// part is a range of bytes.
type part struct{ offset, bytes int64 }

func newParam(n nn.Named, rank, size int, c *Config, precision MixedPrecision) (*param, error) {
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
	if !t.IsContiguous() {
		return nil, fmt.Errorf("fsdp: parameter %s is not contiguous (strides %v): call Contiguous before Wrap", n.Name, t.Stride())
	}
	p := &param{name: n.Name, p: n.Param, dtype: t.DType(), device: c.Device, shape: shape}
	p.compute = precision.compute(p.dtype, n.Param.Verbatim())
	p.lo, p.hi = ShardRows(shape[0], rank, size)
	p.chunk = (shape[0] + int64(size) - 1) / int64(size)
	p.stored.bytes = p.chunkNumel() * p.dtype.Size()
	p.sent.bytes = p.chunkNumel() * p.compute.Size()
	p.fullStorage = p.sent.bytes * int64(size)
	p.aliased = size == 1 && p.compute == p.dtype && c.storageDevice() == c.Device
	return p, nil
}

func (p *param) rowNumel() int64 { return numel(p.shape[1:]) }

func (p *param) shardShape() []int64 {
	s := slices.Clone(p.shape)
	s[0] = p.hi - p.lo
	return s
}

func (p *param) chunkNumel() int64 { return p.chunk * p.rowNumel() }

// cutRows replaces the whole parameter by this rank's rows of it. Must run without grad.
func (p *param) cutRows(size int) {
	s := torch.NewScope(nil)
	t := p.p.Tensor()
	rows := t.In(s).Detach().Narrow(0, p.lo, p.hi-p.lo)
	if t.Device().Type != torch.MetaType {
		rows = rows.Clone()
	}
	p.p.SetRows(p.lo, p.hi)
	p.p.SetTensor(rows.In(nil))
	t.Free()
	s.Close() // the whole parameter is gone before the full one is made
	if !p.aliased {
		p.makeFull(size)
	}
}

// makeFull makes the full leaf with a freed storage. Must run without grad.
func (p *param) makeFull(size int) {
	s := torch.NewScope(nil)
	defer s.Close()
	padded := slices.Clone(p.shape)
	padded[0] = p.chunk * int64(size)
	whole := s.Own(torch.EmptyOn(p.device, p.compute, padded...))
	p.full = whole.Narrow(0, 0, p.shape[0]).Detach().In(nil)
	p.full.SetRequiresGrad(p.p.Trainable())
	p.fullBytes = whole.VariableData().View(-1).ViewDType(torch.Uint8).In(nil)
	p.free()
}

// allocate gives the full tensor its memory.
func (p *param) allocate() {
	if !p.aliased {
		p.full.ResizeStorage(p.fullStorage)
	}
}

// free takes the full tensor's memory away.
func (p *param) free() {
	if !p.aliased {
		p.full.ResizeStorage(0)
	}
}

// takeRows moves the rows that p.p holds into the piece's buffer and makes the shard a view of it. Must run without grad.
func (p *param) takeRows(buffer *torch.Tensor) error {
	t := p.p.Tensor()
	s := torch.NewScope(nil)
	defer s.Close()
	shape := p.shardShape()
	if got := t.Shape(); !slices.Equal(got, shape) {
		return fmt.Errorf("fsdp: parameter %s holds shape %v, this rank's rows %d to %d need %v", p.name, got, p.lo, p.hi, shape)
	}
	if t.DType() != p.dtype {
		return fmt.Errorf("fsdp: parameter %s holds %v, was %v when wrapped", p.name, t.DType(), p.dtype)
	}
	n := numel(shape) * p.dtype.Size()
	view := buffer.In(s).Narrow(0, p.stored.offset, n).ViewDType(p.dtype).View(shape...)
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
	if p.aliased && p.full == nil {
		p.full = view.Detach().In(nil)
		p.full.SetRequiresGrad(p.p.Trainable())
	}
	return nil
}

// onMeta tells whether the parameter was never loaded.
func (p *param) onMeta() bool {
	return p.device.Type != torch.MetaType && p.p.Tensor().Device().Type == torch.MetaType
}

// pack writes the shard, converted, into dst: the padded chunk's bytes. The padding is left alone. Must run without grad.
func (p *param) pack(s *torch.Scope, dst *torch.Tensor) {
	n := (p.hi - p.lo) * p.rowNumel()
	if n > 0 {
		dst.Narrow(0, 0, n*p.compute.Size()).ViewDType(p.compute).Copy(p.shard.In(s).Detach().View(-1))
	}
}

// dropGradients forgets what backward left in the full tensor.
func (p *param) dropGradients() {
	if p.full != nil {
		p.full.SetGrad(nil)
	}
	p.accumulated.Free()
	p.accumulated = nil
}

// piece is the unit of one collective: a buffer of this rank's chunks, gathered into all ranks' chunks.
type piece struct {
	params    []*param
	buffer    *torch.Tensor // uint8, this rank's padded chunks; nil until loaded
	stored    int64         // bytes of the buffer
	sent      int64         // bytes of what this rank sends
	converted bool          // what is sent is not the buffer
	direct    bool          // one parameter, gathered straight into its full storage
	part      *torch.Tensor // of what was gathered, kept for backward; see Note [Smaller groups in backward]
}

const alignment = 64

func alignUp(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

// Note [Tags]
// What a rank sends of a piece of several parameters begins with the number of the unit and a hash of the names of its
// trainable parameters. If ranks take different branches and gather different units at the same time, the sizes agree only
// by chance; then the tags tell, instead of a model that computes with another layer's weights. And if a parameter is
// frozen on one rank only, forward says so, where backward would reduce tensors of different sizes.
const tagBytes = alignment

// tag is the head of a piece.
type tag struct{ unit, trainable uint64 }

func readTag(b []byte) tag {
	return tag{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// write puts the tag into a piece's buffer. Must run without grad.
func (t tag) write(buffer *torch.Tensor) {
	s := torch.NewScope(nil)
	defer s.Close()
	head := s.Own(torch.FromSlice([]int64{int64(t.unit), int64(t.trainable)}))
	buffer.In(s).Narrow(0, 0, 16).ViewDType(torch.Int64).Copy(head)
}

// cut groups a unit's parameters into pieces: large ones alone, the others together, in order.
func cut(params []*param, directBytes int64) []*piece {
	var list []*piece
	rest := &piece{stored: tagBytes, sent: tagBytes}
	for _, p := range params {
		if directBytes > 0 && p.fullStorage >= directBytes {
			list = append(list, &piece{params: []*param{p}, stored: p.stored.bytes, sent: p.sent.bytes,
				converted: p.compute != p.dtype, direct: true})
			continue
		}
		p.stored.offset, p.sent.offset = rest.stored, rest.sent
		rest.stored = alignUp(rest.stored + p.stored.bytes)
		rest.sent = alignUp(rest.sent + p.sent.bytes)
		rest.converted = rest.converted || p.compute != p.dtype
		rest.params = append(rest.params, p)
	}
	if len(rest.params) > 0 {
		list = append(list, rest)
	}
	return list
}

// load makes the buffer and moves the parameters' rows into it. Must run without grad.
func (c *piece) load(config *Config) error {
	if c.buffer == nil {
		c.buffer = config.pin(zeros(config.storageDevice(), c.stored))
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

// outgoing is what this rank sends, for the caller to free. Must run without grad.
func (c *piece) outgoing(device torch.Device) *torch.Tensor {
	if !c.converted && c.buffer.Device() == device {
		return c.buffer.In(nil)
	}
	s := torch.NewScope(nil)
	defer s.Close()
	if !c.converted {
		return c.buffer.In(s).ToDevice(device).In(nil)
	}
	out := s.Own(zeros(device, c.sent))
	if !c.direct {
		out.Narrow(0, 0, tagBytes).Copy(c.buffer.In(s).Narrow(0, 0, tagBytes))
	}
	for _, p := range c.params {
		p.pack(s, out.Narrow(0, p.sent.offset, p.sent.bytes))
	}
	return out.In(nil)
}

// zeros makes n zero bytes, in no scope.
func zeros(d torch.Device, n int64) *torch.Tensor {
	return torch.CallOne("aten::zeros", []int64{n}, torch.Uint8, torch.Default, d)
}
