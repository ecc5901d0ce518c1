// Operators of the Llama family: RMSNorm, rotary embedding, SwiGLU, and the output head with its loss.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy.h"
#include "kernels/llama.h"
#include "ops/ops.h"

namespace gofsdp::ops {
namespace {

constexpr int64_t kGrain = 32768; // elements per thread, at least

int64_t rows_per_thread(int64_t row_size) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(row_size, 1));
}

void check_same(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  TORCH_CHECK(t.sizes() == x.sizes() && t.scalar_type() == x.scalar_type() && t.device() == x.device(), "gofsdp::", op,
              ": ", name, " must match ", describe(x), ", got ", describe(t));
}

template <class Signature>
auto primitive(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// ---- RMSNorm ----

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor& weight, double eps) {
  const int64_t size = weight.numel(), rows = x.numel() / size;
  Tensor y = at::empty_like(x);
  Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  dispatch_float("rms_norm", x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, rows, rows_per_thread(size), [&](int64_t first, int64_t last) {
      kernels::rms_norm_forward(data<T>(x), data<T>(weight), size, static_cast<float>(eps), first, last,
                                mutable_data<T>(y), mutable_data<float>(rstd));
    });
  });
  return {y, rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                             const Tensor& rstd, bool want_x, bool want_weight) {
  const int64_t size = weight.numel(), rows = x.numel() / size;
  Tensor dx, dweight;
  dispatch_float("rms_norm", x, [&](auto tag) {
    using T = decltype(tag);
    if (want_x) {
      dx = at::empty_like(x);
      at::parallel_for(0, rows, rows_per_thread(size), [&](int64_t first, int64_t last) {
        kernels::rms_norm_backward_input(data<T>(dy), data<T>(x), data<T>(weight), data<float>(rstd), size, first, last,
                                         mutable_data<T>(dx));
      });
    }
    if (want_weight) {
      dweight = at::empty_like(weight);
      const int64_t groups = (size + kernels::kLanes - 1) / kernels::kLanes;
      at::parallel_for(0, groups, rows_per_thread(rows * kernels::kLanes), [&](int64_t first, int64_t last) {
        kernels::rms_norm_backward_weight(data<T>(dy), data<T>(x), data<float>(rstd), rows, size,
                                          first * kernels::kLanes, std::min(size, last * kernels::kLanes),
                                          mutable_data<T>(dweight));
      });
    }
  });
  return {dx, dweight};
}

struct RmsNormBackward final : OperatorNode {
  SavedVariable x, weight, rstd;

  std::string name() const override {
    return "RmsNormBackward";
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    x.reset_data();
    weight.reset_data();
    rstd.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    refuse_double_backward();
    variable_list result(2);
    if (!grads[0].defined()) {
      return result;
    }
    Tensor x_saved, weight_saved, rstd_saved;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      x_saved = x.unpack();
      weight_saved = weight.unpack();
      rstd_saved = rstd.unpack();
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = primitive<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                                const Tensor&, bool, bool)>("gofsdp::rms_norm_backward");
    std::tie(result[0], result[1]) = op.call(grads[0].contiguous(), x_saved.contiguous(), weight_saved.contiguous(),
                                             rstd_saved, task_should_compute_output(0), task_should_compute_output(1));
    return result;
  }
};

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && weight.numel() > 0 && x.size(-1) == weight.numel() &&
                  x.scalar_type() == weight.scalar_type() && x.device() == weight.device(),
              "gofsdp::rms_norm: weight must be [n] with the dtype and last dimension of x, got x ", describe(x),
              " and weight ", describe(weight));
  static const auto op =
      primitive<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double)>("gofsdp::rms_norm_forward");
  Tensor y, rstd;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::tie(y, rstd) = op.call(x.contiguous(), weight.contiguous(), eps);
  }
  if (wants_grad(x) || wants_grad(weight)) {
    auto node = make_node<RmsNormBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(x, weight));
    node->x = SavedVariable(x, false);
    node->weight = SavedVariable(weight, false);
    node->rstd = SavedVariable(rstd, false);
    attach(y, node);
  }
  return y;
}

// ---- Rotary embedding ----

