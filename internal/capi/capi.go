// Package capi is the only door to libgofsdp.so, the C ABI over libtorch. It finds and opens the library at first use,
// turns C results into Go values and errors, and carries callbacks from libtorch's threads into Go.
//
// Handles are plain integers that own one reference each; packages above wrap them and decide when to free them.
package capi

/*
#cgo CFLAGS: -O2
#cgo LDFLAGS: -ldl
#cgo noescape load_gf_op_call
#cgo noescape load_gf_tensor_free_all
#cgo noescape load_gf_tensor_meta
#cgo nocallback load_gf_tensor_meta
#include <stdlib.h>
#include "loader.h"
*/
import "C"

import (
	"fmt"
	"runtime/cgo"
	"unsafe"
)

// Handle is a C++ object that Go owns; zero is none.
type Handle int64

// Kinds of Error, as in gofsdp.h.
const (
	KindOther    = int(C.GF_ERR_OTHER)
	KindTorch    = int(C.GF_ERR_TORCH)
	KindOOM      = int(C.GF_ERR_OOM)
	KindGo       = int(C.GF_ERR_GO)
	KindDist     = int(C.GF_ERR_DIST)
	KindNoSymbol = int(C.GF_ERR_NO_SYMBOL)
	KindTimeout  = int(C.GF_ERR_TIMEOUT)
	KindDevice   = int(C.GF_ERR_DEVICE)
)

// Tags of the value stream of CallOp, as in gofsdp.h.
const (
	TagNone       = int64(C.GF_NONE)
	TagTensor     = int64(C.GF_TENSOR)
	TagInt        = int64(C.GF_INT)
	TagDouble     = int64(C.GF_DOUBLE)
	TagBool       = int64(C.GF_BOOL)
	TagString     = int64(C.GF_STRING)
	TagIntList    = int64(C.GF_INT_LIST)
	TagDoubleList = int64(C.GF_DOUBLE_LIST)
	TagBoolList   = int64(C.GF_BOOL_LIST)
	TagTensorList = int64(C.GF_TENSOR_LIST)
	TagDevice     = int64(C.GF_DEVICE)
	TagGenerator  = int64(C.GF_GENERATOR)
	TagDefault    = int64(C.GF_DEFAULT)
	TagComplex    = int64(C.GF_COMPLEX)
	TagScalarList = int64(C.GF_SCALAR_LIST)
	TagStringList = int64(C.GF_STRING_LIST)
	TagStream     = int64(C.GF_STREAM)
	TagStorage    = int64(C.GF_STORAGE)
)

// Error is a failure reported by the library.
type Error struct {
	Kind    int
	Message string
	Cause   error // the Go error, where a callback failed
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Cause.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Cause }

func result(r C.gf_ret) (int64, error) {
	if r.err == nil {
		return int64(r.v), nil
	}
	e := &Error{Kind: int(r.err.kind), Message: C.GoString(r.err.message)}
	if e.Kind == KindGo {
		e.Cause = takeFailure(uint64(r.err.cookie))
	}
	C.load_error_free(r.err)
	return 0, e
}

func status(r C.gf_ret) error {
	_, err := result(r)
	return err
}

func handle(r C.gf_ret) (Handle, error) {
	v, err := result(r)
	return Handle(v), err
}

func words(v []int64) *C.int64_t {
	return (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(v)))
}

func handles(v []Handle) *C.int64_t {
	return (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(v)))
}

func flag(b bool) C.int64_t {
	if b {
		return 1
	}
	return 0
}

// withText gives f a C copy of s.
func withText(s string, f func(*C.char) C.gf_ret) C.gf_ret {
	c := C.CString(s)
	defer C.free(unsafe.Pointer(c))
	return f(c)
}

func text(f func(out *C.char, n C.int64_t) C.gf_ret) (string, error) {
	buf := make([]byte, 1<<16)
	n, err := result(f((*C.char)(unsafe.Pointer(&buf[0])), C.int64_t(len(buf))))
	return string(buf[:n]), err
}

// Versions describes the libtorch in use and its threading, as libtorch prints it.
func Versions() (string, error) {
	return text(func(out *C.char, n C.int64_t) C.gf_ret { return C.load_gf_versions(out, n) })
}

