// The CPU allocator: counts live and peak tensor bytes, and keeps freed blocks for the next use.
//
// Note [Block cache]
// A training step allocates and frees the same large sizes once per decoder layer. With malloc each of them is mapped and
// unmapped by the kernel (page faults cost more CPU than the arithmetic on small layers), or it fragments the heap. So
// freed blocks of at least kMinCached bytes wait in a list, oldest first, up to a budget; a request of exactly the same
// size takes the newest one, whose pages are warm. What does not fit pushes the oldest out, so sizes that only loading
// needed do not fill the cache for ever. The budget is small, so the cache adds little to the peak; gf_memory_trim
// empties it.
//
// Note [Small blocks]
// At the other end, scalars and losses and sizes: an aligned malloc and its free are a tenth of what such an operator
// costs. Each thread keeps the small blocks that it freed, by size, up to kSmallBudget, and takes them without a lock. A
// block that another thread made joins the list of the one that frees it. The lists end with their thread.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "internal.h"
#include "memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else // a kept block is poisoned for AddressSanitizer, which then sees who uses it after the free
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace gofsdp {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMinCached = 256 << 10;
constexpr size_t kCacheBudget = 48 << 20;

// The bytes that tensors hold. One counter for all threads, since a peak is of all of them at one moment: a block costs
// one atomic addition when it is made and one when it goes.
struct Counter {
  std::atomic<int64_t> live{0}, peak{0};
  void add(int64_t n) {
    raise(live.fetch_add(n) + n);
  }
  void sub(int64_t n) {
    live.fetch_sub(n);
  }
  void reset_peak() {
    peak.store(live.load());
    raise(live.load());  // what was allocated between the load and the store
  }

 private:
  void raise(int64_t now) {
    int64_t seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
  }
};
constinit Counter counter;

// Block is the header in front of a tensor's data.
struct alignas(kAlignment) Block {
  size_t total;  // of the allocation, with this header
  size_t bytes;  // that the tensor asked for
  Block* next;   // in a list of small blocks
  void* data() {
    return this + 1;
  }
  static Block* of(void* data) {
    return static_cast<Block*>(data) - 1;
  }
};
static_assert(sizeof(Block) == kAlignment);

void poison(Block* b) {
  ASAN_POISON_MEMORY_REGION(b->data(), b->total - sizeof(Block));
}
void unpoison(Block* b) {
  ASAN_UNPOISON_MEMORY_REGION(b->data(), b->total - sizeof(Block));
}
void give_back(Block* b) noexcept {
  unpoison(b);
  std::free(b);
}

// ---- small blocks ----

// The allocator's part in one thread.
struct Thread {
  static constexpr size_t kSizes = (kSmallBlock + sizeof(Block)) / kAlignment + 1;
  Block* free[kSizes] = {};  // by total / kAlignment
  size_t kept = 0;           // bytes in free
  // Written by this thread only; an addition here is no atomic operation of the processor.
  std::atomic<int64_t> allocations{0};
  Thread *previous = nullptr, *next = nullptr;

  void count() {
    allocations.store(allocations.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  Block* take(size_t total) {
    Block*& head = free[total / kAlignment];
    Block* b = head;
    if (!b) return nullptr;
    head = b->next;
    kept -= total;
    unpoison(b);
    return b;
  }
  bool put(Block* b) noexcept {
    if (kept + b->total > kSmallBudget) return false;
    Block*& head = free[b->total / kAlignment];
    b->next = head;
    head = b;
    kept += b->total;
    poison(b);
    return true;
  }
  void trim() noexcept {
    for (Block*& head : free) {
      while (Block* b = head) {
        head = b->next;
        give_back(b);
      }
    }
    kept = 0;
  }
};

// All threads that allocated and live, for the count of allocations.
constinit std::mutex threads_mutex;
constinit Thread* threads = nullptr;
constinit int64_t allocations_of_ended_threads = 0;

constinit thread_local Thread* here = nullptr;
constinit thread_local bool ended = false;

// Ends the Thread of the OS thread that it is a local of.
struct Ender {
  ~Ender() {
    Thread* t = here;
    here = nullptr;
    ended = true;  // what is freed later, by other destructors of this thread, goes to free at once
    if (!t) return;
    t->trim();
    std::lock_guard<std::mutex> lock(threads_mutex);
    allocations_of_ended_threads += t->allocations.load(std::memory_order_relaxed);
    (t->previous ? t->previous->next : threads) = t->next;
    if (t->next) t->next->previous = t->previous;
    delete t;
  }
};

// The calling thread's part, or null where the thread is at its end or there is no memory for it.
[[gnu::noinline]] Thread* begin_thread() noexcept {
  if (ended) return nullptr;
  auto* t = new (std::nothrow) Thread;
  if (!t) return nullptr;
  static thread_local Ender ender;
  (void)ender;
  std::lock_guard<std::mutex> lock(threads_mutex);
  t->next = threads;
  if (threads) threads->previous = t;
  threads = t;
  here = t;
  return t;
}
inline Thread* this_thread() noexcept {
  Thread* t = here;
  return t ? t : begin_thread();
}

int64_t allocations() {
  std::lock_guard<std::mutex> lock(threads_mutex);
  int64_t n = allocations_of_ended_threads;
  for (const Thread* t = threads; t; t = t->next) n += t->allocations.load(std::memory_order_relaxed);
  return n;
}

void count_allocation(Thread* t) {
  if (t) return t->count();
  std::lock_guard<std::mutex> lock(threads_mutex);
  allocations_of_ended_threads++;
}

// ---- large blocks ----

class BlockCache {
 public:
  BlockCache() { free_.reserve(kCacheBudget / kMinCached + 1); }  // put must not throw: it runs in destructors

  Block* take(size_t total) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = free_.size(); i-- > 0;) {
      Block* b = free_[i];
      if (b->total != total) continue;
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      cached_ -= total;
      unpoison(b);
      return b;
    }
    return nullptr;
  }

  bool put(Block* block) noexcept {
    size_t total = block->total;
    if (total > kCacheBudget) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    size_t evicted = 0;
    for (; cached_ + total > kCacheBudget; evicted++) {
      cached_ -= free_[evicted]->total;
      give_back(free_[evicted]);
    }
    free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(evicted));
    free_.push_back(block);
    cached_ += total;
    poison(block);
    return true;
  }

  void trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Block* b : free_) give_back(b);
    free_.clear();
    cached_ = 0;
  }

 private:
  std::mutex mutex_;
  std::vector<Block*> free_;  // oldest first
  size_t cached_ = 0;
};

