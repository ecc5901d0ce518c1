package torch

import "github.com/gofsdp/gofsdp/internal/capi"

// InferenceMode runs f without recording and without the bookkeeping that recording needs later: operators cost less than
// under NoGrad, and their results can never take part in autograd. Using such a tensor where it would have to be saved
// for backward is an error.
//
// The mode is state of the OS thread: goroutines that f starts are outside it.
func InferenceMode(f func()) {
	lockThread(func() {
		check("InferenceMode", capi.PushInferenceMode())
		defer func() { _ = capi.PopInferenceMode() }()
		f()
	})
}

// IsInference tells whether t was made in InferenceMode.
func (t *Tensor) IsInference() bool {
	h := t.use("IsInference")
	defer t.done()
	on, err := capi.IsInference(h)
	check("IsInference", err)
	return on
}

// Autocast runs f with mixed precision on a type of device, as torch.autocast does: products and convolutions compute in
// dtype (BFloat16 or Float16), operators that need range compute in float32, the rest takes what it gets. Casts of
// float32 weights are kept until the outermost region ends. Backward belongs outside: it computes in the types that the
// forward used.
//
// The mode is state of the OS thread: goroutines that f starts are outside it.
func Autocast(device DeviceType, dtype DType, f func()) { autocast(device, int(dtype), f) }

// NoAutocast runs f in full precision inside an Autocast region.
func NoAutocast(device DeviceType, f func()) { autocast(device, -1, f) }

func autocast(device DeviceType, dtype int, f func()) {
	lockThread(func() {
		check("Autocast", capi.PushAutocast(int(device), dtype))
		defer func() { _ = capi.PopAutocast() }()
		f()
	})
}

// autocastDevices are the device types whose state AutocastState keeps.
var autocastDevices = [...]DeviceType{CPUType, CUDAType}

// AutocastState is what Autocast regions are in force on a thread: computing something again outside of them, as
// activation checkpointing does, needs the same ones.
type AutocastState struct{ dtypes [len(autocastDevices)]int }

// CurrentAutocast gives the state of the calling thread.
func CurrentAutocast() (s AutocastState) {
	check("Autocast", capi.Load())
	for i, device := range autocastDevices {
		dtype, err := capi.AutocastDType(int(device))
		check("Autocast", err)
		s.dtypes[i] = dtype
	}
	return s
}

// Do runs f under s, whatever is in force around it.
func (s AutocastState) Do(f func()) {
	lockThread(func() {
		now := CurrentAutocast()
		for i, device := range autocastDevices {
			if s.dtypes[i] == now.dtypes[i] {
				continue
			}
			check("Autocast", capi.PushAutocast(int(device), s.dtypes[i]))
			defer func() { _ = capi.PopAutocast() }()
		}
		f()
	})
}