// SetNumThreads sets libtorch's intra-operator thread count.
func SetNumThreads(n int) error { return status(C.load_gf_set_num_threads(C.int64_t(n))) }

// NumThreads is libtorch's intra-operator thread count.
func NumThreads() (int, error) {
	n, err := result(C.load_gf_get_num_threads())
	return int(n), err
}

// TestThrow makes the library throw one kind of C++ exception; tests prove with it that none leaves the C ABI.
func TestThrow(what int) error { return status(C.load_gf_test_throw(C.int64_t(what))) }

// TestMul multiplies two tensors n times in C++; benchmarks compare calls from Go with it.
func TestMul(a, b Handle, n int) error {
	return status(C.load_gf_test_mul(C.int64_t(a), C.int64_t(b), C.int64_t(n)))
}

// FindOp looks an operator up. argNames (comma separated) is the order in which CallOp will pass arguments; empty means
// the order of the running library's schema.
func FindOp(name, overload, argNames string) (Handle, error) {
	return handle(withText(name, func(n *C.char) C.gf_ret {
		return withText(overload, func(o *C.char) C.gf_ret {
			return withText(argNames, func(a *C.char) C.gf_ret { return C.load_gf_op_find(n, o, a) })
		})
	}))
}

// OpSchema prints the schema of an operator as the running library declares it.
func OpSchema(name, overload string) (s string, err error) {
	return text(func(out *C.char, n C.int64_t) C.gf_ret {
		return withText(name, func(nm *C.char) C.gf_ret {
			return withText(overload, func(o *C.char) C.gf_ret { return C.load_gf_op_schema(nm, o, out, n) })
		})
	})
}

// ListOps prints the schema of every operator of the running library, one a line, sorted.
func ListOps() (string, error) {
	buf := make([]byte, 1<<20)
	for {
		n, err := result(C.load_gf_op_list((*C.char)(unsafe.Pointer(&buf[0])), C.int64_t(len(buf))))
		if err != nil {
			return "", err
		}
		if n <= int64(len(buf)) {
			return string(buf[:n]), nil
		}
		buf = make([]byte, n)
	}
}

// CallOp runs an operator on a value stream and returns the stream of results, in rets if it fits. Where rets is nil, the
// results are dropped.
func CallOp(op Handle, args, rets []int64) ([]int64, error) {
	n, err := result(C.load_gf_op_call(C.int64_t(op), words(args), C.int64_t(len(args)), words(rets), C.int64_t(len(rets))))
	if err != nil {
		return nil, err
	}
	if n >= 0 {
		return rets[:n], nil
	}
	buffer := *(**int64)(unsafe.Pointer(&rets[0])) // C memory
	out := make([]int64, rets[1])
	copy(out, unsafe.Slice(buffer, rets[1]))
	C.load_buffer_free((*C.int64_t)(unsafe.Pointer(buffer)))
	return out, nil
}

// Free releases a tensor handle.
func Free(t Handle) { _ = status(C.load_gf_tensor_free(C.int64_t(t))) }

// FreeAll releases tensor handles.
func FreeAll(list []Handle) {
	if len(list) > 0 {
		_ = status(C.load_gf_tensor_free_all(handles(list), C.int64_t(len(list))))
	}
}

// Alias gives a second handle of the same tensor.
func Alias(t Handle) (Handle, error) { return handle(C.load_gf_tensor_alias(C.int64_t(t))) }

// Meta fills out with the facts of a tensor; see gf_tensor_meta for the layout.
func Meta(t Handle, out []int64) ([]int64, error) {
	n, err := result(C.load_gf_tensor_meta(C.int64_t(t), words(out), C.int64_t(len(out))))
	return out[:n], err
}

// DataPtr is the address of a tensor's first element.
func DataPtr(t Handle) (unsafe.Pointer, error) {
	r := C.load_gf_tensor_data_ptr(C.int64_t(t))
	if err := status(r); err != nil {
		return nil, err
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&r.v)), nil
}

// FromBlob wraps memory outside Go's heap; release runs when the storage dies.
func FromBlob(data unsafe.Pointer, dtype int, sizes []int64, release func()) (Handle, error) {
	h := cgo.NewHandle(releaser(release))
	return handle(C.load_gf_tensor_from_blob(data, C.int64_t(dtype), words(sizes), C.int64_t(len(sizes)), C.uint64_t(h)))
}

