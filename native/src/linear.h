// Matrix products of integer activations with packed tiles: a strip of columns times a few rows at a time.
// An output element is one chain over blocks of 32, so any tiling of rows and columns has the same bits. Formats are in
// formats.h, sums of a block in products.h, f32 activations in linear_f32.h.
#pragma once

#include "products.h"

namespace pagoda::PAGODA_NS {

// --- one block of a strip -----------------------------------------------------------------------------------------------------

// kAcross registers of columns, from `column` of a matrix on. Those past the end repeat the last tile.
template <class F>
struct Strip {
  using Scales = typename F::Scales;
  const uint8_t *numbers[kAcross], *heads[kAcross];
  int column[kAcross];  // within its tile
  Strip(const Packed& w, int from) {
    for (int v = 0; v < kAcross; v++) {
      const int at = from + v * kColumns, t = at / kTile < w.tiles() ? at / kTile : w.tiles() - 1;
      const TileView<F> tile(w, t);
      column[v] = at % kTile;
      numbers[v] = tile.numbers + column[v] * 4;
      heads[v] = tile.heads;
    }
  }
  const uint8_t* block(int b, int v) const { return numbers[v] + size_t(b) * F::Numbers::bytes; }
  Scales scales(int b, int v) const { return Scales(heads[v] + size_t(b / Scales::blocks) * Scales::bytes, column[v]); }
};

// Weights that will be wanted soon, `count` blocks of a strip: to be fetched into the cache one after the other.
struct Ahead {
  static constexpr int tiles = kStrip < kTile ? 1 : kStrip / kTile;
  const uint8_t *numbers[tiles], *heads[tiles];
  int number_bytes, head_bytes;  // of a block
  int count = 0;
  Ahead() = default;
  template <class F>
  Ahead(const Strip<F>& strip, int b, int blocks) : number_bytes(F::Numbers::bytes), head_bytes(F::Scales::bytes / F::Scales::blocks), count(blocks) {
    for (int t = 0; t < tiles; t++) {
      const int v = t * kAcross / tiles;
      numbers[t] = strip.block(b, v) - strip.column[v] * 4;
      heads[t] = strip.heads[v] + b * head_bytes;
    }
  }
  // Inlined also because GCC drops calls of a function that does nothing else.
  PAGODA_INLINE void fetch(int i) const {
    if (i >= count) return;
    for (int t = 0; t < tiles; t++) {
      for (int line = 0; line < number_bytes; line += 64) __builtin_prefetch(numbers[t] + i * number_bytes + line);
      __builtin_prefetch(heads[t] + i * head_bytes);
    }
  }
};

// What scales the sums of a block: all that the multiplication of unpacked blocks knows of a format.
template <int Parts, bool Offset, int Bias, int Run>
struct Kind {
  static constexpr int parts = Parts, bias = Bias, run = Run;
  static constexpr bool offset = Offset;
};
template <class F, class A>
using KindOf = Kind<F::Scales::parts, F::Scales::offset, Operand<F, A>::bias, Operand<F, A>::run>;
// Of int16, unpacked weights are less the bias already.
template <class F, class A>
using UnpackedKindOf = Kind<F::Scales::parts, F::Scales::offset, sizeof(A) == 2 ? 0 : Operand<F, A>::bias, sizeof(A) == 2 ? 0 : Operand<F, A>::run>;

// The scales of a strip's registers, from one head each.
template <class F>
struct Heads {
  typename F::Scales of[kAcross];
  Heads(const Strip<F>& strip, int b) : Heads(strip, b, std::make_integer_sequence<int, kAcross>{}) {}

