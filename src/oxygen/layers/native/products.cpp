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

// One product, out = activation(x · weights + bias) · (x · factor) + residual. bias, factor and residual may be null.
// activation: 0 none, 1 GELU (tanh form), 2 SiLU.
struct Product {
  const void* weights;
  const void* bias;
  const void* factor;
  const void* x;
  const void* residual;
  void* out;
  int64_t rows, in_width, out_width, activation;
};

// totals [rows][kTile] = x · weights for one tile. x [groups][units][R], the last group padded.
template <typename Kind, int R>
void tile(const uint32_t* weights, const uint32_t* x, int64_t rows, int64_t units, float* totals) {
  constexpr int V = R <= 6 ? 4 : 2;
  std::fill_n(totals, (rows + R - 1) / R * R * kTile, 0.0f);
  for (int64_t first = 0; first < units; first += kChunk)
    for (int64_t row = 0; row < rows; row += R)
      for (int part = 0; part < kTile; part += V * kLanes)
        multiply<Kind, R, V>(weights + first * kTile + part, x + row * units + first * R, totals + row * kTile + part,
                             std::min<int64_t>(kChunk, units - first), row == 0);
}

// Outputs `at` and the following of one row.
template <typename Element>
void finish(const Product& p, int64_t row, int64_t at, const float* totals, const float* factors) {
  const int64_t count = std::min<int64_t>(kTile, p.out_width - at), place = row * p.out_width + at;
  Element biases[kTile] = {}, added[kTile] = {}, done[kTile];
  if (p.bias != nullptr) std::memcpy(biases, static_cast<const Element*>(p.bias) + at, count * sizeof biases[0]);
  if (p.residual != nullptr)
    std::memcpy(added, static_cast<const Element*>(p.residual) + place, count * sizeof added[0]);
  for (int i = 0; i < kTile; i += kLanes) {
    Lanes y = activated(load(totals + i) + load(biases + i), static_cast<int>(p.activation));
    if (factors != nullptr) y *= load(factors + i);
    store(done + i, y + load(added + i));
  }
  std::memcpy(static_cast<Element*>(p.out) + place, done, count * sizeof done[0]);
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
void product(const Product& p) {
  typedef typename Kind::Element Element;
  thread_local std::vector<uint32_t> buffer;
  const int64_t units = p.in_width * sizeof(Element) / sizeof(uint32_t);
  const auto* const x = static_cast<const uint32_t*>(p.x);
  if (R > 1) buffer.resize(std::max<size_t>(buffer.size(), units * (p.rows + R)));
  uint32_t* const interleaved = buffer.data();
  const uint32_t* const inputs = R > 1 ? interleaved : x;
#pragma omp parallel
  {
    if (R > 1) {
#pragma omp for schedule(static)
      for (int64_t first = 0; first < units; first += kChunk)
        interleave(x, interleaved, p.rows, R, units, first, std::min<int64_t>(first + kChunk, units));
    }
    float totals[kMostRows * kTile], factors[kMostRows * kTile];
#pragma omp for schedule(static)
    for (int64_t at = 0; at < p.out_width; at += kTile) {
      tile<Kind, R>(static_cast<const uint32_t*>(p.weights) + at * units, inputs, p.rows, units, totals);
      if (p.factor != nullptr)
        tile<Kind, R>(static_cast<const uint32_t*>(p.factor) + at * units, inputs, p.rows, units, factors);
      for (int64_t row = 0; row < p.rows; ++row)
        finish<Element>(p, row, at, totals + row * kTile, p.factor == nullptr ? nullptr : factors + row * kTile);
    }
  }
}

template <typename Kind>
void product_of(const Product& p) {
  if (p.rows < 1) return;  // an empty batch is no group
  const int64_t groups = (p.rows + kGroup - 1) / kGroup, most = (p.rows + groups - 1) / groups;
  if (most <= 1) product<Kind, 1>(p);
  else if (most <= 2) product<Kind, 2>(p);
  else if (most <= 3) product<Kind, 3>(p);
  else if (most <= 4) product<Kind, 4>(p);
  else if (most <= 5) product<Kind, 5>(p);
  else if (most <= 6) product<Kind, 6>(p);
  else if (most <= 8) product<Kind, 8>(p);
  else product<Kind, kGroup>(p);
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

// At most kMostRows rows, all dense. in_width: even for bfloat16.
void oxygen_product(int is_bfloat16, const void* weights, const void* bias, const void* factor, const void* x,
                    const void* residual, void* out, int64_t rows, int64_t in_width, int64_t out_width,
                    int64_t activation) {
  const Product p = {weights, bias, factor, x, residual, out, rows, in_width, out_width, activation};
  if (!is_bfloat16) product_of<Single>(p);
#ifdef __AVX512BF16__
  if (is_bfloat16) product_of<Pair>(p);
#endif
}
}
