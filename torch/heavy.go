package torch

import (
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

// Note [Heavy operators]
// OpenMP and MKL start a team of threads, with buffers, for every OS thread that calls them, and keep it. A goroutine
// that sits in a C call holds an OS thread, so a thousand goroutines that multiply matrices at once would make a thousand
// teams. So products take one of a few seats first; those who wait hold no OS thread. Who sits in a product finishes
// without waiting for anybody, with one exception: its saved-tensor hooks are Go code, which may multiply, or wait for
// somebody who does. While such a hook runs nobody insists on a seat.
var (
	seats       = make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))
	hooksInside atomic.Int32
)

const seatCheck = 20 * time.Millisecond

// enterHeavy takes a seat and returns the function that gives it back.
func enterHeavy() (leave func()) {
	select {
	case seats <- struct{}{}:
		return leaveHeavy
	default:
	}
	tick := time.NewTicker(seatCheck)
	defer tick.Stop()
	for {
		select {
		case seats <- struct{}{}:
			return leaveHeavy
		case <-tick.C:
			if hooksInside.Load() > 0 {
				return func() {}
			}
		}
	}
}

func leaveHeavy() { <-seats }

func isHeavy(name string) bool {
	switch strings.TrimPrefix(name, "aten::") {
	case "matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "einsum", "scaled_dot_product_attention":
		return true
	}
	return strings.HasPrefix(name, "gofsdp::") || strings.HasPrefix(name, "aten::conv")
}
