// Softmax cross-entropy of one row of logits, in place.
#pragma once

#include <cstdint>

namespace gofsdp::kernels {

// What a row leaves behind. The gradient of its loss is row[j] * inverse_sum for logit j, where row is the overwritten row
// (e^(logit - max), but 0 for the target), and target_gradient for the target. See Note [Target apart].
struct RowLoss {
  float loss;
  float inverse_sum;
  float target_gradient;
};

RowLoss cross_entropy_row(float* row, int64_t size, int64_t target);

} // namespace gofsdp::kernels
