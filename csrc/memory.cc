// The CPU allocator: counts live and peak tensor bytes, and keeps a few large blocks for the next use.
//
// Note [Block cache]
// A training step allocates and frees the same large sizes once per decoder layer. With malloc each of them is mapped and
// unmapped by the kernel (page faults cost more CPU than the arithmetic on small layers), or it fragments the heap. So
// freed blocks of at least kMinCached bytes wait in a list, oldest first, up to a budget; a request of exactly the same
// size takes the newest one, whose pages are warm. What does not fit pushes the oldest out, so sizes that only loading
// needed do not fill the cache for ever. The budget is small, so the cache adds little to the peak; gf_memory_trim
// empties it.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "internal.h"

namespace gofsdp {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMinCached = 256 << 10;
constexpr size_t kCacheBudget = 48 << 20;

struct Counter {
  std::atomic<int64_t> live{0}, peak{0}, allocations{0};
  void add(int64_t n) {
    int64_t now = live.fetch_add(n) + n;
    int64_t seen = peak.load();
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    allocations.fetch_add(1, std::memory_order_relaxed);
  }
};

Counter& counter() {
  static auto* c = new Counter;  // never destroyed: tensors may die after static destructors ran
  return *c;
}

// Block is the header in front of a tensor's data.
struct alignas(kAlignment) Block {
  size_t total;  // of the allocation, with this header
  size_t bytes;  // that the tensor asked for
  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }
};
static_assert(sizeof(Block) == kAlignment);

class BlockCache {
 public:
  BlockCache() { free_.reserve(kCacheBudget / kMinCached + 1); }  // put must not throw: it runs in destructors

  Block* get(size_t bytes) {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < SIZE_MAX / 2, "cannot allocate memory: ", bytes, " bytes for a CPU tensor");
    size_t total = (bytes + sizeof(Block) + kAlignment - 1) / kAlignment * kAlignment;
    Block* block = total >= kMinCached ? take(total) : nullptr;
    if (!block) block = allocate(total);
    if (!block) {
      free_memory();
      trim();
      block = allocate(total);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, block, "cannot allocate memory: ", bytes, " bytes for a CPU tensor");
    block->total = total;
    block->bytes = bytes;
    return block;
  }

  void put(Block* block) noexcept {
    size_t total = block->total;
    if (total < kMinCached || total > kCacheBudget) {
      std::free(block);
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    size_t evicted = 0;
    for (; cached_ + total > kCacheBudget; evicted++) {
      cached_ -= free_[evicted]->total;
      std::free(free_[evicted]);
    }
    free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(evicted));
    free_.push_back(block);
    cached_ += total;
  }

  void trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Block* b : free_) std::free(b);
    free_.clear();
    cached_ = 0;
    ::malloc_trim(0);
  }

 private:
  static Block* allocate(size_t total) {
    void* p = nullptr;
    return ::posix_memalign(&p, kAlignment, total) == 0 ? static_cast<Block*>(p) : nullptr;
  }
  Block* take(size_t total) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = free_.size(); i-- > 0;) {
      Block* b = free_[i];
      if (b->total != total) continue;
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      cached_ -= total;
      return b;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::vector<Block*> free_;  // oldest first
  size_t cached_ = 0;
};

BlockCache& cache() {
  static auto* c = new BlockCache;
  return *c;
}

void release(void* data) {
  if (!data) return;
  Block* block = Block::of(data);
  counter().live.fetch_sub(static_cast<int64_t>(block->bytes));
  cache().put(block);
}

std::atomic<int64_t> limit{0};  // of live bytes; 0 is none

void check_limit(size_t n) {
  int64_t most = limit.load(std::memory_order_relaxed);
  if (most == 0) return;
  auto fits = [&] { return counter().live.load() + static_cast<int64_t>(n) <= most; };
  if (n <= static_cast<size_t>(most) && (fits() || (free_memory() && fits()))) return;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "cannot allocate memory: ", n, " bytes for a CPU tensor, ",
                   counter().live.load(), " are in use and the limit is ", most);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    check_limit(n);
    Block* block = cache().get(n);
    counter().add(static_cast<int64_t>(n));
    return {block->data(), block->data(), &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dst, const void* src, std::size_t n) const override { std::memcpy(dst, src, n); }
};

}  // namespace

void install_allocator() {
  static auto* allocator = new CountingAllocator;
  // Large blocks are mapped and unmapped one by one, so that freeing them gives the memory back to the system: without
  // this glibc raises its threshold to 32 MiB after the first free and the heap fragments.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  c10::SetCPUAllocator(allocator, /*priority=*/255);
}

}  // namespace gofsdp

using namespace gofsdp;

extern "C" {

// out: live bytes, peak bytes, allocations so far.
gf_ret gf_memory_stats(int64_t* out, int64_t cap) {
  return guard([&] {
    TORCH_CHECK(cap >= 3, "gf_memory_stats needs 3 words");
    out[0] = counter().live.load();
    out[1] = counter().peak.load();
    out[2] = counter().allocations.load();
  });
}

gf_ret gf_memory_reset_peak(void) {
  return guard([&] { counter().peak.store(counter().live.load()); });
}

// Bounds the live bytes of CPU tensors; 0 takes the bound away. Returns the one before.
gf_ret gf_memory_limit(int64_t bytes) {
  return guard([&] {
    TORCH_CHECK(bytes >= 0, "a memory limit of ", bytes, " bytes");
    return limit.exchange(bytes);
  });
}

gf_ret gf_memory_trim(void) {
  return guard([&] { cache().trim(); });
}

}  // extern "C"
