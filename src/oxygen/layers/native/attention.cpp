// Attention of a few query tokens over rows of the store, read in place: decode rounds and action chunks.
//
// Scores, softmax and sums are float32 whatever the storage, and a query row's result does not depend on what else is in
// the batch. Threads are those of the OpenMP runtime that torch has loaded: this library must not bring a second one.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "lanes.h"

namespace {

constexpr int kRows = 8;    // most query rows (heads of one KV head) that share a pass over the keys
constexpr int kBlock = 32;  // keys whose values are in flight together
constexpr int kLine = 64;   // bytes that memory gives at once

// Keys and values of one KV head.
template <typename T>
struct Keys {
  const T* k;
  const T* v;
  int64_t length, k_stride, v_stride;
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

// q · k as kLanes parts of the sum.
template <int D>
inline Lanes dot(const float* q, const float* k) {
  Lanes total = load(q) * load(k);
  for (int i = kLanes; i < D; i += kLanes) total += load(q + i) * load(k + i);
  return total;
}

template <int D>
inline Lanes dot(const BFloat16* q, const BFloat16* k) {
  Lanes total = {};
#ifdef __AVX512BF16__
  for (int i = 0; i < D; i += 2 * kLanes)
    total = (Lanes)_mm512_dpbf16_ps((__m512)total, (__m512bh)_mm512_loadu_si512(q + i),
                                    (__m512bh)_mm512_loadu_si512(k + i));
#else
  for (int i = 0; i < D; i += kLanes) total += load(q + i) * load(k + i);
#endif
  return total;
}

// scores[row][0 .. length] = q[row] · k. q [rows][D]. Up to kLanes - 1 scores behind the last of a row are overwritten.
template <typename T, int D>
void score(const T* q, int rows, const Keys<T>& keys, float* scores, int64_t columns) {
  for (int64_t first = 0; first < keys.length; first += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, keys.length - first));
    for (int row = 0; row < rows; ++row) {
      Lanes products[kLanes] = {};
      const auto product = [&](int key) { return dot<D>(q + row * D, keys.k + (first + key) * keys.k_stride); };
      if (count == kLanes)  // of a fixed number, so that all of them stay in registers
        for (int key = 0; key < kLanes; ++key) products[key] = product(key);
      else
        for (int key = 0; key < count; ++key) products[key] = product(key);
      store(scores + row * columns + first, sums(products));
    }
  }
}

// Softmax numerators of scale · scores in place; what they sum to comes back.
inline float exponentials(float* scores, int64_t length, float scale) {
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
    const Lanes e = exp_of_negative((load(scores + j) - top) * scale);
    store(scores + j, e);
    total += e;
  }
  float rest = 0.0f;
  for (int64_t j = whole; j < length; ++j) rest += scores[j] = std::exp((scores[j] - top) * scale);
  return sum(total) + rest;
}

// out[row] += Σ weights[row][j] · v[j]. out [R][D]. A block of values is gone through slice by slice, an order that
// the processor does not foresee, so the next block is asked for meanwhile: it takes 7 µs instead of 19 from memory.
template <typename T, int D, int R>
void gather(const float* weights, int64_t columns, const Keys<T>& keys, float* out) {
  for (int64_t first = 0; first < keys.length; first += kBlock) {
    const int64_t last = std::min<int64_t>(first + kBlock, keys.length);
    for (int slice = 0; slice < D; slice += 2 * kLanes) {
      Lanes low[R], high[R];
      for (int row = 0; row < R; ++row) {
        low[row] = load(out + row * D + slice);
        high[row] = load(out + row * D + slice + kLanes);
      }
      for (int64_t j = first; j < last; ++j) {
        const T* const here = keys.v + j * keys.v_stride + slice;
        const T* const ahead = here + kBlock * keys.v_stride;
        for (int i = 0; i < 2 * kLanes; i += kLine / sizeof(T)) __builtin_prefetch(ahead + i);
        const Lanes v = load(here), w = load(here + kLanes);
        for (int row = 0; row < R; ++row) {
          low[row] += v * weights[row * columns + j];
          high[row] += w * weights[row * columns + j];
        }
      }
      for (int row = 0; row < R; ++row) {
        store(out + row * D + slice, low[row]);
        store(out + row * D + slice + kLanes, high[row]);
      }
    }
  }
}

