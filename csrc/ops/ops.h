// What the operator files share: argument checks, autograd nodes, quantised weights, scratch memory.
//
// Note [One implementation per operator]
// A differentiable operator is one function, registered for the backends and for autograd alike. It records its own node
// and then works below autograd, out of ATen operators and of our primitives (`*_forward`, `*_backward`, `*_`). So a
// second device brings only the primitives; formulas, saved tensors and checks exist once.
//
// Note [Saving comes first]
// A node saves its tensors before the expensive arithmetic runs. Recomputation under activation checkpointing stops as
// soon as the last saved tensor was packed (the pack hook throws), so what comes after is computed once, not twice. It also
// means that nothing is saved that only the arithmetic would give, but for small products. Weights, packed codes and scales
// go through SavedVariable like everything else: FSDP frees their storage after the forward and refills it in place before
// the backward, which leaves the version counter alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <string>

#include "kernels/quant4bit.h"
#include "node.h"

namespace gofsdp::ops {

using at::Tensor;
using std::optional;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// "float[2, 3]", for error messages.
std::string describe(const Tensor& t);

inline Tensor or_undefined(const optional<Tensor>& t) {
  return t.has_value() ? *t : Tensor();
}

inline bool wants_grad(const Tensor& t) {
  return t.defined() && t.requires_grad() && c10::GradMode::is_enabled();
}

template <class NodePointer>
void attach(const Tensor& output, const NodePointer& node) {
  torch::autograd::set_history(output, node);
}

// Base of our nodes: gradients of gradients are an error, not silently missing.
struct OperatorNode : Node {
  void refuse_double_backward() const {
    TORCH_CHECK(!c10::GradMode::is_enabled(), "gofsdp: ", name(),
                " is not differentiable twice; run backward without create_graph");
  }
};

// A 4-bit weight of `rows` x `columns`, row-major. absmax is fp32, or uint8 with nested_absmax and offset.
struct Quantized {
  Tensor packed, absmax, nested_absmax, offset;
  std::string quant_type;
  int64_t block_size = 0;

  // Throws unless dtypes, sizes and device fit `numel` weights.
  void check(const char* op, int64_t numel) const;
};

kernels::Quant4Type parse_quant_type(const char* op, const std::string& quant_type);

// Writes the weights from flat index `begin` on to the contiguous tensor `out`, through the dispatcher.
void dequantize_range(const Quantized& q, int64_t begin, const Tensor& out);

// Scratch is a buffer for the length of a scope. CPU buffers come from a small process-wide pool, because fresh pages for
// every layer would cost more than filling them; on other devices the caching allocator does that.
class Scratch {
 public:
  Scratch(int64_t rows, int64_t columns, const at::TensorOptions& options);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  // The first `rows` rows.
  Tensor rows(int64_t rows) const;

 private:
  Tensor tensor_;
  void* buffer_ = nullptr;
  size_t bytes_ = 0;
};

// Calls fn<T>() with the kernel type of a floating dtype.
template <class Fn>
auto dispatch_float(const char* op, const Tensor& t, Fn&& fn) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return fn(float{});
    case at::kBFloat16:
      return fn(kernels::BF16{});
    case at::kHalf:
      return fn(kernels::F16{});
    default:
      TORCH_CHECK(false, "gofsdp::", op, ": dtype must be float, bfloat16 or half, got ", describe(t));
  }
}

template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

template <class T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

} // namespace gofsdp::ops
