// Typed calls of our operators through the dispatcher.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <tuple>

namespace gofsdp::test {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

template <class Signature, class... Args>
auto call(const char* name, Args&&... args) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("gofsdp::") + name).c_str(), "")
      .typed<Signature>()
      .call(std::forward<Args>(args)...);
}

struct Packed {
  Tensor packed, absmax;
  MaybeTensor nested_absmax, offset;
  std::string quant_type;
  int64_t block_size;
};

inline Packed quantize(const Tensor& x, const std::string& quant_type, int64_t block_size, bool nested) {
  auto [packed, absmax] = call<std::tuple<Tensor, Tensor>(const Tensor&, const std::string&, int64_t)>(
      "quantize_4bit", x, quant_type, block_size);
  Packed p{packed, absmax, {}, {}, quant_type, block_size};
  if (nested) {
    std::tie(p.absmax, p.nested_absmax, p.offset) = [&] {
      auto [q, n, o] = call<std::tuple<Tensor, Tensor, Tensor>(const Tensor&)>("quantize_absmax", absmax);
      return std::tuple<Tensor, MaybeTensor, MaybeTensor>(q, n, o);
    }();
  }
  return p;
}

inline Tensor dequantize(const Packed& p, at::IntArrayRef shape, at::ScalarType dtype) {
  return call<Tensor(const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&, at::IntArrayRef,
                     at::ScalarType, std::string, int64_t)>("dequantize_4bit", p.packed, p.absmax, p.nested_absmax,
                                                            p.offset, shape, dtype, p.quant_type, p.block_size);
}

inline Tensor linear_4bit(const Tensor& x, const Packed& p, int64_t out, int64_t in, const MaybeTensor& bias = {}) {
  return call<Tensor(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&, int64_t,
                     int64_t, std::string, int64_t, const MaybeTensor&)>("linear_4bit", x, p.packed, p.absmax,
                                                                         p.nested_absmax, p.offset, out, in,
                                                                         p.quant_type, p.block_size, bias);
}

inline Tensor lora_linear_4bit(const Tensor& x, const Packed& p, int64_t out, int64_t in, const Tensor& a,
                               const Tensor& b, double scaling, const MaybeTensor& bias = {}) {
  return call<Tensor(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&, int64_t,
                     int64_t, std::string, int64_t, const Tensor&, const Tensor&, double, const MaybeTensor&)>(
      "lora_linear_4bit", x, p.packed, p.absmax, p.nested_absmax, p.offset, out, in, p.quant_type, p.block_size, a, b,
      scaling, bias);
}

inline Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& a, const Tensor& b, double scaling,
                          const MaybeTensor& bias = {}) {
  return call<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, const MaybeTensor&)>(
      "lora_linear", x, w, a, b, scaling, bias);
}

inline Tensor rms_norm(const Tensor& x, const Tensor& w, double eps) {
  return call<Tensor(const Tensor&, const Tensor&, double)>("rms_norm", x, w, eps);
}

inline Tensor rope(const Tensor& q, const Tensor& cos, const Tensor& sin) {
  return call<Tensor(const Tensor&, const Tensor&, const Tensor&)>("rope", q, cos, sin);
}

inline Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return call<Tensor(const Tensor&, const Tensor&)>("swiglu", gate, up);
}

inline std::tuple<Tensor, Tensor> linear_cross_entropy(const Tensor& h, const Tensor& w, const Tensor& labels,
                                                       double scale) {
  return call<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double)>("linear_cross_entropy",
                                                                                              h, w, labels, scale);
}

} // namespace gofsdp::test