 private:
  template <int... V>
  Heads(const Strip<F>& strip, int b, std::integer_sequence<int, V...>) : of{strip.scales(b, V)...} {}
};

// A block's weights, unpacked as they are used.
template <class F, class A>
struct PackedBlock {
  static constexpr int run = Operand<F, A>::run;
  const Strip<F>& strip;
  const Heads<F>& heads;
  int b, at;  // the block; the same within its head
  template <int S>
  Bytes step(int v) const {
    return Operand<F, A>::template of<S>(strip.block(b, v));
  }
  Floats scale(int v, int part) const { return heads.of[v].scale(at, part); }
  Floats minimum(int v, int part) const { return heads.of[v].minimum(at, part); }
};

// A block's weights, unpacked ahead: for each register the operands of all steps, then f32 scales and offsets.
template <class K, class A>
struct UnpackedBlock {
  static constexpr int run = K::run, vector = kColumns * 4, scales_at = kSteps<A> * vector, minima_at = scales_at + K::parts * vector;
  static constexpr int across = minima_at + (K::offset ? K::parts * vector : 0), bytes = kAcross * across;
  const uint8_t* p;
  template <int S>
  Bytes step(int v) const {
    return load_bytes(p + v * across + S * vector);
  }
  Floats scale(int v, int part) const { return load_floats((const float*)(p + v * across + scales_at + part * vector)); }
  Floats minimum(int v, int part) const { return load_floats((const float*)(p + v * across + minima_at + part * vector)); }
};

// The blocks of one head, from b on, to `to`.
template <class F, class A>
inline void unpack(const Strip<F>& strip, int b, uint8_t* to) {
  using Block = UnpackedBlock<UnpackedKindOf<F, A>, A>;
  for (int v = 0; v < kAcross; v++) {
    const auto scales = strip.scales(b, v);
    for (int i = 0; i < F::Scales::blocks; i++) {
      uint8_t* p = to + i * Block::bytes + v * Block::across;
      unrolled<0, kSteps<A>>([&](auto s) __attribute__((always_inline)) {
        const Bytes w = Operand<F, A>::template of<s>(strip.block(b + i, v));
        save_bytes(p + s * Block::vector, sizeof(A) == 2 && F::bias ? pairs_less(w, F::bias) : w);
      });
      for (int part = 0; part < F::Scales::parts; part++) {
        save_floats((float*)(p + Block::scales_at + part * Block::vector), scales.scale(i, part));
        if constexpr (F::Scales::offset) save_floats((float*)(p + Block::minima_at + part * Block::vector), scales.minimum(i, part));
      }
    }
  }
}

// -bias * the sum of a part's activations.
template <class K>
inline Ints bias_of(const Quantized& x, size_t at, int part) {
  if constexpr (K::bias == 0) return spread(0);
  const int32_t neg8 = K::parts == 1 ? x.neg8[at] : part == 0 ? x.neg8_first[at] : x.neg8[at] - x.neg8_first[at];
  return spread(K::bias % 8 ? neg8 / 8 * K::bias : neg8 * (K::bias / 8));
}

// d * the sum of a part's activations.
template <class K>
inline Floats sum_of(const Quantized& x, size_t at, int part) {
  if constexpr (K::parts == 1) return spread(x.s[at]);
  const int32_t neg8 = part == 0 ? x.neg8_first[at] : x.neg8[at] - x.neg8_first[at];
  return spread(x.d[at] * float(neg8 / -8));
}

// One part of one block into the chains of MR rows, the first of which is at `at`.
template <class K, class A, int MR, int Part, class Block>
PAGODA_INLINE void add_part(const Block& block, const Quantized& x, size_t at, Floats (*chains)[kAcross]) {
  constexpr int steps = kSteps<A> / K::parts;
  Ints sum[MR][kAcross];
  const auto start = [&](int r) __attribute__((always_inline)) { return bias_of<K>(x, at + size_t(r), Part); };
  add_steps<A, MR, Part * steps, (Part + 1) * steps>(block, x.q + at * kBlock * sizeof(A), start, sum);
  for (int v = 0; v < kAcross; v++) {
    const Floats d = block.scale(v, Part);
    Floats m = d;
    if constexpr (K::offset) m = block.minimum(v, Part);
    for (int r = 0; r < MR; r++) {
      Floats chain = fma(mul(d, spread(x.d[at + size_t(r)])), to_floats(sum[r][v]), chains[r][v]);
      if constexpr (K::offset) chain = fma(m, sum_of<K>(x, at + size_t(r), Part), chain);
      chains[r][v] = chain;
    }
  }
}

template <class K, class A, int MR, class Block>
PAGODA_INLINE void add_block(const Block& block, const Quantized& x, size_t at, Floats (*chains)[kAcross]) {
  add_part<K, A, MR, 0>(block, x, at, chains);
  if constexpr (K::parts == 2) add_part<K, A, MR, 1>(block, x, at, chains);
}

// --- one strip ----------------------------------------------------------------------------------------------------------------

constexpr int kAhead = 8;  // blocks between fetching and use: a multiple of what any head serves

// MR rows of a strip's outputs, `stride` apart.
struct Rows {
  float* p;
  size_t stride;
  Rows from(int row) const { return {p + size_t(row) * stride, stride}; }
  template <int MR>
  PAGODA_INLINE void load(Floats (*chains)[kAcross]) const {
    for (int r = 0; r < MR; r++)
      for (int v = 0; v < kAcross; v++) chains[r][v] = load_floats(p + r * stride + v * kColumns);
  }
  template <int MR>
  PAGODA_INLINE void save(const Floats (*chains)[kAcross]) const {
    for (int r = 0; r < MR; r++)
      for (int v = 0; v < kAcross; v++) save_floats(p + r * stride + v * kColumns, chains[r][v]);
  }
};

template <int MR>
PAGODA_INLINE void clear(Floats (*chains)[kAcross]) {
  for (int r = 0; r < MR; r++)
    for (int v = 0; v < kAcross; v++) chains[r][v] = spread(0.0f);
}

// Between blocks the chains of many rows lie in memory, so that a block's sums have the registers to themselves.
template <int MR>
PAGODA_INLINE void set_aside(Floats (*chains)[kAcross]) {
  if constexpr (MR * kAcross > kRows * kAcross / 2) asm volatile("" : : "r"(chains) : "memory");
}

// MR rows within a panel, from packed blocks. `next` is the strip after this one, or null.
template <class F, class A, int MR>
__attribute__((noinline)) void packed_rows(const Strip<F>& strip, const Strip<F>* next, int nb, const Quantized& x, int row, Rows out) {
  constexpr int heads = F::Scales::blocks;
  Floats chains[MR][kAcross];
  clear<MR>(chains);
  size_t at = Quantized::at(row, nb, 0);
  Ahead ahead(strip, kAhead, nb - kAhead);
  for (int b = 0; b < nb; b += heads) {
    const Heads<F> scales(strip, b);
    if (b + kAhead >= nb) ahead = next ? Ahead(*next, 0, nb) : Ahead();
    for (int i = 0; i < heads; i++, at += kPanel) {
      ahead.fetch(b + kAhead < nb ? b + i : b + kAhead - nb + i);
      set_aside<MR>(chains);
      add_block<KindOf<F, A>, A, MR>(PackedBlock<F, A>{strip, scales, b + i, i}, x, at, chains);
    }
  }
  out.template save<MR>(chains);
}

// kRows rows within a panel, `count` blocks from `at` on, unpacked at `blocks`. Unless they are the first, chains go on from `so_far`.
template <class K, class A>
__attribute__((noinline)) void unpacked_rows(const uint8_t* blocks, int count, bool first, const Quantized& x, size_t at, const Ahead& ahead,
                                             Rows so_far, Rows out) {
  using Block = UnpackedBlock<K, A>;
  Floats chains[kRows][kAcross];
  clear<kRows>(chains);
  if (!first) so_far.template load<kRows>(chains);
  for (int i = 0; i < count; i++, at += kPanel, blocks += Block::bytes) {
    ahead.fetch(i);
    set_aside<kRows>(chains);
    add_block<K, A, kRows>(Block{blocks}, x, at, chains);
  }
  out.template save<kRows>(chains);
}

// Blocks that are unpacked together: a multiple of what any head serves; they stay in the first-level cache.
constexpr int kRun = 8;
// Rows whose chains lie between runs in the first-level cache too. In the output they would not: its rows are often a power of
// two of bytes apart, and then share a few sets of every cache.
constexpr int kAside = 128;

// Many rows, a multiple of kRows: a run of blocks is unpacked once for kAside of them.
template <class F, class A>
__attribute__((noinline)) void many_rows(const Strip<F>& strip, const Strip<F>* next, int nb, const Quantized& x, int row0, int rows, Rows out) {
  using K = UnpackedKindOf<F, A>;
  alignas(64) uint8_t blocks[kRun * UnpackedBlock<K, A>::bytes];
  alignas(64) float chains[kAside * kStrip];
  const Rows aside{chains, kStrip};
  for (int from = 0; from < rows; from += kAside)
    for (int b = 0; b < nb; b += kRun) {
      const int count = nb - b < kRun ? nb - b : kRun, after = nb - b - count;
      for (int i = 0; i < count; i += F::Scales::blocks) unpack<F, A>(strip, b + i, blocks + i * UnpackedBlock<K, A>::bytes);
      Ahead ahead = after ? Ahead(strip, b + kRun, after) : next ? Ahead(*next, 0, nb) : Ahead();
      for (int r = 0; r < kAside && from + r < rows; r += kRows) {
        unpacked_rows<K, A>(blocks, count, b == 0, x, Quantized::at(row0 + from + r, nb, b), ahead, aside.from(r),
                            after ? aside.from(r) : out.from(from + r));
        ahead.count = 0;
      }
    }
}
constexpr int kUnpackRows = 2 * kRows + 1;  // rows from which that pays

template <class F, class A, int MR = kRows>
inline void few_rows(const Strip<F>& strip, const Strip<F>* next, int nb, const Quantized& x, int row, int rows, Rows out) {
  if (rows == MR) return packed_rows<F, A, MR>(strip, next, nb, x, row, out);
  if constexpr (MR > 1) few_rows<F, A, MR - 1>(strip, next, nb, x, row, rows, out);
}

template <class F, class A>
inline void int_strip(const Packed& w, int column, int end, const Quantized& x, int row0, int rows, Rows out) {
  const Strip<F> strip(w, column), following(w, column + kStrip);
  const Strip<F>* next = column + kStrip < end ? &following : nullptr;
  const int nb = w.blocks();
  int r = 0;
  if (rows >= kUnpackRows) {
    r = rows / kRows * kRows;
    many_rows<F, A>(strip, next, nb, x, row0, r, out);
  }
  for (; r < rows; r += kRows) few_rows<F, A>(strip, next, nb, x, row0 + r, rows - r < kRows ? rows - r : kRows, out.from(r));
}

// Rows begin at a multiple of kPanel, so that no group of rows crosses a panel.
template <class F, class A>
inline void int_tiles(const Packed& w, int t, int tiles, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
  const int end = (t + tiles) * kTile < w.n ? (t + tiles) * kTile : w.n;
  int column = t * kTile;
  for (; column + kStrip <= end; column += kStrip) int_strip<F, A>(w, column, end, x, row0, rows, {out + size_t(row0) * ldo + column, ldo});
  if (column == end) return;
  // The last columns, fewer than a strip has: some rows at a time to the side, and what exists from there.
  for (int r = 0; r < rows; r += kPanel) {
    float edge[kPanel * kStrip];
    const int some = rows - r < kPanel ? rows - r : kPanel;
    int_strip<F, A>(w, column, end, x, row0 + r, some, {edge, kStrip});
    for (int i = 0; i < some; i++) std::memcpy(out + size_t(row0 + r + i) * ldo + column, edge + i * kStrip, size_t(end - column) * sizeof(float));
  }
}

// `w` is in a quantised format.
inline void linear_int(const Packed& w, int t, int tiles, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
  with_layout(w.format, [&](auto layout) {
    using F = decltype(layout);
    x.bytes == 1 ? int_tiles<F, int8_t>(w, t, tiles, x, row0, rows, out, ldo) : int_tiles<F, int16_t>(w, t, tiles, x, row0, rows, out, ldo);
  });
}

}  // namespace pagoda::PAGODA_NS
