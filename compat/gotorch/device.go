package gotorch

import (
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/aten"
)

// The current CUDA stream is state of the OS thread, and libtorch keeps buffers per thread. Programs run their training
// loop in main: it stays on one thread, as in the original.
func init() { runtime.LockOSThread() }

// Device is where tensors live. The zero value is the CPU.
type Device struct {
	T torch.Device
}

// NewDevice makes a device of its name: "cpu", "cuda" or "cuda:1".
func NewDevice(deviceType string) Device {
	kind, index, indexed := strings.Cut(deviceType, ":")
	d := torch.Device{Index: -1}
	switch kind {
	case "cpu":
		d = torch.CPU
	case "cuda":
		d.Type = torch.CUDAType
	default:
		fail("NewDevice", "%q is no device: it is cpu, cuda, or cuda with an index, as in cuda:1", deviceType)
	}
	if indexed {
		i, err := strconv.ParseUint(index, 10, 7)
		if err != nil || kind == "cpu" && i != 0 {
			fail("NewDevice", "%q has no valid index", deviceType)
		}
		if kind == "cuda" {
			d.Index = int(i)
		}
	}
	return Device{d}
}

var (
	cudaAvailable = sync.OnceValue(func() bool {
		return torch.Try(func() { torch.EmptyOn(torch.CUDA(0), torch.Float32, 1).Free() }) == nil
	})
	cudnnAvailable = sync.OnceValue(func() (ok bool) {
		return cudaAvailable() && torch.Try(func() {
			t := torch.EmptyOn(torch.CUDA(0), torch.Float32, 1)
			defer t.Free()
			ok = aten.CudnnIsAcceptable(t)
		}) == nil && ok
	})
)

// IsCUDAAvailable tells whether tensors can be made on a GPU.
func IsCUDAAvailable() bool { return cudaAvailable() }

// IsCUDNNAvailable tells whether cuDNN can be used on the GPU.
func IsCUDNNAvailable() bool { return cudnnAvailable() }

// SetNumThreads sets the number of threads that one operator uses.
func SetNumThreads(n int32) { torch.SetNumThreads(int(n)) }

// To copies a to a device, and to another type where dtype is given. What is there already is not copied.
func (a Tensor) To(device Device, dtype ...int8) Tensor {
	t := a.Torch()
	d := t.DType()
	if len(dtype) > 0 {
		d = torch.DType(dtype[0])
	}
	return Wrap(aten.ToDevice(t, device.T, d))
}

// To copies a to a device and a type.
func To(a Tensor, device Device, dtype int8) Tensor { return a.To(device, dtype) }

// CastTo converts a to another type.
func (a Tensor) CastTo(dtype int8) Tensor { return Wrap(a.Torch().To(torch.DType(dtype))) }

// CopyTo copies a to a device.
func (a Tensor) CopyTo(device Device) Tensor { return a.To(device) }

// CUDA copies a to a GPU. With nonBlocking, and a in pinned memory, it does not wait for the copy.
func (a Tensor) CUDA(device Device, nonBlocking bool) Tensor {
	needCUDA("CUDA", device)
	t := a.Torch()
	return Wrap(aten.ToDevice(t, device.T, t.DType(), aten.ToOptions{NonBlocking: nonBlocking}))
}

// PinMemory copies a to page-locked memory, from which copies to a GPU are faster. Without a GPU it gives a.
func (a Tensor) PinMemory() Tensor {
	if !IsCUDAAvailable() {
		return a
	}
	return Wrap(aten.PinMemory(a.Torch()))
}

func needCUDA(op string, device Device) {
	if device.T.Type != torch.CUDAType {
		fail(op, "the device is %v, it must be a CUDA device", device.T)
	}
	if !IsCUDAAvailable() {
		fail(op, "there is no CUDA device: libtorch found no usable GPU on this machine")
	}
}