// x is [batch, tokens, heads, dim] with contiguous dim; so is the result, contiguous as a whole.
Tensor rope_rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  const kernels::RopeShape shape{x.size(0), x.size(1), x.size(2), x.size(3)};
  Tensor y = at::empty(x.sizes(), x.options());
  const kernels::RopeStrides xs{x.stride(0), x.stride(1), x.stride(2)}, ys{y.stride(0), y.stride(1), y.stride(2)};
  dispatch_float("rope", x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, shape.batch * shape.tokens, rows_per_thread(shape.heads * shape.dim),
                     [&](int64_t first, int64_t last) {
                       kernels::rope(data<T>(x), xs, data<float>(cos), data<float>(sin), cos.dim() == 3, inverse, shape,
                                     first, last, mutable_data<T>(y), ys);
                     });
  });
  return y;
}

Tensor call_rope_rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  static const auto op = primitive<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>("gofsdp::rope_rotate");
  return op.call(x.stride(-1) == 1 ? x : x.contiguous(), cos.to(at::kFloat).contiguous(),
                 sin.to(at::kFloat).contiguous(), inverse);
}

struct RopeBackward final : OperatorNode {
  SavedVariable cos, sin;

  std::string name() const override {
    return "RopeBackward";
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    cos.reset_data();
    sin.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    refuse_double_backward();
    variable_list result(1);
    if (!grads[0].defined() || !task_should_compute_output(0)) {
      return result;
    }
    Tensor cos_saved, sin_saved;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      cos_saved = cos.unpack();
      sin_saved = sin.unpack();
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    result[0] = call_rope_rotate(grads[0].transpose(1, 2), cos_saved, sin_saved, true);
    return result;
  }
};

// The result is a [batch, heads, tokens, dim] view of [batch, tokens, heads, dim] memory: every pass is sequential, and
// the attention kernels take strides.
Tensor rope(const Tensor& q, const Tensor& cos, const Tensor& sin) {
  TORCH_CHECK(q.dim() == 4 && q.size(3) % 2 == 0, "gofsdp::rope: q must be [batch, tokens, heads, even dim], got ",
              describe(q));
  const bool shared = cos.dim() == 2 && cos.size(0) == q.size(1) && cos.size(1) == q.size(3);
  const bool per_batch =
      cos.dim() == 3 && cos.size(0) == q.size(0) && cos.size(1) == q.size(1) && cos.size(2) == q.size(3);
  TORCH_CHECK((shared || per_batch) && cos.sizes() == sin.sizes() && cos.device() == q.device() &&
                  sin.device() == q.device(),
              "gofsdp::rope: cos and sin must be [tokens, dim] or [batch, tokens, dim] of q ", describe(q), ", got ",
              describe(cos), " and ", describe(sin));
  auto node = wants_grad(q) ? make_node<RopeBackward>() : decltype(make_node<RopeBackward>())();
  if (node) {
    node->set_next_edges(torch::autograd::collect_next_edges(q));
    node->cos = SavedVariable(cos, false);
    node->sin = SavedVariable(sin, false);
  }
  Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    y = call_rope_rotate(q, cos, sin, false).transpose(1, 2);
  }
  if (node) {
    attach(y, node);
  }
  return y;
}

// ---- SwiGLU ----

Tensor swiglu_forward(const Tensor& gate, const Tensor& up) {
  Tensor y = at::empty_like(gate);
  dispatch_float("swiglu", gate, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernels::swiglu_forward(data<T>(gate) + first, data<T>(up) + first, last - first, mutable_data<T>(y) + first);
    });
  });
  return y;
}

std::tuple<Tensor, Tensor> swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, bool want_gate,
                                           bool want_up) {
  Tensor dgate = want_gate ? at::empty_like(gate) : Tensor(), dup = want_up ? at::empty_like(up) : Tensor();
  dispatch_float("swiglu", gate, [&](auto tag) {
    using T = decltype(tag);
    T* to_gate = want_gate ? mutable_data<T>(dgate) : nullptr;
    T* to_up = want_up ? mutable_data<T>(dup) : nullptr;
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernels::swiglu_backward(data<T>(dy) + first, data<T>(gate) + first, data<T>(up) + first, last - first,
                               want_gate ? to_gate + first : nullptr, want_up ? to_up + first : nullptr);
    });
  });
  return {dgate, dup};
}

struct SwigluBackward final : OperatorNode {
  SavedVariable gate, up;

