// What the translation units of the C ABI share: handles, the exception wrapper, calls into Go.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "gofsdp.h"

namespace gofsdp {

// GoError carries the failure of a Go callback through C++ frames: the cookie names the error value kept in Go.
struct GoError : std::runtime_error {
  uint64_t cookie;
  explicit GoError(uint64_t c) : std::runtime_error("a Go callback failed"), cookie(c) {}
};

// A failure of the store or of a collective.
struct DistFailure : std::runtime_error {
  bool timeout;
  DistFailure(const std::string& m, bool t) : std::runtime_error(m), timeout(t) {}
};

// A device that does not exist here; the message says why.
struct DeviceMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

extern gf_callbacks go;

// Asks Go to free what it does not use any more, before an allocation fails; tells whether it freed anything. Defined in
// device.cc.
bool free_memory() noexcept;

// Calls into Go and turns a reported failure into an exception.
inline void call_go(uint64_t handle, gf_event event, int64_t* in, int64_t n_in, int64_t* out, int64_t n_out) {
  if (uint64_t cookie = go.call(handle, event, in, n_in, out, n_out)) throw GoError(cookie);
}

// GoHandle owns one Go value and releases it when the last C++ owner dies.
//
// A function of the ABI that is given a Go value holds it in a GoHandle before the guard, and moves it to where it stays
// inside: whatever fails, allocations included, the value is released once.
struct GoHandle {
  uint64_t h;
  explicit GoHandle(uint64_t handle) noexcept : h(handle) {}
  GoHandle(GoHandle&& other) noexcept : h(std::exchange(other.h, 0)) {}
  GoHandle& operator=(GoHandle&&) = delete;
  ~GoHandle() {
    if (h) go.release(h);
  }
};

gf_error* make_error(int kind, uint64_t cookie, const char* message) noexcept;
gf_error* current_error() noexcept;  // from the exception being handled

// A tensor handle is a TensorImpl* that holds one reference.
inline at::Tensor borrow(int64_t h) {
  TORCH_CHECK(h != 0, "the tensor was freed");
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
      reinterpret_cast<c10::TensorImpl*>(h)));
}
inline at::Tensor borrow_optional(int64_t h) { return h ? borrow(h) : at::Tensor(); }
inline int64_t own(at::Tensor t) {
  return t.defined() ? reinterpret_cast<int64_t>(t.unsafeReleaseTensorImpl()) : 0;
}
// Tells whether FSDP freed the storage: kernels would read through a null pointer. See Note [Storage free and refill].
inline bool storage_freed(const at::Tensor& t) {
  return t.numel() > 0 && t.has_storage() && t.storage().nbytes() == 0;
}
// Takes over the reference that a handle holds.
inline at::Tensor take(int64_t h) {
  if (!h) return at::Tensor();
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
      reinterpret_cast<c10::TensorImpl*>(h)));
}

// Numbers travel as the bits of an int64.
inline double bits_to_double(int64_t b) { return std::bit_cast<double>(b); }
inline int64_t double_to_bits(double d) { return std::bit_cast<int64_t>(d); }

// What tests make every body throw; null otherwise. It is hidden in the library, where nobody can set it.
extern void (*fault)();

// The one way a body of the C ABI runs: nothing thrown inside leaves it.
template <class F>
gf_ret guard(F&& body) noexcept {
  try {
    if (fault) [[unlikely]] fault();
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return {0, nullptr};
    } else {
      return {static_cast<int64_t>(body()), nullptr};
    }
  } catch (...) {
    return {0, current_error()};
  }
}

}  // namespace gofsdp
