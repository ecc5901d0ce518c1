// Compiled with -ffp-contract=off: a fused multiply-add would change the bits of codes, scales and weights.
#include "kernels/quant4bit.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gofsdp::kernels {
namespace {

// Normal-float codes: quantiles of the normal distribution, scaled to [-1, 1] (Dettmers et al., QLoRA, appendix E).
constexpr std::array<float, 16> kNF4 = {
    -1.0f,         -0.6961928f,  -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f,    0.1609302f,   0.2461123f,   0.33791524f, 0.44070983f,  0.562617f,    0.72295684f,   1.0f};

// Sign, two exponent bits, one mantissa bit, divided by the largest value (12). Code 8 decodes to minus zero, although
// the map that checkpoints store has plus zero there.
constexpr std::array<float, 16> kFP4 = {
    0.0f, 0.0625f / 12, 8.0f / 12, 12.0f / 12, 4.0f / 12, 6.0f / 12, 2.0f / 12, 3.0f / 12,
    -0.0f, -0.0625f / 12, -8.0f / 12, -12.0f / 12, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12};

// A scale below this is treated as this, so that the reciprocal stays finite.
constexpr float kTiny = 1e-38f;

// Sorted view of a table: the midpoints between neighbours, and the code at each rank.
struct Ranks {
  std::array<float, 15> midpoint;
  std::array<uint8_t, 16> code;

  explicit Ranks(const std::array<float, 16>& table) : midpoint{}, code{} {
    for (uint8_t i = 0; i < 16; ++i) {
      code[i] = i;
    }
    std::stable_sort(code.begin(), code.end(), [&](uint8_t a, uint8_t b) { return table[a] < table[b]; });
    for (size_t i = 0; i < 15; ++i) {
      midpoint[i] = (table[code[i]] + table[code[i + 1]]) / 2.0f;
    }
  }
};

const Ranks& ranks(Quant4Type type) {
  static const Ranks nf4(kNF4), fp4(kFP4);
  return type == Quant4Type::kNF4 ? nf4 : fp4;
}

#if defined(__AVX2__)
// Quantiser holds the tables of one 4-bit type in registers and turns 32 scaled weights into 16 bytes.
class Quantiser {
 public:
  explicit Quantiser(const Ranks& r)
      : middle_(_mm256_set1_ps(r.midpoint[7])),
        quarter_low_(_mm256_set1_ps(r.midpoint[3])),
        quarter_high_(_mm256_set1_ps(r.midpoint[11])) {
    float eighths[8] = {}, odd[8];
    for (size_t i = 0; i < 8; ++i) {
      odd[i] = r.midpoint[2 * i];
      eighths[i] = i < 4 ? r.midpoint[4 * i + 1] : 0;
    }
    eighths_ = _mm256_loadu_ps(eighths);
    sixteenths_ = _mm256_loadu_ps(odd);
    __m128i codes;
    std::memcpy(&codes, r.code.data(), sizeof(codes));
    codes_ = _mm256_broadcastsi128_si256(codes);
  }

  void pack32(const F32x8 (&v)[4], uint8_t* out) const {
    const __m256i ab = _mm256_packus_epi32(rank(v[0]), rank(v[1])), cd = _mm256_packus_epi32(rank(v[2]), rank(v[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // packing works within 128-bit halves
    const __m256i ranks = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
    const __m256i codes = _mm256_shuffle_epi8(codes_, ranks);
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x0110)); // even * 16 + odd
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(bytes));
  }

 private:
  // Number of midpoints strictly below each value, by bisection: a tie goes to the lower code.
  __m256i rank(F32x8 value) const {
    const __m256 v = bit_cast_to<__m256>(value);
    const __m256 above = _mm256_cmp_ps(v, middle_, _CMP_GT_OQ);
    __m256i n = bit(above, 8);
    n = _mm256_or_si256(
        n, bit(_mm256_cmp_ps(v, _mm256_blendv_ps(quarter_low_, quarter_high_, above), _CMP_GT_OQ), 4));
    const __m256 eighth = _mm256_permutevar8x32_ps(eighths_, _mm256_srli_epi32(n, 2));
    n = _mm256_or_si256(n, bit(_mm256_cmp_ps(v, eighth, _CMP_GT_OQ), 2));
    const __m256 sixteenth = _mm256_permutevar8x32_ps(sixteenths_, _mm256_srli_epi32(n, 1));
    return _mm256_or_si256(n, bit(_mm256_cmp_ps(v, sixteenth, _CMP_GT_OQ), 1));
  }

