package torch

import (
	"runtime"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Stream is a queue of work on a device; what is queued on different streams may run at the same time. Operators use the
// current stream of their tensors' device. The zero value is no stream.
type Stream struct{ s capi.Stream }

// NewStream gives a stream of a device. A lower priority is more urgent; 0 is the ordinary one. Streams come from a pool of
// libtorch's and need no freeing.
func NewStream(d Device, priority int) (Stream, error) {
	return getStream("NewStream", d, capi.NewStream, priority)
}

// CurrentStream is the calling thread's current stream of a device. Only meaningful inside OnStream, or on a locked thread.
func CurrentStream(d Device) (Stream, error) {
	return getStream("CurrentStream", d, capi.CurrentStream, 0)
}

// DefaultStream is the stream of a device that is current where nobody has chosen another.
func DefaultStream(d Device) (Stream, error) {
	return getStream("DefaultStream", d, capi.DefaultStream, 0)
}

func getStream(op string, d Device, which, priority int) (Stream, error) {
	if err := LoadLibrary(); err != nil {
		return Stream{}, wrap(op, err)
	}
	s, err := capi.GetStream(int(d.Type), d.Index, which, priority)
	return Stream{s}, wrap(op, err)
}

// Device is where the stream's work runs.
func (s Stream) Device() Device { return Device{Type: DeviceType(s.s.Type), Index: s.s.Index} }

// OnStream runs f with s as the current stream of its device, and that device as the current one. Both are state of the OS
// thread: goroutines that f starts are outside. Tensors made on one stream and used on another need RecordStream, and an
// event between the two.
func OnStream(s Stream, f func()) {
	OnDevice(s.Device(), func() {
		lockThread(func() {
			before, err := capi.ExchangeStream(s.s)
			check("OnStream", err)
			defer func() { _, _ = capi.ExchangeStream(before) }()
			f()
		})
	})
}

// Done tells whether everything that was queued on the stream has run.
func (s Stream) Done() (bool, error) {
	if err := LoadLibrary(); err != nil {
		return false, wrap("Stream.Done", err)
	}
	done, err := capi.QueryStream(s.s)
	return done, wrap("Stream.Done", err)
}

// Synchronize waits for everything that is queued on the stream.
func (s Stream) Synchronize() error {
	if err := LoadLibrary(); err != nil {
		return wrap("Stream.Synchronize", err)
	}
	return wrap("Stream.Synchronize", capi.SynchronizeStream(s.s))
}

// Wait makes what is queued on s from now on wait for what is queued on o by now.
func (s Stream) Wait(o Stream) error {
	e, err := NewEvent(o.Device().Type, EventOptions{})
	if err != nil {
		return err
	}
	defer e.Free()
	if err := e.Record(o); err != nil {
		return err
	}
	return s.WaitEvent(e)
}

// WaitEvent makes what is queued on s from now on wait for e.
func (s Stream) WaitEvent(e *Event) error {
	return e.use("Stream.WaitEvent", func(h capi.Handle) error { return capi.BlockOnEvent(h, s.s) })
}

// Native is the backend's own handle, a cudaStream_t, for packages that hand work to other C code.
func (s Stream) Native() (uintptr, error) {
	if err := LoadLibrary(); err != nil {
		return 0, wrap("Stream.Native", err)
	}
	native, err := capi.NativeStream(s.s)
	return native, wrap("Stream.Native", err)
}

// RecordStream keeps t's memory from being used again before what is queued on s by the time of t's end has run. A tensor
// that was made on one stream and is used on another needs it.
func (t *Tensor) RecordStream(s Stream) {
	h := t.use("RecordStream")
	defer t.done()
	check("RecordStream", capi.RecordStream(h, s.s))
}

// EventOptions are the settings of an event.
type EventOptions struct {
	Timing bool // Elapsed can be asked for; costs a little
}

// Event is a mark in the queues of streams. Its methods may be called from any goroutine.
type Event struct {
	mu sync.Mutex
	h  *eventHandle
}

// eventHandle is apart from Event, since the collector's clean-up of the Event keeps it reachable.
type eventHandle struct{ h capi.Handle }

func (e *eventHandle) free() {
	if e.h != 0 {
		capi.FreeEvent(e.h)
		e.h = 0
	}
}

// NewEvent makes an event for streams of a kind of device. It is freed by Free, or by the collector.
func NewEvent(t DeviceType, o EventOptions) (*Event, error) {
	if err := LoadLibrary(); err != nil {
		return nil, wrap("NewEvent", err)
	}
	h, err := capi.NewEvent(int(t), o.Timing)
	if err != nil {
		return nil, wrap("NewEvent", err)
	}
	e := &Event{h: &eventHandle{h}}
	runtime.AddCleanup(e, (*eventHandle).free, e.h)
	return e, nil
}

func (e *Event) use(op string, f func(capi.Handle) error) error {
	if e == nil || e.h == nil {
		return &Error{Op: op, Kind: ErrArgument, Msg: "the event is nil: make one with NewEvent"}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.h.h == 0 {
		return &Error{Op: op, Kind: ErrFreed, Msg: "the event was freed"}
	}
	return wrap(op, f(e.h.h))
}

// Free releases the event. Freeing twice does nothing.
func (e *Event) Free() {
	if e != nil && e.h != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.h.free()
	}
}

// Record queues the event on a stream: it passes when what is queued there by now has run.
func (e *Event) Record(s Stream) error {
	return e.use("Event.Record", func(h capi.Handle) error { return capi.RecordEvent(h, s.s) })
}

// Done tells whether the event has passed, or was never recorded.
func (e *Event) Done() (done bool, err error) {
	err = e.use("Event.Done", func(h capi.Handle) (err error) {
		done, err = capi.QueryEvent(h)
		return err
	})
	return done, err
}

// Synchronize waits until the event has passed.
func (e *Event) Synchronize() error { return e.use("Event.Synchronize", capi.SynchronizeEvent) }

// Elapsed is the time on the device from e to end. Both have passed, and were made with Timing.
func (e *Event) Elapsed(end *Event) (d time.Duration, err error) {
	if e == end {
		return 0, e.use("Event.Elapsed", func(capi.Handle) error { return nil })
	}
	err = e.use("Event.Elapsed", func(a capi.Handle) error {
		return end.use("Event.Elapsed", func(b capi.Handle) error {
			ns, err := capi.ElapsedEvents(a, b)
			d = time.Duration(ns)
			return err
		})
	})
	return d, err
}
