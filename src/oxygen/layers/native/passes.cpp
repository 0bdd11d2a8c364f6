// RMSNorm and rotary positions, each as one pass. Arithmetic is float32 whatever the storage.
//
// Written out of library calls, what lies between the matrix products of a layer is some forty small operations, and at
// one to thirty rows their calls cost more than their work.

#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace {

constexpr int64_t kSerial = 1 << 15;  // elements below which waking threads costs more than the work

template <typename T>
void rms_norm(const T* x, const float* gain, const float* shift, T* out, int64_t rows, int64_t width, float floor) {
#pragma omp parallel for if (rows * width > kSerial)
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * width;
    T* to = out + row * width;
    Lanes squares[4] = {};
    for (int64_t i = 0; i < width; i += kLanes) {
      const Lanes v = load(from + i);
      squares[(i / kLanes) & 3] += v * v;
    }
    const float length = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
    const float scale = 1.0f / std::sqrt(length + floor * floor);
    for (int64_t i = 0; i < width; i += kLanes) {
      Lanes v = load(from + i) * scale * load(gain + i);
      if (shift != nullptr) v += load(shift + i);
      store(to + i, v);
    }
  }
}

template <typename T>
void rotate(const T* x, const float* turns, T* out, int64_t tokens, int64_t heads, int64_t head_dim, int64_t stride) {
#pragma omp parallel for if (tokens * heads * head_dim > kSerial)
  for (int64_t token = 0; token < tokens; ++token) {
    const float* turn = turns + token * head_dim;  // cos, sin, cos, sin ...
    for (int64_t head = 0; head < heads; ++head) {
      const T* from = x + token * stride + head * head_dim;
      T* to = out + (token * heads + head) * head_dim;
      for (int64_t i = 0; i < head_dim; i += kLanes) {
        const Lanes v = load(from + i), t = load(turn + i);
        const Lanes swapped = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
        const Lanes cos = __builtin_shufflevector(t, t, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
        const Lanes sin = __builtin_shufflevector(t, t, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
        const Lanes sign = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
        store(to + i, v * cos + swapped * sin * sign);
      }
    }
  }
}

}  // namespace

extern "C" {

// x and out [rows, width]; out = x / hypot(|x|, floor) · gain + shift (shift may be null). width: a multiple of 16.
void oxygen_rms_norm(int is_bfloat16, const void* x, const float* gain, const float* shift, void* out, int64_t rows,
                     int64_t width, float floor) {
  if (is_bfloat16)
    rms_norm(static_cast<const BFloat16*>(x), gain, shift, static_cast<BFloat16*>(out), rows, width, floor);
  else
    rms_norm(static_cast<const float*>(x), gain, shift, static_cast<float*>(out), rows, width, floor);
}

// x [tokens, heads, head_dim] with `stride` elements between tokens, turns [tokens, head_dim / 2] complex, out dense.
// Neighbouring elements turn together. head_dim: a multiple of 16.
void oxygen_rotate(int is_bfloat16, const void* x, const float* turns, void* out, int64_t tokens, int64_t heads,
                   int64_t head_dim, int64_t stride) {
  if (is_bfloat16)
    rotate(static_cast<const BFloat16*>(x), turns, static_cast<BFloat16*>(out), tokens, heads, head_dim, stride);
  else
    rotate(static_cast<const float*>(x), turns, static_cast<float*>(out), tokens, heads, head_dim, stride);
}
}
