// Attention over paged keys and values, one span of 256 absolute positions at a time (Dao et al. 2022's online softmax, with
// fixed split points so that chunking, batching and threads cannot move a rounding).
#pragma once

#include "kernels.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

template <class E>
inline V load_element(const E* p) {
  if constexpr (sizeof(E) == 2)
    return load_f16((const uint16_t*)p);
  else
    return load((const float*)p);
}

template <class E>
inline float element(E e) {
  if constexpr (sizeof(E) == 2)
    return f16_to_f32(e);
  else
    return e;
}

template <class E>
inline void store_kv_as(const KVPages& kv, int page, int slot, const float* k, const float* v) {
  for (int g = 0; g < kv.heads; g++) {
    E* keys = (E*)kv.keys(page, g);
    E* values = (E*)kv.values(page, g) + size_t(slot) * kv.padded;
    for (int i = 0; i < kv.dim; i += kLanes) {
      const int n = kv.dim - i < kLanes ? kv.dim - i : kLanes;
      E t[kLanes];
      if constexpr (sizeof(E) == 2) {
        store_f16((uint16_t*)t, load_n(k + size_t(g) * kv.dim + i, n));
        store_f16((uint16_t*)values + i, load_n(v + size_t(g) * kv.dim + i, n));
      } else {
        store((float*)t, load_n(k + size_t(g) * kv.dim + i, n));
        store((float*)values + i, load_n(v + size_t(g) * kv.dim + i, n));
      }
      for (int j = 0; j < n; j++) keys[size_t(i + j) * kv.slots + slot] = t[j];
    }
  }
}

inline void store_kv(const KVPages& kv, int page, int slot, const float* k, const float* v) {
  kv.format == KVFormat::F16 ? store_kv_as<uint16_t>(kv, page, slot, k, v) : store_kv_as<float>(kv, page, slot, k, v);
}

#if PAGODA_AVX512
constexpr int kKeyBlocks = 4, kValueVectors = 4, kValueQueries = 4;
#else
constexpr int kKeyBlocks = 2, kValueVectors = 2, kValueQueries = 3;
#endif
constexpr int kKeyQueries = 3;

// Dot products of NQ queries with NB blocks of 16 keys, each a chain in order of dim.
template <class E, int NQ, int NB>
inline void scores(const float* const* q, int dim, const E* const* keys, size_t stride, float scale, float* out) {
  V acc[NQ][NB];
  for (auto& row : acc)
    for (auto& a : row) a = zero();
  for (int i = 0; i < dim; i++) {
    V k[NB];
    for (int b = 0; b < NB; b++) k[b] = load_element(keys[b] + i * stride);
    for (int n = 0; n < NQ; n++) {
      const V a = set1(q[n][i]);
      for (int b = 0; b < NB; b++) acc[n][b] = fma(a, k[b], acc[n][b]);
    }
  }
  for (int n = 0; n < NQ; n++)
    for (int b = 0; b < NB; b++) store(out + size_t(n) * kSpan + b * kLanes, mul(acc[n][b], set1(scale)));
}

template <class E, int NB>
inline void scores_of(const Queries& qs, int dim, const E* const* keys, size_t stride, float scale, float* out) {
  int n = 0;
  for (; n + kKeyQueries <= qs.count; n += kKeyQueries) scores<E, kKeyQueries, NB>(qs.q + n, dim, keys, stride, scale, out + size_t(n) * kSpan);
  for (; n + 2 <= qs.count; n += 2) scores<E, 2, NB>(qs.q + n, dim, keys, stride, scale, out + size_t(n) * kSpan);
  for (; n < qs.count; n++) scores<E, 1, NB>(qs.q + n, dim, keys, stride, scale, out + size_t(n) * kSpan);
}

// Sixteen keys that do not lie in one page, as [dim][16] of f32.
template <class E>
inline void gather_keys(const KVPages& kv, const int32_t* table, int head, int first, int count, float* out) {
  for (int j = 0; j < count; j++) {
    const int at = first + j;
    const E* keys = (const E*)kv.keys(table[at / kv.slots], head) + at % kv.slots;
    for (int i = 0; i < kv.dim; i++) out[i * kLanes + j] = element(keys[size_t(i) * kv.slots]);
  }
}

