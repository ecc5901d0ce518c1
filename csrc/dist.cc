// Rendezvous stores and the Gloo process group.
//
// The torch wheel exports c10d::ProcessGroupGloo but does not ship Gloo's own headers. gloo_fwd/ declares the few
// classes that ProcessGroupGloo.hpp names; a collective test per supported libtorch version guards their layout.
#include <ATen/ATen.h>
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <typeinfo>
#include <utility>

#include "internal.h"

using namespace gofsdp;

namespace {

using std::chrono::milliseconds;

// Note [Aborting Gloo]
// c10d's Gloo cannot abort: Backend::abort does nothing, so a collective that some rank never joins runs until Gloo's own
// timeout, and its buffers with it. Gloo itself can: the transport's signalException fails whatever waits on a connection,
// then closes it, so that the peers fail too. Gloo does the same when one of its operations times out. The transport is
// reached through a field of gloo::Context, whose layout our header repeats: abort checks what it can of it first, and
// without a match leaves the collectives to Gloo's timeout.
//
// Note [Tags]
// Gloo matches the messages of a collective by its number alone. Where ranks start different ones under the same number, the
// data that comes does not fit the buffer, and Gloo throws in its own thread: the process dies. So a tag says what the
// collective is: 12 bits of its number, and 20 of a hash of its kind, elements, type and argument. Collectives that differ
// do not meet; they wait, nothing is sent, and package dist finds out why.
class Gloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  enum Kind : uint64_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier };

  // Sets the tag of the collective that is started next. Collectives are started one at a time.
  void tag(Kind kind, int64_t elements, at::ScalarType type, int64_t argument) {
    uint64_t h = kind << 56 ^ static_cast<uint64_t>(argument) << 48 ^ static_cast<uint64_t>(type) << 40 ^ static_cast<uint64_t>(elements);
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9;  // splitmix64
    h = (h ^ h >> 27) * 0x94d049bb133111eb;
    collectiveCounter_ = static_cast<uint32_t>((h ^ h >> 31) << 12) | (number_++ & 0xfff);
  }

  // Returns how many contexts were aborted.
  int64_t abort_contexts(const std::string& message) {
    int64_t n = 0;
    for (auto& context : contexts_) {
      if (context->rank != getRank() || context->size != getSize() || &context->getDevice() != &context->device_) continue;
      auto* transport = context->transportContext_.get();
      if (!transport || !std::strstr(typeid(*transport).name(), "tcp7ContextE")) continue;
      reinterpret_cast<gloo::transport::tcp::Context*>(transport)->signalException(message);
      n++;
    }
    return n;
  }

 private:
  uint32_t number_ = 0;
};

// Note [Broken pipes]
// A thread that writes to a connection whose other end is gone gets the signal SIGPIPE. Python ignores it. Go's runtime
// ignores it on its own threads only: on a thread of Gloo or the store it ends the process. So these threads are started
// with the signal blocked, which they inherit; the write then fails with EPIPE, and the collective with it.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~WithoutSigpipe() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t before_;
};

using Store = c10::intrusive_ptr<c10d::Store>;
using Group = c10::intrusive_ptr<Gloo>;

// Work that runs, in one or more parts, and what is left to do on this rank when it has ended well.
struct Work {
  std::vector<c10::intrusive_ptr<c10d::Work>> parts;
  std::function<void()> finish;
  Group group;  // of several parts: where one fails, the others are made to end
};

// Gloo's thread lets go of a work's tensors a moment after it has said that the work is done. Waiting for that, which
// takes microseconds, makes the memory of a collective end with it.
void release(c10::intrusive_ptr<c10d::Work>& part) {
  for (int i = 0; i < 250 && part.use_count() > 1; i++) {
    if (i < 10)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // its thread waits for a core
  }
  part.reset();
}

