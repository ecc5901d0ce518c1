package fsdp

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

type unitState int

const (
	sharded unitState = iota
	gathering
	unsharded
)

// unit is the modules whose parameters are gathered and freed together.
type unit struct {
	m       *Model
	name    string // of its module, or of all its modules with "+" between them
	number  int    // in Model.units
	root    bool
	members []string // names of its modules
	inside  []*unit  // the units inside it that are in no other, in order of declaration
	params  []*param
	pieces  []*piece

	precision         MixedPrecision
	keep              bool // parameters stay whole from forward to backward
	smaller           bool // and if not, backward gathers in the group of Config.ReshardSize
	noBackwardUnshard bool
	forwardAhead      []*unit // explicit prefetches; nil is the default
	backwardAhead     []*unit

	state     unitState
	transfers []transfer // all-gathers in flight, one per piece

	tag    tag
	tagged bool

	trainable []*param
	buckets   []bucket
	partial   []*torch.Tensor // per bucket: reduced over the shards and not yet over the replicas
	unreduced bool            // a backward without synchronisation left gradients

	// The forward that is under way.
	using *use
	ran   []bool // by member
	left  int    // members that have not run
	open  int    // uses that were recorded and whose backward is not over

	gathers, scatters, sums tally
}

// transfer is an all-gather in flight.
type transfer struct {
	work dist.Work
	in   *torch.Tensor
	out  *torch.Tensor // nil where it goes straight into the parameter
}

func (t *transfer) free() {
	t.in.Free()
	t.out.Free()
}

// Note [Smaller groups in backward]
// With Config.ReshardSize k each rank keeps, from what it gathered in forward, 1/k: the chunks number j·S/k up to (j+1)·S/k
// of the S ranks, where j is its place among its k neighbours. Gathered among those, the chunks come in the same order as
// from all S ranks, so that backward copies them out in the same way. The part is dropped when backward has used it: the
// optimiser's step makes it stale.

func (u *unit) dropPart() {
	for _, c := range u.pieces {
		c.part.Free()
		c.part = nil
	}
}

// Note [Streams]
// The driving goroutine never waits for a device here. A collective starts behind everything that was enqueued so far on the
// current stream (the copies into what it sends, and the last use of the memory that it writes), and Work.Wait makes
// the current stream wait for it; that is the contract of dist.Group. So the current stream orders all uses of a unit's
// memory, and the following hold without any event of our own:
//   - what is sent and received stays allocated until after Wait: the transfer owns it;
//   - full storages are freed after the kernels that read them were enqueued, and the allocator hands memory of the current
//     stream to later work of that stream only;
//   - a shard's buffer is read by gathers that were awaited before backward ends, so before the optimiser writes it. Gathers
//     that nobody awaited are, in drop.
// Two things do read from the device: the counts of used parameters, once per reduction, when it is awaited; and the norm.

// startUnshard enqueues the all-gathers. It does nothing where the unit is gathered or being gathered.
func (u *unit) startUnshard(ctx context.Context) (err error) {
	if u.state != sharded || len(u.pieces) == 0 {
		return nil
	}
	u.trace("unshard")
	u.state = gathering
	if u.m.shard.Size() == 1 {
		return nil // unshard copies
	}
	err = torch.Try(func() {
		torch.NoGrad(func() {
			for _, c := range u.pieces {
				torch.Throw(u.send(ctx, c))
			}
		})
	})
	if err != nil {
		u.drop(ctx) // what was started before
		return u.wrap(err, "gather")
	}
	return nil
}

// send starts the all-gather of a piece.
func (u *unit) send(ctx context.Context, c *piece) error {
	var t transfer
	group := u.m.shard
	if c.part != nil && u.m.queued {
		group, t.in = u.m.reshardGroup, c.part.In(nil)
	} else {
		t.in = c.outgoing(u.m.config.Device)
	}
	var out *torch.Tensor
	if c.direct {
		c.params[0].allocate()
		out = c.params[0].fullBytes
	} else {
		out = torch.EmptyOn(u.m.config.Device, torch.Uint8, int64(u.m.shard.Size())*c.sent)
		t.out = out
	}
	var err error
	if t.work, err = u.allGather(ctx, group, out, t.in); err != nil {
		t.free()
		return err
	}
	u.transfers = append(u.transfers, t)
	return nil
}

// unshard makes the full parameters current. keepPart says that a part of what is gathered is for backward.
func (u *unit) unshard(ctx context.Context, keepPart bool) error {
	if u.state == unsharded || len(u.pieces) == 0 {
		return nil
	}
	if err := u.startUnshard(ctx); err != nil {
		return err
	}
	u.trace("wait")
	err := torch.Try(func() {
		torch.NoGrad(func() {
			if u.m.shard.Size() == 1 {
				u.copyAlone()
				return
			}
			for i, c := range u.pieces {
				torch.Throw(u.transfers[i].work.Wait(ctx))
				torch.Throw(u.receive(c, &u.transfers[i], keepPart))
			}
		})
	})
	if err != nil {
		return u.wrap(err, "gather")
	}
	u.transfers = u.transfers[:0]
	u.state = unsharded
	for _, p := range u.params {
		p.p.SetTensor(p.full)
	}
	return nil
}

// copyAlone fills the full parameters where there is no other rank to gather from.
func (u *unit) copyAlone() {
	s := torch.NewScope(nil)
	defer s.Close()
	for _, p := range u.params {
		if !p.aliased {
			p.allocate()
			p.pack(s, p.fullBytes.In(s))
		}
	}
}

