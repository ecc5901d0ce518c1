// Linear layers for fine-tuning: 4-bit base weights, LoRA adapters, and both at once.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "ops/ops.h"

namespace gofsdp::ops {
namespace {

// Bytes of dequantised weight at a time. The layers of a small model fit whole; a large one goes through in bands of rows,
// so that the memory for a layer does not grow with the model.
constexpr int64_t kBandBytes = 4 << 20;
constexpr int64_t kMinBandRows = 64; // keeps the matrix product efficient where one row is large

// The frozen (or, if dense, possibly trained) weight [out, in] of a layer.
struct Base {
  Tensor dense;
  Quantized quantized;
  int64_t out = 0, in = 0;

  int64_t band_rows(const Tensor& like) const {
    const int64_t row_bytes = in * static_cast<int64_t>(like.element_size());
    return std::min(out, std::max(kMinBandRows, kBandBytes / std::max<int64_t>(row_bytes, 1)));
  }

  // Calls body(first, rows, weight band) for bands that cover the weight in order.
  template <class Body>
  void for_each_band(const Tensor& like, Body body) const {
    if (dense.defined()) {
      body(0, out, dense);
      return;
    }
    const int64_t rows = band_rows(like);
    const Scratch scratch(rows, in, like.options());
    for (int64_t first = 0; first < out; first += rows) {
      const int64_t n = std::min(rows, out - first);
      const Tensor band = scratch.rows(n);
      dequantize_range(quantized, first * in, band);
      body(first, n, band);
    }
  }

  // y = x W^T + bias
  Tensor forward(const Tensor& x, const Tensor& bias) const {
    Tensor y = at::empty({x.size(0), out}, x.options());
    for_each_band(x, [&](int64_t first, int64_t n, const Tensor& band) {
      Tensor part = n == out ? y : y.narrow(1, first, n);
      if (bias.defined()) {
        at::addmm_out(part, n == out ? bias : bias.narrow(0, first, n), x, band.t());
      } else {
        at::mm_out(part, x, band.t());
      }
    });
    return y;
  }

  // dx = dy W
  Tensor backward(const Tensor& dy) const {
    Tensor dx = at::empty({dy.size(0), in}, dy.options());
    for_each_band(dy, [&](int64_t first, int64_t n, const Tensor& band) {
      const Tensor part = n == out ? dy : dy.narrow(1, first, n);
      if (first == 0) {
        at::mm_out(dx, part, band);
      } else {
        dx.addmm_(part, band);
      }
    });
    return dx;
  }
};

Tensor as_matrix(const Tensor& t, int64_t columns) {
  return t.reshape({-1, columns}).contiguous();
}

struct LinearBackward final : OperatorNode {
  enum Input { kX, kWeight, kA, kB, kBias, kInputs };

  SavedVariable x, weight, packed, absmax, nested_absmax, offset, a, b, projected;
  std::string quant_type;
  int64_t block_size = 0, out = 0, in = 0;
  double scaling = 0;
  bool has_lora = false, dense = false;
  std::vector<int64_t> x_sizes;

  std::string name() const override {
    return has_lora ? "LoraLinearBackward" : "Linear4bitBackward";
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* v : {&x, &weight, &packed, &absmax, &nested_absmax, &offset, &a, &b, &projected}) {
      v->reset_data();
    }
  }

