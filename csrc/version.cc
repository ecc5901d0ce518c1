// The versions of libtorch: the one that this library was compiled with, and the one that runs.
#include <torch/version.h>

#include <cstdint>

#include "version.h"

extern "C" {

// internal/capi reads this section of the file before it loads the library: a library that meets another libtorch may fail
// to load, or crash while it does.
[[gnu::used, gnu::section(".gofsdp.torch"), gnu::visibility("default")]] extern const char gf_torch_version[] =
    TORCH_VERSION;

// Of libtorch_cpu.so: major, minor and patch number in the upper three bytes.
std::uint64_t aoti_torch_abi_version();
}

namespace gofsdp {

std::string running_version() {
  std::uint64_t v = aoti_torch_abi_version();
  return std::to_string(v >> 56 & 0xff) + "." + std::to_string(v >> 48 & 0xff) + "." + std::to_string(v >> 40 & 0xff);
}

}  // namespace gofsdp
