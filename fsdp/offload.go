package fsdp

import (
	"sync"

	"github.com/gofsdp/gofsdp/internal/capi"

	"github.com/gofsdp/gofsdp/torch"
)

// Offload says what lives in host memory. The zero value is nothing.
type Offload struct {
	// Params keeps sharded parameters, gradients and with them the optimiser's state on the CPU, where the optimiser steps;
	// only gathered parameters and their unreduced gradients are on Config.Device (CPUOffloadPolicy).
	Params bool
	// NoPinMemory leaves the host memory pageable (pin_memory=False): slower copies, but memory that can be swapped out.
	// Memory is only ever pinned for a GPU.
	NoPinMemory bool
}

// storageDevice is where shards live.
func (c *Config) storageDevice() torch.Device {
	if c.Offload.Params && c.Device.Type != torch.MetaType {
		return torch.CPU
	}
	return c.Device
}

// pin makes a host tensor's memory page-locked where a GPU copies from it. It takes t over.
func (c *Config) pin(t *torch.Tensor) *torch.Tensor {
	if !c.Offload.Params || c.Offload.NoPinMemory || c.Device.Type != torch.CUDAType {
		return t
	}
	pinned := torch.CallOne("aten::pin_memory", t)
	t.Free()
	return pinned.In(nil)
}

// SaveOnCPU runs f, such as a forward, and keeps what its operations save for backward in host memory until backward asks
// for it (activation offloading, torch.autograd.graph.save_on_cpu). Tensors that are on the CPU already stay as they are,
// and so do parameters. Layers with activation checkpointing keep their inputs on the device.
func (m *Model) SaveOnCPU(f func()) {
	torch.WithSavedTensorHooks(&savedOnCPU{m: m, saved: map[int64]saved{}}, f)
}

type saved struct {
	t      *torch.Tensor
	device torch.Device
}

// savedOnCPU are the hooks of SaveOnCPU. Backward may call them from another thread.
type savedOnCPU struct {
	m     *Model
	mu    sync.Mutex
	next  int64
	saved map[int64]saved
}

// Note [Offloaded activations]
// Parameters that an operation saves are aliases of a unit's full storage, which is freed after forward and filled again
// before backward; a copy would keep the whole model in host memory. They are told by their storage: it is a gathered
// unit's. The copy to the host is not overlapped with the computation.

// Pack keeps t.
func (h *savedOnCPU) Pack(t *torch.Tensor) (int64, error) {
	s := saved{device: t.Device()}
	err := torch.Try(func() {
		if s.device.Type == torch.CPUType || s.device.Type == torch.MetaType || h.m.holds(t) {
			s.t = t.In(nil)
			return
		}
		host := h.m.pinned(t.ToDevice(torch.CPU))
		s.t = host.In(nil)
	})
	if err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	h.saved[h.next] = s
	return h.next, nil
}

// Unpack gives the tensor back where it was.
func (h *savedOnCPU) Unpack(ticket int64) (t *torch.Tensor, err error) {
	h.mu.Lock()
	s := h.saved[ticket]
	h.mu.Unlock()
	err = torch.Try(func() { t = s.t.ToDevice(s.device) })
	return t, err
}

// Release frees the copy.
func (h *savedOnCPU) Release(ticket int64) {
	h.mu.Lock()
	s := h.saved[ticket]
	delete(h.saved, ticket)
	h.mu.Unlock()
	s.t.Free()
}

// pinned is pin for a copy of an activation.
func (m *Model) pinned(t *torch.Tensor) *torch.Tensor {
	if m.config.Offload.NoPinMemory {
		return t
	}
	return torch.CallOne("aten::pin_memory", t)
}

// holds tells whether t lies in the memory of a gathered parameter.
func (m *Model) holds(t *torch.Tensor) bool {
	at := address(t)
	for _, u := range m.units {
		if u.state != unsharded {
			continue
		}
		for _, p := range u.params {
			if lo := address(p.full); at >= lo && at < lo+uintptr(max(1, p.fullStorage)) {
				return true
			}
		}
	}
	return false
}

// address is where t's first element lies.
func address(t *torch.Tensor) (at uintptr) {
	t.WithHandle(func(h uintptr) {
		p, err := capi.DataPtr(capi.Handle(h))
		torch.Throw(err)
		at = uintptr(p)
	})
	return at
}
