package torch

import (
	"errors"
	"runtime"
	"sync"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// LoadLibrary opens libgofsdp.so. Operators do it at their first call and panic where it fails; programs call
// LoadLibrary first to get the error, which lists the paths that were tried.
func LoadLibrary() error { return capi.Load() }

// Versions describes the libtorch in use and its threading.
func Versions() (string, error) {
	if err := capi.Load(); err != nil {
		return "", err
	}
	return capi.Versions()
}

// SetNumThreads sets the number of threads that one operator uses, on whatever OS thread it runs. Call it before the
// first operator: teams of threads that exist stay.
func SetNumThreads(n int) {
	check("SetNumThreads", capi.Load())
	check("SetNumThreads", capi.SetNumThreads(n))
}

// NumThreads is the number of threads that one operator uses.
func NumThreads() int {
	check("NumThreads", capi.Load())
	n, err := capi.NumThreads()
	check("NumThreads", err)
	return n
}

// Memory is a count of CPU tensor memory.
type Memory struct {
	LiveTensors int64 // handles that Go holds
	LiveBytes   int64 // storage bytes allocated now
	PeakBytes   int64 // the most since the last ResetPeak
	Allocations int64 // storages allocated so far
}

// MemoryStats counts tensors and bytes.
func MemoryStats() Memory {
	check("MemoryStats", capi.Load())
	live, peak, n, err := capi.MemoryStats()
	check("MemoryStats", err)
	return Memory{LiveTensors: liveTensors.Load(), LiveBytes: live, PeakBytes: peak, Allocations: n}
}

// ResetPeak starts a new measurement of Memory.PeakBytes.
func ResetPeak() {
	check("ResetPeak", capi.Load())
	check("ResetPeak", capi.ResetPeak())
}

// TrimMemory gives memory that is cached for reuse back to the system.
func TrimMemory() {
	check("TrimMemory", capi.Load())
	check("TrimMemory", capi.TrimMemory())
}

func lockThread(f func()) {
	check("load", capi.Load())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f()
}

// Worker is an OS thread for libtorch work. Libtorch, OpenMP and MKL keep buffers per thread; a rank or a job that does
// its work on one Worker keeps them bounded.
type Worker struct {
	jobs chan func()
	end  chan struct{}
	once sync.Once
}

// ErrWorkerClosed is what Do returns after Close.
var ErrWorkerClosed = errors.New("torch: the worker is closed")

// NewWorker starts a worker; Close ends it.
func NewWorker() *Worker {
	w := &Worker{jobs: make(chan func()), end: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine, and its buffers with it
		for {
			select {
			case f := <-w.jobs:
				f()
			case <-w.end:
				return
			}
		}
	}()
	return w
}

// Do runs f on the worker's thread and returns what Try returns for it.
func (w *Worker) Do(f func()) error {
	done := make(chan error, 1)
	bug := make(chan any, 1)
	job := func() {
		defer func() {
			if v := recover(); v != nil {
				bug <- v
			}
		}()
		done <- Try(f)
	}
	select {
	case <-w.end:
		return ErrWorkerClosed
	case w.jobs <- job:
	}
	select {
	case err := <-done:
		return err
	case v := <-bug:
		panic(v)
	}
}

// Close ends the worker's thread after the job that runs.
func (w *Worker) Close() { w.once.Do(func() { close(w.end) }) }
