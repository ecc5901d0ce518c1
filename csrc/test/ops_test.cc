// Tests of the operators: bits against the goldens, values and gradients against compositions of ATen operators.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "test/call.h"
#include "test/safetensors.h"

namespace gofsdp::test {
namespace {

// Every test runs with one thread and with two: the rows are cut differently.
class Ops : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    at::set_num_threads(GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, Ops, ::testing::Values(1, 2), ::testing::PrintToStringParamName());

std::string goldens() {
  return std::filesystem::path(__FILE__).parent_path() / "../../testdata/goldens";
}

// Largest difference, relative to the largest magnitude of the reference.
double distance(const Tensor& got, const Tensor& want) {
  if (got.sizes() != want.sizes()) {
    return 1e30;
  }
  const Tensor g = got.detach().to(at::kDouble), w = want.detach().to(at::kDouble);
  return (g - w).abs().max().item<double>() / std::max(w.abs().max().item<double>(), 1e-30);
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.defined(), want.defined()) << what << ": one side has no gradient";
  if (got.defined()) {
    EXPECT_LE(distance(got, want), tolerance) << what;
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void expect_error(const std::function<void()>& body, const std::string& part, const std::string& what) {
  try {
    body();
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << what << ": message is " << e.what_without_backtrace();
    return;
  }
  ADD_FAILURE() << what << ": no error";
}

std::vector<std::string> split(const std::string& s, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : s) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// ---- quantisation ----

TEST_P(Ops, Golden4Bit) {
  const SafeTensors golden(goldens() + "/bnb/quant4bit.safetensors");
  int cases = 0;
  for (const std::string& name : golden.names()) {
    const std::string suffix = ".packed";
    if (name.size() < suffix.size() || name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
      continue;
    }
    const std::string key = name.substr(0, name.size() - suffix.size());
    const auto part = split(key, '|'); // input, type, bs<n>, flat or nested, storage
    const Tensor x = golden.get("in." + part[0]);
    const bool nested = part[3] == "nested";
    const Packed p = quantize(x, part[1], std::stoll(part[2].substr(2)), nested);
    EXPECT_TRUE(same_bits(p.packed, golden.get(name))) << key + ": packed";
    EXPECT_TRUE(same_bits(p.absmax, golden.get(key + ".absmax"))) << key + ": absmax";
    if (nested) {
      EXPECT_TRUE(same_bits(*p.nested_absmax, golden.get(key + ".nested_absmax"))) << key + ": nested_absmax";
      EXPECT_TRUE(same_bits(*p.offset, golden.get(key + ".offset"))) << key + ": offset";
      const Tensor absmax = call<Tensor(const Tensor&, const Tensor&, const Tensor&)>("dequantize_absmax", p.absmax,
                                                                                      *p.nested_absmax, *p.offset);
      const Packed flat{p.packed, absmax, {}, {}, p.quant_type, p.block_size};
      EXPECT_TRUE(same_bits(dequantize(flat, x.sizes(), x.scalar_type()), golden.get(key + ".deq")))
          << key + ": dequantised with dequantised scales";
    }
    EXPECT_TRUE(same_bits(dequantize(p, x.sizes(), x.scalar_type()), golden.get(key + ".deq")))
        << key + ": dequantised";
    ++cases;
  }
  EXPECT_TRUE(cases == 68) << "goldens hold 68 cases of 4-bit quantisation, tested " + std::to_string(cases);
}

// bitsandbytes computes y with W^T as its own matrix product: values agree but for rounding.
TEST_P(Ops, GoldenLinear4Bit) {
  const SafeTensors golden(goldens() + "/bnb/linear4bit_state.safetensors");
  const Tensor w = golden.get("W");
  const Packed p = quantize(w, "nf4", 64, true);
  EXPECT_TRUE(same_bits(p.packed, golden.get("uint8.weight"))) << "Linear4bit: packed weight";
  Tensor x = golden.get("uint8.x").requires_grad_();
  Tensor y = linear_4bit(x, p, w.size(0), w.size(1));
  expect_close(y, golden.get("uint8.y"), 1e-6, "Linear4bit: y");
  y.square().mean().backward();
  expect_close(x.grad(), golden.get("uint8.dx"), 1e-6, "Linear4bit: dx");
}

TEST_P(Ops, DequantizesRanges) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const char* type : {"nf4", "fp4"}) {
      const Packed p = quantize(at::randn({7, 61}), type, 64, true);
      const Tensor all = dequantize(p, {427}, dtype);
      for (const auto& [begin, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 427}, {1, 426}, {63, 2}, {65, 201}, {426, 1}}) {
        Tensor part = at::empty({n}, all.options());
        call<void(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&, int64_t,
                  std::string, int64_t)>("dequantize_4bit_range_", part, p.packed, p.absmax, p.nested_absmax, p.offset,
                                         begin, type, 64);
        EXPECT_TRUE(same_bits(part, all.narrow(0, begin, n))) << "dequantize_4bit_range_ from " + std::to_string(begin);
      }
    }
  }
  const Packed empty = quantize(at::empty({0}), "nf4", 64, false);
  EXPECT_TRUE(empty.packed.numel() == 0 && empty.absmax.numel() == 0) << "quantize_4bit of an empty tensor";
}

