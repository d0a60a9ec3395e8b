// Attention over paged keys and values, one span of 256 absolute positions at a time (Dao et al. 2022's online softmax, with
// fixed split points so that chunking, batching and threads cannot move a rounding).
#pragma once

#include <type_traits>

#include "kernels.h"
#include "kv_format.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

// Queries are taken six at a time where there are many: a key or value that is loaded and converted serves all six. With few
// registers that leaves room for one vector of keys or values beside them.
constexpr int kTogether = 6;
#if PAGODA_AVX512
constexpr int vectors_with(int) { return 4; }
#else
constexpr int vectors_with(int queries) { return queries <= 3 ? 2 : 1; }
#endif

// Calls f(number of queries as a constant, first query) until all are taken.
template <class F>
inline void by_queries(int count, F f) {
  for (int n = 0; n < count;) {
    const int left = count - n;
    if (left == 6 || left > 8) {
      f(std::integral_constant<int, kTogether>(), n), n += kTogether;
    } else if (left == 4 || left > 6) {
      f(std::integral_constant<int, 4>(), n), n += 4;
    } else if (left == 3 || left == 5) {
      f(std::integral_constant<int, 3>(), n), n += 3;
    } else if (left == 2) {
      f(std::integral_constant<int, 2>(), n), n += 2;
    } else {
      f(std::integral_constant<int, 1>(), n), n += 1;
    }
  }
}

// Sixteen keys, as in a page: row r begins at rows + r * stride, set s of scales at scales + s * stride.
template <class E>
struct KeyBlock {
  const E* rows;
  const uint16_t* scales;
};

