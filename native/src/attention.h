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

// Sixteen keys that do not lie in one page, as a block of stride 16; only keys [from, to) of them are there.
template <class E>
inline KeyBlock<E> gather_keys(const KVPages& kv, const int32_t* table, int head, int first, int from, int to, float* memory) {
  E* rows = (E*)memory;
  uint16_t* scales = (uint16_t*)(memory + size_t(kLanes) * kv.dim);
  for (int j = from; j < to; j++) {
    const int page = table[(first + j) / kv.slots], slot = (first + j) % kv.slots;
    const E* from = (const E*)kv.keys(page, head) + slot;
    for (int i = 0; i < kv.key_rows(); i++) rows[i * kLanes + j] = from[size_t(i) * kv.slots];
    for (int s = 0; s < kv.sets(); s++) scales[s * kLanes + j] = kv.key_scales(page, head)[size_t(s) * kv.slots + slot];
  }
  return {rows, scales};
}

// Scores of keys [from, to) of the span that begins at `first`, and of what shares a block of 16 with them.
template <class E>
inline void all_scores(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int first, int from, int to, float scale,
                       float* out, float* gathered) {
  const int begin = from / kLanes * kLanes;
  if (kv.slots % kLanes) {
    for (int j = begin; j < to; j += kLanes) {
      const int skip = j < from ? from - j : 0, there = to - j < kLanes ? to - j : kLanes;
      const KeyBlock<E> keys[1] = {gather_keys<E>(kv, table, head, first + j, skip, there, gathered)};
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
  for (int j = begin; j < to; j += most * kLanes) {
    KeyBlock<E> keys[most];
    const int blocks = to - j < most * kLanes ? (to - j + kLanes - 1) / kLanes : most;
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

// Keys [from, to) of a span: what one query sees of it.
struct Seen {
  int from, to;
  int begin() const { return from / kLanes * kLanes; }
  int end() const { return (to + kLanes - 1) / kLanes * kLanes; }
};

// Scores of keys seen to weights e^(s - max), those of the others in their blocks to 0; the sum has lane = position mod 16.
inline void softmax(float* s, Seen seen, float cap, Partial& part) {
  if (cap > 0)
    for (int j = seen.begin(); j < seen.to; j += kLanes) store(s + j, soft_cap(load(s + j), cap));
  for (int j = seen.begin(); j < seen.from; j++) s[j] = -INFINITY;
  for (int j = seen.to; j < seen.end(); j++) s[j] = -INFINITY;
  V top = load(s + seen.begin());
  for (int j = seen.begin() + kLanes; j < seen.to; j += kLanes) top = max(top, load(s + j));
  part.max = reduce_max(top);
  V sum = zero();
  for (int j = seen.begin(); j < seen.to; j += kLanes) {
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

// Columns [column, end) of all queries. Keys that several of them see go together; what the earlier ones see before and the
// later ones after those, alone, so that nobody adds a masked key.
template <class E>
inline void weigh_all(const KVPages& kv, const int32_t* table, const Seen* seen, int count, int head, int first, const float* weights,
                      Partial* parts, int column, int end) {
  by_queries(count, [&](auto nq, int n) {
    const Seen shared{seen[n + nq() - 1].from, seen[n].to};
    const auto alone = [&](int i, int from, int to) {
      if (from < to) weigh_columns<E, 1>(kv, table, head, first, from, to, weights + size_t(i) * kSpan, parts + i, column, end);
    };
    if (shared.from >= shared.to) {
      for (int i = n; i < n + nq(); i++) alone(i, seen[i].from, seen[i].to);
      return;
    }
    for (int i = n; i < n + nq(); i++) alone(i, seen[i].from, shared.from);
    weigh_columns<E, nq()>(kv, table, head, first, shared.from, shared.to, weights + size_t(n) * kSpan, parts + n, column, end);
    for (int i = n; i < n + nq(); i++) alone(i, shared.to, seen[i].to);
  });
}

// Set `set` of the values' scales of the keys seen of a span, zeros for the others in their blocks of 16.
inline void value_scales(const KVPages& kv, const int32_t* table, int head, int first, Seen seen, int set, float* out) {
  for (int j = seen.begin(); j < seen.from; j++) out[j] = 0.0f;
  for (int j = seen.from; j < seen.to;) {
    const int page = table[(first + j) / kv.slots], slot = (first + j) % kv.slots;
    const uint16_t* from = kv.value_scales(page, head) + size_t(set) * kv.slots + slot;
    if (kv.slots % kLanes == 0 && j % kLanes == 0 && seen.to - j >= kLanes) {
      store(out + j, load_f16(from));
      j += kLanes;
    } else {
      out[j++] = f16_to_f32(*from);
    }
  }
  for (int j = seen.to; j < seen.end(); j++) out[j] = 0.0f;
}

// Values that are integers: block by block, their scales times the weights, their offsets added at the end.
template <class E>
inline void weigh_blocks(const KVPages& kv, const int32_t* table, const Seen* seen, int count, int head, int first, const float* weights,
                         float* scaled, Partial* parts) {
  constexpr bool offsets = std::is_same_v<E, Nibbles>;
  const Seen all{seen[0].from, seen[count - 1].to};
  float* scales = scaled + size_t(count) * kSpan;
  for (int g = 0; g < kv.blocks(); g++) {
    const int column = g * kBlock, end = offsets ? column + kBlock : kv.padded;
    value_scales(kv, table, head, first, all, offsets ? 2 * g : g, scales);
    for (int n = 0; n < count; n++)
      for (int j = seen[n].begin(); j < seen[n].to; j += kLanes)
        store(scaled + size_t(n) * kSpan + j, mul(load(weights + size_t(n) * kSpan + j), load(scales + j)));
    weigh_all<E>(kv, table, seen, count, head, first, scaled, parts, column, end);
    if constexpr (offsets) {
      value_scales(kv, table, head, first, all, 2 * g + 1, scales);
      for (int n = 0; n < count; n++) {
        V sum = zero();
        for (int j = seen[n].begin(); j < seen[n].to; j += kLanes) sum = fma(load(weights + size_t(n) * kSpan + j), load(scales + j), sum);
        const V offset = set1(reduce_add(sum));
        for (int i = column; i < end; i += kLanes) store(parts[n].out + i, add(load(parts[n].out + i), offset));
      }
    }
  }
}

template <class E>
inline void attend_as(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int span, const Scoring& scoring, Partial* parts,
                      float* scratch) {
  const int first = span * kSpan;
  Seen seen[kGroupMax];
  for (int n = 0; n < qs.count; n++)
    seen[n] = {qs.first[n] > first ? qs.first[n] - first : 0, qs.last[n] + 1 - first < kSpan ? qs.last[n] + 1 - first : kSpan};
  float* rest = scratch + size_t(qs.count) * kSpan;
  all_scores<E>(kv, table, qs, head, first, seen[0].from, seen[qs.count - 1].to, scoring.scale, scratch, rest);
  for (int n = 0; n < qs.count; n++) {
    softmax(scratch + size_t(n) * kSpan, seen[n], scoring.cap, parts[n]);
    for (int i = 0; i < kv.padded; i += kLanes) store(parts[n].out + i, zero());
  }
  if constexpr (sizeof(E) == 1)
    weigh_blocks<E>(kv, table, seen, qs.count, head, first, scratch, rest, parts);
  else
    weigh_all<E>(kv, table, seen, qs.count, head, first, scratch, parts, 0, kv.padded);
}

inline void attend(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int span, const Scoring& scoring, Partial* parts,
                   float* scratch) {
  switch (kv.format) {
    case KVFormat::F32: return attend_as<float>(kv, table, qs, head, span, scoring, parts, scratch);
    case KVFormat::F16: return attend_as<uint16_t>(kv, table, qs, head, span, scoring, parts, scratch);
    case KVFormat::Int8: return attend_as<int8_t>(kv, table, qs, head, span, scoring, parts, scratch);
    case KVFormat::Int4: return attend_as<Nibbles>(kv, table, qs, head, span, scoring, parts, scratch);
  }
}

// e^x - max and e^y - max, of the larger of the two.
struct Shares {
  float max, a, b;
  Shares(float x, float y) : max(x > y ? x : y) {
    alignas(64) float t[kLanes] = {x - max, y - max};
    store(t, exp(load(t)));
    a = t[0], b = t[1];
  }
};

inline void merge(Partial& into, const Partial& part, int padded) {
  const auto [top, a, b] = Shares(into.max, part.max);
  into.sum = std::fmaf(into.sum, a, part.sum * b);
  into.max = top;
  for (int i = 0; i < padded; i += kLanes) store(into.out + i, fma(load(into.out + i), set1(a), mul(load(part.out + i), set1(b))));
}

inline void finish(const Partial& part, const float* sink, int dim, float* out) {
  float share = 1.0f, sum = part.sum;
  if (sink) {
    const Shares shares(part.max, *sink);
    share = shares.a, sum = std::fmaf(part.sum, shares.a, shares.b);
  }
  const auto result = [&](int i) { return div(mul(load(part.out + i), set1(share)), set1(sum)); };
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) store(out + i, result(i));
  if (dim % kLanes) store_n(out + i, result(i), dim % kLanes);
}

}  // namespace pagoda::PAGODA_NS