// ---- gradients against ATen compositions in fp64 ----

struct Case {
  std::string name;
  std::vector<Tensor> inputs;        // fp32
  std::vector<bool> differentiable;  // which inputs to differentiate
  std::function<Tensor(const std::vector<Tensor>&)> op, reference; // the reference works in the dtype of its inputs
  double tolerance = 2e-6;
};

// Runs both sides with the given inputs requiring gradients, and compares outputs and gradients.
void compare(const Case& c, const std::vector<bool>& differentiable) {
  std::vector<Tensor> a, b;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    a.push_back(c.inputs[i].detach().clone());
    b.push_back(c.inputs[i].is_floating_point() ? c.inputs[i].detach().to(at::kDouble) : c.inputs[i]);
    if (differentiable[i]) {
      a[i].requires_grad_();
      b[i].requires_grad_();
    }
  }
  std::string name = c.name + " [";
  for (const bool d : differentiable) {
    name += d ? '1' : '0';
  }
  name += ']';
  const Tensor ya = c.op(a), yb = c.reference(b);
  expect_close(ya, yb, c.tolerance, name + ": output");
  EXPECT_TRUE(ya.requires_grad() == yb.requires_grad()) << name + ": requires_grad";
  if (!yb.requires_grad()) {
    return;
  }
  const Tensor dy = at::randn(yb.sizes(), yb.options());
  ya.backward(dy.to(ya.scalar_type()));
  yb.backward(dy);
  for (size_t i = 0; i < a.size(); ++i) {
    if (differentiable[i]) {
      expect_close(a[i].grad(), b[i].grad(), c.tolerance, name + ": gradient of input " + std::to_string(i));
    }
  }
}

// Every subset of the differentiable inputs: what is not needed is skipped and must not disturb the rest.
void compare_all_subsets(const Case& c) {
  const size_t n = c.inputs.size();
  for (unsigned mask = 0; mask < (1u << n); ++mask) {
    std::vector<bool> d(n);
    bool valid = true;
    for (size_t i = 0; i < n; ++i) {
      d[i] = (mask >> i & 1u) != 0;
      valid = valid && (!d[i] || c.differentiable[i]);
    }
    if (valid) {
      compare(c, d);
    }
  }
}

Tensor reference_lora(const Tensor& x, const Tensor& w, const Tensor& a, const Tensor& b, double s, const Tensor& bias) {
  Tensor y = x.matmul(w.t()) + x.matmul(a.t()).matmul(b.t()) * s;
  return bias.defined() ? y + bias : y;
}

