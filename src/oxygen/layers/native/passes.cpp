// What lies between the matrix products of a layer, each as one pass: RMSNorm, rotary positions, decode attention.
//
// Written out of library calls these are some forty small operations a layer, and at one to thirty rows their calls
// cost more than their work. Arithmetic is float32 whatever the storage; storage is float32 or bfloat16. The code is
// plain C++ with vector extensions of GCC and Clang, so that it compiles for any processor.
//
// Threads are those of the OpenMP runtime that torch has loaded: this library must not bring a second one.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <omp.h>

#include "lanes.h"

namespace {

constexpr int kRows = 8;           // query rows (heads of one KV head) that share a pass over the keys
constexpr int kBlock = 32;         // keys whose values are in flight together
constexpr int kLine = 64;          // bytes that memory gives at once
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

// Neighbouring keys and values of one KV head.
template <typename T>
struct Keys {
  const T* k;
  const T* v;
  int64_t length;
};

// Sums of 16 vectors as one vector, in 15 pairwise folds instead of 16 times four.
inline Lanes sums(const Lanes* x) {
  Lanes a[8], b[4], c[2];
  for (int i = 0; i < 8; ++i)
    a[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(x[2 * i], x[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  for (int i = 0; i < 4; ++i)
    b[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a[2 * i], a[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  for (int i = 0; i < 2; ++i)
    c[i] = __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           __builtin_shufflevector(b[2 * i], b[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  return __builtin_shufflevector(c[0], c[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(c[0], c[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// scores[row][0 .. length] = q[row] · k. q [rows][D] float32, already scaled. Up to kLanes - 1 scores behind the last
// of a row are overwritten.
template <typename T, int D>
void score(const float* q, int rows, const Keys<T>& keys, float* scores, int64_t columns) {
  float block[kLanes * D];
  for (int64_t first = 0; first < keys.length; first += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, keys.length - first);
    for (int64_t i = 0; i < count * D; i += kLanes) store(block + i, load(keys.k + first * D + i));
    std::fill(block + count * D, block + kLanes * D, 0.0f);
    for (int row = 0; row < rows; ++row) {
      Lanes products[kLanes];
      for (int key = 0; key < kLanes; ++key) {
        products[key] = load(q + row * D) * load(block + key * D);
        for (int i = kLanes; i < D; i += kLanes) products[key] += load(q + row * D + i) * load(block + key * D + i);
      }
      store(scores + row * columns + first, sums(products));
    }
  }
}

// Softmax numerators in place; what they sum to comes back.
inline float exponentials(float* scores, int64_t length) {
  const int64_t whole = length / kLanes * kLanes;
  Lanes tops = splat(-INFINITY);
  for (int64_t j = 0; j < whole; j += kLanes) {
    const Lanes s = load(scores + j);
    tops = s > tops ? s : tops;
  }
  float top = -INFINITY;
  for (int i = 0; i < kLanes; ++i) top = std::max(top, tops[i]);
  for (int64_t j = whole; j < length; ++j) top = std::max(top, scores[j]);
  Lanes total = {};
  for (int64_t j = 0; j < whole; j += kLanes) {
    const Lanes e = exp_of_negative(load(scores + j) - top);
    store(scores + j, e);
    total += e;
  }
  float rest = 0.0f;
  for (int64_t j = whole; j < length; ++j) rest += scores[j] = std::exp(scores[j] - top);
  return sum(total) + rest;
}

// out[row] += Σ weights[row][j] · v[j]. out [kRows][D]. A block of values is gone through slice by slice, an order that
// the processor does not foresee, so the next block is asked for meanwhile: it takes 7 µs instead of 19 from memory.
template <typename T, int D>
void gather(const float* weights, int64_t columns, const Keys<T>& keys, float* out) {
  for (int64_t first = 0; first < keys.length; first += kBlock) {
    const int64_t last = std::min<int64_t>(first + kBlock, keys.length);
    for (int slice = 0; slice < D; slice += 2 * kLanes) {
      Lanes low[kRows], high[kRows];
      for (int row = 0; row < kRows; ++row) {
        low[row] = load(out + row * D + slice);
        high[row] = load(out + row * D + slice + kLanes);
      }
      for (int64_t j = first; j < last; ++j) {
        for (int i = 0; i < 2 * kLanes; i += kLine / sizeof(T)) __builtin_prefetch(keys.v + (j + kBlock) * D + slice + i);
        const Lanes v = load(keys.v + j * D + slice), w = load(keys.v + j * D + slice + kLanes);
        for (int row = 0; row < kRows; ++row) {
          low[row] += v * weights[row * columns + j];
          high[row] += w * weights[row * columns + j];
        }
      }
      for (int row = 0; row < kRows; ++row) {
        store(out + row * D + slice, low[row]);
        store(out + row * D + slice + kLanes, high[row]);
      }
    }
  }
}

// Room for one row's scores, with what `score` writes beyond.
inline int64_t padded(int64_t length) { return (length + 2 * kLanes - 1) / kLanes * kLanes; }

// Softmax attention of up to kRows query rows over two stretches of keys. scores: kRows · padded(both lengths) floats.

template <typename T, int D>
void attend(const T* q, T* out, int rows, float scale, const Keys<T>& first, const Keys<T>& second, float* scores) {
  const int64_t length = first.length + second.length, columns = padded(length);
  float scaled[kRows * D];
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < D; i += kLanes) store(scaled + row * D + i, load(q + row * D + i) * scale);
  score<T, D>(scaled, rows, first, scores, columns);
  score<T, D>(scaled, rows, second, scores + first.length, columns);
  float norm[kRows];
  for (int row = 0; row < kRows; ++row) {
    if (row < rows)
      norm[row] = 1.0f / exponentials(scores + row * columns, length);
    else
      std::fill_n(scores + row * columns, length, 0.0f);
  }
  float total[kRows * D] = {};
  gather<T, D>(scores, columns, first, total);
  gather<T, D>(scores + first.length, columns, second, total);
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < D; i += kLanes) store(out + row * D + i, load(total + row * D + i) * norm[row]);
}

}  // namespace

extern "C" {

// The places of one text: its context, its tail, and the tail position that this round fills.
struct Text {
  int64_t context_row, context_len, tail_row, computed;
};

// Rows of the store: [layer][row][kv head][position][head_dim].
struct Rows {
  void* keys;
  void* values;
  int64_t num_rows, length;
};

struct Round {
  Rows contexts, tails;
  const Text* texts;
  int64_t num_texts, num_heads, kv_heads, head_dim, is_bfloat16;
};
}

namespace {

template <typename T, int D>
void decode(const Round& round, int64_t layer, const T* q, const T* k, const T* v, const int64_t* strides, T* out) {
  const int64_t group = round.num_heads / round.kv_heads, count = round.num_texts * round.kv_heads;
  const auto place = [&](const Rows& rows, int64_t row, int64_t head, int64_t position) {
    return (((layer * rows.num_rows + row) * round.kv_heads + head) * rows.length + position) * D;
  };
  for (int64_t i = 0; i < count; ++i) {
    const Text& text = round.texts[i / round.kv_heads];
    const int64_t head = i % round.kv_heads, which = i / round.kv_heads;
    const int64_t to = place(round.tails, text.tail_row, head, text.computed);
    std::memcpy(static_cast<T*>(round.tails.keys) + to, k + which * strides[1] + head * D, D * sizeof(T));
    std::memcpy(static_cast<T*>(round.tails.values) + to, v + which * strides[2] + head * D, D * sizeof(T));
  }
  // One text alone would keep one thread busy, so its heads are dealt out.
  int64_t share = std::min<int64_t>(group, kRows);
  while (share > 2 && count * ((group + share - 1) / share) < omp_get_max_threads()) share = (share + 1) / 2;
  const int64_t pieces = (group + share - 1) / share;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = 0; i < count * pieces; ++i) {
    thread_local std::vector<float> scores;
    const int64_t piece = i % pieces, head = i / pieces % round.kv_heads, which = i / pieces / round.kv_heads;
    const Text& text = round.texts[which];
    scores.resize(std::max<size_t>(scores.size(), kRows * padded(text.context_len + text.computed + 1)));
    const int64_t context = place(round.contexts, text.context_row, head, 0);
    const int64_t tail = place(round.tails, text.tail_row, head, 0);
    const int64_t first = head * group + piece * share;  // query head
    const auto keys = [](const Rows& rows, int64_t at, int64_t length) -> Keys<T> {
      return {static_cast<const T*>(rows.keys) + at, static_cast<const T*>(rows.values) + at, length};
    };
    attend<T, D>(q + which * strides[0] + first * D, out + (which * round.num_heads + first) * D,
                 static_cast<int>(std::min(share, group - piece * share)), scale, keys(round.contexts, context, text.context_len), keys(round.tails, tail, text.computed + 1),
                 scores.data());
  }
}

template <typename T>
int decode_of(const Round& round, int64_t layer, const void* q, const void* k, const void* v, const int64_t* strides,
              void* out) {
  const auto run = [&](auto size) {
    decode<T, decltype(size)::value>(round, layer, static_cast<const T*>(q), static_cast<const T*>(k),
                                     static_cast<const T*>(v), strides, static_cast<T*>(out));
    return 0;
  };
  switch (round.head_dim) {
    case 32: return run(std::integral_constant<int, 32>());
    case 64: return run(std::integral_constant<int, 64>());
    case 128: return run(std::integral_constant<int, 128>());
    case 256: return run(std::integral_constant<int, 256>());
    default: return 1;
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

// One new token per text: its k and v [texts, kv heads, head_dim] go to its tail position, its q [texts, heads, head_dim]
// sees its context and its tail; out is dense. strides: elements between texts of q, k and v. Not zero: no kernel for
// this head_dim.
int oxygen_decode(const Round* round, int64_t layer, const void* q, const void* k, const void* v,
                  const int64_t* strides, void* out) {
  return round->is_bfloat16 ? decode_of<BFloat16>(*round, layer, q, k, v, strides, out)
                            : decode_of<float>(*round, layer, q, k, v, strides, out);
}
}