BlockCache& cache() {
  static auto* c = new BlockCache;  // never destroyed: tensors may die after static destructors ran
  return *c;
}

// ---- the allocator ----

void trim() {
  if (here) here->trim();
  cache().trim();
  ::malloc_trim(0);
}

Block* allocate(size_t total) {
  void* p = nullptr;
  return ::posix_memalign(&p, kAlignment, total) == 0 ? static_cast<Block*>(p) : nullptr;
}

Block* get(size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < SIZE_MAX / 2, "cannot allocate memory: ", bytes, " bytes for a CPU tensor");
  size_t total = (bytes + sizeof(Block) + kAlignment - 1) / kAlignment * kAlignment;
  Thread* thread = this_thread();
  Block* block = nullptr;
  if (bytes <= kSmallBlock) {
    if (thread) block = thread->take(total);
  } else if (total >= kMinCached) {
    block = cache().take(total);
  }
  if (!block) block = allocate(total);
  if (!block) {
    free_memory();
    trim();
    block = allocate(total);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, block, "cannot allocate memory: ", bytes, " bytes for a CPU tensor");
  block->total = total;
  block->bytes = bytes;
  count_allocation(thread);
  counter.add(static_cast<int64_t>(bytes));
  return block;
}

std::atomic<int64_t> limit{0};  // of live bytes; 0 is none

void check_limit(size_t n) {
  int64_t most = limit.load(std::memory_order_relaxed);
  if (most == 0) return;
  auto fits = [&] { return counter.live.load() + static_cast<int64_t>(n) <= most; };
  if (n <= static_cast<size_t>(most) && (fits() || (free_memory() && fits()))) return;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "cannot allocate memory: ", n, " bytes for a CPU tensor, ",
                   counter.live.load(), " are in use and the limit is ", most);
}

void release(void* data) {
  if (!data) return;
  Block* block = Block::of(data);
  counter.sub(static_cast<int64_t>(block->bytes));
  bool kept = false;
  if (block->bytes <= kSmallBlock) {
    Thread* thread = this_thread();
    kept = thread && thread->put(block);
  } else if (block->total >= kMinCached) {
    kept = cache().put(block);
  }
  if (!kept) std::free(block);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    check_limit(n);
    void* data = get(n)->data();
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

size_t small_bytes_kept() {
  return here ? here->kept : 0;
}

}  // namespace gofsdp

using namespace gofsdp;

extern "C" {

// out: live bytes, peak bytes, allocations so far.
gf_ret gf_memory_stats(int64_t* out, int64_t cap) {
  return guard([&] {
    TORCH_CHECK(cap >= 3, "gf_memory_stats needs 3 words");
    out[0] = counter.live.load();
    out[1] = counter.peak.load();
    out[2] = allocations();
  });
}

gf_ret gf_memory_reset_peak(void) {
  return guard([&] { counter.reset_peak(); });
}

// Bounds the live bytes of CPU tensors; 0 takes the bound away. Returns the one before.
gf_ret gf_memory_limit(int64_t bytes) {
  return guard([&] {
    TORCH_CHECK(bytes >= 0, "a memory limit of ", bytes, " bytes");
    return limit.exchange(bytes);
  });
}

// Small blocks that other threads keep stay with them.
gf_ret gf_memory_trim(void) {
  return guard([&] { trim(); });
}

}  // extern "C"
