// Tests of the CPU allocator: what it counts, what it keeps, and both from many threads.
#include "memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "internal.h"

namespace gofsdp::test {
namespace {

struct Stats {
  int64_t live, peak, allocations;
};

Stats stats() {
  Stats s{};
  const gf_ret r = gf_memory_stats(&s.live, 3);
  EXPECT_EQ(r.err, nullptr);
  return s;
}
static_assert(sizeof(Stats) == 3 * sizeof(int64_t));

c10::DataPtr allocate(size_t n) { return c10::GetCPUAllocator()->allocate(n); }

class Memory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_allocator(); }
  void SetUp() override {
    gf_memory_trim();
    gf_memory_reset_peak();
    before = stats();
  }
  Stats before{};
};

TEST_F(Memory, CountsWhatTensorsAskFor) {
  EXPECT_EQ(before.peak, before.live);
  c10::DataPtr a = allocate(4000), b = allocate(1), c = allocate(1 << 20);
  EXPECT_EQ(stats().live - before.live, 4001 + (1 << 20));
  c.clear();
  EXPECT_EQ(stats().live - before.live, 4001);
  EXPECT_EQ(stats().peak - before.live, 4001 + (1 << 20));
  gf_memory_reset_peak();
  EXPECT_EQ(stats().peak - before.live, 4001);
  EXPECT_EQ(allocate(0).get(), nullptr);
  EXPECT_EQ(stats().allocations - before.allocations, 3) << "nothing is allocated for no bytes";
  a.clear();
  b.clear();
  EXPECT_EQ(stats().live, before.live);
}

TEST_F(Memory, IsAlignedAndApart) {
  std::vector<std::pair<c10::DataPtr, size_t>> all;
  for (int round = 0; round < 3; round++) {
    for (const size_t n : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, kSmallBlock, kSmallBlock + 1, size_t{300} << 10}) {
      all.emplace_back(allocate(n), n);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back().first.get()) % 64, 0u) << n;
      std::memset(all.back().first.get(), static_cast<int>(all.size()), n);
    }
    for (size_t i = 0; i < all.size(); i++) {
      const auto* p = static_cast<const char*>(all[i].first.get());
      EXPECT_EQ(p[0], static_cast<char>(i + 1));
      EXPECT_EQ(p[all[i].second - 1], static_cast<char>(i + 1));
    }
    if (round == 1) all.clear(); // the last round takes them again
  }
}

TEST_F(Memory, KeepsSmallBlocksUpToTheBudget) {
  EXPECT_EQ(small_bytes_kept(), 0u);
  const void* first = allocate(4).get();
  EXPECT_GT(small_bytes_kept(), 0u);
  EXPECT_EQ(allocate(60).get(), first) << "the same size, rounded";
  EXPECT_NE(allocate(70).get(), first);
  std::vector<c10::DataPtr> many;
  for (int i = 0; i < 10000; i++) many.push_back(allocate(static_cast<size_t>(i) % kSmallBlock + 1));
  many.clear();
  EXPECT_LE(small_bytes_kept(), kSmallBudget);
  EXPECT_GT(small_bytes_kept(), kSmallBudget - 2 * kSmallBlock);
  gf_memory_trim();
  EXPECT_EQ(small_bytes_kept(), 0u);
  EXPECT_EQ(stats().live, before.live);
}

TEST_F(Memory, TooMuchIsAnError) {
  for (const size_t n : {size_t{1} << 62, SIZE_MAX, SIZE_MAX - 100}) {
    EXPECT_THROW(allocate(n), c10::OutOfMemoryError) << n;
  }
  EXPECT_EQ(stats().live, before.live);
  EXPECT_EQ(stats().allocations, before.allocations);
}

// Blocks that one thread makes and another frees; while a third starts new peaks.
TEST_F(Memory, IsRightFromManyThreads) {
  constexpr int kThreads = 4, kBlocks = 5000;
  const c10::DataPtr held = allocate(100000);
  std::mutex mutex;
  std::deque<c10::DataPtr> queue;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kBlocks; i++) {
        const size_t n = static_cast<size_t>(i * 37 + t) % 3000 + 1;
        c10::DataPtr mine = allocate(n);
        std::memset(mine.get(), t, n);
        c10::DataPtr other;
        {
          std::lock_guard<std::mutex> lock(mutex);
          queue.push_back(std::move(mine));
          if (queue.size() > 100) {
            other = std::move(queue.front());
            queue.pop_front();
          }
        }
      }
    });
  }
  std::thread resets([&] {
    while (!done) {
      gf_memory_reset_peak();
      const Stats s = stats();
      EXPECT_GE(s.peak - before.live, 100000) << "less than what is held all the time";
    }
  });
  for (std::thread& t : threads) t.join();
  done = true;
  resets.join();
  queue.clear();
  EXPECT_EQ(stats().live - before.live, 100000);
  EXPECT_EQ(stats().allocations - before.allocations, kThreads * kBlocks + 1) << "threads that ended count";
  gf_memory_reset_peak();
  EXPECT_EQ(stats().peak - before.live, 100000);
}

// A peak of many threads at one moment is seen, though none of them alone reaches it.
TEST_F(Memory, PeakIsOfAllThreadsTogether) {
  constexpr int kThreads = 4;
  std::atomic<int> holding{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&] {
      const c10::DataPtr mine = allocate(1000);
      holding++;
      while (holding < kThreads) std::this_thread::yield();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(stats().peak - before.live, kThreads * 1000);
  EXPECT_EQ(stats().live, before.live);
}

// A thread's lists end with it, yet what outlives them in the thread is freed and counted.
TEST_F(Memory, OutlivesTheListsOfItsThread) {
  std::thread([] {
    struct Late {
      c10::DataPtr block;
      ~Late() {
        block.clear();
        block = allocate(8);
      }
    };
    static thread_local Late late; // made before the lists, so destroyed after them
    (void)late.block;
    late.block = allocate(4);
  }).join();
  EXPECT_EQ(stats().live, before.live);
  EXPECT_EQ(stats().allocations - before.allocations, 2);
}

}  // namespace
}  // namespace gofsdp::test