// Room for one row's scores, with what `score` writes beyond.
inline int64_t padded(int64_t length) { return (length + 2 * kLanes - 1) / kLanes * kLanes; }

// Softmax attention of R query rows over two stretches of keys. scores: R · padded(both lengths) floats.
template <typename T, int D, int R>
void attend_rows(const T* q, T* out, float scale, const Keys<T>& first, const Keys<T>& second, float* scores) {
  const int64_t length = first.length + second.length, columns = padded(length);
  score<T, D>(q, R, first, scores, columns);
  score<T, D>(q, R, second, scores + first.length, columns);
  float norm[R], total[R * D] = {};
  for (int row = 0; row < R; ++row) norm[row] = 1.0f / exponentials(scores + row * columns, length, scale);
  gather<T, D, R>(scores, columns, first, total);
  gather<T, D, R>(scores + first.length, columns, second, total);
  for (int row = 0; row < R; ++row)
    for (int i = 0; i < D; i += kLanes) store(out + row * D + i, load(total + row * D + i) * norm[row]);
}

template <typename T, int D>
void attend(const T* q, T* out, int64_t rows, float scale, const Keys<T>& first, const Keys<T>& second, float* scores) {
  for (int64_t row = 0; row < rows;) {
    const T* const from = q + row * D;
    T* const to = out + row * D;
    if (rows - row >= kRows) {
      attend_rows<T, D, kRows>(from, to, scale, first, second, scores);
      row += kRows;
    } else if (rows - row >= 4) {
      attend_rows<T, D, 4>(from, to, scale, first, second, scores);
      row += 4;
    } else if (rows - row >= 2) {
      attend_rows<T, D, 2>(from, to, scale, first, second, scores);
      row += 2;
    } else {
      attend_rows<T, D, 1>(from, to, scale, first, second, scores);
      row += 1;
    }
  }
}

}  // namespace

extern "C" {

// What one text, or one action chunk, attends to: a context row, and a tail row or tokens of its own.
struct Place {
  int64_t context_row, context_len, tail_row, computed;
};

// Rows of the store: [layer][row][kv head][position][head_dim].
struct Rows {
  void* keys;
  void* values;
  int64_t num_rows, length;
};

struct Call {
  Rows contexts, tails;
  const Place* places;
  int64_t num_places, num_heads, kv_heads, head_dim, is_bfloat16;
};

// q [tokens, heads, head_dim], k and v [tokens, kv heads, head_dim] with these strides between tokens; out is dense.
struct Tokens {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  int64_t q_stride, k_stride, v_stride;
};
}

