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
// without waiting for anybody, with one exception: hooks are Go code, which may multiply, or wait for somebody who does.
// While a hook runs nobody insists on a seat.
//
// Other operators spread over threads too, once their tensors are large, and so does backward. They are too many and too
// short for the seats; a wider gate bounds how many of them are in C at once. Its price without a crowd is two atomic
// additions.
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

// gate lets a bounded number of goroutines in.
type gate struct {
	most            int32
	inside, waiting atomic.Int32
	wake            chan struct{}
}

var calls = gate{most: int32(max(16, 2*runtime.GOMAXPROCS(0))), wake: make(chan struct{}, 1)}

func (g *gate) enter() {
	if !g.try() {
		g.wait()
	}
}

func (g *gate) try() bool {
	if g.inside.Add(1) <= g.most {
		return true
	}
	g.inside.Add(-1)
	return false
}

func (g *gate) wait() {
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	tick := time.NewTicker(seatCheck) // also for a wake-up that somebody else took
	defer tick.Stop()
	for {
		select {
		case <-g.wake:
		case <-tick.C:
			if hooksInside.Load() > 0 {
				g.inside.Add(1)
				return
			}
		}
		if g.try() {
			return
		}
	}
}

func (g *gate) leave() {
	g.inside.Add(-1)
	if g.waiting.Load() > 0 {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// inHook counts a callback of libtorch into Go while it runs.
func inHook() (end func()) {
	hooksInside.Add(1)
	return leaveHook
}

func leaveHook() { hooksInside.Add(-1) }

func isHeavy(name string) bool {
	switch strings.TrimPrefix(name, "aten::") {
	case "matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "einsum", "scaled_dot_product_attention":
		return true
	}
	return strings.HasPrefix(name, "gofsdp::") || strings.HasPrefix(name, "aten::conv")
}
