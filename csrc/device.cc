// Devices beside the CPU: loading libtorch's CUDA half, streams, events, memory, generators. Everything goes through c10's
// device-generic interfaces, so it needs no CUDA header and is the same code for any accelerator.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/record_stream.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Registry.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <atomic>
#include <filesystem>
#include <mutex>

#include "internal.h"

// Declared as in c10/cuda/CUDACachingAllocator.h, which cannot be included without the CUDA toolkit.
namespace c10 {
class FreeMemoryCallback {
 public:
  virtual ~FreeMemoryCallback() = default;
  virtual bool Execute() = 0;
};
}  // namespace c10

namespace gofsdp {
namespace {

using CallbackRegistry = c10::Registry<std::string, std::unique_ptr<c10::FreeMemoryCallback>>;
constexpr const char* kRegistrySymbol = "_ZN3c1031FreeCudaMemoryCallbacksRegistryB5cxx11Ev";

std::atomic<uint64_t> free_memory_handle{0};

struct CollectGarbage final : c10::FreeMemoryCallback {
  bool Execute() override { return free_memory(); }
};

// Lets the CUDA allocator ask Go's collector for memory before it gives up. library holds libc10_cuda.
void register_free_memory(void* library) {
  static std::once_flag once;
  auto registry = reinterpret_cast<CallbackRegistry* (*)()>(dlsym(library, kRegistrySymbol));
  TORCH_CHECK(registry, "libc10_cuda.so has no registry of free-memory callbacks");
  std::call_once(once, [&] { registry()->Register("gofsdp", [] { return std::make_unique<CollectGarbage>(); }); });
}

std::filesystem::path torch_folder() {
  Dl_info info{};
  TORCH_CHECK(dladdr(reinterpret_cast<void*>(&at::getHostAllocator), &info) && info.dli_fname,
              "the folder of libtorch_cpu.so is unknown");
  return std::filesystem::path(info.dli_fname).parent_path();
}

// Loads libtorch_cuda.so where there is a driver. Returns why there is no CUDA device, or "".
std::string load_cuda() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && (!*visible || !std::strcmp(visible, "-1"))) return "CUDA_VISIBLE_DEVICES hides every GPU";
  if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return std::string("no NVIDIA driver: ") + dlerror();
  auto library = torch_folder() / "libtorch_cuda.so";
  if (!std::filesystem::exists(library)) return "this libtorch is built for CPUs only: there is no " + library.string();
  if (!dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL))
    return std::string("libtorch's CUDA half cannot be loaded: ") + dlerror();
  void* c10_cuda = dlopen((torch_folder() / "libc10_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(c10_cuda, "libc10_cuda.so cannot be loaded: ", dlerror());
  register_free_memory(c10_cuda);
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return "libtorch_cuda.so registered no device";
  if (c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() == 0) return "the driver reports no GPU";
  return "";
}

std::mutex cuda_mutex;
bool cuda_tried = false;
std::string cuda_missing;

// Why there is no CUDA device, or "".
std::string no_cuda() {
  std::lock_guard<std::mutex> lock(cuda_mutex);
  if (!cuda_tried) {
    cuda_missing = load_cuda();
    cuda_tried = true;
  }
  return cuda_missing;
}

c10::DeviceType device_type(int64_t type) {
  TORCH_CHECK(type >= 0 && type < static_cast<int64_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES),
              "device type ", type, " does not exist");
  return static_cast<c10::DeviceType>(type);
}

std::string upper_name(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/false); }

// The implementation for a type of device of which there is at least one.
const c10::impl::DeviceGuardImplInterface* accelerator(int64_t type) {
  auto t = device_type(type);
  TORCH_CHECK(t != c10::kCPU && t != c10::kMeta, upper_name(t), " has no streams, events and memory of its own");
  std::string why = t == c10::kCUDA ? no_cuda() : "this libtorch is not linked with support for it";
  if (t != c10::kCUDA && c10::impl::hasDeviceGuardImpl(t))
    why = c10::impl::getDeviceGuardImpl(t)->deviceCount() > 0 ? "" : "its backend reports none";
  if (!why.empty()) throw DeviceMissing("no " + upper_name(t) + " device: " + why);
  return c10::impl::getDeviceGuardImpl(t);
}

// A device that exists; index -1 is the current one.
c10::Device device(int64_t type, int64_t index) {
  auto* impl = accelerator(type);
  if (index == -1) return impl->getDevice();
  if (index < 0 || index >= impl->deviceCount())
    throw DeviceMissing("no " + upper_name(impl->type()) + " device " + std::to_string(index) + ": there are " +
                        std::to_string(impl->deviceCount()));
  return c10::Device(impl->type(), static_cast<c10::DeviceIndex>(index));
}

c10::Stream stream(int64_t type, int64_t index, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device(type, index), id);
}

// out: device index, stream id.
void give(const c10::Stream& s, int64_t* out) {
  out[0] = s.device_index();
  out[1] = s.id();
}