  std::string name() const override {
    return "SwigluBackward";
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    gate.reset_data();
    up.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    refuse_double_backward();
    variable_list result(2);
    if (!grads[0].defined()) {
      return result;
    }
    Tensor gate_saved, up_saved;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      gate_saved = gate.unpack();
      up_saved = up.unpack();
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = primitive<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, bool, bool)>(
        "gofsdp::swiglu_backward");
    std::tie(result[0], result[1]) =
        op.call(grads[0].contiguous(), gate_saved.contiguous(), up_saved.contiguous(), task_should_compute_output(0),
                task_should_compute_output(1));
    return result;
  }
};

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check_same("swiglu", "up", up, gate);
  auto node = wants_grad(gate) || wants_grad(up) ? make_node<SwigluBackward>() : decltype(make_node<SwigluBackward>())();
  if (node) {
    node->set_next_edges(torch::autograd::collect_next_edges(gate, up));
    node->gate = SavedVariable(gate, false);
    node->up = SavedVariable(up, false);
  }
  static const auto op = primitive<Tensor(const Tensor&, const Tensor&)>("gofsdp::swiglu_forward");
  Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    y = op.call(gate.contiguous(), up.contiguous());
  }
  if (node) {
    attach(y, node);
  }
  return y;
}

// ---- Output head with cross-entropy ----

// Bytes of logits that exist at a time.
constexpr int64_t kLogitsBytes = 16 << 20;
// Bytes of widened weight that exist at a time; see Note [Narrow head].
constexpr int64_t kTileBytes = 4 << 20;
constexpr int64_t kIgnored = -100;

// Turns fp32 logits [rows, vocabulary] into the unnormalised gradient (kernels/cross_entropy.h); returns the losses, the
// inverse sums and the gradients of the targets.
std::tuple<Tensor, Tensor, Tensor> cross_entropy_rows_(const Tensor& logits, const Tensor& labels) {
  const int64_t rows = logits.size(0), size = logits.size(1);
  Tensor loss = at::empty({rows}, logits.options());
  Tensor inverse_sum = at::empty_like(loss), target_gradient = at::empty_like(loss);
  at::parallel_for(0, rows, rows_per_thread(size), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const kernels::RowLoss r =
          kernels::cross_entropy_row(mutable_data<float>(logits) + row * size, size, data<int64_t>(labels)[row]);
      mutable_data<float>(loss)[row] = r.loss;
      mutable_data<float>(inverse_sum)[row] = r.inverse_sum;
      mutable_data<float>(target_gradient)[row] = r.target_gradient;
    }
  });
  return {loss, inverse_sum, target_gradient};
}

// The gradients are ready after the forward, while the logits are in cache; the backward only scales them.
struct LinearCrossEntropyBackward final : OperatorNode {
  SavedVariable dh, dweight;

  std::string name() const override {
    return "LinearCrossEntropyBackward";
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    dh.reset_data();
    dweight.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    refuse_double_backward();
    variable_list result(2);
    if (!grads[0].defined()) {
      return result;
    }
    Tensor saved[2];
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (task_should_compute_output(0)) {
        saved[0] = dh.unpack();
      }
      if (task_should_compute_output(1)) {
        saved[1] = dweight.unpack();
      }
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (size_t i = 0; i < 2; ++i) {
      if (saved[i].defined()) {
        result[i] = saved[i].mul(grads[0].to(saved[i].scalar_type()));
      }
    }
    return result;
  }
};

struct HeadResult {
  double loss = 0;
  Tensor dh, dweight;
};

// Note [Narrow head]
// A frozen head may be stored in a narrower dtype than the arithmetic's (bfloat16 weights, fp32 activations): it then takes
// half the memory, which for small models is most of it. Each band of logits is computed from tiles of the weight that are
// widened into a small buffer. Widening is exact, so the result is that of a widened head up to the order of sums.
struct Head {
  Tensor weight; // [vocabulary, hidden]
  Tensor buffer; // one widened tile; undefined where the dtypes agree
  int64_t tile;

