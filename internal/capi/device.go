package capi

/*
#include "loader.h"
*/
import "C"

import "runtime/cgo"

// Stream is a queue of work of a device. Device is its type and index, as in libtorch.
type Stream struct {
	Type, Index int
	ID          int64
}

func (s Stream) words() (t, index, id C.int64_t) {
	return C.int64_t(s.Type), C.int64_t(s.Index), C.int64_t(s.ID)
}

// streamOf reads what gf_stream_get and gf_stream_exchange give.
func streamOf(kind int, out *[2]int64, r C.gf_ret) (Stream, error) {
	if err := status(r); err != nil {
		return Stream{}, err
	}
	return Stream{Type: kind, Index: int(out[0]), ID: out[1]}, nil
}

// Which stream GetStream gives.
const (
	CurrentStream = iota
	DefaultStream
	NewStream
)

// DeviceCount is the number of devices of a type, 0 where there is none for whatever reason.
func DeviceCount(kind int) (int, error) {
	n, err := result(C.load_gf_device_count(C.int64_t(kind)))
	return int(n), err
}

// CheckDevice gives an error of KindDevice that says why a device does not exist, or nil. Index -1 is the current device.
func CheckDevice(kind, index int) error {
	return status(C.load_gf_device_check(C.int64_t(kind), C.int64_t(index)))
}

// ExchangeDevice makes a device the current one of this thread (-1: only read) and returns the index of the one before.
func ExchangeDevice(kind, index int) (int, error) {
	before, err := result(C.load_gf_device_exchange(C.int64_t(kind), C.int64_t(index)))
	return int(before), err
}

// SynchronizeDevice waits for everything that is queued on a device.
func SynchronizeDevice(kind, index int) error {
	return status(C.load_gf_device_synchronize(C.int64_t(kind), C.int64_t(index)))
}

// DeviceMemoryStats gives the counts of the device's caching allocator; see gf_device_memory_stats for the order.
func DeviceMemoryStats(kind, index int) (out [10]int64, err error) {
	err = status(C.load_gf_device_memory_stats(C.int64_t(kind), C.int64_t(index), words(out[:]), C.int64_t(len(out))))
	return out, err
}

// ResetDevicePeak starts new peaks of DeviceMemoryStats.
func ResetDevicePeak(kind, index int) error {
	return status(C.load_gf_device_reset_peak(C.int64_t(kind), C.int64_t(index)))
}

// DeviceMemoryInfo gives the free and the total bytes of a device.
func DeviceMemoryInfo(kind, index int) (free, total int64, err error) {
	var out [2]int64
	err = status(C.load_gf_device_memory_info(C.int64_t(kind), C.int64_t(index), words(out[:])))
	return out[0], out[1], err
}

// EmptyDeviceCache gives memory that a type of device caches back, and pinned memory of the host.
func EmptyDeviceCache(kind int) error { return status(C.load_gf_device_empty_cache(C.int64_t(kind))) }

// GetStream gives a stream of a device; priority counts for NewStream, lower is more urgent.
func GetStream(kind, index, which, priority int) (Stream, error) {
	var out [2]int64
	r := C.load_gf_stream_get(C.int64_t(kind), C.int64_t(index), C.int64_t(which), C.int64_t(priority), words(out[:]))
	return streamOf(kind, &out, r)
}

// ExchangeStream makes a stream the current one of its device on this thread and returns the one before.
func ExchangeStream(s Stream) (Stream, error) {
	var out [2]int64
	t, index, id := s.words()
	r := C.load_gf_stream_exchange(t, index, id, words(out[:]))
	return streamOf(s.Type, &out, r)
}

// QueryStream tells whether everything that was queued on a stream is done.
func QueryStream(s Stream) (bool, error) {
	t, index, id := s.words()
	done, err := result(C.load_gf_stream_query(t, index, id))
	return done != 0, err
}

// SynchronizeStream waits for everything that is queued on a stream.
func SynchronizeStream(s Stream) error {
	t, index, id := s.words()
	return status(C.load_gf_stream_synchronize(t, index, id))
}

// NativeStream is the backend's own handle of a stream, a cudaStream_t.
func NativeStream(s Stream) (uintptr, error) {
	t, index, id := s.words()
	native, err := result(C.load_gf_stream_native(t, index, id))
	return uintptr(native), err
}

// NewEvent makes an event of a type of device.
func NewEvent(kind int, timing bool) (Handle, error) {
	return handle(C.load_gf_event_new(C.int64_t(kind), flag(timing)))
}

// FreeEvent releases an event.
func FreeEvent(e Handle) { _ = status(C.load_gf_event_free(C.int64_t(e))) }

// RecordEvent queues an event on a stream.
func RecordEvent(e Handle, s Stream) error {
	t, index, id := s.words()
	return status(C.load_gf_event_record(C.int64_t(e), t, index, id))
}

// BlockOnEvent makes what is queued on a stream from now on wait for an event.
func BlockOnEvent(e Handle, s Stream) error {
	t, index, id := s.words()
	return status(C.load_gf_event_block(C.int64_t(e), t, index, id))
}

// QueryEvent tells whether an event has passed.
func QueryEvent(e Handle) (bool, error) {
	done, err := result(C.load_gf_event_query(C.int64_t(e)))
	return done != 0, err
}

// SynchronizeEvent waits for an event.
func SynchronizeEvent(e Handle) error { return status(C.load_gf_event_synchronize(C.int64_t(e))) }

// ElapsedEvents is the time from event a to event b in nanoseconds.
func ElapsedEvents(a, b Handle) (int64, error) {
	return result(C.load_gf_event_elapsed(C.int64_t(a), C.int64_t(b)))
}

// RecordStream keeps a tensor's memory from being used again before what is queued on a stream is done.
func RecordStream(t Handle, s Stream) error {
	kind, index, id := s.words()
	return status(C.load_gf_tensor_record_stream(C.int64_t(t), kind, index, id))
}

// NewGeneratorOn makes a generator of a device's own kind.
func NewGeneratorOn(kind, index int, seed int64) (Handle, error) {
	return handle(C.load_gf_generator_new_on(C.int64_t(kind), C.int64_t(index), C.int64_t(seed)))
}

// DefaultGenerator is the process's own generator of a device; the CPU's for type 0.
func DefaultGenerator(kind, index int) (Handle, error) {
	return handle(C.load_gf_generator_default(C.int64_t(kind), C.int64_t(index)))
}

// GeneratorSeed is the seed with which a generator started.
func GeneratorSeed(g Handle) (int64, error) {
	return result(C.load_gf_generator_initial_seed(C.int64_t(g)))
}

// SetMemoryLimit bounds the live bytes of CPU tensors (0: no bound) and returns the bound before.
func SetMemoryLimit(bytes int64) (int64, error) {
	return result(C.load_gf_memory_limit(C.int64_t(bytes)))
}

// LowMemory is called before an allocation fails and tells whether it freed anything; Load hands it to the library. It runs
// on the thread that allocates, which may hold the lock of the device's allocator: what it frees it must free on that
// thread.
var LowMemory = func() bool { return false }

func installLowMemory() error {
	return status(C.load_gf_free_memory_callback(C.uint64_t(cgo.NewHandle(lowMemory(LowMemory)))))
}

type lowMemory func() bool

func (f lowMemory) Call(_ Event, _, out []int64) error {
	if f() {
		out[0] = 1
	}
	return nil
}

// TestLowMemory runs the callback of LowMemory as the CUDA allocator would, through libtorch's registry.
func TestLowMemory() (bool, error) {
	freed, err := result(C.load_gf_test_free_memory())
	return freed != 0, err
}