c10::DeviceAllocator& allocator(int64_t type) {
  auto* impl = accelerator(type);
  if (impl->type() == c10::kCUDA) at::globalContext().lazyInitDevice(c10::kCUDA);
  auto* a = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(impl->type()));
  TORCH_CHECK(a, upper_name(impl->type()), " has no caching allocator");
  return *a;
}

c10::Event& event(int64_t e) {
  TORCH_CHECK(e != 0, "the event was freed");
  return *reinterpret_cast<c10::Event*>(e);
}

int64_t own_generator(const at::Generator& g) { return reinterpret_cast<int64_t>(at::Generator(g).unsafeReleaseGeneratorImpl()); }

}  // namespace

// Asks Go to free what it does not use any more. Tells whether it freed anything.
bool free_memory() noexcept {
  uint64_t handle = free_memory_handle.load();
  int64_t freed = 0;
  if (handle && go.call(handle, GF_EV_FREE_MEMORY, nullptr, 0, &freed, 1) != 0) return false;
  return freed != 0;
}

}  // namespace gofsdp

using namespace gofsdp;

extern "C" {

// The Go value behind handle is asked for memory (GF_EV_FREE_MEMORY) before an allocation fails.
gf_ret gf_free_memory_callback(uint64_t handle) {
  GoHandle given(handle);
  return guard([&] { given.h = free_memory_handle.exchange(std::exchange(given.h, 0)); });
}

// Registers the free-memory callback with the CUDA allocator, and runs it as the allocator would. Needs libc10_cuda.so but
// no GPU: a test proves with it that the callback arrives in Go.
gf_ret gf_test_free_memory(void) {
  return guard([&] {
    void* library = dlopen((torch_folder() / "libc10_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library, dlerror());
    register_free_memory(library);
    auto registry = reinterpret_cast<CallbackRegistry* (*)()>(dlsym(library, kRegistrySymbol));
    return registry()->Create("gofsdp")->Execute();
  });
}

// The number of devices of a type; 0 where there is none, for whatever reason.
gf_ret gf_device_count(int64_t type) {
  return guard([&]() -> int64_t {
    auto t = device_type(type);
    if (t == c10::kCUDA && !no_cuda().empty()) return 0;
    return c10::impl::hasDeviceGuardImpl(t) ? c10::impl::getDeviceGuardImpl(t)->deviceCount() : 0;
  });
}

// An error that says why a device does not exist, or nothing.
gf_ret gf_device_check(int64_t type, int64_t index) {
  return guard([&] { device(type, index); });
}

// Makes a device the current one of this thread (-1: only read) and returns the index of the one before.
gf_ret gf_device_exchange(int64_t type, int64_t index) {
  return guard([&]() -> int64_t {
    auto* impl = accelerator(type);
    if (index == -1) return impl->getDevice().index();
    return impl->exchangeDevice(device(type, index)).index();
  });
}

gf_ret gf_device_synchronize(int64_t type, int64_t index) {
  return guard([&] { accelerator(type)->synchronizeDevice(device(type, index).index()); });
}

// which: 0 the current stream, 1 the default one, 2 a new one of the given priority.
gf_ret gf_stream_get(int64_t type, int64_t index, int64_t which, int64_t priority, int64_t* out) {
  return guard([&] {
    auto* impl = accelerator(type);
    auto d = device(type, index);
    if (which == 2 && d.is_cuda()) at::globalContext().lazyInitDevice(c10::kCUDA);
    give(which == 0 ? impl->getStream(d) : which == 1 ? impl->getDefaultStream(d)
                                                      : impl->getNewStream(d, static_cast<int>(priority)), out);
  });
}

// Makes a stream the current one of its device on this thread; out is the one before.
gf_ret gf_stream_exchange(int64_t type, int64_t index, int64_t id, int64_t* out) {
  return guard([&] { give(accelerator(type)->exchangeStream(stream(type, index, id)), out); });
}

gf_ret gf_stream_query(int64_t type, int64_t index, int64_t id) {
  return guard([&] { return accelerator(type)->queryStream(stream(type, index, id)); });
}

gf_ret gf_stream_synchronize(int64_t type, int64_t index, int64_t id) {
  return guard([&] { accelerator(type)->synchronizeStream(stream(type, index, id)); });
}

// The backend's own handle of a stream: a cudaStream_t.
gf_ret gf_stream_native(int64_t type, int64_t index, int64_t id) {
  return guard([&] {
    auto* impl = accelerator(type);
    auto s = stream(type, index, id);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)
    return reinterpret_cast<int64_t>(impl->getStreamNativeHandle(s));
#else
    TORCH_CHECK(s.device().is_cuda(), "this libtorch has no native handle for streams of ", upper_name(impl->type()));
    void* library = dlopen((torch_folder() / "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    auto current = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    TORCH_CHECK(current, "libtorch_cuda.so has no aoti_torch_get_current_cuda_stream");
    void* native = nullptr;
    auto before = impl->exchangeStream(s);
    int failed = reinterpret_cast<int (*)(int32_t, void**)>(current)(s.device_index(), &native);
    impl->exchangeStream(before);
    TORCH_CHECK(!failed, "the native handle of ", s, " is not to be had");
    return reinterpret_cast<int64_t>(native);
#endif
  });
}

// Events with timing can be asked for the time between them; others are cheaper.
gf_ret gf_event_new(int64_t type, int64_t timing) {
  return guard([&] {
    auto* impl = accelerator(type);
    auto flag = timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
    return reinterpret_cast<int64_t>(new c10::Event(impl->type(), flag));
  });
}

gf_ret gf_event_free(int64_t e) {
  return guard([&] { delete reinterpret_cast<c10::Event*>(e); });
}

gf_ret gf_event_record(int64_t e, int64_t type, int64_t index, int64_t id) {
  return guard([&] { event(e).record(stream(type, index, id)); });
}

// Makes what is queued on the stream from now on wait for the event.
gf_ret gf_event_block(int64_t e, int64_t type, int64_t index, int64_t id) {
  return guard([&] { event(e).block(stream(type, index, id)); });
}

gf_ret gf_event_query(int64_t e) {
  return guard([&] { return event(e).query(); });
}

gf_ret gf_event_synchronize(int64_t e) {
  return guard([&] { event(e).synchronize(); });
}

// The time from a to b in nanoseconds.
gf_ret gf_event_elapsed(int64_t a, int64_t b) {
  return guard([&] { return static_cast<int64_t>(event(a).elapsedTime(event(b)) * 1e6); });
}

// Keeps the tensor's memory from being used again before what is queued on the stream is done.
gf_ret gf_tensor_record_stream(int64_t t, int64_t type, int64_t index, int64_t id) {
  return guard([&] {
    at::Tensor x = borrow(t);
    auto s = stream(type, index, id);
    TORCH_CHECK(x.device().type() == s.device_type(), "a tensor on ", x.device(), " and a stream of ", s.device());
    x.record_stream(s);
  });
}

// out: bytes in tensors now and at most, bytes reserved now and at most, bytes requested now and at most, allocations of
// tensors so far, allocations from the device, flushes of the cache after a failed one, out-of-memory errors.
gf_ret gf_device_memory_stats(int64_t type, int64_t index, int64_t* out, int64_t cap) {
  return guard([&] {
    TORCH_CHECK(cap >= 10, "gf_device_memory_stats needs 10 words");
    auto d = device(type, index);
    auto s = allocator(type).getDeviceStats(d.index());
    out[0] = s.allocated_bytes[0].current;  // index 0: all pools together
    out[1] = s.allocated_bytes[0].peak;
    out[2] = s.reserved_bytes[0].current;
    out[3] = s.reserved_bytes[0].peak;
    out[4] = s.requested_bytes[0].current;
    out[5] = s.requested_bytes[0].peak;
    out[6] = s.allocation[0].allocated;
    out[7] = s.num_device_alloc;
    out[8] = s.num_alloc_retries;
    out[9] = s.num_ooms;
  });
}

gf_ret gf_device_reset_peak(int64_t type, int64_t index) {
  return guard([&] {
    auto d = device(type, index);
    allocator(type).resetPeakStats(d.index());
  });
}

// out: free and total bytes of the device, as its driver counts them.
gf_ret gf_device_memory_info(int64_t type, int64_t index, int64_t* out) {
  return guard([&] {
    auto d = device(type, index);
    auto [free, total] = allocator(type).getMemoryInfo(d.index());
    out[0] = static_cast<int64_t>(free);
    out[1] = static_cast<int64_t>(total);
  });
}

// Gives cached memory of the device, and cached pinned memory of the host, back.
gf_ret gf_device_empty_cache(int64_t type) {
  return guard([&] {
    allocator(type).emptyCache();
    at::getHostAllocator(device_type(type))->empty_cache();
  });
}

// A generator of a device's own kind.
gf_ret gf_generator_new_on(int64_t type, int64_t index, int64_t seed) {
  return guard([&] {
    auto d = device(type, index);
    at::globalContext().lazyInitDevice(d.type());
    auto g = at::globalContext().getAcceleratorHooksInterface(d.type()).getNewGenerator(d.index());
    g.set_current_seed(static_cast<uint64_t>(seed));
    return own_generator(g);
  });
}

gf_ret gf_generator_initial_seed(int64_t h) {
  return guard([&] {
    TORCH_CHECK(h != 0, "the generator was freed");
    at::Generator g(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(reinterpret_cast<c10::GeneratorImpl*>(h)));
    return static_cast<int64_t>(g.current_seed());
  });
}

// The process's own generator of a device; the CPU's for type 0.
gf_ret gf_generator_default(int64_t type, int64_t index) {
  return guard([&] {
    if (device_type(type) == c10::kCPU) return own_generator(at::globalContext().defaultGenerator(c10::kCPU));
    auto d = device(type, index);
    at::globalContext().lazyInitDevice(d.type());
    return own_generator(at::globalContext().defaultGenerator(d));
  });
}

}  // extern "C"