// Waits until a part has ended; returns false where it still runs. Throws what it threw.
bool wait_part(c10::intrusive_ptr<c10d::Work>& part, milliseconds timeout) {
  if (!part) return true;
  try {
    part->wait(timeout);
  } catch (...) {
    // Either the work failed, or the waiting took too long: then the work may have ended just now.
    if (!part->isCompleted()) return false;
    if (part->exception()) throw;
  }
  release(part);
  return true;
}

template <class P>
int64_t box(P p) {
  return reinterpret_cast<int64_t>(new P(std::move(p)));
}
template <class P>
P& unbox(int64_t h) {
  TORCH_CHECK(h != 0, "the handle was freed");
  return *reinterpret_cast<P*>(h);
}

bool is_timeout(const char* m) {
  return std::strstr(m, "imed out") || std::strstr(m, "imeout") || std::strstr(m, "wait timeout");
}

// Runs what may fail for reasons of the network, and marks the failure as such.
template <class F>
gf_ret network(F&& body) noexcept {
  return guard([&] {
    try {
      return body();
    } catch (const GoError&) {
      throw;
    } catch (const c10::Error& e) {
      throw DistFailure(e.what_without_backtrace(), is_timeout(e.what_without_backtrace()));
    } catch (const std::exception& e) {
      throw DistFailure(e.what(), is_timeout(e.what()));
    }
  });
}

c10d::ReduceOp reduce_op(int64_t op) {
  return c10d::ReduceOp(static_cast<c10d::ReduceOp::RedOpType>(op));
}

// Gloo looks the peer up in a list without bounds, which has nobody at the rank's own place.
int peer(const Group& group, int64_t rank) {
  TORCH_CHECK(rank >= 0 && rank < group->getSize() && rank != group->getRank(), "rank ", group->getRank(),
              " of a group of ", group->getSize(), " has no peer ", rank);
  return static_cast<int>(rank);
}

}  // namespace

extern "C" {

gf_ret gf_store_tcp(const char* host, int64_t port, int64_t server, int64_t world, int64_t timeout_ms) {
  return network([&] {
    const WithoutSigpipe blocked;
    c10d::TCPStoreOptions o;
    o.port = static_cast<std::uint16_t>(port);
    o.isServer = server != 0;
    if (world > 0) o.numWorkers = static_cast<std::size_t>(world);
    o.waitWorkers = world > 0;
    o.timeout = milliseconds(timeout_ms);
    o.multiTenant = server != 0;
    return box(Store(c10::make_intrusive<c10d::TCPStore>(std::string(host), o)));
  });
}

gf_ret gf_store_hash(void) {
  return guard([&] { return box(Store(c10::make_intrusive<c10d::HashStore>())); });
}

gf_ret gf_store_prefix(int64_t store, const char* prefix) {
  return guard([&] {
    return box(Store(c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), unbox<Store>(store))));
  });
}

gf_ret gf_store_free(int64_t store) {
  return guard([&] { delete reinterpret_cast<Store*>(store); });
}

gf_ret gf_store_port(int64_t store) {
  return guard([&] {
    auto* tcp = dynamic_cast<c10d::TCPStore*>(unbox<Store>(store).get());
    TORCH_CHECK(tcp, "not a TCP store");
    return static_cast<int64_t>(tcp->getPort());
  });
}

gf_ret gf_store_set(int64_t store, const char* key, const void* data, int64_t n) {
  return network([&] {
    auto* p = static_cast<const uint8_t*>(data);
    unbox<Store>(store)->set(key, std::vector<uint8_t>(p, p + n));
  });
}

// Waits for the key, then copies its value; returns its length, and copies nothing if it exceeds cap.
gf_ret gf_store_get(int64_t store, const char* key, int64_t timeout_ms, void* out, int64_t cap) {
  return network([&] {
    auto& s = unbox<Store>(store);
    s->wait({key}, milliseconds(timeout_ms));
    auto value = s->get(key);
    auto n = static_cast<int64_t>(value.size());
    if (n <= cap) std::memcpy(out, value.data(), value.size());
    return n;
  });
}

gf_ret gf_store_add(int64_t store, const char* key, int64_t delta) {
  return network([&] { return unbox<Store>(store)->add(key, delta); });
}