// StorageResize frees (0) or allocates a tensor's storage in place; contents are not kept.
func StorageResize(t Handle, nbytes int64) error {
	return status(C.load_gf_tensor_storage_resize(C.int64_t(t), C.int64_t(nbytes)))
}

// VariableData is an alias of the tensor outside autograd, with a version counter of its own.
func VariableData(t Handle) (Handle, error) {
	return handle(C.load_gf_tensor_variable_data(C.int64_t(t)))
}

// SetData makes t hold src's storage, sizes and dtype.
func SetData(t, src Handle) error {
	return status(C.load_gf_tensor_set_data(C.int64_t(t), C.int64_t(src)))
}

// SetRequiresGrad marks a leaf.
func SetRequiresGrad(t Handle, on bool) error {
	return status(C.load_gf_set_requires_grad(C.int64_t(t), flag(on)))
}

// Grad is the accumulated gradient of a leaf, or zero.
func Grad(t Handle) (Handle, error) { return handle(C.load_gf_tensor_grad(C.int64_t(t))) }

// SetGrad replaces the accumulated gradient; zero clears it.
func SetGrad(t, grad Handle) error {
	return status(C.load_gf_tensor_set_grad(C.int64_t(t), C.int64_t(grad)))
}

// GradMode sets the calling thread's grad mode (0 off, 1 on, -1 only read) and returns the mode before.
func GradMode(set int) (bool, error) {
	v, err := result(C.load_gf_grad_mode(C.int64_t(set)))
	return v != 0, err
}

// PushInferenceMode turns inference mode on for the calling thread, until PopInferenceMode.
func PushInferenceMode() error { return status(C.load_gf_inference_mode_push()) }

// PopInferenceMode undoes the last PushInferenceMode of this thread.
func PopInferenceMode() error { return status(C.load_gf_inference_mode_pop()) }

// IsInference tells whether a tensor was made in inference mode.
func IsInference(t Handle) (bool, error) {
	v, err := result(C.load_gf_is_inference(C.int64_t(t)))
	return v != 0, err
}

// PushAutocast turns autocast to dtype on for a device type on the calling thread, or off with dtype -1, until
// PopAutocast.
func PushAutocast(device, dtype int) error {
	return status(C.load_gf_autocast_push(C.int64_t(device), C.int64_t(dtype)))
}

// PopAutocast undoes the last PushAutocast of this thread.
func PopAutocast() error { return status(C.load_gf_autocast_pop()) }

// AutocastDType is the dtype of autocast for a device type on the calling thread, -1 where it is off.
func AutocastDType(device int) (int, error) {
	v, err := result(C.load_gf_autocast_dtype(C.int64_t(device)))
	return int(v), err
}

// AnomalyMode sets autograd's anomaly detection (0 off, 1 on, -1 only read) and returns the mode before.
func AnomalyMode(set int) (bool, error) {
	v, err := result(C.load_gf_anomaly_mode(C.int64_t(set)))
	return v != 0, err
}

// Backward accumulates gradients into the leaves of the roots' graph. grads may be nil.
func Backward(roots, grads []Handle, retain, create bool) error {
	if err := sameLength(len(roots), grads); err != nil {
		return err
	}
	return status(C.load_gf_backward(handles(roots), handles(grads), C.int64_t(len(roots)), flag(retain), flag(create)))
}

func sameLength(roots int, grads []Handle) error {
	if grads != nil && len(grads) != roots {
		return &Error{Kind: KindTorch, Message: fmt.Sprintf("%d gradients for %d roots", len(grads), roots)}
	}
	return nil
}

// GradOf computes gradients of outputs with respect to inputs.
func GradOf(outputs, grads, inputs []Handle, retain, create, allowUnused bool) ([]Handle, error) {
	if err := sameLength(len(outputs), grads); err != nil {
		return nil, err
	}
	out := make([]Handle, len(inputs))
	err := status(C.load_gf_grad(handles(outputs), handles(grads), C.int64_t(len(outputs)), handles(inputs),
		C.int64_t(len(inputs)), flag(retain), flag(create), flag(allowUnused), handles(out)))
	return out, err
}

