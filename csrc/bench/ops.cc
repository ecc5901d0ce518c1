// Times the operators against compositions of ATen operators at the layer shapes of SmolLM2-135M, on one thread.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "test/call.h"

namespace gofsdp::test {
namespace {

using Step = std::function<void()>;

// Both sides in turn, so that a busy machine hits them alike; the least of the runs counts.
void row(const char* name, const Step& ours, const Step& theirs, double bytes = 0) {
  const auto time = [](const Step& step) {
    const auto t = std::chrono::steady_clock::now();
    step();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count();
  };
  double a = 1e30, b = 1e30;
  for (int i = 0; i < 25; ++i) {
    a = std::min(a, time(ours));
    b = std::min(b, time(theirs));
  }
  std::printf("%-44s %9.3f ms %9.3f ms   %5.2fx", name, a, b, b / a);
  if (bytes > 0) {
    std::printf("   %.1f GB/s", bytes / a * 1e-6);
  }
  std::printf("\n");
}

// Forward and backward of y = f() with gradients for the given leaves.
Step train(const std::function<Tensor()>& f, std::vector<Tensor> leaves) {
  return [=]() mutable {
    Tensor y = f();
    y.backward(y.dim() == 0 ? Tensor() : at::ones_like(y));
    for (Tensor& t : leaves) {
      t.mutable_grad().reset();
    }
  };
}

// What bitsandbytes does for a layer: scales, then all weights, in fresh tensors.
Tensor dequantize_fresh(const Packed& p, int64_t out, int64_t in) {
  return dequantize(p, {out, in}, at::kFloat);
}

void quantisation() {
  const Tensor w = at::randn({1536, 576}) * 0.05;
  const Packed p = quantize(w, "nf4", 64, true);
  Tensor out = at::empty_like(w);
  const double bytes = static_cast<double>(w.nbytes());
  row("quantize nf4 [1536, 576] / abs+max", [&] { quantize(w, "nf4", 64, true); }, [&] { w.abs().view({-1, 64}).amax(1); },
      bytes);
  row("dequantize_4bit_range_ / copy_",
      [&] {
        call<void(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&, int64_t,
                  std::string, int64_t)>("dequantize_4bit_range_", out, p.packed, p.absmax, p.nested_absmax, p.offset, 0,
                                         "nf4", 64);
      },
      [&] { out.copy_(w); }, bytes);
}

void linear(int64_t tokens, int64_t out, int64_t in) {
  const int64_t r = 16;
  const Packed p = quantize(at::randn({out, in}) * 0.05, "nf4", 64, true);
  Tensor x = at::randn({tokens, in}).requires_grad_();
  Tensor a = (at::randn({r, in}) * 0.1).requires_grad_(), b = (at::randn({out, r}) * 0.1).requires_grad_();
  // The composition keeps no dequantised weight either: autograd saves one, as a custom function would recompute it.
  const auto composed = [=] {
    const Tensor w = dequantize_fresh(p, out, in);
    return at::linear(x, w) + at::linear(at::linear(x, a), b) * 1.0;
  };
  char name[96];
  std::snprintf(name, sizeof(name), "lora_linear_4bit %ld x [%ld, %ld] fwd", tokens, out, in);
  row(name, [=] { at::NoGradGuard g; lora_linear_4bit(x, p, out, in, a, b, 1.0); }, [=] { at::NoGradGuard g; composed(); });
  std::snprintf(name, sizeof(name), "lora_linear_4bit %ld x [%ld, %ld] fwd+bwd", tokens, out, in);
  row(name, train([=] { return lora_linear_4bit(x, p, out, in, a, b, 1.0); }, {x, a, b}), train(composed, {x, a, b}));
  const Tensor w = dequantize_fresh(p, out, in);
  std::snprintf(name, sizeof(name), "  against a bare fp32 linear, fwd+bwd of x");
  row(name, train([=] { return linear_4bit(x, p, out, in); }, {x}), train([=] { return at::linear(x, w); }, {x}));
}

Tensor rotate_half(const Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
}

void elementwise(int64_t tokens) {
  Tensor x = at::randn({1, tokens, 576}).requires_grad_(), w = at::ones({576});
  row("rms_norm [256, 576] fwd+bwd", train([=] { return rms_norm(x, w, 1e-5); }, {x}),
      train([=] { return w * (x * (x.pow(2).mean(-1, true) + 1e-5).rsqrt()); }, {x}));
  Tensor wg = at::ones({576}).requires_grad_();
  row("rms_norm [256, 576] fwd+bwd with weight", train([=] { return rms_norm(x, wg, 1e-5); }, {x, wg}),
      train([=] { return wg * (x * (x.pow(2).mean(-1, true) + 1e-5).rsqrt()); }, {x, wg}));
  Tensor q = at::randn({1, tokens, 9, 64}).requires_grad_();
  const Tensor cos = at::randn({tokens, 64}), sin = at::randn({tokens, 64});
  row("rope [256, 9, 64] fwd+bwd", train([=] { return rope(q, cos, sin); }, {q}), train([=] {
        const Tensor t = q.transpose(1, 2);
        return t * cos + rotate_half(t) * sin;
      }, {q}));
  Tensor g = at::randn({1, tokens, 1536}).requires_grad_(), u = at::randn({1, tokens, 1536}).requires_grad_();
  row("swiglu [256, 1536] fwd+bwd", train([=] { return swiglu(g, u); }, {g, u}),
      train([=] { return at::silu(g) * u; }, {g, u}));
}

void head(int64_t tokens) {
  Tensor h = at::randn({tokens, 576}).requires_grad_(), w = at::randn({49152, 576}) * 0.05;
  const Tensor labels = at::randint(0, 49152, {tokens}, at::kLong);
  row("linear_cross_entropy 256 x [49152, 576] fwd", [=] { at::NoGradGuard n; linear_cross_entropy(h, w, labels, 1); },
      [=] { at::NoGradGuard n; at::cross_entropy_loss(at::linear(h, w), labels, {}, at::Reduction::Sum); });
  row("linear_cross_entropy 256 x [49152, 576] fwd+bwd",
      train([=] { return std::get<0>(linear_cross_entropy(h, w, labels, 1)); }, {h}),
      train([=] { return at::cross_entropy_loss(at::linear(h, w), labels, {}, at::Reduction::Sum); }, {h}));
}

} // namespace
} // namespace gofsdp::test

int main() {
  using namespace gofsdp::test;
  at::set_num_threads(1);
  std::printf("%-44s %12s %12s\n", "", "gofsdp", "ATen");
  quantisation();
  linear(256, 576, 576);
  linear(256, 192, 576);
  linear(256, 1536, 576);
  linear(256, 576, 1536);
  elementwise(256);
  head(256);
  return 0;
}
