// Attention over paged keys and values, one span of 256 absolute positions at a time (Dao et al. 2022's online softmax, with
// fixed split points so that chunking, batching and threads cannot move a rounding).
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

// cap * tanh(s / cap), by tanh(x) = 1 - 2 / (e^2x + 1), which is +-1 where e^2x is infinite or 0.
inline V soft_cap(V s, float cap) {
  const V e = exp(mul(s, set1(2.0f / cap)));
  return mul(set1(cap), sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f)))));
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

// --- weighted sums -----------------------------------------------------------------------------------------------------------

// Values where they are stored: those of key j of a span, how many keys up to `to` follow it at `stride` bytes, and what comes
// after those (or the same again).
struct Run {
  const uint8_t *row, *ahead;
  int keys;
};
struct PagedValues {
  PagedValues(const KVPages& kv, const int32_t* table, int head, int first)
      : table(table), base(kv.values(0, head)), page_bytes(kv.page_bytes), stride(kv.value_bytes()), first(first), slots(kv.slots), shift(kv.page_shift()) {}
  const int32_t* table;
  const uint8_t* base;
  size_t page_bytes, stride;
  int first, slots, shift;
  const uint8_t* row(int j) const {
    const int position = first + j, slot = position & (slots - 1);
    return base + size_t(table[position >> shift]) * page_bytes + size_t(slot) * stride;
  }
  Run run(int j, int to) const {
    const int left = slots - ((first + j) & (slots - 1)), keys = left < to - j ? left : to - j;
    const uint8_t* p = row(j);
    return {p, j + keys < to ? row(j + keys) : p, keys};
  }
};

// Values converted to f32, from key `from` on; p is where column 0 of it would be.
struct ConvertedValues {
  const float* p;
  int from;
  size_t stride;
  Run run(int j, int to) const { return {(const uint8_t*)p + size_t(j - from) * stride, nullptr, to - j}; }
};

// NQ queries' weighted sums of NV * 16 columns of V, over keys [from, to) of the span: chains in order of position.
template <class L, int NQ, int NV, class Values>
inline void weigh(const Values& values, int from, int to, const float* weights, Partial* parts, int column) {
  constexpr bool wide = std::is_same_v<L, Nibbles>;  // a load brings two vectors
  V acc[NQ][NV];
  for (int n = 0; n < NQ; n++)
    for (int v = 0; v < NV; v++) acc[n][v] = load(parts[n].out + column + v * kLanes);
  const size_t stride = values.stride, offset = size_t(column) * sizeof(L) / (wide ? 2 : 1);
  for (int j = from; j < to;) {
    Run run = values.run(j, to);
    for (const int e = j + run.keys; j < e; j++, run.row += stride, run.ahead += stride) {
      const uint8_t* row = run.row + offset;
      if constexpr (!std::is_same_v<L, float>)
        for (size_t i = 0; i < NV * kLanes * sizeof(L) / (wide ? 2 : 1); i += 64) prefetch(run.ahead + offset + i);
      V x[NV];
      if constexpr (wide)
        load_pair((const L*)row, x[0], x[1]);
      else
        for (int v = 0; v < NV; v++) x[v] = load_element((const L*)row + v * kLanes);
      for (int n = 0; n < NQ; n++) {
        const V p = set1(weights[size_t(n) * kSpan + j]);
        for (int v = 0; v < NV; v++) acc[n][v] = fma(p, x[v], acc[n][v]);
      }
    }
  }
  for (int n = 0; n < NQ; n++)
    for (int v = 0; v < NV; v++) store(parts[n].out + column + v * kLanes, acc[n][v]);
}

// Columns [column, end) of NQ queries, if there are keys at all.
template <class L, int NQ, class Values>
inline void weigh_columns(const Values& values, Seen keys, const float* weights, Partial* parts, int column, int end) {
  if (keys.from >= keys.to) return;
  constexpr bool wide = std::is_same_v<L, Nibbles>;
  constexpr int vectors = wide ? 2 : vectors_with(NQ);
  for (; column + vectors * kLanes <= end; column += vectors * kLanes) weigh<L, NQ, vectors>(values, keys.from, keys.to, weights, parts, column);
  if constexpr (vectors > 2)
    for (; column + 2 * kLanes <= end; column += 2 * kLanes) weigh<L, NQ, 2>(values, keys.from, keys.to, weights, parts, column);
  if constexpr (!wide)
    for (; column < end; column += kLanes) weigh<L, NQ, 1>(values, keys.from, keys.to, weights, parts, column);
}

// Columns [column, end) of all queries, over keys [low, high). Keys that several queries see go together; what the earlier ones
// see before and the later ones after those, alone, so that nobody adds a masked key.
template <class L, class Values>
inline void weigh_keys(const Values& values, const Seen* seen, int count, int low, int high, const float* weights, Partial* parts, int column,
                       int end) {
  by_queries(count, [&](auto nq, int n) {
    const int last = n + nq() - 1, begin = seen[last].from < seen[n].to ? seen[last].from : kSpan, stop = seen[n].to;
    const auto alone = [&](int from, int to) {
      for (int i = n; i <= last; i++)
        weigh_columns<L, 1>(values, seen[i].within(from > low ? from : low, to < high ? to : high), weights + size_t(i) * kSpan, parts + i,
                            column, end);
    };
    alone(0, begin);
    if (begin == kSpan) return;  // nothing is seen by all of them
    weigh_columns<L, nq()>(values, Seen{begin, stop}.within(low, high), weights + size_t(n) * kSpan, parts + n, column, end);
    alone(stop, kSpan);
  });
}

