// Tensors: metadata, raw data, storage, and random generators.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/variable.h>

#include "internal.h"

using namespace gofsdp;

namespace {

at::Generator generator(int64_t h) {
  TORCH_CHECK(h != 0, "the generator was freed");
  return at::Generator(
      c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(reinterpret_cast<c10::GeneratorImpl*>(h)));
}

}  // namespace

extern "C" {

gf_ret gf_tensor_free(int64_t t) {
  return guard([&] { take(t); });
}

gf_ret gf_tensor_free_all(const int64_t* list, int64_t n) {
  return guard([&] {
    for (int64_t i = 0; i < n; i++) take(list[i]);
  });
}

// What benchmarks compare an operator's call from Go with: n calls of at::mul, each result freed before the next.
gf_ret gf_test_mul(int64_t a, int64_t b, int64_t n) {
  return guard([&] {
    at::Tensor x = borrow(a), y = borrow(b);
    for (int64_t i = 0; i < n; i++) at::mul(x, y);
  });
}

gf_ret gf_tensor_alias(int64_t t) {
  return guard([&] { return own(borrow(t)); });
}

// out: ndim, dtype, device type, device index, requires_grad, is_leaf, numel, element size, plain, storage bytes, storage
// offset, version, then the sizes and the strides (0 for layouts without). Plain: the bytes are the elements in row-major
// order, and no conjugation or negation is still to be done.
gf_ret gf_tensor_meta(int64_t h, int64_t* out, int64_t cap) {
  return guard([&] {
    at::Tensor t = borrow(h);
    int64_t nd = t.dim();
    int64_t need = 12 + 2 * nd;
    TORCH_CHECK(cap >= need, "tensor of ", nd, " dimensions: metadata does not fit");
    out[0] = nd;
    out[1] = static_cast<int64_t>(t.scalar_type());
    out[2] = static_cast<int64_t>(t.device().type());
    out[3] = t.device().index();
    out[4] = t.requires_grad();
    out[5] = t.is_leaf();
    out[6] = t.numel();
    out[7] = static_cast<int64_t>(t.element_size());
    bool strided = t.layout() == at::kStrided;
    out[8] = strided && t.is_contiguous() && !t.is_conj() && !t.is_neg();
    out[9] = t.has_storage() ? static_cast<int64_t>(t.storage().nbytes()) : 0;
    out[10] = t.has_storage() ? t.storage_offset() : 0;
    out[11] = t.is_inference() ? 0 : static_cast<int64_t>(t._version());
    for (int64_t i = 0; i < nd; i++) {
      out[12 + i] = t.size(i);
      out[12 + nd + i] = strided ? t.stride(i) : 0;
    }
    return need;
  });
}

gf_ret gf_tensor_data_ptr(int64_t h) {
  return guard([&] { return reinterpret_cast<int64_t>(borrow(h).data_ptr()); });
}

// Wraps memory that Go owns (a mapped file, or C memory); the Go value behind handle is released with the storage.
gf_ret gf_tensor_from_blob(void* data, int64_t dtype, const int64_t* sizes, int64_t n, uint64_t handle) {
  GoHandle given(handle);
  return guard([&] {
    auto owner = std::make_shared<GoHandle>(std::move(given));
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype));
    return own(at::from_blob(data, at::IntArrayRef(sizes, n), [owner](void*) {}, options));
  });
}

// Note [Storage free and refill]
// FSDP frees the storage of a full parameter after use and allocates it again before the next one. The TensorImpl, and
// with it the autograd leaf and every SavedVariable that points to it, stays. Writing the gathered values through
// variable_data(), which has a version counter of its own, keeps the check for in-place changes between forward and
// backward quiet, while real in-place changes by the user are still caught.
gf_ret gf_tensor_storage_resize(int64_t h, int64_t nbytes) {
  return guard([&] {
    at::Tensor t = borrow(h);
    TORCH_CHECK(t.has_storage(), "a tensor of layout ", t.layout(), " has no storage of its own");
    c10::StorageImpl* s = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    auto need = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size(), t.storage_offset());
    TORCH_CHECK(nbytes == 0 || nbytes >= static_cast<int64_t>(need), "storage of ", nbytes, " bytes, the tensor needs ",
                need);
    if (static_cast<int64_t>(s->nbytes()) == nbytes) return;
    c10::Allocator* a = s->allocator() ? s->allocator() : c10::GetAllocator(s->device_type());
    s->set_data_ptr_noswap(a->allocate(nbytes));
    s->set_nbytes(nbytes);
  });
}

gf_ret gf_tensor_variable_data(int64_t t) {
  return guard([&] { return own(borrow(t).variable_data()); });
}

gf_ret gf_tensor_set_data(int64_t t, int64_t src) {
  return guard([&] { borrow(t).set_data(borrow(src)); });
}

gf_ret gf_manual_seed(int64_t seed) {
  return guard([&] { at::manual_seed(static_cast<uint64_t>(seed)); });
}

gf_ret gf_generator_new(int64_t seed) {
  return guard([&] {
    auto g = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
    return reinterpret_cast<int64_t>(g.unsafeReleaseGeneratorImpl());
  });
}

gf_ret gf_generator_free(int64_t g) {
  return guard([&] { c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(reinterpret_cast<c10::GeneratorImpl*>(g)); });
}

gf_ret gf_generator_seed(int64_t h, int64_t seed) {
  return guard([&] {
    auto g = generator(h);
    std::lock_guard<std::mutex> lock(g.mutex());
    g.set_current_seed(static_cast<uint64_t>(seed));
  });
}

gf_ret gf_generator_state(int64_t h) {
  return guard([&] {
    auto g = generator(h);
    std::lock_guard<std::mutex> lock(g.mutex());
    return own(g.get_state());
  });
}

gf_ret gf_generator_set_state(int64_t h, int64_t state) {
  return guard([&] {
    auto g = generator(h);
    std::lock_guard<std::mutex> lock(g.mutex());
    g.set_state(borrow(state));
  });
}

}  // extern "C"
