package torch

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Device is where a tensor lives. The zero value is the CPU.
type Device struct {
	Type  DeviceType
	Index int // -1 is the current device of the type
}

// DeviceType is a kind of device; the values are libtorch's.
type DeviceType int8

// The kinds of device.
const (
	CPUType  DeviceType = 0
	CUDAType DeviceType = 1
	MetaType DeviceType = 14
)

// deviceOf is libtorch's device; the CPU has no index there, and is CPU here.
func deviceOf(kind, index int64) Device {
	if DeviceType(kind) == CPUType {
		return CPU
	}
	return Device{Type: DeviceType(kind), Index: int(index)}
}

// CPU is the host.
var CPU = Device{Type: CPUType}

// Meta is the device of tensors that have a shape and no data.
var Meta = Device{Type: MetaType, Index: -1}

// CUDA is GPU number index.
func CUDA(index int) Device { return Device{Type: CUDAType, Index: index} }

// String is PyTorch's name of the device.
func (d Device) String() string {
	name := d.Type.String()
	if d.Type == CPUType || d.Type == MetaType || d.Index < 0 {
		return name
	}
	return fmt.Sprintf("%s:%d", name, d.Index)
}

// String is PyTorch's name of the kind of device.
func (t DeviceType) String() string {
	switch t {
	case CPUType:
		return "cpu"
	case CUDAType:
		return "cuda"
	case MetaType:
		return "meta"
	}
	return fmt.Sprintf("device type %d", int8(t))
}

// Check gives nil where the device exists, else an *Error of kind ErrNoDevice that says what is missing: a driver, the CUDA
// half of libtorch, or as many GPUs.
func (d Device) Check() error {
	if d.Type == CPUType || d.Type == MetaType {
		return nil
	}
	if err := LoadLibrary(); err != nil {
		return wrap("device", err)
	}
	return wrap("device", capi.CheckDevice(int(d.Type), d.Index))
}

// DeviceCount is the number of devices of a kind. It is 0 where there is none, for whatever reason; Check names it.
func DeviceCount(t DeviceType) int {
	check("DeviceCount", capi.Load())
	n, err := capi.DeviceCount(int(t))
	check("DeviceCount", err)
	return n
}

// CurrentDevice is the calling thread's current device of a kind. Only meaningful inside OnDevice, or on a locked thread.
func CurrentDevice(t DeviceType) (Device, error) {
	if t == CPUType {
		return CPU, nil
	}
	if err := LoadLibrary(); err != nil {
		return Device{}, wrap("CurrentDevice", err)
	}
	index, err := capi.ExchangeDevice(int(t), -1)
	return Device{Type: t, Index: index}, wrap("CurrentDevice", err)
}

// OnDevice runs f with d as the current device of its kind: where tensors on Device{Type: CUDAType, Index: -1} are made, and
// whose current stream operators use. The current device is state of the OS thread: goroutines that f starts are outside.
func OnDevice(d Device, f func()) {
	if d.Type == CPUType {
		f()
		return
	}
	lockThread(func() {
		before, err := capi.ExchangeDevice(int(d.Type), d.Index)
		check("OnDevice", err)
		defer func() { _, _ = capi.ExchangeDevice(int(d.Type), before) }()
		f()
	})
}

// Synchronize waits for everything that is queued on a device. An operator on a GPU has only been queued when its method
// returns; a fault in its kernel shows here, or in a later call.
func Synchronize(d Device) error {
	if d.Type == CPUType {
		return nil
	}
	if err := LoadLibrary(); err != nil {
		return wrap("Synchronize", err)
	}
	return wrap("Synchronize", capi.SynchronizeDevice(int(d.Type), d.Index))
}

// DeviceMemory counts the memory of a device as its caching allocator sees it. MemoryStats has the CPU's.
type DeviceMemory struct {
	Bytes             int64 // in tensors now, rounded up to blocks
	PeakBytes         int64 // the most since the last ResetDevicePeak
	ReservedBytes     int64 // taken from the device, in tensors or cached
	PeakReservedBytes int64
	RequestedBytes    int64 // in tensors now, as they were asked for
	PeakRequested     int64
	Allocations       int64 // of tensors so far
	DeviceAllocations int64 // from the device so far: each one is slow
	Retries           int64 // failed ones after which the cache was emptied
	OutOfMemory       int64 // errors so far
}

// DeviceMemoryStats counts the memory of a device.
func DeviceMemoryStats(d Device) (DeviceMemory, error) {
	if err := LoadLibrary(); err != nil {
		return DeviceMemory{}, wrap("DeviceMemoryStats", err)
	}
	w, err := capi.DeviceMemoryStats(int(d.Type), d.Index)
	return DeviceMemory{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]}, wrap("DeviceMemoryStats", err)
}

// ResetDevicePeak starts new measurements of the peaks of DeviceMemoryStats.
func ResetDevicePeak(d Device) error {
	if err := LoadLibrary(); err != nil {
		return wrap("ResetDevicePeak", err)
	}
	return wrap("ResetDevicePeak", capi.ResetDevicePeak(int(d.Type), d.Index))
}

// DeviceMemoryInfo gives the free and the total bytes of a device, other processes included.
func DeviceMemoryInfo(d Device) (free, total int64, err error) {
	if err := LoadLibrary(); err != nil {
		return 0, 0, wrap("DeviceMemoryInfo", err)
	}
	free, total, err = capi.DeviceMemoryInfo(int(d.Type), d.Index)
	return free, total, wrap("DeviceMemoryInfo", err)
}

// EmptyCache gives memory that the allocators of a kind of device keep for reuse back to it, and pinned memory to the
// system. For the CPU it is TrimMemory.
func EmptyCache(t DeviceType) error {
	if err := LoadLibrary(); err != nil {
		return wrap("EmptyCache", err)
	}
	if t == CPUType {
		return wrap("EmptyCache", capi.TrimMemory())
	}
	return wrap("EmptyCache", capi.EmptyDeviceCache(int(t)))
}

// usable is nil where an operator can be given d; the message for a missing GPU is clearer than the dispatcher's.
func (d Device) usable() error {
	switch {
	case d.Type == CPUType || d.Type == MetaType:
		return nil
	case d.Type != CUDAType || d.Index < -1:
		return &Error{Op: "device", Kind: ErrNoDevice, Msg: fmt.Sprintf("there is no %v (index %d)", d.Type, d.Index)}
	}
	return d.Check()
}
