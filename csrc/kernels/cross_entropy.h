// Softmax cross-entropy of one row of logits, in place.
#pragma once

#include <cstdint>

namespace gofsdp::kernels {

// What a row leaves behind. The gradient of its loss for logit j is row[j] * inverse_sum, where row is the overwritten
// row: e^(logit - max), and for the target the same minus the sum. See Note [Unnormalised gradient].
struct RowLoss {
  float loss;
  float inverse_sum;
};

RowLoss cross_entropy_row(float* row, int64_t size, int64_t target);

} // namespace gofsdp::kernels
