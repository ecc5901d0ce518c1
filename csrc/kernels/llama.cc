#include "kernels/llama.h"

#include <algorithm>
#include <cmath>

namespace gofsdp::kernels {
namespace {

// Four accumulators in turn: shorter dependency chains, and a smaller rounding error than one running sum.
template <class Term>
inline float sum_over(int64_t size, Term term) {
  F32x8 acc[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      acc[k] += term(i + k * kLanes, kLanes);
    }
  }
  for (; i < size; i += kLanes) {
    acc[0] += term(i, std::min(kLanes, size - i));
  }
  return sum_lanes((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

inline F32x8 sigmoid8(F32x8 v) {
  return 1.0f / (1.0f + exp8(-v));
}

} // namespace

template <class T>
void rms_norm_forward(const T* x, const T* weight, int64_t size, float eps, int64_t first, int64_t last, T* y,
                      float* rstd) {
  for (int64_t row = first; row < last; ++row) {
    const T* xr = x + row * size;
    T* yr = y + row * size;
    const float squares = sum_over(size, [&](int64_t i, int64_t n) {
      const F32x8 v = load_n(xr + i, n);
      return v * v;
    });
    const float r = 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
    rstd[row] = r;
    for_each_vector(size, [&](int64_t i, int64_t n) {
      store_n(yr + i, round_to<T>(load_n(xr + i, n) * r) * load_n(weight + i, n), n);
    });
  }
}

template <class T>
void rms_norm_backward_input(const T* dy, const T* x, const T* weight, const float* rstd, int64_t size, int64_t first,
                             int64_t last, T* dx) {
  for (int64_t row = first; row < last; ++row) {
    const T* dyr = dy + row * size;
    const T* xr = x + row * size;
    T* dxr = dx + row * size;
    const float r = rstd[row];
    const float dot = sum_over(size, [&](int64_t i, int64_t n) {
      return load_n(dyr + i, n) * load_n(weight + i, n) * load_n(xr + i, n);
    });
    const float c = dot * r * r / static_cast<float>(size);
    for_each_vector(size, [&](int64_t i, int64_t n) {
      store_n(dxr + i, (load_n(dyr + i, n) * load_n(weight + i, n) - load_n(xr + i, n) * c) * r, n);
    });
  }
}

template <class T>
void rms_norm_backward_weight(const T* dy, const T* x, const float* rstd, int64_t rows, int64_t size, int64_t first,
                              int64_t last, T* dweight) {
  constexpr int64_t kRowBlock = 64; // rows per partial sum: keeps the rounding error of long columns small
  for_each_vector(last - first, [&](int64_t offset, int64_t n) {
    const int64_t column = first + offset;
    F32x8 total{};
    for (int64_t begin = 0; begin < rows; begin += kRowBlock) {
      F32x8 part{};
      for (int64_t row = begin; row < std::min(rows, begin + kRowBlock); ++row) {
        const int64_t at = row * size + column;
        part += load_n(dy + at, n) * round_to<T>(load_n(x + at, n) * rstd[row]);
      }
      total += part;
    }
    store_n(dweight + column, total, n);
  });
}

template <class T>
void rope(const T* x, RopeStrides xs, const float* cos, const float* sin, bool table_per_batch, bool inverse,
          RopeShape shape, int64_t first, int64_t last, T* y, RopeStrides ys) {
  const int64_t half = shape.dim / 2;
  for (int64_t position = first; position < last; ++position) {
    const int64_t batch = position / shape.tokens, token = position % shape.tokens;
    const int64_t row = table_per_batch ? position : token;
    const float* c = cos + row * shape.dim;
    const float* s = sin + row * shape.dim;
    for (int64_t head = 0; head < shape.heads; ++head) {
      const T* a = x + batch * xs.batch + token * xs.token + head * xs.head;
      T* out = y + batch * ys.batch + token * ys.token + head * ys.head;
      for_each_vector(half, [&](int64_t i, int64_t n) {
        const F32x8 a1 = load_n(a + i, n), a2 = load_n(a + half + i, n);
        const F32x8 c1 = load_n(c + i, n), c2 = load_n(c + half + i, n);
        const F32x8 s1 = load_n(s + i, n), s2 = load_n(s + half + i, n);
        // The gradient is the transposed matrix: it swaps the two sines as well as their signs.
        const F32x8 y1 = inverse ? a1 * c1 + a2 * s2 : a1 * c1 - a2 * s1;
        const F32x8 y2 = inverse ? a2 * c2 - a1 * s1 : a2 * c2 + a1 * s2;
        store_n(out + i, y1, n);
        store_n(out + half + i, y2, n);
      });
    }
  }
}

template <class T>
void swiglu_forward(const T* gate, const T* up, int64_t n, T* y) {
  for_each_vector(n, [&](int64_t i, int64_t len) {
    const F32x8 g = load_n(gate + i, len);
    store_n(y + i, round_to<T>(g * sigmoid8(g)) * load_n(up + i, len), len);
  });
}

template <class T>
void swiglu_backward(const T* dy, const T* gate, const T* up, int64_t n, T* dgate, T* dup) {
  for_each_vector(n, [&](int64_t i, int64_t len) {
    const F32x8 d = load_n(dy + i, len), g = load_n(gate + i, len);
    const F32x8 s = sigmoid8(g);
    if (dgate != nullptr) {
      store_n(dgate + i, d * load_n(up + i, len) * s * (1.0f + g * (1.0f - s)), len);
    }
    if (dup != nullptr) {
      store_n(dup + i, d * g * s, len);
    }
  });
}

#define GOFSDP_INSTANTIATE(T)                                                                                         \
  template void rms_norm_forward<T>(const T*, const T*, int64_t, float, int64_t, int64_t, T*, float*);                  \
  template void rms_norm_backward_input<T>(const T*, const T*, const T*, const float*, int64_t, int64_t, int64_t, T*);  \
  template void rms_norm_backward_weight<T>(const T*, const T*, const float*, int64_t, int64_t, int64_t, int64_t, T*);  \
  template void rope<T>(const T*, RopeStrides, const float*, const float*, bool, bool, RopeShape, int64_t, int64_t, T*, \
                        RopeStrides);                                                                                   \
  template void swiglu_forward<T>(const T*, const T*, int64_t, T*);                                                     \
  template void swiglu_backward<T>(const T*, const T*, const T*, int64_t, T*, T*);
GOFSDP_INSTANTIATE(float)
GOFSDP_INSTANTIATE(BF16)
GOFSDP_INSTANTIATE(F16)
#undef GOFSDP_INSTANTIATE

} // namespace gofsdp::kernels
