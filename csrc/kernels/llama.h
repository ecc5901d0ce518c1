// Row kernels of the Llama family: RMSNorm, rotary embedding, SwiGLU. T is float, BF16 or F16; arithmetic is fp32.
#pragma once

#include <cstdint>

#include "kernels/simd.h"

namespace gofsdp::kernels {

// RMSNorm of rows [first, last) of x[rows, size]: y = round_to<T>(x * rstd) * weight, rstd = 1 / sqrt(mean(x^2) + eps).
template <class T>
void rms_norm_forward(const T* x, const T* weight, int64_t size, float eps, int64_t first, int64_t last, T* y,
                      float* rstd);

// Gradient for x, rows [first, last).
template <class T>
void rms_norm_backward_input(const T* dy, const T* x, const T* weight, const float* rstd, int64_t size, int64_t first,
                             int64_t last, T* dx);

// Gradient for weight, columns [first, last), summed over the rows in an order that depends on nothing else.
template <class T>
void rms_norm_backward_weight(const T* dy, const T* x, const float* rstd, int64_t rows, int64_t size, int64_t first,
                              int64_t last, T* dweight);

// Positions of a [batch, tokens, heads, dim] tensor: strides in elements, dim is contiguous.
struct RopeStrides {
  int64_t batch, token, head;
};

struct RopeShape {
  int64_t batch, tokens, heads, dim;
};

// Rotates the pairs (i, i + dim/2) of rows [first, last) of the batch * tokens positions by the angles whose cosine and
// sine are given ([tokens, dim], or [batch, tokens, dim] if table_per_batch). `inverse` rotates back, which is the gradient.
template <class T>
void rope(const T* x, RopeStrides xs, const float* cos, const float* sin, bool table_per_batch, bool inverse,
          RopeShape shape, int64_t first, int64_t last, T* y, RopeStrides ys);

// y = silu(gate) * up over n elements.
template <class T>
void swiglu_forward(const T* gate, const T* up, int64_t n, T* y);

// Gradients for gate and up; either may be null.
template <class T>
void swiglu_backward(const T* dy, const T* gate, const T* up, int64_t n, T* dgate, T* dup);

} // namespace gofsdp::kernels