namespace {

template <typename T>
int64_t offset(const Call& call, const Rows& rows, int64_t layer, int64_t row, int64_t head, int64_t position) {
  const int64_t before = ((layer * rows.num_rows + row) * call.kv_heads + head) * rows.length + position;
  return before * call.head_dim;
}

template <typename T>
Keys<T> stored(const Call& call, const Rows& rows, int64_t layer, int64_t row, int64_t head, int64_t length) {
  const int64_t at = offset<T>(call, rows, layer, row, head, 0);
  return {static_cast<const T*>(rows.keys) + at, static_cast<const T*>(rows.values) + at, length, call.head_dim,
          call.head_dim};
}

// All query rows of `tokens` tokens; own(token, head) is what its queries see besides their context.
template <typename T, int D, typename Own>
void attend_all(const Call& call, const Tokens& tokens, int64_t layer, int64_t num_tokens, const Own& own) {
  const int64_t group = call.num_heads / call.kv_heads, count = num_tokens * call.kv_heads;
  // One token alone would keep one thread busy, so its heads are dealt out.
  int64_t share = std::min<int64_t>(group, kRows);
  while (share > 2 && count * ((group + share - 1) / share) < omp_get_max_threads()) share = (share + 1) / 2;
  const int64_t pieces = (group + share - 1) / share, each = num_tokens / call.num_places;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = 0; i < count * pieces; ++i) {
    thread_local std::vector<float> scores;
    const int64_t piece = i % pieces, head = i / pieces % call.kv_heads, token = i / pieces / call.kv_heads;
    const Place& place = call.places[token / each];
    const Keys<T> second = own(token, head);
    scores.resize(std::max<size_t>(scores.size(), kRows * padded(place.context_len + second.length)));
    const int64_t first = head * group + piece * share;  // query head
    attend<T, D>(static_cast<const T*>(tokens.q) + token * tokens.q_stride + first * D,
                 static_cast<T*>(tokens.out) + (token * call.num_heads + first) * D,
                 std::min(share, group - piece * share), scale,
                 stored<T>(call, call.contexts, layer, place.context_row, head, place.context_len), second,
                 scores.data());
  }
}

template <typename T, int D>
void decode(const Call& call, const Tokens& tokens, int64_t layer) {
  for (int64_t i = 0; i < call.num_places * call.kv_heads; ++i) {
    const int64_t head = i % call.kv_heads, token = i / call.kv_heads;
    const Place& place = call.places[token];
    const int64_t to = offset<T>(call, call.tails, layer, place.tail_row, head, place.computed);
    const auto copy = [&](void* rows, const void* from, int64_t stride) {
      std::memcpy(static_cast<T*>(rows) + to, static_cast<const T*>(from) + token * stride + head * D, D * sizeof(T));
    };
    copy(call.tails.keys, tokens.k, tokens.k_stride);
    copy(call.tails.values, tokens.v, tokens.v_stride);
  }
  attend_all<T, D>(call, tokens, layer, call.num_places, [&](int64_t token, int64_t head) {
    const Place& place = call.places[token];
    return stored<T>(call, call.tails, layer, place.tail_row, head, place.computed + 1);
  });
}

// `computed` tokens per place, which see each other.
template <typename T, int D>
void act(const Call& call, const Tokens& tokens, int64_t layer) {
  const int64_t each = call.places[0].computed;
  attend_all<T, D>(call, tokens, layer, call.num_places * each, [&](int64_t token, int64_t head) -> Keys<T> {
    const int64_t first = token / each * each;
    return {static_cast<const T*>(tokens.k) + first * tokens.k_stride + head * D,
            static_cast<const T*>(tokens.v) + first * tokens.v_stride + head * D, each, tokens.k_stride,
            tokens.v_stride};
  });
}

template <typename T, int D>
void attend_of(const Call& call, const Tokens& tokens, int64_t layer, int is_act) {
  is_act ? act<T, D>(call, tokens, layer) : decode<T, D>(call, tokens, layer);
}

template <typename T>
int attend_as(const Call& call, const Tokens& tokens, int64_t layer, int is_act) {
  switch (call.head_dim) {
    case 32: attend_of<T, 32>(call, tokens, layer, is_act); return 0;
    case 64: attend_of<T, 64>(call, tokens, layer, is_act); return 0;
    case 128: attend_of<T, 128>(call, tokens, layer, is_act); return 0;
    case 256: attend_of<T, 256>(call, tokens, layer, is_act); return 0;
    default: return 1;
  }
}

}  // namespace

extern "C" {

// One layer's attention over rows of the store. Decode (is_act 0): one new token per text, whose k and v go to its tail
// position first, sees its context and its tail. Act: `computed` tokens per place see its context and each other. Not
// zero: no kernel for this head_dim.
int oxygen_attend(const Call* call, const Tokens* tokens, int64_t layer, int is_act) {
  return call->is_bfloat16 ? attend_as<BFloat16>(*call, *tokens, layer, is_act)
                           : attend_as<float>(*call, *tokens, layer, is_act);
}
}