// HookTensor calls cb with EventTensorHook when the gradient of t is computed; the id removes the hook.
func HookTensor(t Handle, cb Callback) (int64, error) {
	return result(C.load_gf_tensor_hook(C.int64_t(t), C.uint64_t(cgo.NewHandle(cb))))
}

// UnhookTensor removes a tensor hook.
func UnhookTensor(t Handle, id int64) error {
	return status(C.load_gf_tensor_hook_remove(C.int64_t(t), C.int64_t(id)))
}

// HookPostAccumulate calls cb with EventPostAccumulate after the leaf t has accumulated a gradient; the id removes it.
func HookPostAccumulate(t Handle, cb Callback) (int64, error) {
	return result(C.load_gf_post_accumulate_hook(C.int64_t(t), C.uint64_t(cgo.NewHandle(cb))))
}

// UnhookPostAccumulate removes what HookPostAccumulate added.
func UnhookPostAccumulate(t Handle, id int64) error {
	return status(C.load_gf_post_accumulate_hook_remove(C.int64_t(t), C.int64_t(id)))
}

// RecordFunction makes outputs the results of a node on inputs whose backward is cb (EventBackward) and which keeps
// saved for it. Outputs with a non-zero word in fixed never require grad. Messages call the node name.
func RecordFunction(cb Callback, name string, inputs, outputs []Handle, fixed []int64, saved []Handle) ([]Handle, error) {
	wrapped := make([]Handle, len(outputs))
	h := C.uint64_t(cgo.NewHandle(cb))
	return wrapped, status(withText(name, func(name *C.char) C.gf_ret {
		return C.load_gf_function_record(h, name, handles(inputs), C.int64_t(len(inputs)), handles(outputs), words(fixed),
			C.int64_t(len(outputs)), handles(saved), C.int64_t(len(saved)), handles(wrapped))
	}))
}

// QueueCallback calls cb (EventFinal) when the running backward ends. Only valid inside a backward callback.
func QueueCallback(cb Callback) error {
	return status(C.load_gf_queue_callback(C.uint64_t(cgo.NewHandle(cb))))
}

// PushSavedHooks makes cb pack and unpack what autograd saves on this thread (EventPack, EventUnpack).
func PushSavedHooks(cb Callback) error {
	return status(C.load_gf_saved_hooks_push(C.uint64_t(cgo.NewHandle(cb))))
}

// PopSavedHooks undoes the last PushSavedHooks of this thread.
func PopSavedHooks() error { return status(C.load_gf_saved_hooks_pop()) }

// ManualSeed seeds the process-wide generators.
func ManualSeed(seed int64) error { return status(C.load_gf_manual_seed(C.int64_t(seed))) }

// NewGenerator makes a CPU generator.
func NewGenerator(seed int64) (Handle, error) {
	return handle(C.load_gf_generator_new(C.int64_t(seed)))
}

// FreeGenerator releases a generator.
func FreeGenerator(g Handle) { _ = status(C.load_gf_generator_free(C.int64_t(g))) }

// SeedGenerator restarts a generator.
func SeedGenerator(g Handle, seed int64) error {
	return status(C.load_gf_generator_seed(C.int64_t(g), C.int64_t(seed)))
}

// GeneratorState is a uint8 tensor.
func GeneratorState(g Handle) (Handle, error) { return handle(C.load_gf_generator_state(C.int64_t(g))) }

// SetGeneratorState restores what GeneratorState gave.
func SetGeneratorState(g, state Handle) error {
	return status(C.load_gf_generator_set_state(C.int64_t(g), C.int64_t(state)))
}

// MemoryStats gives live bytes, peak bytes and allocation count of CPU tensors.
func MemoryStats() (live, peak, allocations int64, err error) {
	var out [3]int64
	err = status(C.load_gf_memory_stats(words(out[:]), 3))
	return out[0], out[1], out[2], err
}

// ResetPeak makes the peak of MemoryStats the live bytes of now.
func ResetPeak() error { return status(C.load_gf_memory_reset_peak()) }

// TrimMemory gives cached free memory back to the system.
func TrimMemory() error { return status(C.load_gf_memory_trim()) }
