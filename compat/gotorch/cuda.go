package gotorch

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/torch"
)

// CUDAStream is a queue of work on a GPU. Package torch runs everything on the device's current stream, so that all
// streams of a device are that one here: work is done in the order in which it was given, and never side by side.
type CUDAStream struct {
	P unsafe.Pointer // a *torch.Device
}

// GetCurrentCUDAStream gives the stream on which operators of a device run.
func GetCurrentCUDAStream(device Device) CUDAStream { return newStream("GetCurrentCUDAStream", device) }

// NewCUDAStream gives a stream of a device; see CUDAStream.
func NewCUDAStream(device Device) CUDAStream { return newStream("NewCUDAStream", device) }

// SetCurrentCUDAStream makes operators run on a stream; see CUDAStream.
func SetCurrentCUDAStream(stream CUDAStream) { stream.device("SetCurrentCUDAStream") }

// Query waits for the work on the stream, and is true.
func (s CUDAStream) Query() bool {
	s.Synchronize()
	return true
}

// Synchronize waits for the work on the stream.
func (s CUDAStream) Synchronize() {
	// Reading an element that the stream computes last.
	t := torch.EmptyOn(s.device("Synchronize"), torch.Float32, 1).Zero()
	defer t.Free()
	t.Item()
}

func newStream(op string, device Device) CUDAStream {
	needCUDA(op, device)
	d := device.T
	return CUDAStream{unsafe.Pointer(&d)}
}

func (s CUDAStream) device(op string) torch.Device {
	if s.P == nil {
		fail(op, "the stream is empty: GetCurrentCUDAStream and NewCUDAStream make one")
	}
	return *(*torch.Device)(s.P)
}
