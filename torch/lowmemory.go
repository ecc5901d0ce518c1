package torch

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Note [Low memory]
// Before an allocation fails (on a GPU through libtorch's free-memory callbacks, on the CPU at the limit of SetMemoryLimit
// or where the system gives no more) the library calls reclaim, which runs the collector, so that tensors in no scope
// that nobody reaches any more make room. The thread that allocates may hold the lock of the device's allocator. So what
// the collector finds is not freed by its own goroutine, which would wait for that lock while reclaim waits for it:
// clean-ups put their handles in a list meanwhile, and reclaim frees them on its own thread.
var lowMemory struct {
	running atomic.Bool
	mu      sync.Mutex
	handles []capi.Handle // what clean-ups found while running
}

// collected is what the collector calls for an unreachable tensor.
func (c *cell) collected() {
	if !lowMemory.running.Load() {
		c.free()
		return
	}
	if h := c.end(); h != 0 {
		lowMemory.mu.Lock()
		lowMemory.handles = append(lowMemory.handles, h)
		lowMemory.mu.Unlock()
	}
}

// reclaim frees what is unreachable and tells whether that was anything. One thread does it at a time; another one that
// gets here meanwhile must not wait, since it may hold a lock that the first one needs.
func reclaim() (freed bool) {
	if !lowMemory.running.CompareAndSwap(false, true) {
		return false
	}
	defer func() {
		lowMemory.running.Store(false)
		freed = freeCollected() || freed // what came between the last look and now
	}()
	const patience, step = 200 * time.Millisecond, time.Millisecond
	marker := new([16]byte) // not a tiny object: those have no clean-up of their own
	swept := make(chan struct{})
	runtime.AddCleanup(marker, func(c chan struct{}) { close(c) }, swept)
	marker = nil
	runtime.GC()
	select {
	case <-swept: // clean-ups of this collection have begun
	case <-time.After(patience):
	}
	for quiet := 0; quiet < 3; time.Sleep(step) {
		if freeCollected() {
			freed, quiet = true, 0
		} else {
			quiet++
		}
	}
	return freed
}

// freeCollected frees the handles in the list.
func freeCollected() bool {
	lowMemory.mu.Lock()
	handles := lowMemory.handles
	lowMemory.handles = nil
	lowMemory.mu.Unlock()
	freeAll(handles)
	return len(handles) > 0
}

func init() { capi.LowMemory = reclaim }

// SetMemoryLimit bounds the bytes of live CPU tensors of the process, and returns the bound before; 0 is none. An
// allocation beyond it runs the collector, and panics with an *Error of kind ErrOutOfMemory where that makes no room. It
// keeps a job from taking a machine's memory; the system's own way out is to kill the process.
func SetMemoryLimit(bytes int64) (before int64) {
	check("SetMemoryLimit", capi.Load())
	before, err := capi.SetMemoryLimit(bytes)
	check("SetMemoryLimit", err)
	return before
}