gf_ret gf_store_check(int64_t store, const char* key) {
  return network([&] { return static_cast<int64_t>(unbox<Store>(store)->check({key})); });
}

// connect_ms bounds the connecting, timeout_ms every wait of a collective for a peer.
gf_ret gf_gloo_connect(int64_t store, int64_t rank, int64_t world, int64_t connect_ms, int64_t timeout_ms, const char* host) {
  return network([&] {
    const WithoutSigpipe blocked;
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(connect_ms));
    options->devices.push_back(host && *host ? c10d::ProcessGroupGloo::createDeviceForHostname(host, false)
                                             : c10d::ProcessGroupGloo::createDefaultDevice(false));
    options->threads = 2;
    auto group = c10::make_intrusive<Gloo>(unbox<Store>(store), static_cast<int>(rank), static_cast<int>(world), options);
    group->setTimeout(milliseconds(timeout_ms));
    return box(Group(std::move(group)));
  });
}

gf_ret gf_pg_free(int64_t pg) {
  return guard([&] { delete reinterpret_cast<Group*>(pg); });
}

// Fails the group's running and later work; returns 0 where this is not possible.
gf_ret gf_pg_abort(int64_t pg) {
  return network([&] { return unbox<Group>(pg)->abort_contexts("the process group was aborted"); });
}

// ProcessGroupGloo's own all-gather collects in a buffer of the whole size and copies from there. For tensors where that
// matters every rank's part is broadcast into its place instead; the bytes on the wire are the same.
constexpr int kMostBroadcasts = 8;
constexpr size_t kLeastBroadcast = 1 << 20;

gf_ret gf_all_gather(int64_t pg, int64_t out, int64_t in) {
  return network([&] {
    at::Tensor o = borrow(out).variable_data(), i = borrow(in).variable_data();
    auto& group = unbox<Group>(pg);
    int size = group->getSize();
    if (size > kMostBroadcasts || o.nbytes() < kLeastBroadcast || !o.is_contiguous()) {
      group->tag(Gloo::kAllGather, i.numel(), i.scalar_type(), 0);
      return box(Work{{group->_allgather_base(o, i)}, {}, {}});
    }
    Work work{{}, {}, group};
    auto parts = o.view(-1).chunk(size);
    parts[group->getRank()].copy_(i.view(-1));
    for (int root = 0; root < size; root++) {
      std::vector<at::Tensor> v{parts[root]};
      c10d::BroadcastOptions opts;
      opts.rootRank = root;
      group->tag(Gloo::kAllGather, i.numel(), i.scalar_type(), root);
      work.parts.push_back(group->broadcast(v, opts));
    }
    return box(std::move(work));
  });
}

gf_ret gf_all_gather_list(int64_t pg, const int64_t* outs, int64_t n, int64_t in) {
  return network([&] {
    std::vector<std::vector<at::Tensor>> o(1);
    for (int64_t i = 0; i < n; i++) o[0].push_back(borrow(outs[i]).variable_data());
    std::vector<at::Tensor> i{borrow(in).variable_data()};
    auto& group = unbox<Group>(pg);
    group->tag(Gloo::kAllGather, i[0].numel(), i[0].scalar_type(), n);
    return box(Work{{group->allgather(o, i)}, {}, {}});
  });
}

