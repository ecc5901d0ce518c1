// What tests look at in the CPU allocator. See Note [Small blocks] in memory.cc.
#pragma once
#include <cstddef>

namespace gofsdp {

constexpr size_t kSmallBlock = 1 << 10;     // the most that a tensor asks for whose block a thread keeps
constexpr size_t kSmallBudget = 128 << 10;  // the most that a thread keeps

void install_allocator();
size_t small_bytes_kept();  // by the calling thread

}  // namespace gofsdp