  variable_list apply(variable_list&& grads) override {
    refuse_double_backward();
    variable_list result(kInputs);
    if (!grads[0].defined()) {
      return result;
    }
    const bool want_x = task_should_compute_output(kX), want_weight = task_should_compute_output(kWeight);
    const bool want_a = task_should_compute_output(kA), want_b = task_should_compute_output(kB);

    // Unpacking may recompute the layer under activation checkpointing: it stays above the guard.
    Base base;
    Tensor x_saved, a_saved, b_saved, projected_saved;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      base.out = out;
      base.in = in;
      if (want_x && dense) {
        base.dense = weight.unpack();
      } else if (want_x) {
        base.quantized = {packed.unpack(), absmax.unpack(), nested_absmax.unpack(), offset.unpack(), quant_type,
                          block_size};
      }
      if (want_weight || want_a) {
        x_saved = x.unpack();
      }
      if (has_lora && (want_x || want_a)) {
        b_saved = b.unpack();
      }
      if (has_lora && want_x) {
        a_saved = a.unpack();
      }
      if (want_b) {
        projected_saved = projected.unpack();
      }
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor dy = as_matrix(grads[0], out);
    Tensor through; // scaling * dy B, the gradient at the adapter's waist
    if (b_saved.defined()) {
      through = at::mm(dy, b_saved);
      if (scaling != 1) {
        through.mul_(scaling);
      }
    }
    if (want_x) {
      Tensor dx = base.backward(dy);
      if (has_lora) {
        dx.addmm_(through, a_saved);
      }
      result[kX] = dx.view(x_sizes);
    }
    if (want_b) {
      result[kB] = at::mm(dy.t(), projected_saved);
    }
    if (x_saved.defined()) {
      const Tensor x2 = as_matrix(x_saved, in);
      if (want_a) {
        result[kA] = at::mm(through.t(), x2);
      }
      if (want_weight) {
        result[kWeight] = at::mm(dy.t(), x2);
      }
    }
    if (task_should_compute_output(kBias)) {
      result[kBias] = dy.sum(0);
    }
    return result;
  }
};

void check_like(const char* op, const char* name, const Tensor& t, const Tensor& x, at::IntArrayRef sizes) {
  TORCH_CHECK(t.scalar_type() == x.scalar_type() && t.device() == x.device() && t.sizes() == sizes, "gofsdp::", op, ": ",
              name, " must be ", x.scalar_type(), sizes, " like x ", describe(x), ", got ", describe(t));
}

// y = x W^T + scaling (x A^T) B^T + bias. See ops.h, Note [Saving comes first].
Tensor linear(const char* op, const Tensor& x, const Base& base, const Tensor& a, const Tensor& b, double scaling,
              const Tensor& bias) {
  TORCH_CHECK(base.out > 0 && base.in > 0, "gofsdp::", op, ": out_features and in_features must be positive, got ",
              base.out, " and ", base.in);
  TORCH_CHECK(x.is_floating_point() && x.dim() >= 1 && x.size(-1) == base.in, "gofsdp::", op,
              ": x must be floating with last dimension ", base.in, ", got ", describe(x));
  if (base.dense.defined()) {
    check_like(op, "weight", base.dense, x, {base.out, base.in});
  } else {
    base.quantized.check(op, base.out * base.in);
    TORCH_CHECK(base.quantized.packed.device() == x.device(), "gofsdp::", op, ": x and packed are on different devices: ",
                describe(x), " and ", describe(base.quantized.packed));
  }
  const bool has_lora = a.defined();
  if (has_lora) {
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "gofsdp::", op, ": lora_A and lora_B must be matrices, got ", describe(a),
                " and ", describe(b));
    check_like(op, "lora_A", a, x, {a.size(0), base.in});
    check_like(op, "lora_B", b, x, {base.out, a.size(0)});
  }
  if (bias.defined()) {
    check_like(op, "bias", bias, x, {base.out});
  }

  const bool grad_x = wants_grad(x), grad_weight = wants_grad(base.dense);
  const bool grad_a = wants_grad(a), grad_b = wants_grad(b);
  const bool record = grad_x || grad_weight || grad_a || grad_b || wants_grad(bias);