TEST_P(Ops, Linears) {
  // The second shape needs two bands of dequantised weight, the third has rows that share a block.
  struct Shape {
    int64_t tokens, out, in, rank;
  };
  for (const Shape& s : {Shape{6, 80, 96, 4}, Shape{5, 1100, 1024, 8}, Shape{3, 10, 30, 2}}) {
    const Tensor w = at::randn({s.out, s.in}) * 0.05;
    for (const char* type : {"nf4", "fp4"}) {
      for (const bool nested : {false, true}) {
        const Packed p = quantize(w, type, 64, nested);
        const Tensor deq = dequantize(p, w.sizes(), at::kFloat).to(at::kDouble);
        const std::string name = std::string(type) + (nested ? " nested " : " flat ") + std::to_string(s.out);
        compare_all_subsets({"linear_4bit " + name,
                             {at::randn({2, s.tokens, s.in}), at::randn({s.out})},
                             {true, true},
                             [=](const auto& t) { return linear_4bit(t[0], p, s.out, s.in, t[1]); },
                             [=](const auto& t) { return t[0].matmul(deq.t()) + t[1]; }});
        compare_all_subsets(
            {"lora_linear_4bit " + name,
             {at::randn({2, s.tokens, s.in}), at::randn({s.rank, s.in}) * 0.1, at::randn({s.out, s.rank}) * 0.1},
             {true, true, true},
             [=](const auto& t) { return lora_linear_4bit(t[0], p, s.out, s.in, t[1], t[2], 0.75); },
             [=](const auto& t) { return reference_lora(t[0], deq, t[1], t[2], 0.75, Tensor()); }});
      }
    }
    compare_all_subsets({"lora_linear " + std::to_string(s.out),
                         {at::randn({s.tokens, s.in}), w, at::randn({s.rank, s.in}) * 0.1,
                          at::randn({s.out, s.rank}) * 0.1, at::randn({s.out})},
                         {true, true, true, true, true},
                         [](const auto& t) { return lora_linear(t[0], t[1], t[2], t[3], 2, t[4]); },
                         [](const auto& t) { return reference_lora(t[0], t[1], t[2], t[3], 2, t[4]); }});
  }
  // A non-contiguous x, a non-contiguous gradient, one row.
  const Packed p = quantize(at::randn({32, 64}), "nf4", 64, true);
  const Tensor w = dequantize(p, {32, 64}, at::kFloat);
  Tensor x = at::randn({64, 9}).requires_grad_(), x2 = x.detach().clone().requires_grad_();
  linear_4bit(x.t(), p, 32, 64).sum().backward();
  x2.t().matmul(w.t()).sum().backward();
  expect_close(x.grad(), x2.grad(), 1e-6, "linear_4bit of a transposed x");
  expect_close(linear_4bit(at::ones({64}), p, 32, 64), w.sum(1), 1e-5, "linear_4bit of a vector");
  const Tensor xb = at::randn({4, 64}).to(at::kBFloat16);
  expect_close(linear_4bit(xb, p, 32, 64), xb.to(at::kFloat).matmul(dequantize(p, {32, 64}, at::kBFloat16).to(at::kFloat).t()),
               1e-2, "linear_4bit in bfloat16");
}

TEST_P(Ops, RMSNorm) {
  for (const int64_t size : {64, 576, 37, 3}) {
    compare_all_subsets({"rms_norm " + std::to_string(size),
                         {at::randn({2, 70, size}), at::randn({size})},
                         {true, true},
                         [](const auto& t) { return rms_norm(t[0], t[1], 1e-5); },
                         [](const auto& t) {
                           return t[0] * (t[0].pow(2).mean(-1, true) + 1e-5).rsqrt() * t[1];
                         }});
  }
  // In half types the normalised value is rounded before the product with the weight, as in transformers.
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Tensor x = at::randn({5, 40}).to(dtype), w = at::randn({40}).to(dtype);
    const Tensor f = x.to(at::kFloat);
    const Tensor want = w * (f * (f.pow(2).mean(-1, true) + 1e-6).rsqrt()).to(dtype);
    EXPECT_TRUE(at::allclose(rms_norm(x, w, 1e-6).to(at::kFloat), want.to(at::kFloat), 1e-2, 1e-3))
        << "rms_norm in half types";
  }
}

Tensor rotate_half(const Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
}