// Values of keys [low, high), columns [column, end), in f32, row by row.
template <class E>
inline void convert_values(const PagedValues& values, int low, int high, int column, int end, float* to) {
  constexpr bool wide = std::is_same_v<E, Nibbles>;
  const size_t offset = size_t(column) * sizeof(E) / (wide ? 2 : 1), bytes = size_t(end - column) * sizeof(E) / (wide ? 2 : 1);
  for (int j = low; j < high;) {
    Run run = values.run(j, high);
    for (const int e = j + run.keys; j < e; j++, run.row += values.stride, run.ahead += values.stride, to += end - column) {
      const uint8_t* row = run.row + offset;
      for (size_t i = 0; i < bytes; i += 64) prefetch(run.ahead + offset + i);
      if constexpr (wide) {
        V low_half, high_half;
        load_pair((const E*)row, low_half, high_half);
        store(to, low_half), store(to + kLanes, high_half);
      } else {
        for (int i = 0; i < end - column; i += kLanes) store(to + i, load_element((const E*)row + i));
      }
    }
  }
}

// Columns [column, end) of all queries. A block of 4-bit values is all the columns at a time.
template <class E>
inline void weigh_all(const PagedValues& values, const Seen* seen, int count, const float* weights, Partial* parts, int column, int end,
                      float* memory) {
  const int to = seen[count - 1].to;
  if (std::is_same_v<E, float> || count <= kConverted) return weigh_keys<E>(values, seen, count, 0, to, weights, parts, column, end);
  for (int low = seen[0].from; low < to; low += kChunk) {
    const int high = low + kChunk < to ? low + kChunk : to;
    convert_values<E>(values, low, high, column, end, memory);
    const ConvertedValues converted{memory - column, low, size_t(end - column) * sizeof(float)};
    weigh_keys<float>(converted, seen, count, low, high, weights, parts, column, end);
  }
}

// Set `set` of the values' scales of the keys seen of a span, zeros for the others in their blocks of 16.
inline void value_scales(const KVPages& kv, const int32_t* table, int head, int first, Seen seen, int set, float* out) {
  for (int j = seen.begin(); j < seen.from; j++) out[j] = 0.0f;
  for (int j = seen.from; j < seen.to;) {
    const int page = table[kv.page(first + j)], slot = kv.slot(first + j);
    const uint16_t* from = kv.value_scales(page, head) + size_t(set) * kv.slots + slot;
    if (kv.slots >= kLanes && j % kLanes == 0 && seen.to - j >= kLanes) {
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
inline void weigh_blocks(const KVPages& kv, const int32_t* table, int head, int first, const Seen* seen, int count, const float* weights,
                         Partial* parts, float* memory) {
  constexpr bool offsets = std::is_same_v<E, Nibbles>;
  const PagedValues values(kv, table, head, first);
  const Seen all{seen[0].from, seen[count - 1].to};
  float *scaled = memory, *scales = scaled + size_t(count) * kSpan, *rest = scales + kSpan;
  for (int g = 0; g < kv.blocks(); g++) {
    const int column = g * kBlock, end = offsets ? column + kBlock : kv.padded;
    value_scales(kv, table, head, first, all, offsets ? 2 * g : g, scales);
    for (int n = 0; n < count; n++)
      for (int j = seen[n].begin(); j < seen[n].to; j += kLanes)
        store(scaled + size_t(n) * kSpan + j, mul(load(weights + size_t(n) * kSpan + j), load(scales + j)));
    weigh_all<E>(values, seen, count, scaled, parts, column, end, rest);
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

// --- a span ------------------------------------------------------------------------------------------------------------------

template <class E>
inline void attend_as(const KVPages& kv, const int32_t* table, const Queries& qs, int head, int span, const Scoring& scoring, Partial* parts,
                      float* scratch) {
  const int first = span * kSpan;
  Seen seen[kGroupMax];
  for (int n = 0; n < qs.count; n++) seen[n] = Seen{qs.first[n] - first, qs.last[n] + 1 - first}.within(0, kSpan);
  float* rest = scratch + size_t(qs.count) * kSpan;
  all_scores<E>(kv, table, qs, head, first, {seen[0].from, seen[qs.count - 1].to}, scoring.scale, scratch, rest);
  for (int n = 0; n < qs.count; n++) parts[n].max = greatest(scratch + size_t(n) * kSpan, seen[n], scoring.cap);
  for (int n = 0; n < qs.count; n++) {
    parts[n].sum = exponentials(scratch + size_t(n) * kSpan, seen[n], parts[n].max);
    for (int i = 0; i < kv.padded; i += kLanes) store(parts[n].out + i, zero());
  }
  if constexpr (sizeof(E) == 1)
    weigh_blocks<E>(kv, table, head, first, seen, qs.count, scratch, parts, rest);
  else
    weigh_all<E>(PagedValues(kv, table, head, first), seen, qs.count, scratch, parts, 0, kv.padded, rest);
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
