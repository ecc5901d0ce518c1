package dist

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/capi"
	"github.com/gofsdp/gofsdp/torch"
)

// glooWork is a collective of Gloo that was started.
type glooWork struct {
	g        *Gloo
	what     operation
	t        *torch.Tensor // for its shape
	deadline time.Time
	cleanup  runtime.Cleanup // frees h of work that nobody waits for

	mu  sync.Mutex
	h   capi.Handle // 0 after the first Wait
	err error       // what Wait returned
}

func newGlooWork(g *Gloo, h capi.Handle, what operation, t *torch.Tensor) *glooWork {
	w := &glooWork{g: g, h: h, what: what, t: t, deadline: time.Now().Add(g.timeout)}
	w.cleanup = runtime.AddCleanup(w, capi.FreeWork, h)
	return w
}

// Wait implements Work.
func (w *glooWork) Wait(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.h != 0 {
		w.err = w.wait(ctx)
		w.cleanup.Stop()
		capi.FreeWork(w.h)
		w.h = 0
		w.g.ended()
	}
	return w.err
}

// poll is how often waiting looks at the context. The native waiting cannot be ended by it.
const poll = 100 * time.Millisecond

// wait returns when the work has ended: whatever became of it, its buffers are not used any more.
func (w *glooWork) wait(ctx context.Context) error {
	// The look at the other ranks takes a while. It begins early, so that the report is there when time is up.
	early := w.deadline.Add(-w.g.watch.window())
	var looked chan findings
	compare := time.Now().Add(w.g.watch.window())
	var compared chan *Stall
	for {
		step := min(poll, max(time.Until(w.deadline), 0))
		done, err := capi.WaitWork(w.h, step.Milliseconds()+1)
		switch now := time.Now(); {
		case err != nil:
			return w.failed(err)
		case done:
			return nil
		case ctx.Err() != nil:
			err := w.fail(context.Cause(ctx))
			w.g.Abort(err)
			w.drain()
			return err
		case len(compared) > 0:
			if stall := <-compared; stall != nil {
				w.g.abort(abortedBy(stall))
				w.drain()
				return w.fail(stall)
			}
		case compared == nil && now.After(compare):
			compared = make(chan *Stall, 1)
			go func() { compared <- w.g.watch.disagreement() }()
		case looked != nil && now.After(w.deadline):
			stall := w.g.watch.conclude(w.what, fmt.Sprintf("timed out after %v", w.g.timeout), true, <-looked)
			w.g.abort(abortedBy(stall))
			w.drain()
			return w.fail(stall)
		case looked == nil && now.After(early):
			looked = make(chan findings, 1)
			go func() { looked <- w.g.watch.look(w.what) }()
		}
	}
}

// failed is the error of work that ended with err: the connection to a rank broke, or this group was aborted.
func (w *glooWork) failed(err error) error {
	if cause := w.g.cause(); cause != nil {
		return w.fail(cause)
	}
	stall := w.g.watch.conclude(w.what, plain(err), isTimeout(err), w.g.watch.look(w.what))
	w.g.abort(abortedBy(stall))
	return w.fail(stall)
}

// plain is Gloo's message without the place in its sources and the advice that it comes with.
func plain(err error) string {
	s, _, _ := strings.Cut(err.Error(), ". This is typically")
	if place, rest, ok := strings.Cut(s, "] "); ok && strings.Contains(place, "gloo/") {
		return rest
	}
	return s
}

func (w *glooWork) fail(err error) error {
	return newError(WithLabel(context.Background(), w.what.Label), w.what.Op, w.g, w.t, err)
}

// drain waits until aborted work has ended. That takes milliseconds; only where aborting is impossible it gives up.
func (w *glooWork) drain() {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if done, err := capi.WaitWork(w.h, poll.Milliseconds()); done || err != nil {
			return
		}
	}
}

// then is work with something to do afterwards.
type then struct {
	Work
	f   func() error // nil once done
	err error
}

func (t *then) Wait(ctx context.Context) error {
	err := t.Work.Wait(ctx)
	if err == nil && t.f != nil {
		t.err, t.f = t.f(), nil
	}
	return errors.Join(err, t.err)
}