template <class E>
inline void all_scores(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int first, int count, float scale, float* out,
                       float* gathered) {
  if (kv.slots % kLanes) {
    for (int j = 0; j < count; j += kLanes) {
      gather_keys<E>(kv, table, head, first + j, count - j < kLanes ? count - j : kLanes, gathered);
      const float* keys[1] = {gathered};
      scores_of<float, 1>(qs, kv.dim, keys, kLanes, scale, out + j);
    }
    return;
  }
  const auto block = [&](int j) { return (const E*)kv.keys(table[(first + j) / kv.slots], head) + (first + j) % kv.slots; };
  int j = 0;
  for (; j + kKeyBlocks * kLanes <= count; j += kKeyBlocks * kLanes) {
    const E* keys[kKeyBlocks];
    for (int b = 0; b < kKeyBlocks; b++) keys[b] = block(j + b * kLanes);
    scores_of<E, kKeyBlocks>(qs, kv.dim, keys, size_t(kv.slots), scale, out + j);
  }
  for (; j < count; j += kLanes) {
    const E* keys[1] = {block(j)};
    scores_of<E, 1>(qs, kv.dim, keys, size_t(kv.slots), scale, out + j);
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
  V acc[NQ][NV];
  for (int n = 0; n < NQ; n++)
    for (int v = 0; v < NV; v++) acc[n][v] = load(parts[n].out + column + v * kLanes);
  for (int j = from; j < to;) {
    const int slot = (first + j) % kv.slots, run = kv.slots - slot < to - j ? kv.slots - slot : to - j;
    const E* row = (const E*)kv.values(table[(first + j) / kv.slots], head) + size_t(slot) * kv.padded + column;
    for (int e = j + run; j < e; j++, row += kv.padded) {
      V x[NV];
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
                          Partial* parts) {
  int column = 0;
  for (; column + kValueVectors * kLanes <= kv.padded; column += kValueVectors * kLanes)
    weigh<E, NQ, kValueVectors>(kv, table, head, first, from, to, weights, parts, column);
  for (; column < kv.padded; column += kLanes) weigh<E, NQ, 1>(kv, table, head, first, from, to, weights, parts, column);
}

template <class E>
inline void attend_as(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int span, float scale, Partial* parts,
                      float* scratch) {
  const int first = span * kSpan;
  const auto seen = [&](int n) { return qs.last[n] + 1 - first < kSpan ? qs.last[n] + 1 - first : kSpan; };
  const int count = seen(qs.count - 1);
  all_scores<E>(kv, table, qs, head, first, count, scale, scratch, scratch + size_t(qs.count) * kSpan);
  for (int n = 0; n < qs.count; n++) {
    softmax(scratch + size_t(n) * kSpan, seen(n), parts[n]);
    for (int i = 0; i < kv.padded; i += kLanes) store(parts[n].out + i, zero());
  }
  // Queries that share their keys go together; what the later ones see besides, alone, so that nobody adds a masked key.
  for (int n = 0; n < qs.count;) {
    int m = 1;
    while (m < kValueQueries && n + m < qs.count) m++;
    const int shared = seen(n);
    const float* w = scratch + size_t(n) * kSpan;
    if (m == kValueQueries)
      weigh_columns<E, kValueQueries>(kv, table, head, first, 0, shared, w, parts + n);
    else if (m == 3)
      weigh_columns<E, 3>(kv, table, head, first, 0, shared, w, parts + n);
    else if (m == 2)
      weigh_columns<E, 2>(kv, table, head, first, 0, shared, w, parts + n);
    else
      weigh_columns<E, 1>(kv, table, head, first, 0, shared, w, parts + n);
    for (int i = 1; i < m; i++)
      if (seen(n + i) > shared)
        weigh_columns<E, 1>(kv, table, head, first, shared, seen(n + i), w + size_t(i) * kSpan, parts + n + i);
    n += m;
  }
}

inline void attend(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int span, float scale, Partial* parts,
                   float* scratch) {
  kv.format == KVFormat::F16 ? attend_as<uint16_t>(kv, table, qs, head, span, scale, parts, scratch)
                             : attend_as<float>(kv, table, qs, head, span, scale, parts, scratch);
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
