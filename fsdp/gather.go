package fsdp

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// FullTensor gathers one parameter by its name in the root, in its own dtype and whole shape; the result is in no scope, so
// the caller frees it. A collective: every rank must call it with the same name.
func (m *Model) FullTensor(ctx context.Context, name string) (full *torch.Tensor, err error) {
	p := m.byName[name]
	if p == nil {
		return nil, fmt.Errorf("fsdp: the model has no sharded parameter %q", name)
	}
	return m.gather(ctx, p, nil)
}

// FullParam is FullTensor for a parameter by itself.
func (m *Model) FullParam(ctx context.Context, p *nn.Param) (*torch.Tensor, error) {
	for _, u := range m.units {
		for _, q := range u.params {
			if q.p == p {
				return m.gather(ctx, q, nil)
			}
		}
	}
	return nil, errors.New("fsdp: the model has no such sharded parameter")
}

// Gather is FullTensor for a tensor sharded like the parameter called name, such as an optimiser state: shard holds this
// rank's rows.
func (m *Model) Gather(ctx context.Context, name string, shard *torch.Tensor) (*torch.Tensor, error) {
	p := m.byName[name]
	if p == nil {
		return nil, fmt.Errorf("fsdp: the model has no sharded parameter %q", name)
	}
	return m.gather(ctx, p, shard)
}

// gather gathers shard, or the parameter's own rows where it is nil.
func (m *Model) gather(ctx context.Context, p *param, shard *torch.Tensor) (full *torch.Tensor, err error) {
	if err := m.Load(); err != nil {
		return nil, err
	}
	if shard == nil {
		shard = p.shard
	}
	err = torch.Try(func() {
		torch.NoGrad(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			size := int64(m.shard.Size())
			in := s.Own(torch.EmptyOn(m.config.Device, shard.DType(), p.chunkNumel())).Zero()
			if n := shard.Numel(); n > 0 {
				in.Narrow(0, 0, n).Copy(shard.In(s).Detach().Reshape(-1))
			}
			out := s.Own(torch.EmptyOn(m.config.Device, shard.DType(), size*p.chunkNumel()))
			torch.Throw(dist.Wait(ctx)(m.shard.AllGather(dist.WithLabel(ctx, p.name), out, in)))
			rows := append([]int64{p.chunk * size}, p.shape[1:]...)
			full = out.View(rows...).Narrow(0, 0, p.shape[0]).Clone().In(nil)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: gather parameter %s: %w", m.world.Rank(), p.name, err)
	}
	return full, nil
}

// Shard is what a rank holds of one parameter.
type Shard struct {
	Name   string
	Param  *nn.Param
	Shape  []int64 // of the whole parameter
	Lo, Hi int64   // rows of this rank
	Tensor *torch.Tensor
}

// Shards lists the sharded parameters in the order of the root's declaration. It needs no communication.
func (m *Model) Shards() iter.Seq[Shard] {
	return func(yield func(Shard) bool) {
		for _, name := range m.names {
			p := m.byName[name]
			if p == nil {
				continue // replicated
			}
			t := p.shard
			if t == nil {
				t = p.p.Tensor()
			}
			if !yield(Shard{Name: name, Param: p.p, Shape: p.p.Shape(), Lo: p.lo, Hi: p.hi, Tensor: t}) {
				return
			}
		}
	}
}

// ZeroGrad drops the gradients of all shards, and of parameters that are not sharded (Config.Ignore).
func (m *Model) ZeroGrad() {
	for _, u := range m.units {
		for _, p := range u.params {
			if p.shard != nil {
				p.shard.SetGrad(nil)
			}
		}
	}
	for _, p := range m.ignored {
		p.Tensor().SetGrad(nil)
	}
}