  Head(const Tensor& w, const Tensor& h) : weight(w), tile(w.size(0)) {
    if (w.scalar_type() != h.scalar_type()) {
      tile = std::clamp<int64_t>(kTileBytes / (w.size(1) * static_cast<int64_t>(h.element_size())), 1, w.size(0));
      buffer = at::empty({tile, w.size(1)}, h.options());
    }
  }
  template <class Body> // body(first row, rows, tile in h's dtype)
  void for_each_tile(Body body) const {
    for (int64_t first = 0; first < weight.size(0); first += tile) {
      const int64_t n = std::min(tile, weight.size(0) - first);
      Tensor part = weight.narrow(0, first, n);
      if (buffer.defined()) {
        part = buffer.narrow(0, 0, n).copy_(part);
      }
      body(first, n, part);
    }
  }
};

// Loss sum and gradients over the rows that count, a band of rows at a time.
HeadResult head_loss(const Tensor& h, const Tensor& weight, const Tensor& labels, double scale, bool grad_h,
                     bool grad_weight) {
  static const auto rows_op =
      primitive<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&)>("gofsdp::cross_entropy_rows_");
  const int64_t rows = h.size(0), vocabulary = weight.size(0);
  HeadResult result;
  if (grad_h) {
    result.dh = at::empty_like(h);
  }
  if (grad_weight) {
    result.dweight = at::zeros_like(weight);
  }
  if (rows == 0) {
    return result;
  }
  const Head head(weight, h);
  // Bands of equal size: a short last one would waste a pass over the weight. A pass is dearer where it widens.
  const int64_t bytes = head.buffer.defined() ? 2 * kLogitsBytes : kLogitsBytes;
  const int64_t most = std::max<int64_t>(1, bytes / (4 * vocabulary));
  const int64_t bands = (rows + most - 1) / most, band_rows = (rows + bands - 1) / bands;
  const bool single = h.scalar_type() == at::kFloat;
  Tensor buffer = at::empty({band_rows, vocabulary}, h.options());
  Tensor losses = at::empty({rows}, h.options().dtype(at::kFloat));
  for (int64_t first = 0; first < rows; first += band_rows) {
    const int64_t n = std::min(band_rows, rows - first);
    const Tensor band = h.narrow(0, first, n);
    Tensor logits = buffer.narrow(0, 0, n);
    head.for_each_tile([&](int64_t at, int64_t size, const Tensor& tile) {
      Tensor part = size == vocabulary ? logits : logits.narrow(1, at, size);
      at::mm_out(part, band, tile.t());
    });
    Tensor gradient = single ? logits : logits.to(at::kFloat);
    const Tensor targets = labels.narrow(0, first, n);
    auto [loss, inverse_sum, target_gradient] = rows_op.call(gradient, targets);
    losses.narrow(0, first, n).copy_(loss);
    if (!grad_h && !grad_weight) {
      continue;
    }
    Tensor factor = inverse_sum.mul_(scale).unsqueeze(1);
    const Tensor target_factor = target_gradient.mul_(scale).to(h.scalar_type()).unsqueeze(1);
    if (!single) {
      // Half types cannot hold unnormalised values: normalise first.
      logits.copy_(gradient.mul_(factor));
      gradient = logits;
      factor = Tensor();
    }
    if (grad_h) {
      Tensor part = result.dh.narrow(0, first, n);
      head.for_each_tile([&](int64_t at, int64_t size, const Tensor& tile) {
        const Tensor columns = size == vocabulary ? gradient : gradient.narrow(1, at, size);
        if (at == 0) {
          at::mm_out(part, columns, tile);
        } else {
          part.addmm_(columns, tile);
        }
      });
      if (factor.defined()) {
        part.mul_(factor);
      }
      part.addcmul_(weight.index_select(0, targets).to(h.scalar_type()), target_factor);
    }
    if (grad_weight) {
      result.dweight.addmm_(gradient.t(), factor.defined() ? band.mul(factor) : band);
      result.dweight.index_add_(0, targets, band.mul(target_factor));
    }
  }
  result.loss = losses.sum(at::kDouble).item<double>() * scale;
  return result;
}

