// Eight fp32 lanes on the compiler's vector extensions: one AVX2 register on x86-64-v3, two NEON registers on aarch64.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gofsdp::kernels {

// 16-bit storage types. The bits are those of c10::BFloat16 and c10::Half.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

using F32x8 = float __attribute__((vector_size(32)));
using I32x8 = int32_t __attribute__((vector_size(32)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using U16x8 = uint16_t __attribute__((vector_size(16)));

inline constexpr int64_t kLanes = 8;

template <class To, class From>
inline To bit_cast_to(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline F32x8 broadcast(float v) {
  return F32x8{v, v, v, v, v, v, v, v};
}

inline F32x8 load8(const float* p) {
  F32x8 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

inline F32x8 load8(const BF16* p) {
  U16x8 h;
  std::memcpy(&h, p, sizeof(h));
  return bit_cast_to<F32x8>(__builtin_convertvector(h, U32x8) << 16);
}

inline void store8(float* p, F32x8 v) {
  std::memcpy(p, &v, sizeof(v));
}

// Rounds to nearest even; a NaN becomes the quiet NaN 0x7fc0 (c10::BFloat16 does the same).
inline void store8(BF16* p, F32x8 v) {
  const U32x8 bits = bit_cast_to<U32x8>(v);
  U32x8 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  rounded = (v == v) ? rounded : (U32x8{} + 0x7fc0u);
  const U16x8 h = __builtin_convertvector(rounded, U16x8);
  std::memcpy(p, &h, sizeof(h));
}

#if defined(__F16C__)
inline F32x8 load8(const F16* p) {
  __m128i h;
  std::memcpy(&h, p, sizeof(h));
  return bit_cast_to<F32x8>(_mm256_cvtph_ps(h));
}

inline void store8(F16* p, F32x8 v) {
  const __m128i h = _mm256_cvtps_ph(bit_cast_to<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(p, &h, sizeof(h));
}
#else
inline F32x8 load8(const F16* p) {
  F32x8 v;
  for (int i = 0; i < 8; ++i) {
    _Float16 h;
    std::memcpy(&h, p + i, sizeof(h));
    v[i] = static_cast<float>(h);
  }
  return v;
}

inline void store8(F16* p, F32x8 v) {
  for (int i = 0; i < 8; ++i) {
    const _Float16 h = static_cast<_Float16>(v[i]);
    std::memcpy(p + i, &h, sizeof(h));
  }
}
#endif

// load8 and store8 for the last n < 8 elements of a row; missing lanes read as zero.
template <class T>
inline F32x8 load_part(const T* p, int64_t n) {
  T tmp[8] = {};
  std::memcpy(tmp, p, static_cast<size_t>(n) * sizeof(T));
  return load8(tmp);
}

template <class T>
inline void store_part(T* p, F32x8 v, int64_t n) {
  T tmp[8];
  store8(tmp, v);
  std::memcpy(p, tmp, static_cast<size_t>(n) * sizeof(T));
}

// The value that a store to T followed by a load gives.
template <class T>
inline F32x8 round_to(F32x8 v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    T tmp[8];
    store8(tmp, v);
    return load8(tmp);
  }
}

// Calls body(i, n) for the pieces of [0, size): n is 8 but for the last piece.
template <class Body>
inline void for_each_vector(int64_t size, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    body(i, kLanes);
  }
  if (i < size) {
    body(i, size - i);
  }
}

template <class T>
inline F32x8 load_n(const T* p, int64_t n) {
  return n == kLanes ? load8(p) : load_part(p, n);
}

template <class T>
inline void store_n(T* p, F32x8 v, int64_t n) {
  if (n == kLanes) {
    store8(p, v);
  } else {
    store_part(p, v, n);
  }
}

inline float sum_lanes(F32x8 v) {
  return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

inline float max_lanes(F32x8 v) {
  float m = v[0];
  for (int i = 1; i < 8; ++i) {
    m = v[i] > m ? v[i] : m;
  }
  return m;
}

// a > b ? a : b, so b where a is NaN.
inline F32x8 max8(F32x8 a, F32x8 b) {
#if defined(__AVX2__)
  return bit_cast_to<F32x8>(_mm256_max_ps(bit_cast_to<__m256>(a), bit_cast_to<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}

inline F32x8 abs8(F32x8 v) {
  return bit_cast_to<F32x8>(bit_cast_to<I32x8>(v) & 0x7fffffff);
}

// e^x with a relative error under 2 ulp. Small arguments saturate at e^-87.3 (no subnormals, they are slow), large ones
// give infinity; NaN stays NaN.
inline F32x8 exp8(F32x8 x) {
  const F32x8 low = broadcast(-87.33654f), high = broadcast(89.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
  const F32x8 magic = broadcast(12582912.0f);
  const F32x8 shifted = x * 1.44269504f + magic;
  const F32x8 n = shifted - magic;
  const F32x8 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  F32x8 p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that n = 128 does not overflow the exponent field.
  const I32x8 k = bit_cast_to<I32x8>(shifted) - bit_cast_to<I32x8>(magic);
  const I32x8 half = k >> 1;
  return p * bit_cast_to<F32x8>((half + 127) << 23) * bit_cast_to<F32x8>((k - half + 127) << 23);
}

} // namespace gofsdp::kernels
