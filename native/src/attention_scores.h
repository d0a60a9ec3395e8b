// Attention over a span of keys: how queries are grouped, and their scores. Knows how keys lie in pages; what weights do to
// values is attention.h's.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "kv_format.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

// Queries are taken several at a time: a key or value that is loaded and converted serves them all. As many, and as many
// vectors of keys or values with them, as registers hold sums of.
#if PAGODA_AVX512
constexpr int kTogether = 6;
constexpr int vectors_with(int) { return 4; }
#else
constexpr int kTogether = 3;
constexpr int vectors_with(int queries) { return queries == 1 ? 4 : 2; }
#endif
constexpr int kChunk = 64;  // keys at hand: a run of keys that stays in the nearest cache while all queries meet it
constexpr int kBlocks = kChunk / kLanes;
// With more queries than this, a chunk is converted to f32 once for all of them.
constexpr int kConverted = kTogether + 2;

// Calls f(number of queries as a constant, first query) until all are taken.
template <class F>
inline void by_queries(int count, F f) {
  for (int n = 0; n < count;) {
    const int left = count - n;
    if (kTogether == 6 && (left == 6 || left > 8)) {
      f(std::integral_constant<int, kTogether>(), n), n += kTogether;
    } else if (kTogether == 6 && (left == 4 || left > 6)) {
      f(std::integral_constant<int, 4>(), n), n += 4;
    } else if (left == 3 || left > 4) {
      f(std::integral_constant<int, 3>(), n), n += 3;
    } else if (left > 1) {
      f(std::integral_constant<int, 2>(), n), n += 2;
    } else {
      f(std::integral_constant<int, 1>(), n), n += 1;
    }
  }
}

// Keys [from, to) of a span.
struct Seen {
  int from, to;
  int begin() const { return from / kLanes * kLanes; }
  int end() const { return (to + kLanes - 1) / kLanes * kLanes; }
  Seen within(int low, int high) const { return {from > low ? from : low, to < high ? to : high}; }
};

// --- scores ------------------------------------------------------------------------------------------------------------------

// Sixteen keys whose elements lie as L: row r begins at rows + r * stride. Set s of their scales is at scales + s * the
// stride of what is stored. `ahead` are rows of the same kind that are soon wanted: pages lie all over the memory, so what
// follows is not foreseen by the hardware.
template <class L>
struct KeyBlock {
  const L* rows;
  const uint16_t* scales;
  const L* ahead;
};
struct Strides {
  size_t rows, scales;
};

// Whether a row of a block, so many bytes from its first, is the first in its cache line.
inline bool begins_line(size_t offset) { return offset % 64 == 0; }

// Chains of NQ queries' elements [from, to) with NB blocks of keys.
template <class L, int NQ, int NB>
inline void chain(const float* const* q, int from, int to, const KeyBlock<L>* keys, size_t stride, V (&acc)[NQ][NB]) {
  for (auto& row : acc)
    for (auto& a : row) a = zero();
  constexpr int step = std::is_same_v<L, Nibbles> ? 2 : 1;
  for (int i = from; i < to; i += step) {
    if constexpr (!std::is_same_v<L, float>)
      if (begins_line(size_t(i / step) * stride * sizeof(L)))
        for (int b = 0; b < NB; b++) prefetch(keys[b].ahead + size_t(i / step) * stride);
    V k[step][NB];
    for (int b = 0; b < NB; b++)
      if constexpr (step == 2)
        load_pair(keys[b].rows + size_t(i / 2) * stride, k[0][b], k[1][b]);
      else
        k[0][b] = load_element(keys[b].rows + size_t(i) * stride);
    for (int s = 0; s < step; s++)
      for (int n = 0; n < NQ; n++) {
        const V a = set1(q[n][i + s]);
        for (int b = 0; b < NB; b++) acc[n][b] = fma(a, k[s][b], acc[n][b]);
      }
  }
}

// Scores of NQ queries for NB blocks of keys, stored as E and lying as L.
template <class E, class L, int NQ, int NB>
inline void scores(const KVPages& kv, const float* const* q, const KeyBlock<L>* keys, Strides stride, float scale, float* out) {
  V acc[NQ][NB], sum[NQ][NB];
  if constexpr (std::is_same_v<E, Nibbles>) {
    for (auto& row : sum)
      for (auto& a : row) a = zero();
    for (int g = 0; g < kv.blocks(); g++) {
      chain<L, NQ, NB>(q, g * kBlock, kv.dim - g * kBlock < kBlock ? kv.dim : (g + 1) * kBlock, keys, stride.rows, acc);
      for (int b = 0; b < NB; b++) {
        const V d = load_f16(keys[b].scales + size_t(2 * g) * stride.scales), m = load_f16(keys[b].scales + size_t(2 * g + 1) * stride.scales);
        for (int n = 0; n < NQ; n++) sum[n][b] = fma(set1(q[n][kv.padded + g]), m, fma(acc[n][b], d, sum[n][b]));
      }
    }
  } else {
    chain<L, NQ, NB>(q, 0, kv.dim, keys, stride.rows, sum);
    if constexpr (std::is_same_v<E, int8_t>)
      for (int b = 0; b < NB; b++)
        for (int n = 0; n < NQ; n++) sum[n][b] = mul(sum[n][b], load_f16(keys[b].scales));
  }
  for (int n = 0; n < NQ; n++)
    for (int b = 0; b < NB; b++) store(out + size_t(n) * kSpan + b * kLanes, mul(sum[n][b], set1(scale)));
}

