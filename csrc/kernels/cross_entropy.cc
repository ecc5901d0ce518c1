#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/simd.h"

namespace gofsdp::kernels {

// Note [Target apart]
// The row stays unnormalised: the division by the sum happens after the product with the weight, on [rows, hidden]
// values instead of [rows, vocabulary] ones. The target stays out of the sum and of the product. So its gradient,
// softmax - 1 = -others / sum, does not cancel where the model is confident, and the product adds only terms of one sign and
// size; both are then more exact than with the target inside.
RowLoss cross_entropy_row(float* row, int64_t size, int64_t target) {
  F32x8 m[4];
  std::fill(m, m + 4, broadcast(row[0]));
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      m[k] = max8(m[k], load8(row + i + k * kLanes));
    }
  }
  float max = row[0];
  for (; i < size; ++i) {
    max = max > row[i] ? max : row[i];
  }
  for (const F32x8& v : m) {
    for (int lane = 0; lane < kLanes; ++lane) {
      max = max > v[lane] ? max : v[lane];
    }
  }

  const double target_logit = static_cast<double>(row[target]) - static_cast<double>(max);
  row[target] = -std::numeric_limits<float>::infinity();
  // fp32 sums of 1024 terms each, added in fp64: the vocabulary may hold hundreds of thousands.
  constexpr int64_t kSpan = 1024;
  double others = 0;
  for (int64_t begin = 0; begin < size; begin += kSpan) {
    const int64_t end = std::min(size, begin + kSpan);
    F32x8 acc[2] = {};
    int64_t j = begin;
    for (; j + 2 * kLanes <= end; j += 2 * kLanes) {
      for (int k = 0; k < 2; ++k) {
        const F32x8 e = exp8(load8(row + j + k * kLanes) - max);
        store8(row + j + k * kLanes, e);
        acc[k] += e;
      }
    }
    float part = 0;
    for_each_vector(end - j, [&](int64_t at, int64_t n) {
      const F32x8 e = exp8(load_n(row + j + at, n) - max);
      store_n(row + j + at, e, n);
      for (int64_t lane = 0; lane < n; ++lane) {
        part += e[lane];
      }
    });
    others += static_cast<double>(sum_lanes(acc[0] + acc[1]) + part);
  }
  row[target] = 0;
  const double sum = others + std::exp(target_logit);
  const double loss = target_logit == 0 ? std::log1p(others) : std::log(sum) - target_logit;
  return {static_cast<float>(loss), static_cast<float>(1 / sum), static_cast<float>(-others / sum)};
}

} // namespace gofsdp::kernels