TEST_P(Ops, RoPE) {
  for (const int64_t dim : {64, 12, 2}) {
    for (const bool per_batch : {false, true}) {
      const Tensor angle = per_batch ? at::randn({2, 5, dim}) : at::randn({5, dim});
      const Tensor cos = angle.cos(), sin = angle.sin() * 0.5; // any table, not only the usual one with equal halves
      compare_all_subsets({"rope " + std::to_string(dim),
                           {at::randn({2, 5, 3, dim})},
                           {true},
                           [=](const auto& t) { return rope(t[0], cos, sin); },
                           [=](const auto& t) {
                             const auto table = [&](const Tensor& c) {
                               const Tensor d = c.to(at::kDouble);
                               return per_batch ? d.unsqueeze(1) : d.unsqueeze(0).unsqueeze(0);
                             };
                             const Tensor q = t[0].transpose(1, 2);
                             return q * table(cos) + rotate_half(q) * table(sin);
                           }});
    }
  }
  // A slice of a fused projection has heads apart from each other.
  const Tensor qkv = at::randn({2, 5, 9, 8}), cos = at::randn({5, 8}), sin = at::randn({5, 8});
  const Tensor q = qkv.narrow(2, 3, 4);
  EXPECT_TRUE(same_bits(rope(q, cos, sin), rope(q.contiguous(), cos, sin))) << "rope of a slice";
}

TEST_P(Ops, SwiGLU) {
  for (const int64_t n : {1, 7, 8, 1000}) {
    compare_all_subsets({"swiglu " + std::to_string(n),
                         {at::randn({3, n}) * 4, at::randn({3, n})},
                         {true, true},
                         [](const auto& t) { return swiglu(t[0], t[1]); },
                         [](const auto& t) { return at::silu(t[0]) * t[1]; }});
  }
  const Tensor extreme = at::tensor({-1e30f, -200.f, -90.f, -88.f, -1e-20f, 0.f, 1e-20f, 88.f, 90.f, 200.f, 1e30f});
  EXPECT_TRUE(at::allclose(swiglu(extreme, at::ones_like(extreme)), at::silu(extreme), 1e-6, 1e-30))
      << "swiglu of extremes";
  EXPECT_TRUE(swiglu(at::tensor({NAN}), at::ones({1})).isnan().all().item<bool>()) << "swiglu keeps NaN";
}

TEST_P(Ops, LinearCrossEntropy) {
  struct Shape {
    int64_t rows, hidden, vocabulary;
  };
  // The last shape needs two bands of logits.
  for (const Shape& s : {Shape{17, 24, 101}, Shape{1, 8, 3}, Shape{100, 8, 49152}}) {
    for (const double ignored : {0.0, 0.4}) {
      Tensor labels = at::randint(0, s.vocabulary, {s.rows}, at::kLong);
      if (s.rows > 1) {
        labels = labels.masked_fill(at::rand({s.rows}) < ignored, -100);
      }
      compare_all_subsets({"linear_cross_entropy " + std::to_string(s.vocabulary),
                           {at::randn({s.rows, s.hidden}), at::randn({s.vocabulary, s.hidden}) * 0.2}, // logits of order 1
                           {true, true},
                           [=](const auto& t) { return std::get<0>(linear_cross_entropy(t[0], t[1], labels, 0.5)); },
                           [=](const auto& t) {
                             return at::cross_entropy_loss(t[0].matmul(t[1].t()), labels, {}, at::Reduction::Sum, -100) *
                                    0.5;
                           },
                           1e-6});
      const auto [loss, count] = linear_cross_entropy(at::randn({s.rows, s.hidden}), at::randn({s.vocabulary, s.hidden}), labels, 1);
      EXPECT_TRUE(count.item<int64_t>() == (labels != -100).sum().item<int64_t>()) << "linear_cross_entropy: count";
    }
  }
  Tensor h = at::randn({3, 4}).requires_grad_(), w = at::randn({5, 4});
  const auto [loss, count] = linear_cross_entropy(h, w, at::full({3}, -100, at::kLong), 1);
  loss.backward();
  EXPECT_TRUE(loss.item<float>() == 0 && count.item<int64_t>() == 0 && h.grad().eq(0).all().item<bool>())
      << "linear_cross_entropy without a target";
  // Confident rows: softmax - 1 is tiny next to its terms.
  compare_all_subsets({"linear_cross_entropy, confident",
                       {at::eye(6) * 14, at::eye(6)},
                       {true, true},
                       [](const auto& t) { return std::get<0>(linear_cross_entropy(t[0], t[1], at::arange(6), 1)); },
                       [](const auto& t) { return at::cross_entropy_loss(t[0].matmul(t[1].t()), at::arange(6), {}, at::Reduction::Sum); },
                       1e-6});
  const Tensor hb = at::randn({6, 16}).to(at::kBFloat16), wb = at::randn({40, 16}).to(at::kBFloat16), labels = at::arange(6);
  Tensor hg = hb.clone().requires_grad_(), hr = hb.to(at::kFloat).requires_grad_();
  std::get<0>(linear_cross_entropy(hg, wb, labels, 1)).backward();
  at::cross_entropy_loss(hr.matmul(wb.to(at::kFloat).t()), labels, {}, at::Reduction::Sum).backward();
  expect_close(hg.grad(), hr.grad(), 2e-2, "linear_cross_entropy in bfloat16");

  // A bfloat16 head under fp32 activations, in several tiles and bands, is the widened head.
  const Tensor narrow = (at::randn({40000, 64}) * 0.2).to(at::kBFloat16), x = at::randn({450, 64});
  const Tensor many = at::randint(0, 40000, {450}, at::kLong);
  Tensor xn = x.clone().requires_grad_(), xw = x.clone().requires_grad_();
  const Tensor ln = std::get<0>(linear_cross_entropy(xn, narrow, many, 0.1));
  const Tensor lw = std::get<0>(linear_cross_entropy(xw, narrow.to(at::kFloat), many, 0.1));
  ln.backward();
  lw.backward();
  expect_close(ln, lw, 1e-6, "linear_cross_entropy with a narrow head: loss");
  expect_close(xn.grad(), xw.grad(), 1e-6, "linear_cross_entropy with a narrow head: gradient");
  EXPECT_TRUE(std::get<0>(linear_cross_entropy(at::full({2, 4}, NAN), w, at::zeros({2}, at::kLong), 1)).isnan().item<bool>())
      << "linear_cross_entropy keeps NaN";
}