  static __m256i bit(__m256 mask, int value) {
    return _mm256_and_si256(_mm256_castps_si256(mask), _mm256_set1_epi32(value));
  }

  __m256 middle_, quarter_low_, quarter_high_, eighths_, sixteenths_;
  __m256i codes_;
};
#else
class Quantiser {
 public:
  explicit Quantiser(const Ranks& r) : ranks_(r) {}

  void pack32(const F32x8 (&v)[4], uint8_t* out) const {
    for (int i = 0; i < 32; i += 2) {
      out[i / 2] = static_cast<uint8_t>(code(v[i / 8][i % 8]) << 4 | code(v[i / 8][i % 8 + 1]));
    }
  }

 private:
  // The rank is the number of midpoints strictly below the value: a tie goes to the lower code.
  unsigned code(float v) const {
    size_t rank = 0;
    for (const float m : ranks_.midpoint) {
      rank += v > m ? 1 : 0;
    }
    return ranks_.code[rank];
  }

  const Ranks& ranks_;
};
#endif

template <class T>
float block_absmax(const T* x, int64_t n) {
  F32x8 m[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    m[0] = max8(abs8(load8(x + i)), m[0]);
    m[1] = max8(abs8(load8(x + i + kLanes)), m[1]);
  }
  for_each_vector(n - i, [&](int64_t at, int64_t len) { m[0] = max8(abs8(load_n(x + i + at, len)), m[0]); });
  return max_lanes(max8(m[0], m[1]));
}

inline F32x8 clamp8(F32x8 v) {
  const F32x8 one = broadcast(1.0f);
  v = v > one ? one : v;
  return v < -one ? -one : v;
}

inline float scale_at(const Scales& s, int64_t block) {
  if (s.absmax != nullptr) {
    return s.absmax[block];
  }
  return dynamic_table()[s.codes[block]] * s.nested_absmax[block / kNestedBlock] + s.offset;
}

inline uint8_t code_at(const uint8_t* packed, int64_t i) {
  return i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 0x0f;
}

template <class T>
inline void store1(T* p, float v) {
  store_part(p, broadcast(v), 1);
}

// A table of 16 products code * scale in two registers.
struct Products {
  F32x8 low, high;
};

#if defined(__AVX2__)
inline F32x8 look_up(const Products& t, __m128i codes) {
  const __m256i index = _mm256_cvtepu8_epi32(codes);
  const __m256 low = _mm256_permutevar8x32_ps(bit_cast_to<__m256>(t.low), index);
  const __m256 high = _mm256_permutevar8x32_ps(bit_cast_to<__m256>(t.high), index);
  return bit_cast_to<F32x8>(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
}

// 32 weights from 16 bytes.
template <class T>
inline void expand32(const uint8_t* packed, const Products& t, T* out) {
  __m128i bytes;
  std::memcpy(&bytes, packed, sizeof(bytes));
  const __m128i nibble = _mm_set1_epi8(0x0f);
  const __m128i even = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  const __m128i odd = _mm_and_si128(bytes, nibble);
  const __m128i first = _mm_unpacklo_epi8(even, odd), second = _mm_unpackhi_epi8(even, odd);
  store8(out, look_up(t, first));
  store8(out + 8, look_up(t, _mm_srli_si128(first, 8)));
  store8(out + 16, look_up(t, second));
  store8(out + 24, look_up(t, _mm_srli_si128(second, 8)));
}
#else
template <class T>
inline void expand32(const uint8_t* packed, const Products& t, T* out) {
  float table[16];
  store8(table, t.low);
  store8(table + 8, t.high);
  for (int i = 0; i < 32; i += 8) {
    F32x8 v;
    for (int j = 0; j < 8; ++j) {
      v[j] = table[code_at(packed, i + j)];
    }
    store8(out + i, v);
  }
}
#endif

// Signed dynamic map: seven decades, decade i split into 2^i equal intervals of [0.1, 1] whose centres are the codes,
// on both sides of zero, plus 0 and 1 (Dettmers, 8-bit Approximations for Parallelism in Deep Learning, §2.1).
std::array<float, 256> make_dynamic_table() {
  std::array<float, 256> table{};
  size_t n = 0;
  table[n++] = 0.0f;
  table[n++] = 1.0f;
  for (int decade = 0; decade < 7; ++decade) {
    const int points = (1 << decade) + 1;
    const float step = (1.0f - 0.1f) / static_cast<float>(points - 1);
    // torch.linspace counts from the nearer end and rounds once.
    const auto point = [&](int i) {
      return i < points / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                            : std::fma(-step, static_cast<float>(points - 1 - i), 1.0f);
    };
    const float power = static_cast<float>(std::pow(10.0, decade - 6));
    for (int i = 0; i + 1 < points; ++i) {
      const float centre = power * ((point(i) + point(i + 1)) / 2.0f);
      table[n++] = centre;
      table[n++] = -centre;
    }
  }
  std::sort(table.begin(), table.end());
  return table;
}

// The 8-bit quantiser rounds to a grid of 65536 points over [-1, 1] and looks the nearest code up. So zero maps to
// code 131 (2.1e-5), and values below about 1e-3 may differ from the nearest code.
const uint8_t* nearest_code_of_grid() {
  static const auto grid = [] {
    std::array<uint8_t, 65536> codes{};
    const float* table = dynamic_table();
    int code = 0;
    for (int i = 0; i < 65536; ++i) {
      const float v = static_cast<float>(i) / 65535.0f * 2.0f - 1.0f;
      while (code < 255 && (table[code] + table[code + 1]) / 2.0f < v) {
        ++code;
      }
      codes[static_cast<size_t>(i)] = static_cast<uint8_t>(code);
    }
    return codes;
  }();
  return grid.data();
}

} // namespace

const float* quant4_table(Quant4Type type) {
  return type == Quant4Type::kNF4 ? kNF4.data() : kFP4.data();
}

const float* dynamic_table() {
  static const std::array<float, 256> table = make_dynamic_table();
  return table.data();
}

template <class T>
void quantize_4bit(const T* x, int64_t size, Quant4Type type, int64_t block_size, int64_t first, int64_t last,
                   uint8_t* packed, float* absmax) {
  const Quantiser quantiser(ranks(type));
  for (int64_t block = first; block < last; ++block) {
    const T* from = x + block * block_size;
    uint8_t* to = packed + block * block_size / 2;
    const int64_t n = std::min(block_size, size - block * block_size);
    float scale = block_absmax(from, n);
    F32x8 v[4];
    if (n == block_size) {
      absmax[block] = scale;
      const float inverse = 1.0f / std::max(scale, kTiny);
      for (int64_t i = 0; i < n; i += 32) {
        for (int k = 0; k < 4; ++k) {
          v[k] = clamp8(load8(from + i + k * kLanes) * inverse);
        }
        quantiser.pack32(v, to + i / 2);
      }
      continue;
    }
    // A short last block divides, by the scale that it stores.
    scale = std::max(scale, kTiny);
    absmax[block] = scale;
    for (int64_t i = 0; i < n; i += 32) {
      for (int64_t k = 0; k < 4; ++k) {
        v[k] = clamp8(load_part(from + i + std::min(n - i, k * kLanes), std::clamp<int64_t>(n - i - k * kLanes, 0, kLanes)) / scale);
      }
      uint8_t bytes[16];
      quantiser.pack32(v, bytes);
      std::memcpy(to + i / 2, bytes, static_cast<size_t>((std::min<int64_t>(32, n - i) + 1) / 2));
    }
  }
}

template <class T>
void dequantize_4bit(const uint8_t* packed, const Scales& scales, Quant4Type type, int64_t block_size, int64_t begin,
                     int64_t end, T* out) {
  const F32x8 low = load8(quant4_table(type)), high = load8(quant4_table(type) + 8);
  const float* table = quant4_table(type);
  T* const base = out - begin;
  for (int64_t i = begin; i < end;) {
    const int64_t block = i / block_size;
    const int64_t stop = std::min(end, (block + 1) * block_size);
    const float scale = scale_at(scales, block);
    if (i % 2 != 0) {
      store1(base + i, table[code_at(packed, i)] * scale);
      ++i;
    }
    const Products products{low * scale, high * scale};
    for (; i + 32 <= stop; i += 32) {
      expand32(packed + i / 2, products, base + i);
    }
    for (; i < stop; ++i) {
      store1(base + i, table[code_at(packed, i)] * scale);
    }
  }
}

void quantize_absmax(const float* absmax, int64_t size, uint8_t* codes, float* nested_absmax, float* offset) {
  const uint8_t* grid = nearest_code_of_grid();
  const float mean = fixed_order_mean(absmax, size);
  *offset = mean;
  for (int64_t begin = 0; begin < size; begin += kNestedBlock) {
    const int64_t end = std::min(size, begin + kNestedBlock);
    float scale = 0.0f;
    for (int64_t i = begin; i < end; ++i) {
      scale = std::max(scale, std::fabs(absmax[i] - mean));
    }
    nested_absmax[begin / kNestedBlock] = scale;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int64_t i = begin; i < end; ++i) {
      const float v = std::clamp((absmax[i] - mean) * inverse, -1.0f, 1.0f);
      codes[i] = grid[static_cast<int>((v + 1.0f) * 0.5f * 65535.0f + 0.5f)];
    }
  }
}

