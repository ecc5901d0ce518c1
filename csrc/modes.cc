// Modes of a thread: inference mode and autocast. Each is a stack per thread, since they nest.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <vector>

#include "internal.h"

using namespace gofsdp;

namespace {

thread_local std::vector<std::unique_ptr<c10::InferenceMode>> inference;

// What an autocast region found, to be put back when it ends.
struct Autocast {
  at::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
};
thread_local std::vector<Autocast> autocasts;

}  // namespace

extern "C" {

gf_ret gf_inference_mode_push(void) {
  return guard([&] { inference.push_back(std::make_unique<c10::InferenceMode>(true)); });
}

gf_ret gf_inference_mode_pop(void) {
  return guard([&] {
    TORCH_CHECK(!inference.empty(), "this thread is not in inference mode");
    inference.pop_back();
  });
}

gf_ret gf_is_inference(int64_t t) {
  return guard([&] { return borrow(t).is_inference(); });
}

// dtype -1 switches autocast off inside a region that has it on. Casts of weights are cached until the outermost region
// ends.
gf_ret gf_autocast_push(int64_t device, int64_t dtype) {
  return guard([&] {
    auto type = static_cast<at::DeviceType>(device);
    auto scalar = static_cast<at::ScalarType>(dtype);
    TORCH_CHECK(at::autocast::is_autocast_available(type), "autocast is not available on ", type);
    TORCH_CHECK(dtype < 0 || scalar == at::kHalf || scalar == at::kBFloat16, "autocast to ", scalar,
                ": expected float16 or bfloat16");
    autocasts.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
    at::autocast::set_autocast_enabled(type, dtype >= 0);
    if (dtype >= 0) at::autocast::set_autocast_dtype(type, scalar);
    at::autocast::increment_nesting();
  });
}

gf_ret gf_autocast_pop(void) {
  return guard([&] {
    TORCH_CHECK(!autocasts.empty(), "this thread is in no autocast region");
    Autocast before = autocasts.back();
    autocasts.pop_back();
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(before.device, before.enabled);
    at::autocast::set_autocast_dtype(before.device, before.dtype);
  });
}

// The dtype of autocast on this thread, or -1 where it is off.
gf_ret gf_autocast_dtype(int64_t device) {
  return guard([&]() -> int64_t {
    auto type = static_cast<at::DeviceType>(device);
    TORCH_CHECK(at::autocast::is_autocast_available(type), "autocast is not available on ", type);
    if (!at::autocast::is_autocast_enabled(type)) return -1;
    return static_cast<int64_t>(at::autocast::get_autocast_dtype(type));
  });
}

}  // extern "C"