// ---- lifetime ----

// FSDP frees the storage of a weight after the forward and refills it before the backward.
TEST_P(Ops, StorageIsRefilled) {
  const int64_t out = 48, in = 64;
  const Packed p = quantize(at::randn({out, in}), "nf4", 64, true);
  const Tensor a0 = at::randn({4, in}), b0 = at::randn({out, 4}), x0 = at::randn({5, in});
  std::vector<Tensor> want;
  for (const bool free : {false, true}) {
    Tensor x = x0.clone().requires_grad_(), a = a0.clone().requires_grad_(), b = b0.clone().requires_grad_();
    Packed q{p.packed.clone(), p.absmax.clone(), p.nested_absmax->clone(), p.offset->clone(), "nf4", 64};
    Tensor y = lora_linear_4bit(x, q, out, in, a, b, 2);
    if (free) {
      for (const auto& [t, from] : std::vector<std::pair<Tensor, Tensor>>{
               {q.packed, p.packed}, {q.absmax, p.absmax}, {*q.nested_absmax, *p.nested_absmax}, {*q.offset, *p.offset}}) {
        c10::StorageImpl* s = t.storage().unsafeGetStorageImpl();
        const size_t bytes = s->nbytes();
        s->set_data_ptr_noswap(s->allocator()->allocate(0));
        s->set_data_ptr_noswap(s->allocator()->allocate(bytes));
        std::memcpy(s->mutable_data(), from.const_data_ptr(), bytes);
      }
    }
    q = {};
    y.sum().backward();
    if (!free) {
      want = {x.grad(), a.grad(), b.grad()};
    } else {
      EXPECT_TRUE(at::equal(x.grad(), want[0]) && at::equal(a.grad(), want[1]) && at::equal(b.grad(), want[2]))
          << "gradients after the storage was refilled";
    }
  }
}