// Every rank sends each of the others its part, and adds up what it received, in the order of ranks. ProcessGroupGloo's
// own reduce-scatter is an all-reduce of everything: twice the bytes. And its work neither heeds wait's timeout nor ever
// counts as completed. Sums of 16-bit floats are rounded once here.
gf_ret gf_reduce_scatter(int64_t pg, int64_t out, int64_t in, int64_t op) {
  return network([&] {
    at::Tensor o = borrow(out).variable_data(), i = borrow(in).variable_data().contiguous(), parts = at::empty_like(i);
    std::vector<int64_t> even;
    auto& group = unbox<Group>(pg);
    int64_t size = group->getSize();
    group->tag(Gloo::kReduceScatter, i.numel(), i.scalar_type(), op);
    return box(Work{{group->alltoall_base(parts, i, even, even)}, [o, parts, size, op]() mutable {
                      auto all = parts.view({size, o.numel()});
                      auto to = o.view({o.numel()});
                      switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
                        case c10d::ReduceOp::RedOpType::SUM:
                          at::sum_out(to, all, 0, false, to.scalar_type());
                          break;
                        case c10d::ReduceOp::RedOpType::MIN:
                          at::amin_out(to, all, 0);
                          break;
                        case c10d::ReduceOp::RedOpType::MAX:
                          at::amax_out(to, all, 0);
                          break;
                        default:
                          TORCH_CHECK(false, "reduce-scatter has no reduction number ", op);
                      }
                    }, {}});
  });
}

gf_ret gf_all_reduce(int64_t pg, int64_t t, int64_t op) {
  return network([&] {
    std::vector<at::Tensor> v{borrow(t).variable_data()};
    c10d::AllreduceOptions opts;
    opts.reduceOp = reduce_op(op);
    auto& group = unbox<Group>(pg);
    group->tag(Gloo::kAllReduce, v[0].numel(), v[0].scalar_type(), op);
    return box(Work{{group->allreduce(v, opts)}, {}, {}});
  });
}

gf_ret gf_broadcast(int64_t pg, int64_t t, int64_t root) {
  return network([&] {
    std::vector<at::Tensor> v{borrow(t).variable_data()};
    c10d::BroadcastOptions opts;
    opts.rootRank = root;
    auto& group = unbox<Group>(pg);
    group->tag(Gloo::kBroadcast, v[0].numel(), v[0].scalar_type(), root);
    return box(Work{{group->broadcast(v, opts)}, {}, {}});
  });
}

gf_ret gf_send(int64_t pg, int64_t t, int64_t dst, int64_t tag) {
  return network([&] {
    std::vector<at::Tensor> v{borrow(t).variable_data()};
    auto& group = unbox<Group>(pg);
    return box(Work{{group->send(v, peer(group, dst), static_cast<int>(tag))}, {}, {}});
  });
}

gf_ret gf_recv(int64_t pg, int64_t t, int64_t src, int64_t tag) {
  return network([&] {
    std::vector<at::Tensor> v{borrow(t).variable_data()};
    auto& group = unbox<Group>(pg);
    return box(Work{{group->recv(v, peer(group, src), static_cast<int>(tag))}, {}, {}});
  });
}

gf_ret gf_barrier(int64_t pg) {
  return network([&] {
    auto& group = unbox<Group>(pg);
    group->tag(Gloo::kBarrier, 0, at::kByte, 0);
    return box(Work{{group->barrier()}, {}, {}});
  });
}

// Waits at most timeout_ms; returns 1 when the work is done, 0 when it still runs. Throws what the work threw.
gf_ret gf_work_wait(int64_t work, int64_t timeout_ms) {
  return network([&] {
    auto& w = unbox<Work>(work);
    auto deadline = std::chrono::steady_clock::now() + milliseconds(timeout_ms);
    auto left = [&] {  // 0 would mean without end
      return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now()));
    };
    try {
      for (auto& part : w.parts)
        if (!wait_part(part, left())) return int64_t{0};
    } catch (...) {
      if (w.group) w.group->abort_contexts("another part of the collective failed");
      for (auto& part : w.parts) {
        try {
          wait_part(part, milliseconds(5000));
        } catch (const std::exception&) {  // the first one counts
        }
      }
      throw;
    }
    if (auto finish = std::exchange(w.finish, nullptr)) finish();
    return int64_t{1};
  });
}

gf_ret gf_work_done(int64_t work) {
  return network([&] { return static_cast<int64_t>(std::ranges::all_of(unbox<Work>(work).parts, [](auto& p) { return !p || p->isCompleted(); })); });
}

gf_ret gf_work_free(int64_t work) {
  return guard([&] { delete reinterpret_cast<Work*>(work); });
}

}  // extern "C"