  Tensor x2, projected;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    x2 = as_matrix(x, base.in);
    if (has_lora) {
      projected = at::mm(x2, a.t());
      if (scaling != 1) {
        projected.mul_(scaling);
      }
    }
  }
  auto node = record ? make_node<LinearBackward>() : decltype(make_node<LinearBackward>())();
  if (record) {
    node->set_next_edges(torch::autograd::collect_next_edges(x, base.dense, a, b, bias));
    node->quant_type = base.quantized.quant_type;
    node->block_size = base.quantized.block_size;
    node->out = base.out;
    node->in = base.in;
    node->scaling = scaling;
    node->has_lora = has_lora;
    node->dense = base.dense.defined();
    node->x_sizes = x.sizes().vec();
    if (grad_weight || grad_a) {
      node->x = SavedVariable(x, false);
    }
    if (has_lora && (grad_x || grad_a)) {
      node->b = SavedVariable(b, false);
    }
    if (has_lora && grad_x) {
      node->a = SavedVariable(a, false);
    }
    if (grad_b) {
      node->projected = SavedVariable(projected, false);
    }
    if (grad_x && node->dense) {
      node->weight = SavedVariable(base.dense, false);
    } else if (grad_x) {
      node->packed = SavedVariable(base.quantized.packed, false);
      node->absmax = SavedVariable(base.quantized.absmax, false);
      node->nested_absmax = SavedVariable(base.quantized.nested_absmax, false);
      node->offset = SavedVariable(base.quantized.offset, false);
    }
  }
  Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    y = base.forward(x2, bias);
    if (has_lora) {
      y.addmm_(projected, b.t());
    }
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = base.out;
    y = y.view(sizes);
  }
  if (record) {
    attach(y, node);
  }
  return y;
}

Base quantized_base(const Tensor& packed, const Tensor& absmax, const optional<Tensor>& nested_absmax,
                    const optional<Tensor>& offset, int64_t out_features, int64_t in_features, std::string quant_type,
                    int64_t block_size) {
  Base base;
  base.quantized = {packed,     absmax, or_undefined(nested_absmax), or_undefined(offset), std::move(quant_type),
                    block_size};
  base.out = out_features;
  base.in = in_features;
  return base;
}

Tensor linear_4bit(const Tensor& x, const Tensor& packed, const Tensor& absmax, const optional<Tensor>& nested_absmax,
                   const optional<Tensor>& offset, int64_t out_features, int64_t in_features, std::string quant_type,
                   int64_t block_size, const optional<Tensor>& bias) {
  return linear("linear_4bit", x,
                quantized_base(packed, absmax, nested_absmax, offset, out_features, in_features, std::move(quant_type),
                               block_size),
                Tensor(), Tensor(), 0, or_undefined(bias));
}

Tensor lora_linear_4bit(const Tensor& x, const Tensor& packed, const Tensor& absmax,
                        const optional<Tensor>& nested_absmax, const optional<Tensor>& offset, int64_t out_features,
                        int64_t in_features, std::string quant_type, int64_t block_size, const Tensor& lora_a,
                        const Tensor& lora_b, double scaling, const optional<Tensor>& bias) {
  return linear("lora_linear_4bit", x,
                quantized_base(packed, absmax, nested_absmax, offset, out_features, in_features, std::move(quant_type),
                               block_size),
                lora_a, lora_b, scaling, or_undefined(bias));
}

Tensor lora_linear(const Tensor& x, const Tensor& weight, const Tensor& lora_a, const Tensor& lora_b, double scaling,
                   const optional<Tensor>& bias) {
  TORCH_CHECK(weight.dim() == 2, "gofsdp::lora_linear: weight must be a matrix, got ", describe(weight));
  Base base;
  base.dense = weight;
  base.out = weight.size(0);
  base.in = weight.size(1);
  return linear("lora_linear", x, base, lora_a, lora_b, scaling, or_undefined(bias));
}

void register_all(torch::Library& m) {
  m.impl("linear_4bit", linear_4bit);
  m.impl("lora_linear_4bit", lora_linear_4bit);
  m.impl("lora_linear", lora_linear);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(gofsdp, m) {
  m.def(
      "linear_4bit(Tensor x, Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? offset, int out_features, "
      "int in_features, str quant_type=\"nf4\", int block_size=64, Tensor? bias=None) -> Tensor");
  m.def(
      "lora_linear_4bit(Tensor x, Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? offset, "
      "int out_features, int in_features, str quant_type, int block_size, Tensor lora_A, Tensor lora_B, float scaling, "
      "Tensor? bias=None) -> Tensor");
  m.def(
      "lora_linear(Tensor x, Tensor weight, Tensor lora_A, Tensor lora_B, float scaling, Tensor? bias=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(gofsdp, CompositeExplicitAutograd, m) {
  register_all(m);
}

TORCH_LIBRARY_IMPL(gofsdp, Autograd, m) {
  register_all(m);
}

} // namespace gofsdp::ops