// Chains of NQ queries' elements [from, to) with NB blocks of keys.
template <class E, int NQ, int NB>
inline void chain(const float* const* q, int from, int to, const KeyBlock<E>* keys, size_t stride, V (&acc)[NQ][NB]) {
  for (auto& row : acc)
    for (auto& a : row) a = zero();
  constexpr int step = std::is_same_v<E, Nibbles> ? 2 : 1;
  for (int i = from; i < to; i += step) {
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

// Scores of NQ queries for NB blocks of keys.
template <class E, int NQ, int NB>
inline void scores(const KVPages& kv, const float* const* q, const KeyBlock<E>* keys, size_t stride, float scale, float* out) {
  V acc[NQ][NB], sum[NQ][NB];
  if constexpr (std::is_same_v<E, Nibbles>) {
    for (auto& row : sum)
      for (auto& a : row) a = zero();
    for (int g = 0; g < kv.blocks(); g++) {
      chain<E, NQ, NB>(q, g * kBlock, kv.dim - g * kBlock < kBlock ? kv.dim : (g + 1) * kBlock, keys, stride, acc);
      for (int b = 0; b < NB; b++) {
        const V d = load_f16(keys[b].scales + size_t(2 * g) * stride), m = load_f16(keys[b].scales + size_t(2 * g + 1) * stride);
        for (int n = 0; n < NQ; n++) sum[n][b] = fma(set1(q[n][kv.padded + g]), m, fma(acc[n][b], d, sum[n][b]));
      }
    }
  } else {
    chain<E, NQ, NB>(q, 0, kv.dim, keys, stride, sum);
    if constexpr (std::is_same_v<E, int8_t>)
      for (int b = 0; b < NB; b++)
        for (int n = 0; n < NQ; n++) sum[n][b] = mul(sum[n][b], load_f16(keys[b].scales));
  }
  for (int n = 0; n < NQ; n++)
    for (int b = 0; b < NB; b++) store(out + size_t(n) * kSpan + b * kLanes, mul(sum[n][b], set1(scale)));
}

// Sixteen keys that do not lie in one page, as a block of stride 16.
template <class E>
inline KeyBlock<E> gather_keys(const KVPages& kv, const int32_t* table, int head, int first, int count, float* memory) {
  E* rows = (E*)memory;
  uint16_t* scales = (uint16_t*)(memory + size_t(kLanes) * kv.dim);
  for (int j = 0; j < count; j++) {
    const int page = table[(first + j) / kv.slots], slot = (first + j) % kv.slots;
    const E* from = (const E*)kv.keys(page, head) + slot;
    for (int i = 0; i < kv.key_rows(); i++) rows[i * kLanes + j] = from[size_t(i) * kv.slots];
    for (int s = 0; s < kv.sets(); s++) scales[s * kLanes + j] = kv.key_scales(page, head)[size_t(s) * kv.slots + slot];
  }
  return {rows, scales};
}

template <class E>
inline void all_scores(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int first, int count, float scale, float* out,
                       float* gathered) {
  if (kv.slots % kLanes) {
    for (int j = 0; j < count; j += kLanes) {
      const KeyBlock<E> keys[1] = {gather_keys<E>(kv, table, head, first + j, count - j < kLanes ? count - j : kLanes, gathered)};
      by_queries(qs.count, [&](auto nq, int n) {
        scores<E, nq(), 1>(kv, qs.q + n, keys, kLanes, scale, out + size_t(n) * kSpan + j);
      });
    }
    return;
  }
  const auto block = [&](int j) {
    const int page = table[(first + j) / kv.slots], slot = (first + j) % kv.slots;
    return KeyBlock<E>{(const E*)kv.keys(page, head) + slot, kv.key_scales(page, head) + slot};
  };
  constexpr int most = 4;  // blocks at hand: a run of keys that stays in the nearest cache while all queries meet it
  for (int j = 0; j < count; j += most * kLanes) {
    KeyBlock<E> keys[most];
    const int blocks = count - j < most * kLanes ? (count - j + kLanes - 1) / kLanes : most;
    for (int b = 0; b < blocks; b++) keys[b] = block(j + b * kLanes);
    by_queries(qs.count, [&](auto nq, int n) {
      constexpr int nb = vectors_with(nq());
      float* to = out + size_t(n) * kSpan + j;
      int b = 0;
      for (; b + nb <= blocks; b += nb) scores<E, nq(), nb>(kv, qs.q + n, keys + b, size_t(kv.slots), scale, to + b * kLanes);
      for (; b < blocks; b++) scores<E, nq(), 1>(kv, qs.q + n, keys + b, size_t(kv.slots), scale, to + b * kLanes);
    });
  }
}

// Scores of the first `seen` keys to weights e^(s - max), the rest to 0; the sum has lane = position mod 16.
inline void softmax(float* s, int seen, Partial& part) {
  const int padded = (seen + kLanes - 1) / kLanes * kLanes;
  for (int j = seen; j < padded; j++) s[j] = -INFINITY;
  V top = load(s);
  for (int j = kLanes; j < padded; j += kLanes) top = max(top, load(s + j));
  part.max = reduce_max(top);
  V sum = zero();
  for (int j = 0; j < padded; j += kLanes) {
    const V p = exp(sub(load(s + j), set1(part.max)));
    store(s + j, p);
    sum = add(sum, p);
  }
  part.sum = reduce_add(sum);
}

// NQ queries' weighted sums of NV * 16 columns of V, over keys [from, to) of the span: chains in order of position.
template <class E, int NQ, int NV>
inline void weigh(const KVPages& kv, const int32_t* table, int head, int first, int from, int to, const float* weights, Partial* parts,
                  int column) {
  constexpr bool wide = std::is_same_v<E, Nibbles>;  // a load brings two vectors
  V acc[NQ][NV];
  for (int n = 0; n < NQ; n++)
    for (int v = 0; v < NV; v++) acc[n][v] = load(parts[n].out + column + v * kLanes);
  for (int j = from; j < to;) {
    const int slot = (first + j) % kv.slots, run = kv.slots - slot < to - j ? kv.slots - slot : to - j;
    const E* row = (const E*)(kv.values(table[(first + j) / kv.slots], head) + size_t(slot) * kv.value_bytes()) + column / (wide ? 2 : 1);
    for (int e = j + run; j < e; j++, row = (const E*)((const uint8_t*)row + kv.value_bytes())) {
      V x[NV];
      if constexpr (wide)
        load_pair(row, x[0], x[1]);
      else
        for (int v = 0; v < NV; v++) x[v] = load_element(row + v * kLanes);
      for (int n = 0; n < NQ; n++) {
        const V p = set1(weights[size_t(n) * kSpan + j]);
        for (int v = 0; v < NV; v++) acc[n][v] = fma(p, x[v], acc[n][v]);
      }
    }
  }
  for (int n = 0; n < NQ; n++)
    for (int v = 0; v < NV; v++) store(parts[n].out + column + v * kLanes, acc[n][v]);
}

template <class E, int NQ>
inline void weigh_columns(const KVPages& kv, const int32_t* table, int head, int first, int from, int to, const float* weights,
                          Partial* parts, int column, int end) {
  constexpr bool wide = std::is_same_v<E, Nibbles>;
  constexpr int vectors = wide ? 2 : vectors_with(NQ);
  for (; column + vectors * kLanes <= end; column += vectors * kLanes)
    weigh<E, NQ, vectors>(kv, table, head, first, from, to, weights, parts, column);
  if constexpr (!wide)
    for (; column < end; column += kLanes) weigh<E, NQ, 1>(kv, table, head, first, from, to, weights, parts, column);
}

// Columns [column, end) of all queries. Queries that share their keys go together; what the later ones see besides, alone, so
// that nobody adds a masked key.
template <class E>
inline void weigh_all(const KVPages& kv, const int32_t* table, const int* seen, int count, int head, int first, const float* weights,
                      Partial* parts, int column, int end) {
  by_queries(count, [&](auto nq, int n) {
    const float* w = weights + size_t(n) * kSpan;
    weigh_columns<E, nq()>(kv, table, head, first, 0, seen[n], w, parts + n, column, end);
    for (int i = 1; i < nq(); i++)
      if (seen[n + i] > seen[n])
        weigh_columns<E, 1>(kv, table, head, first, seen[n], seen[n + i], w + size_t(i) * kSpan, parts + n + i, column, end);
  });
}

// Set `set` of the values' scales of the first `count` positions of a span, then zeros to the next multiple of 16.
inline void value_scales(const KVPages& kv, const int32_t* table, int head, int first, int count, int set, float* out) {
  for (int j = 0; j < count;) {
    const int page = table[(first + j) / kv.slots], slot = (first + j) % kv.slots;
    const uint16_t* from = kv.value_scales(page, head) + size_t(set) * kv.slots + slot;
    if (kv.slots % kLanes == 0 && count - j >= kLanes) {
      store(out + j, load_f16(from));
      j += kLanes;
    } else {
      out[j++] = f16_to_f32(*from);
    }
  }
  for (int j = count; j % kLanes; j++) out[j] = 0.0f;
}

// Values that are integers: block by block, their scales times the weights, their offsets added at the end.
template <class E>
inline void weigh_blocks(const KVPages& kv, const int32_t* table, const int* seen, int count, int head, int first, const float* weights,
                         float* scaled, Partial* parts) {
  constexpr bool offsets = std::is_same_v<E, Nibbles>;
  float* scales = scaled + size_t(count) * kSpan;
  for (int g = 0; g < kv.blocks(); g++) {
    const int column = g * kBlock, end = offsets ? column + kBlock : kv.padded, all = seen[count - 1];
    value_scales(kv, table, head, first, all, offsets ? 2 * g : g, scales);
    for (int n = 0; n < count; n++)
      for (int j = n * kSpan; j < n * kSpan + seen[n]; j += kLanes) store(scaled + j, mul(load(weights + j), load(scales + j % kSpan)));
    weigh_all<E>(kv, table, seen, count, head, first, scaled, parts, column, end);
    if constexpr (offsets) {
      value_scales(kv, table, head, first, all, 2 * g + 1, scales);
      for (int n = 0; n < count; n++) {
        V sum = zero();
        for (int j = 0; j < seen[n]; j += kLanes) sum = fma(load(weights + size_t(n) * kSpan + j), load(scales + j), sum);
        const V offset = set1(reduce_add(sum));
        for (int i = column; i < end; i += kLanes) store(parts[n].out + i, add(load(parts[n].out + i), offset));
      }
    }
  }
}

template <class E>
inline void attend_as(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int span, float scale, Partial* parts,
                      float* scratch) {
  const int first = span * kSpan;
  int seen[kGroupMax];
  for (int n = 0; n < qs.count; n++) seen[n] = qs.last[n] + 1 - first < kSpan ? qs.last[n] + 1 - first : kSpan;
  float* rest = scratch + size_t(qs.count) * kSpan;
  all_scores<E>(kv, table, qs, head, first, seen[qs.count - 1], scale, scratch, rest);
  for (int n = 0; n < qs.count; n++) {
    softmax(scratch + size_t(n) * kSpan, seen[n], parts[n]);
    for (int i = 0; i < kv.padded; i += kLanes) store(parts[n].out + i, zero());
  }
  if constexpr (sizeof(E) == 1)
    weigh_blocks<E>(kv, table, seen, qs.count, head, first, scratch, rest, parts);
  else
    weigh_all<E>(kv, table, seen, qs.count, head, first, scratch, parts, 0, kv.padded);
}

inline void attend(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int span, float scale, Partial* parts,
                   float* scratch) {
  switch (kv.format) {
    case KVFormat::F32: return attend_as<float>(kv, table, qs, head, span, scale, parts, scratch);
    case KVFormat::F16: return attend_as<uint16_t>(kv, table, qs, head, span, scale, parts, scratch);
    case KVFormat::Int8: return attend_as<int8_t>(kv, table, qs, head, span, scale, parts, scratch);
    case KVFormat::Int4: return attend_as<Nibbles>(kv, table, qs, head, span, scale, parts, scratch);
  }
}

inline void merge(Partial& into, const Partial& part, int padded) {
  const float top = into.max > part.max ? into.max : part.max;
  alignas(64) float t[kLanes] = {into.max - top, part.max - top};
  store(t, exp(load(t)));
  const float a = t[0], b = t[1];
  into.sum = std::fmaf(into.sum, a, part.sum * b);
  into.max = top;
  for (int i = 0; i < padded; i += kLanes) store(into.out + i, fma(load(into.out + i), set1(a), mul(load(part.out + i), set1(b))));
}

inline void finish(const Partial& part, int dim, float* out) {
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) store(out + i, div(load(part.out + i), set1(part.sum)));
  if (dim % kLanes) store_n(out + i, div(load(part.out + i), set1(part.sum)), dim % kLanes);
}

}  // namespace pagoda::PAGODA_NS
