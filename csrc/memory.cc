// The CPU allocator: counts live and peak tensor bytes, and keeps a few large blocks for the next use.
//
// Note [Block cache]
// A training step allocates and frees the same large sizes once per decoder layer. With malloc each of them is mapped and
// unmapped by the kernel (page faults cost more CPU than the arithmetic on small layers), or it fragments the heap. So
// freed blocks of at least kMinCached bytes wait in a list per exact size, up to a budget; a request of the same size
// takes one from there. The budget is small, so the cache adds little to the peak, and gf_memory_trim empties it.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
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

// BlockCache hands out raw blocks. A block starts with a 64-byte header that holds its size.
class BlockCache {
 public:
  void* get(size_t n) {
    size_t total = round_up(n);
    if (total >= kMinCached) {
      std::lock_guard<std::mutex> lock(mutex_);
      auto it = free_.find(total);
      if (it != free_.end() && !it->second.empty()) {
        void* block = it->second.back();
        it->second.pop_back();
        cached_ -= total;
        return block;
      }
    }
    void* block = nullptr;
    if (::posix_memalign(&block, kAlignment, total) != 0) {
      trim();
      if (::posix_memalign(&block, kAlignment, total) != 0)
        TORCH_CHECK_WITH(OutOfMemoryError, false, "cannot allocate memory: ", n, " bytes for a CPU tensor");
    }
    *static_cast<size_t*>(block) = total;
    return block;
  }
  void put(void* block) {
    size_t total = *static_cast<size_t*>(block);
    if (total >= kMinCached) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (cached_ + total <= kCacheBudget) {
        free_[total].push_back(block);
        cached_ += total;
        return;
      }
    }
    std::free(block);
  }
  void trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [size, blocks] : free_) {
      for (void* b : blocks) std::free(b);
      blocks.clear();
    }
    cached_ = 0;
    ::malloc_trim(0);
  }
  static size_t size_of(void* block) { return *static_cast<size_t*>(block); }

 private:
  static size_t round_up(size_t n) { return (n + 2 * kAlignment - 1) / kAlignment * kAlignment; }
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> free_;
  size_t cached_ = 0;
};

BlockCache& cache() {
  static auto* c = new BlockCache;
  return *c;
}

void release(void* data) {
  if (!data) return;
  void* block = static_cast<char*>(data) - kAlignment;
  counter().live.fetch_sub(static_cast<int64_t>(BlockCache::size_of(block)));
  cache().put(block);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* block = cache().get(n);
    counter().add(static_cast<int64_t>(BlockCache::size_of(block)));
    void* data = static_cast<char*>(block) + kAlignment;
    return {data, data, &release, c10::Device(c10::kCPU)};
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

gf_ret gf_memory_trim(void) {
  return guard([&] { cache().trim(); });
}

}  // extern "C"