TEST_P(Ops, Errors) {
  const Packed p = quantize(at::randn({32, 64}), "nf4", 64, true);
  const Tensor x = at::randn({4, 64});
  expect_error([&] { linear_4bit(at::randn({4, 65}), p, 32, 64); }, "last dimension 64", "linear_4bit: wrong x");
  expect_error([&] { linear_4bit(x, p, 33, 64); }, "packed must be", "linear_4bit: wrong out_features");
  expect_error([&] { Packed q = p; q.offset.reset(); linear_4bit(x, q, 32, 64); }, "offset", "linear_4bit: no offset");
  expect_error([&] { Packed q = p; q.quant_type = "nf5"; linear_4bit(x, q, 32, 64); }, "nf5", "linear_4bit: quant_type");
  expect_error([&] { lora_linear_4bit(x, p, 32, 64, at::randn({4, 63}), at::randn({32, 4}), 1); }, "lora_A", "lora_A");
  expect_error([&] { lora_linear_4bit(x, p, 32, 64, at::randn({4, 64}), at::randn({32, 5}), 1); }, "lora_B", "lora_B");
  expect_error([&] { lora_linear(x, at::randn({32, 64}, at::kDouble), at::randn({4, 64}), at::randn({32, 4}), 1); },
               "weight must be", "lora_linear: dtype");
  expect_error([&] { quantize(at::randn({64}, at::kDouble), "nf4", 64, false); }, "dtype", "quantize_4bit: dtype");
  expect_error([&] { quantize(at::randn({64}), "nf4", 48, false); }, "multiple of 32", "quantize_4bit: block size");
  expect_error([&] { rms_norm(x, at::ones({63}), 1e-5); }, "rms_norm", "rms_norm: weight");
  expect_error([&] { rope(at::randn({1, 2, 3, 5}), at::ones({2, 5}), at::ones({2, 5})); }, "even dim", "rope: odd dim");
  expect_error([&] { rope(at::randn({1, 2, 3, 4}), at::ones({3, 4}), at::ones({3, 4})); }, "cos and sin", "rope: tokens");
  expect_error([&] { swiglu(x, at::randn({4, 63})); }, "swiglu", "swiglu: shapes");
  expect_error([&] { linear_cross_entropy(x, at::randn({9, 64}), at::tensor({1, 2, 9, 0}, at::kLong), 1); }, "labels[2] = 9",
               "linear_cross_entropy: label out of range");
  expect_error([&] { linear_cross_entropy(x, at::randn({9, 64}), at::zeros({4}), 1); }, "int64",
               "linear_cross_entropy: label dtype");
  Tensor g = x.clone().requires_grad_();
  Tensor y = linear_4bit(g, p, 32, 64).sum();
  y.backward({}, /*retain_graph=*/true);
  expect_error([&] { y.backward({}, true, /*create_graph=*/true); }, "not differentiable twice", "double backward");
  y.backward();
  expect_error([&] { y.backward(); }, "second time", "backward through a freed graph");
}

TEST_P(Ops, InferenceMode) {
  const Packed p = quantize(at::randn({32, 64}), "nf4", 64, true);
  const Tensor x = at::randn({4, 64}), a = at::randn({2, 64}), b = at::randn({32, 2});
  const Tensor want = lora_linear_4bit(x, p, 32, 64, a, b, 2);
  const c10::InferenceMode mode;
  const Tensor got = lora_linear_4bit(x.clone(), p, 32, 64, a.clone(), b.clone(), 2);
  EXPECT_TRUE(got.is_inference() && at::equal(got, want)) << "lora_linear_4bit in inference mode";
  EXPECT_TRUE(swiglu(x.clone(), x.clone()).is_inference()) << "swiglu in inference mode";
}

// Scratch buffers are shared between threads: each call must have its own.
TEST_P(Ops, ManyThreads) {
  const Packed p = quantize(at::randn({96, 128}), "nf4", 64, true);
  const Tensor x = at::randn({8, 128});
  const Tensor want = linear_4bit(x, p, 96, 128);
  std::vector<std::thread> all;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 8; ++i) {
    all.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        wrong += at::equal(linear_4bit(x, p, 96, 128), want) ? 0 : 1;
      }
    });
  }
  for (std::thread& t : all) {
    t.join();
  }
  EXPECT_TRUE(wrong == 0) << "linear_4bit from eight threads";
}

} // namespace
} // namespace gofsdp::test