void dequantize_absmax(const Scales& scales, int64_t size, float* absmax) {
  for (int64_t i = 0; i < size; ++i) {
    absmax[i] = scale_at(scales, i);
  }
}

// Note [Fixed sum]
// The mean of the scales decides bits of every double-quantised tensor, so it may depend neither on the machine nor on
// the number of threads. bitsandbytes takes torch's mean; we repeat the additions of its AVX2 kernel on one thread:
// 4 accumulators of 8 lanes read the values in turn. Each accumulator is a cascade of 4 levels: after 2^p additions
// (p = max(4, ceil(log2(steps)) / 4)) a level is flushed into the next one. At the end the levels are added upwards,
// vectors that fill no round of 4 go to accumulator 0, then the accumulators, the leftover scalars and the lanes are added.
// Fewer than 8 values take the scalar path: the same 4 accumulators of one lane.
float fixed_order_mean(const float* x, int64_t size) {
  constexpr int64_t kAccumulators = 4, kLevels = 4;
  if (size < kLanes) {
    float acc[kAccumulators] = {};
    const int64_t whole = size / kAccumulators * kAccumulators;
    for (int64_t i = 0; i < size; ++i) {
      acc[i < whole ? i : 0] += x[i];
    }
    return (((acc[0] + acc[1]) + acc[2]) + acc[3]) / static_cast<float>(size);
  }
  const int64_t vectors = size / kLanes;
  const int64_t steps = vectors / kAccumulators;
  int64_t log2_steps = 0;
  while ((int64_t{1} << log2_steps) < steps) {
    ++log2_steps;
  }
  const int64_t power = std::max<int64_t>(4, log2_steps / kLevels);
  const int64_t mask = (int64_t{1} << power) - 1;
  F32x8 acc[kLevels][kAccumulators] = {};
  for (int64_t i = 0; i < steps;) {
    for (int64_t k = 0; k < kAccumulators; ++k) {
      acc[0][k] += load8(x + (i * kAccumulators + k) * kLanes);
    }
    ++i;
    if ((i & mask) != 0) {
      continue;
    }
    for (int64_t level = 1; level < kLevels; ++level) {
      for (int64_t k = 0; k < kAccumulators; ++k) {
        acc[level][k] += acc[level - 1][k];
        acc[level - 1][k] = F32x8{};
      }
      if ((i & (mask << (level * power))) != 0) {
        break;
      }
    }
  }
  for (int64_t level = 1; level < kLevels; ++level) {
    for (int64_t k = 0; k < kAccumulators; ++k) {
      acc[0][k] += acc[level][k];
    }
  }
  for (int64_t v = steps * kAccumulators; v < vectors; ++v) {
    acc[0][0] += load8(x + v * kLanes);
  }
  for (int64_t k = 1; k < kAccumulators; ++k) {
    acc[0][0] += acc[0][k];
  }
  float sum = 0.0f;
  for (int64_t i = vectors * kLanes; i < size; ++i) {
    sum += x[i];
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    sum += acc[0][0][lane];
  }
  return sum / static_cast<float>(size);
}

#define GOFSDP_INSTANTIATE(T)                                                                                      \
  template void quantize_4bit<T>(const T*, int64_t, Quant4Type, int64_t, int64_t, int64_t, uint8_t*, float*);        \
  template void dequantize_4bit<T>(const uint8_t*, const Scales&, Quant4Type, int64_t, int64_t, int64_t, T*);
GOFSDP_INSTANTIATE(float)
GOFSDP_INSTANTIATE(BF16)
GOFSDP_INSTANTIATE(F16)
#undef GOFSDP_INSTANTIATE

} // namespace gofsdp::kernels
