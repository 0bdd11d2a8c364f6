// Products of a few rows with weights in the layout that oneDNN packs them to: [out / 64][in][64] float32, or
// [out / 64][in / 2][64][2] bfloat16. The caller has made sure that this is the layout.
//
// At one row such a product is a stream of weights, at thirty still half of one; the library's own takes 1.2 to 1.5
// times as long. A row's sums run over the inputs in order, whatever the number of rows: its result does not depend on
// what else is in the batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "lanes.h"

namespace {

// What is multiplied at once: one float32 input, or two neighbouring bfloat16 inputs. Four bytes either way, so a unit
// of one tile's weights is 256 bytes, and all but the arithmetic is the same for both.
struct Single {
  typedef float Element;
};
struct Pair {
  typedef BFloat16 Element;
};

constexpr int kTile = 64;    // outputs whose weights lie side by side
constexpr int kChunk = 64;   // units of weights that stay in the first cache while all rows meet them
constexpr int kGroup = 10;   // rows whose totals fit into the registers
constexpr int kMostRows = 6 * kGroup;

inline Lanes accumulate(Single, Lanes total, const uint32_t* weights, const uint32_t* x) {
  float value;
  std::memcpy(&value, x, sizeof value);
  return total + load(reinterpret_cast<const float*>(weights)) * value;
}

#ifdef __AVX512BF16__
inline Lanes accumulate(Pair, Lanes total, const uint32_t* weights, const uint32_t* x) {
  const __m512i w = _mm512_loadu_si512(weights), both = _mm512_set1_epi32(static_cast<int>(*x));
  return (Lanes)_mm512_dpbf16_ps((__m512)total, (__m512bh)w, (__m512bh)both);
}
#endif

inline Lanes activated(Lanes x, int activation) {
  if (activation == 0) return x;
  // Both are x · sigmoid(z): GELU in its tanh form with z = 2 √(2/π) (x + 0.044715 x³), SiLU with z = x.
  const Lanes z = activation == 1 ? x * 1.5957691216f * (x * x * 0.044715f + 1.0f) : x;
  const Lanes e = exp_of_negative(z < 0 ? z : -z);
  return x * (z < 0 ? e : splat(1.0f)) / (e + 1.0f);
}

// totals [R][kTile] += x [count][R] · weights [count][kTile], for V · kLanes of the outputs.
template <typename Kind, int R, int V>
void multiply(const uint32_t* weights, const uint32_t* x, float* totals, int64_t count, bool prefetch) {
  Lanes sums[R][V];
  for (int row = 0; row < R; ++row)
    for (int v = 0; v < V; ++v) sums[row][v] = load(totals + row * kTile + v * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < V; ++v) {
      const uint32_t* at = weights + i * kTile + v * kLanes;
      if (prefetch) __builtin_prefetch(at + kChunk * kTile);
      for (int row = 0; row < R; ++row) sums[row][v] = accumulate(Kind(), sums[row][v], at, x + i * R + row);
    }
  }
  for (int row = 0; row < R; ++row)
    for (int v = 0; v < V; ++v) store(totals + row * kTile + v * kLanes, sums[row][v]);
}

// One tile of outputs. x [groups][units][R], the last group padded.
template <typename Kind, int R>
void tile(const uint32_t* weights, const uint32_t* x, typename Kind::Element* out, int64_t rows, int64_t units,
          int64_t out_width, int64_t valid, int activation) {
  constexpr int V = R <= 6 ? 4 : 2;
  float totals[kMostRows * kTile];
  std::fill_n(totals, (rows + R - 1) / R * R * kTile, 0.0f);
  for (int64_t first = 0; first < units; first += kChunk)
    for (int64_t row = 0; row < rows; row += R)
      for (int part = 0; part < kTile; part += V * kLanes)
        multiply<Kind, R, V>(weights + first * kTile + part, x + row * units + first * R, totals + row * kTile + part,
                             std::min<int64_t>(kChunk, units - first), row == 0);
  for (int64_t row = 0; row < rows; ++row) {
    typename Kind::Element done[kTile];
    for (int i = 0; i < kTile; i += kLanes) store(done + i, activated(load(totals + row * kTile + i), activation));
    std::memcpy(out + row * out_width, done, std::min<int64_t>(kTile, valid) * sizeof done[0]);
  }
}

// x [rows][units] as [groups][units][R], for some of the units: rows that lie a power of two apart would meet in the
// same few places of the cache.
inline void interleave(const uint32_t* x, uint32_t* to, int64_t rows, int R, int64_t units, int64_t first, int64_t last) {
  for (int64_t row = 0; row < (rows + R - 1) / R * R; ++row) {
    uint32_t* const at = to + row / R * R * units + row % R;
    for (int64_t i = first; i < last; ++i) at[i * R] = row < rows ? x[row * units + i] : 0;
  }
}

template <typename Kind, int R>
void product(const uint32_t* weights, const uint32_t* x, typename Kind::Element* out, int64_t rows, int64_t units,
             int64_t out_width, int activation) {
  thread_local std::vector<uint32_t> buffer;
  if (R > 1) buffer.resize(std::max<size_t>(buffer.size(), units * (rows + R)));
  uint32_t* const inputs = buffer.data();
#pragma omp parallel
  {
    if (R > 1) {
#pragma omp for schedule(static)
      for (int64_t first = 0; first < units; first += kChunk)
        interleave(x, inputs, rows, R, units, first, std::min<int64_t>(first + kChunk, units));
    }
#pragma omp for schedule(static)
    for (int64_t at = 0; at < out_width; at += kTile)
      tile<Kind, R>(weights + at * units, R > 1 ? inputs : x, out + at, rows, units, out_width, out_width - at,
                    activation);
  }
}

template <typename Kind>
void product_of(const void* weights, const void* x, void* out, int64_t rows, int64_t in_width, int64_t out_width,
                int activation) {
  typedef typename Kind::Element Element;
  const int64_t units = in_width * sizeof(Element) / sizeof(uint32_t);
  const int64_t groups = (rows + kGroup - 1) / kGroup, most = (rows + groups - 1) / groups;
  const auto run = [&](auto size) {
    product<Kind, decltype(size)::value>(static_cast<const uint32_t*>(weights), static_cast<const uint32_t*>(x),
                                         static_cast<Element*>(out), rows, units, out_width, activation);
  };
  if (most <= 1) run(std::integral_constant<int, 1>());
  else if (most <= 2) run(std::integral_constant<int, 2>());
  else if (most <= 3) run(std::integral_constant<int, 3>());
  else if (most <= 4) run(std::integral_constant<int, 4>());
  else if (most <= 5) run(std::integral_constant<int, 5>());
  else if (most <= 6) run(std::integral_constant<int, 6>());
  else if (most <= 8) run(std::integral_constant<int, 8>());
  else run(std::integral_constant<int, kGroup>());
}

}  // namespace

extern "C" {

// Whether this processor multiplies bfloat16; the others have no such product here.
int oxygen_has_bfloat16_products() {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}

// out [rows, out_width] = activation(x [rows, in_width] · weights). activation: 0 none, 1 GELU (tanh form), 2 SiLU.
// rows: at most kMostRows. in_width: even for bfloat16.
void oxygen_product(int is_bfloat16, const void* weights, const void* x, void* out, int64_t rows, int64_t in_width,
                    int64_t out_width, int activation) {
  if (!is_bfloat16) product_of<Single>(weights, x, out, rows, in_width, out_width, activation);
#ifdef __AVX512BF16__
  if (is_bfloat16) product_of<Pair>(weights, x, out, rows, in_width, out_width, activation);
#endif
}
}
