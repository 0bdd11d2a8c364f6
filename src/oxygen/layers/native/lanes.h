// Sixteen float32 numbers at a time, from storage in float32 or bfloat16, with the vector extensions of GCC and Clang.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int kLanes = 16;

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * sizeof(int32_t)), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t)), aligned(2)));

struct BFloat16 {
  uint16_t bits;
};

inline Lanes load(const float* from) {
  Lanes x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Lanes load(const BFloat16* from) {
  Halves h;
  std::memcpy(&h, from, sizeof h);
  const Words w = __builtin_convertvector(h, Words) << 16;
  return (Lanes)w;
}

inline void store(float* to, Lanes x) { std::memcpy(to, &x, sizeof x); }

inline void store(BFloat16* to, Lanes x) {  // to nearest, ties to even; NaN stays NaN
  const Words w = (Words)x;
  const Words rounded = (w + 0x7fff + ((w >> 16) & 1)) >> 16;
  const Words quiet = (w >> 16) | 0x40;
  const Halves h = __builtin_convertvector((x == x) ? rounded : quiet, Halves);
  std::memcpy(to, &h, sizeof h);
}

inline Lanes splat(float x) { return Lanes{} + x; }

inline float sum(Lanes x) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  const Eight e = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four f = __builtin_shufflevector(e, e, 0, 1, 2, 3) + __builtin_shufflevector(e, e, 4, 5, 6, 7);
  return (f[0] + f[2]) + (f[1] + f[3]);
}

// e^x for x <= 0 to 2 units in the last place: 2^n · 2^f with f in [-1/2, 1/2], the second factor by its series.
inline Lanes exp_of_negative(Lanes x) {
  const Lanes floor = splat(-87.0f);
  x = x < floor ? floor : x;
  const Lanes scaled = x * 1.44269504f;
  const Integers n = __builtin_convertvector(scaled - 0.5f, Integers);
  const Lanes whole = __builtin_convertvector(n, Lanes);
  const Lanes r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
  Lanes p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Integers power = (n + 127) << 23;
  return p * (Lanes)power;
}

}  // namespace
