package capi

/*
#include <stdint.h>
*/
import "C"

import (
	"fmt"
	"runtime/cgo"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Event says why the library calls back.
type Event int

// The events, as in gofsdp.h.
const (
	EventTensorHook Event = iota
	EventPostAccumulate
	EventBackward
	EventFinal
	EventPack
	EventUnpack
	EventPackRelease
	EventFreeMemory
)

// Callback is a Go value that libtorch calls. It runs on the thread that runs backward, inside the C call that started
// it. in and out are C memory, valid during the call; tensor handles in them change owner. An error, or a panic, comes
// back out of the C call that led here.
type Callback interface {
	Call(event Event, in, out []int64) error
}

// Releasable is a Callback that wants to know when C++ has let go of it.
type Releasable interface{ Released() }

// releaser is a callback value that is only released.
type releaser func()

func (releaser) Call(Event, []int64, []int64) error { return fmt.Errorf("capi: unexpected callback") }

func (f releaser) Released() {
	if f != nil {
		f()
	}
}

// failures keeps the errors of callbacks until the C call that they end returns to Go.
var failures struct {
	sync.Map
	next atomic.Uint64
}

func keepFailure(err error) uint64 {
	cookie := failures.next.Add(1)
	failures.Store(cookie, err)
	return cookie
}

func takeFailure(cookie uint64) error {
	v, ok := failures.LoadAndDelete(cookie)
	if !ok {
		return fmt.Errorf("capi: the error of a callback was lost")
	}
	return v.(error)
}

// PanicError is a panic of a callback that was no error value.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in a callback: %v\n%s", e.Value, e.Stack)
}

//export gofsdpCall
func gofsdpCall(h C.uint64_t, event C.int32_t, in *C.int64_t, nIn C.int64_t, out *C.int64_t, nOut C.int64_t) (cookie C.uint64_t) {
	defer func() {
		if Event(event) == EventPackRelease { // runs in a C++ destructor, which can report nothing
			_ = recover()
			cookie = 0
			return
		}
		switch v := recover().(type) {
		case nil:
		case error:
			if _, bug := v.(interface{ RuntimeError() }); bug {
				v = &PanicError{Value: v, Stack: debug.Stack()}
			}
			cookie = C.uint64_t(keepFailure(v))
		default:
			cookie = C.uint64_t(keepFailure(&PanicError{Value: v, Stack: debug.Stack()}))
		}
	}()
	cb := cgo.Handle(h).Value().(Callback)
	err := cb.Call(Event(event), unsafe.Slice((*int64)(unsafe.Pointer(in)), int(nIn)), unsafe.Slice((*int64)(unsafe.Pointer(out)), int(nOut)))
	if err != nil {
		return C.uint64_t(keepFailure(err))
	}
	return 0
}

//export gofsdpRelease
func gofsdpRelease(h C.uint64_t) {
	handle := cgo.Handle(h)
	if v, ok := handle.Value().(Releasable); ok {
		v.Released()
	}
	handle.Delete()
}