std::tuple<Tensor, Tensor> linear_cross_entropy(const Tensor& h, const Tensor& weight, const Tensor& labels,
                                                double scale) {
  const char* op = "linear_cross_entropy";
  TORCH_CHECK(h.dim() == 2 && weight.dim() == 2 && h.size(1) == weight.size(1) && h.is_floating_point() &&
                  weight.is_floating_point() && h.device() == weight.device(),
              "gofsdp::", op, ": h must be [rows, hidden] and weight [vocabulary, hidden], floating, got ", describe(h),
              " and ", describe(weight));
  TORCH_CHECK(h.scalar_type() == weight.scalar_type() || !wants_grad(weight), "gofsdp::", op,
              ": a trained weight must have h's dtype, got ", describe(h), " and ", describe(weight));
  TORCH_CHECK(labels.scalar_type() == at::kLong && labels.dim() == 1 && labels.size(0) == h.size(0) &&
                  labels.device() == h.device(),
              "gofsdp::", op, ": labels must be int64 [", h.size(0), "], got ", describe(labels));
  const bool grad_h = wants_grad(h), grad_weight = wants_grad(weight);
  const at::AutoDispatchBelowADInplaceOrView guard;

  // Rows that count. Labels are checked on the host, as the row in the message is worth the copy.
  const Tensor host = labels.to(at::kCPU).contiguous();
  const int64_t* label = data<int64_t>(host);
  const int64_t total = host.numel();
  std::vector<int64_t> kept;
  kept.reserve(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; ++i) {
    if (label[i] == kIgnored) {
      continue;
    }
    TORCH_CHECK_INDEX(label[i] >= 0 && label[i] < weight.size(0), "gofsdp::", op, ": labels[", i, "] = ", label[i],
                      " is not in [0, ", weight.size(0), ") and not ", kIgnored);
    kept.push_back(i);
  }
  const int64_t count = static_cast<int64_t>(kept.size());
  const bool all = count == total;
  Tensor index, rows = h.contiguous(), targets = labels.contiguous();
  if (!all) {
    index = at::empty({count}, host.options());
    std::copy(kept.begin(), kept.end(), mutable_data<int64_t>(index));
    index = index.to(h.device());
    rows = rows.index_select(0, index);
    targets = targets.index_select(0, index);
  }

  HeadResult r = head_loss(rows, weight.contiguous(), targets, scale, grad_h, grad_weight);
  if (grad_h && !all) {
    r.dh = at::zeros_like(h, at::MemoryFormat::Contiguous).index_copy_(0, index, r.dh);
  }
  Tensor loss = at::scalar_tensor(r.loss, h.options().dtype(at::kFloat));
  if (grad_h || grad_weight) {
    auto node = make_node<LinearCrossEntropyBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(h, weight));
    node->dh = SavedVariable(r.dh, false);
    node->dweight = SavedVariable(r.dweight, false);
    attach(loss, node);
  }
  return {loss, at::scalar_tensor(count, h.options().dtype(at::kLong))};
}

void register_all(torch::Library& m) {
  m.impl("rms_norm", rms_norm);
  m.impl("rope", rope);
  m.impl("swiglu", swiglu);
  m.impl("linear_cross_entropy", linear_cross_entropy);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(gofsdp, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rope(Tensor q, Tensor cos, Tensor sin) -> Tensor");
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def(
      "linear_cross_entropy(Tensor h, Tensor weight, Tensor labels, float scale=1.0) -> (Tensor loss_sum, Tensor count)");
  // Primitives, one implementation per device.
  m.def("rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, bool want_x, bool want_weight) -> "
      "(Tensor dx, Tensor dweight)");
  m.def("rope_rotate(Tensor x, Tensor cos, Tensor sin, bool inverse) -> Tensor");
  m.def("swiglu_forward(Tensor gate, Tensor up) -> Tensor");
  m.def(
      "swiglu_backward(Tensor dy, Tensor gate, Tensor up, bool want_gate, bool want_up) -> (Tensor dgate, Tensor dup)");
  m.def(
      "cross_entropy_rows_(Tensor(a!) logits, Tensor labels) -> (Tensor loss, Tensor inverse_sum, "
      "Tensor target_gradient)");
}

TORCH_LIBRARY_IMPL(gofsdp, CPU, m) {
  m.impl("rms_norm_forward", rms_norm_forward);
  m.impl("rms_norm_backward", rms_norm_backward);
  m.impl("rope_rotate", rope_rotate);
  m.impl("swiglu_forward", swiglu_forward);
  m.impl("swiglu_backward", swiglu_backward);
  m.impl("cross_entropy_rows_", cross_entropy_rows_);
}

TORCH_LIBRARY_IMPL(gofsdp, CompositeExplicitAutograd, m) {
  register_all(m);
}

TORCH_LIBRARY_IMPL(gofsdp, Autograd, m) {
  register_all(m);
}

} // namespace gofsdp::ops
