// Block-wise 4-bit weights (NF4, FP4) and the 8-bit double quantisation of their scales, bit for bit as bitsandbytes.
//
// Two weights share a byte: the even one in the high nibble. A block of `block_size` weights has one fp32 scale, its
// largest magnitude (absmax). Double quantisation stores absmax - mean(absmax) in 8 bits with one fp32 scale per 256.
#pragma once

#include <cstdint>

#include "kernels/simd.h"

namespace gofsdp::kernels {

enum class Quant4Type { kNF4, kFP4 };

// Scales per group of the double quantisation.
inline constexpr int64_t kNestedBlock = 256;

// Scales of a 4-bit tensor: plain fp32 (absmax), or double-quantised (codes, nested_absmax, offset; absmax is null).
struct Scales {
  const float* absmax = nullptr;
  const uint8_t* codes = nullptr;
  const float* nested_absmax = nullptr;
  float offset = 0;
};

// The 16 values of a 4-bit type, by code. Code 8 of FP4 is minus zero.
const float* quant4_table(Quant4Type type);

// The 256 values of the signed dynamic 8-bit map, ascending.
const float* dynamic_table();

// Quantises blocks [first, last) of x[0, size). A block of `block_size` weights (a multiple of 32) has one scale; the
// last block may be shorter. T is float, BF16 or F16.
template <class T>
void quantize_4bit(const T* x, int64_t size, Quant4Type type, int64_t block_size, int64_t first, int64_t last,
                   uint8_t* packed, float* absmax);

// Writes weights [begin, end) of a 4-bit tensor to out[0, end - begin).
template <class T>
void dequantize_4bit(const uint8_t* packed, const Scales& scales, Quant4Type type, int64_t block_size, int64_t begin,
                     int64_t end, T* out);

// Double quantisation of `size` scales; nested_absmax holds ceil(size / 256) values.
void quantize_absmax(const float* absmax, int64_t size, uint8_t* codes, float* nested_absmax, float* offset);

// The inverse of quantize_absmax.
void dequantize_absmax(const Scales& scales, int64_t size, float* absmax);

// Mean of x in the order of additions of one thread of libtorch's AVX2 kernel, on every machine. See Note [Fixed sum].
float fixed_order_mean(const float* x, int64_t size);

} // namespace gofsdp::kernels
