// Attention over paged keys and values, one span of 256 absolute positions at a time (Dao et al. 2022's online softmax, with
// fixed split points so that chunking, batching and threads cannot move a rounding).
#pragma once

#include "attention_scores.h"

namespace pagoda::PAGODA_NS {

// --- weighted sums -----------------------------------------------------------------------------------------------------------

// Values where they are stored: those of key j of a span, how many keys up to `to` follow it at `stride` bytes, and what comes
// after those (or the same again).
struct Run {
  const uint8_t *row, *ahead;
  int keys;
};
struct PagedValues {
  PagedValues(const KVPages& kv, const int32_t* table, int head, int first)
      : table(table), base(kv.values(0, head)), page_bytes(kv.page_bytes), stride(kv.value_bytes()), first(first), slots(kv.slots),
        shift(kv.page_shift()) {}
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