// receive copies what was gathered of a piece out to its parameters.
func (u *unit) receive(c *piece, t *transfer, keepPart bool) error {
	size := int64(u.m.shard.Size())
	s := torch.NewScope(nil)
	defer s.Close()
	var all *torch.Tensor
	if c.direct {
		all = c.params[0].fullBytes.In(s).View(size, c.sent)
	} else {
		all = t.out.In(s).View(size, c.sent)
		if err := u.checkTags(t.out, c.sent); err != nil {
			return err
		}
		for _, p := range c.params {
			p.allocate()
			p.fullBytes.In(s).View(size, p.sent.bytes).Copy(all.Narrow(1, p.sent.offset, p.sent.bytes))
		}
	}
	if keepPart {
		c.part.Free()
		g := u.m.reshardGroup
		rows := size / int64(g.Size())
		c.part = all.Narrow(0, int64(g.Rank())*rows, rows).Clone().View(-1).In(nil)
	}
	t.free()
	return nil
}

// checkTags finds ranks that gather another unit at the same time. See Note [Tags].
func (u *unit) checkTags(all *torch.Tensor, bytes int64) error {
	if all.Device().Type != torch.CPUType { // reading would stall the device's queue
		return nil
	}
	var err error
	all.WithBytes(func(b []byte) {
		for at, r := int64(0), 0; at < int64(len(b)) && err == nil; at, r = at+bytes, r+1 {
			err = u.compare(readTag(b[at:]), u.tag, r)
		}
	})
	return err
}

// compare says what rank does in place of what this one does.
func (u *unit) compare(theirs, ours tag, rank int) error {
	switch {
	case theirs == ours:
		return nil
	case theirs.unit == ours.unit:
		return fmt.Errorf("rank %d has other trainable parameters in it, or runs it with gradients where others do not: all ranks must do alike", rank)
	}
	other := "something else"
	if theirs.unit < uint64(len(u.m.units)) {
		other = u.m.units[theirs.unit].String()
	}
	return fmt.Errorf("rank %d gathers %s at the same time: every rank must run the same units in the same order; Config.Branches lets ranks leave units out", rank, other)
}

// checkOrder compares what all ranks are about to run. See Config.CheckOrder.
func (u *unit) checkOrder(ctx context.Context, record bool) error {
	g := u.m.shard
	if !u.m.config.CheckOrder || g.Size() == 1 || u.m.config.Device.Type == torch.MetaType {
		return nil
	}
	ours := u.tag
	if !record {
		ours.trainable = 0
	}
	err := torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			in := s.Own(torch.FromSlice([]int64{int64(ours.unit), int64(ours.trainable)})).ToDevice(u.m.config.Device)
			out := s.Own(torch.EmptyOn(u.m.config.Device, torch.Int64, int64(2*g.Size())))
			torch.Throw(dist.Wait(ctx)(g.AllGather(dist.WithLabel(ctx, "order of units"), out, in)))
			all := torch.Slice[int64](out.ToDevice(torch.CPU))
			for r := range g.Size() {
				torch.Throw(u.compare(tag{uint64(all[2*r]), uint64(all[2*r+1])}, ours, r))
			}
		})
	})
	return u.wrap(err, "run")
}

// reshard frees the full parameters and makes the shards current.
func (u *unit) reshard() {
	if u.state != unsharded {
		return
	}
	u.trace("reshard")
	for _, p := range u.params {
		p.free()
		p.p.SetTensor(p.shard)
	}
	u.state = sharded
}

// drop forgets a gather in flight whose result nobody needs.
func (u *unit) drop(ctx context.Context) {
	if u.state != gathering {
		return
	}
	for i := range u.transfers {
		_ = u.transfers[i].work.Wait(ctx)
		u.transfers[i].free()
	}
	for _, p := range u.params {
		p.free()
	}
	u.transfers = u.transfers[:0]
	u.state = sharded
}

// load takes in parameters that were loaded, replaced, frozen or unfrozen since the last time. Must run without grad.
func (u *unit) load() error {
	if u.state != sharded {
		return nil
	}
	var missing []string
	for _, p := range u.params {
		if p.onMeta() {
			missing = append(missing, p.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("fsdp: %v: parameters were never loaded, they are still on the meta device: %s", u, strings.Join(missing, ", "))
	}
	for _, c := range u.pieces {
		if err := c.load(&u.m.config); err != nil {
			return err
		}
	}
	u.trainable = u.trainable[:0]
	for _, p := range u.params {
		if p.p.Trainable() {
			if !p.compute.IsFloat() {
				return fmt.Errorf("fsdp: parameter %s is trainable and of type %v: only floating-point parameters have gradients", p.name, p.compute)
			}
			u.trainable = append(u.trainable, p)
		}
		if p.full.RequiresGrad() != p.p.Trainable() {
			p.full.SetRequiresGrad(p.p.Trainable())
		}
	}
	u.fillBuckets()
	u.setTag()
	return nil
}

// setTag writes the tag where it has changed.
func (u *unit) setTag() {
	if u.m.shard.Size() == 1 || u.m.config.Device.Type == torch.MetaType {
		return
	}
	hash := fnv.New64a()
	for _, p := range u.trainable {
		hash.Write([]byte(p.name))
		hash.Write([]byte{0})
	}
	t := tag{uint64(u.number), hash.Sum64() >> 1}
	if u.tag == t && u.tagged {
		return
	}
	u.tag, u.tagged = t, true
	for _, c := range u.pieces {
		if !c.direct {
			t.write(c.buffer)
		}
	}
}