// Scores of all queries for some blocks of keys.
template <class E, class L>
inline void meet(const KVPages& kv, const Queries& qs, const KeyBlock<L>* keys, int blocks, Strides stride, float scale, float* out) {
  by_queries(qs.count, [&](auto nq, int n) {
    constexpr int nb = vectors_with(nq());
    float* to = out + size_t(n) * kSpan;
    int b = 0;
    for (; b + nb <= blocks; b += nb) scores<E, L, nq(), nb>(kv, qs.q + n, keys + b, stride, scale, to + b * kLanes);
    for (; b < blocks; b++) scores<E, L, nq(), 1>(kv, qs.q + n, keys + b, stride, scale, to + b * kLanes);
  });
}

// Sixteen keys that do not lie in one page, as a block of stride 16; only keys [from, to) of them are there.
template <class E>
inline KeyBlock<E> gather_keys(const KVPages& kv, const int32_t* table, int head, int first, Seen there, float* memory) {
  E* rows = (E*)memory;
  uint16_t* scales = (uint16_t*)(memory + size_t(kLanes) * kv.padded);
  for (int j = there.from; j < there.to; j++) {
    const int page = table[kv.page(first + j)], slot = kv.slot(first + j);
    const E* from = (const E*)kv.keys(page, head) + slot;
    for (int i = 0; i < kv.key_rows(); i++) rows[i * kLanes + j] = from[size_t(i) * kv.slots];
    for (int s = 0; s < kv.sets(); s++) scales[s * kLanes + j] = kv.key_scales(page, head)[size_t(s) * kv.slots + slot];
  }
  return {rows, scales, rows};
}

// Sixteen keys from this position on, which lie in one page; ahead of them those of the next chunk, up to the last one seen.
template <class E>
inline KeyBlock<E> page_keys(const KVPages& kv, const int32_t* table, int head, int position, int last) {
  const int page = table[kv.page(position)], slot = kv.slot(position), ahead = position + kChunk <= last ? position + kChunk : position;
  const E* rows = (const E*)kv.keys(page, head) + slot;
  return {rows, kv.key_scales(page, head) + slot, (const E*)kv.keys(table[kv.page(ahead)], head) + kv.slot(ahead)};
}

// Blocks of keys in f32, side by side: row r at to + r * kChunk.
template <class E>
inline void convert_keys(const KVPages& kv, const KeyBlock<E>* keys, int blocks, size_t stride, float* to) {
  for (int r = 0; r < kv.key_rows(); r++)
    for (int b = 0; b < blocks; b++) {
      const E* from = keys[b].rows + size_t(r) * stride;
      if (begins_line(size_t(r) * stride * sizeof(E))) prefetch(keys[b].ahead + size_t(r) * stride);
      if constexpr (std::is_same_v<E, Nibbles>) {
        V low, high;
        load_pair(from, low, high);
        store(to + (2 * r) * kChunk + b * kLanes, low), store(to + (2 * r + 1) * kChunk + b * kLanes, high);
      } else {
        store(to + r * kChunk + b * kLanes, load_element(from));
      }
    }
}

// Scores of the keys seen of the span that begins at `first`, and of what shares a block of 16 with them.
template <class E>
inline void all_scores(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int first, Seen seen, float scale, float* out,
                       float* memory) {
  const bool apart = kv.slots < kLanes;
  const size_t stride = size_t(apart ? kLanes : kv.slots), gathered = size_t(kLanes) * size_t(kv.padded + kv.sets());
  float* converted = memory + kBlocks * gathered;
  const int last = qs.last[qs.count - 1];
  for (int j = seen.begin(); j < seen.to; j += kChunk) {
    KeyBlock<E> keys[kBlocks];
    const int blocks = (seen.within(0, j + kChunk).end() - j) / kLanes;
    for (int b = 0, at = j; b < blocks; b++, at += kLanes) {
      const Seen there = seen.within(at, at + kLanes);
      keys[b] = apart ? gather_keys<E>(kv, table, head, first + at, {there.from - at, there.to - at}, memory + size_t(b) * gathered)
                      : page_keys<E>(kv, table, head, first + at, last);
    }
    if (std::is_same_v<E, float> || qs.count <= kConverted) {
      meet<E, E>(kv, qs, keys, blocks, {stride, stride}, scale, out + j);
    } else {
      convert_keys<E>(kv, keys, blocks, stride, converted);
      KeyBlock<float> floats[kBlocks];
      for (int b = 0; b < blocks; b++) floats[b] = {converted + b * kLanes, keys[b].scales, nullptr};
      meet<E, float>(kv, qs, floats, blocks, {kChunk, stride}, scale, out + j);
    }
  }
}

// The greatest score of the keys seen; the others in their blocks become -infinite.
inline float greatest(float* s, Seen seen, float cap) {
  if (cap > 0)
    for (int j = seen.begin(); j < seen.to; j += kLanes) store(s + j, soft_cap(load(s + j), cap));
  for (int j = seen.begin(); j < seen.from; j++) s[j] = -INFINITY;
  for (int j = seen.to; j < seen.end(); j++) s[j] = -INFINITY;
  V top = load(s + seen.begin());
  for (int j = seen.begin() + kLanes; j < seen.to; j += kLanes) top = max(top, load(s + j));
  return reduce_max(top);
}

// Scores to weights e^(s - top); their sum, lane = position mod 16.
inline float exponentials(float* s, Seen seen, float top) {
  V sum = zero();
  for (int j = seen.begin(); j < seen.to; j += kLanes) {
    const V p = exp(sub(load(s + j), set1(top)));
    store(s + j, p);
    sum = add(sum, p);
  }
  return reduce_add(sum);
}

}  // namespace pagoda::PAGODA_NS
