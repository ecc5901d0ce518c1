package gotorch

import (
	"runtime"
	"runtime/metrics"
	"time"
	"unsafe"
)

// Note [GC]
// A tensor that the program no longer reaches is freed by a clean-up that package torch registers when it makes the tensor,
// after the collector has run; package torch also counts bytes, and runs the collector when they grow. So memory stays
// bounded without any call of GC. A call at the head of a training loop frees the tensors of the last step before those of
// the next are made, which keeps the peak low. The original waited for every tensor made since the last call, and hung
// when the program held one; here GC waits for the clean-ups that are due, and tensors may be kept.

// GC frees the tensors that the program no longer reaches. It is called at the head of a training loop.
func GC() {
	runtime.GC()
	waitForCleanups(time.Second)
}

// FinishGC frees the tensors that the program no longer reaches. It is called after a training loop.
func FinishGC() { GC() }

// SetTensorFinalizer does nothing: every tensor has its clean-up from the start. It is here for programs that call it.
func SetTensorFinalizer(t *unsafe.Pointer) {}

// waitForCleanups returns when the clean-ups that are queued now have run, or at the latest after limit: other packages'
// clean-ups count too, and one of theirs may be slow.
func waitForCleanups(limit time.Duration) {
	s := []metrics.Sample{{Name: "/gc/cleanups/queued:cleanups"}, {Name: "/gc/cleanups/executed:cleanups"}}
	metrics.Read(s)
	due, start := s[0].Value.Uint64(), time.Now()
	for pause := 10 * time.Microsecond; s[1].Value.Uint64() < due && time.Since(start) < limit; pause *= 2 {
		time.Sleep(pause)
		metrics.Read(s)
	}
}
