// Matrix products of integer activations with packed tiles: one 16-column tile times a few rows at a time.
// An output element is one chain over blocks of 32, so any tiling of rows and columns has the same bits. Formats are in
// formats.h, f32 activations in linear_f32.h.
#pragma once

#include "formats.h"

namespace pagoda::PAGODA_NS {

// --- one group of four inputs -----------------------------------------------------------------------------------------------

// A group's weights as the multiply-adds want them, for activations A = int8_t or int16_t; and the sums of products of a
// block's groups [From, To) for MR rows, of which the first has its activations at `a`. Integer sums are exact, so each
// instruction set forms them as it likes. `less_bias`: whether operands are numbers less the bias.
template <class F, class A, bool Ahead>
struct Operand;

#if PAGODA_AVX512

inline __m512i four_bytes(const void* a) {
  int four;
  std::memcpy(&four, a, 4);
  return _mm512_set1_epi32(four);
}

template <class F, bool Ahead>
struct Operand<F, int8_t, Ahead> {
  static constexpr bool less_bias = F::bias == 0;
  static constexpr int vectors = 1;
  __m512i w;
  explicit Operand(Bytes numbers) : w(numbers) {}
  Operand(const uint8_t* p, int column) : w(load_bytes(p + column * 4)) {}
  void save(uint8_t* p, int column) const { save_bytes(p + column * 4, w); }
  __m512i dot(__m512i sum, const int8_t* a) const { return _mm512_dpbusd_epi32(sum, w, four_bytes(a)); }
};

template <class F, bool Ahead>
struct Operand<F, int16_t, Ahead> {
  static constexpr bool less_bias = F::bias == 0 || Ahead;
  static constexpr int vectors = 2;
  __m512i even, odd;
  explicit Operand(Bytes numbers) : even(_mm512_and_si512(numbers, _mm512_set1_epi16(255))), odd(_mm512_srli_epi16(numbers, 8)) {
    if constexpr (less_bias && F::bias != 0) {
      even = _mm512_sub_epi16(even, _mm512_set1_epi16(F::bias));
      odd = _mm512_sub_epi16(odd, _mm512_set1_epi16(F::bias));
    }
  }
  Operand(const uint8_t* p, int column) : even(load_bytes(p + column * 4)), odd(load_bytes(p + 64 + column * 4)) {}
  void save(uint8_t* p, int column) const {
    save_bytes(p + column * 4, even);
    save_bytes(p + 64 + column * 4, odd);
  }
  __m512i dot(__m512i sum, const int16_t* a) const {
    return _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sum, even, four_bytes(a)), odd, four_bytes(a + 2));
  }
};

template <class F, int From, int To, int MR, class Block, class A>
inline void sum_groups(const Block& block, const A* a, Ints* sum) {
  unrolled<From, To>([&](auto g) {
    const auto w = block.template operand<g>();
    for (int r = 0; r < MR; r++) sum[r] = w.dot(sum[r], a + r * kBlock + g * 4);
  });
}
constexpr int kRowsInt = 8;

#elif PAGODA_AVX2

inline __m256i four_bytes(const void* a) {
  int four;
  std::memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// Here and now: GCC else puts a block's additions off until after all its products, which then do not fit the registers.
inline __m256i at_once(__m256i a) {
  asm("" : "+x"(a));
  return a;
}

// Bytes go in pairs through int16. Numbers so large that a pair would not fit are made signed, and give their sign to the
// activations: 128 * 127 * 2 fits.
template <class F, bool Ahead>
struct Operand<F, int8_t, Ahead> {
  static constexpr bool is_signed = F::Numbers::largest > 63;
  static constexpr bool less_bias = F::bias == 0 || is_signed;
  static constexpr int vectors = 1;
  // Groups whose pairs may be added in int16.
  static constexpr int run = is_signed ? 1 : 32767 / (254 * F::Numbers::largest);
  __m256i w;
  explicit Operand(Bytes numbers) : w(is_signed ? _mm256_sub_epi8(numbers, _mm256_set1_epi8(char(F::bias))) : numbers) {}
  Operand(const uint8_t* p, int column) : w(load_bytes(p + column * 4)) {}
  void save(uint8_t* p, int column) const { save_bytes(p + column * 4, w); }
  __m256i pairs(const int8_t* a) const {
    if constexpr (is_signed) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(four_bytes(a), w));
    return _mm256_maddubs_epi16(w, four_bytes(a));
  }
};

template <class F, bool Ahead>
struct Operand<F, int16_t, Ahead> {
  static constexpr bool less_bias = F::bias == 0 || Ahead;
  static constexpr int vectors = 2;
  __m256i even, odd;
  explicit Operand(Bytes numbers) : even(_mm256_and_si256(numbers, _mm256_set1_epi16(255))), odd(_mm256_srli_epi16(numbers, 8)) {
    if constexpr (less_bias && F::bias != 0) {
      even = _mm256_sub_epi16(even, _mm256_set1_epi16(F::bias));
      odd = _mm256_sub_epi16(odd, _mm256_set1_epi16(F::bias));
    }
  }
  Operand(const uint8_t* p, int column) : even(load_bytes(p + column * 4)), odd(load_bytes(p + 64 + column * 4)) {}
  void save(uint8_t* p, int column) const {
    save_bytes(p + column * 4, even);
    save_bytes(p + 64 + column * 4, odd);
  }
  __m256i dot(__m256i sum, const int16_t* a) const {
    sum = at_once(_mm256_add_epi32(sum, _mm256_madd_epi16(even, four_bytes(a))));
    return at_once(_mm256_add_epi32(sum, _mm256_madd_epi16(odd, four_bytes(a + 2))));
  }
};

template <class F, int From, int To, int MR, class Block>
inline void sum_groups(const Block& block, const int16_t* a, Ints* sum) {
  unrolled<From, To>([&](auto g) {
    const auto w = block.template operand<g>();
    for (int r = 0; r < MR; r++) sum[r] = w.dot(sum[r], a + r * kBlock + g * 4);
  });
}
template <class F, int From, int To, int MR, class Block>
inline void sum_groups(const Block& block, const int8_t* a, Ints* sum) {
  constexpr int run = Block::Weights::run;
  __m256i pairs[MR];
  unrolled<From, To>([&](auto g) {
    const auto w = block.template operand<g>();
    for (int r = 0; r < MR; r++) {
      const __m256i more = w.pairs(a + r * kBlock + g * 4);
      pairs[r] = (g - From) % run ? at_once(_mm256_add_epi16(pairs[r], more)) : more;
    }
    if constexpr ((g - From) % run == run - 1 || g == To - 1)
      for (int r = 0; r < MR; r++) sum[r] = at_once(_mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1))));
  });
}
constexpr int kRowsInt = 4;

#else

template <class F, class A, bool Ahead>
struct Operand {
  static constexpr bool less_bias = true;
  static constexpr int vectors = 2;
  int16_t w[4];
  explicit Operand(Bytes numbers) {
    for (int i = 0; i < 4; i++) w[i] = int16_t(byte_of(numbers, i) - F::bias);
  }
  Operand(const uint8_t* p, int column) { std::memcpy(w, p + column * 8, 8); }
  void save(uint8_t* p, int column) const { std::memcpy(p + column * 8, w, 8); }
  int32_t dot(int32_t sum, const A* a) const {
    constexpr int place[4] = {0, 2, 1, 3};  // of int16 activations: see Quantized
    for (int i = 0; i < 4; i++) sum += w[i] * a[sizeof(A) == 1 ? i : place[i]];
    return sum;
  }
};

template <class F, int From, int To, int MR, class Block, class A>
inline void sum_groups(const Block& block, const A* a, Ints* sum) {
  unrolled<From, To>([&](auto g) {
    const auto w = block.template operand<g>();
    for (int r = 0; r < MR; r++) sum[r] = w.dot(sum[r], a + r * kBlock + g * 4);
  });
}
constexpr int kRowsInt = 4;

#endif

// --- one block --------------------------------------------------------------------------------------------------------------

// A block's weights, unpacked as they are used.
template <class F, class A>
struct PackedBlock {
  using Weights = Operand<F, A, false>;
  const uint8_t* numbers;
  const typename F::Scales& scales;
  int at;  // the block within its head
  template <int G>
  Weights operand() const {
    return Weights(F::Numbers::template group<G>(numbers));
  }
  Floats scale(int part) const { return scales.scale(at, part); }
  Floats minimum(int part) const { return scales.minimum(at, part); }
};

// A block's weights, unpacked ahead for many rows: operands of its groups, then f32 scales and offsets.
template <class F, class A>
struct UnpackedBlock {
  using Weights = Operand<F, A, true>;
  using Scales = typename F::Scales;
  static constexpr int group_bytes = 64 * Weights::vectors, scales_at = kGroups * group_bytes, minima_at = scales_at + Scales::parts * kTile * 4;
  static constexpr int bytes = minima_at + (Scales::offset ? Scales::parts * kTile * 4 : 0);
  const uint8_t* p;
  int column;
  template <int G>
  Weights operand() const {
    return Weights(p + G * group_bytes, column);
  }
  Floats scale(int part) const { return load_floats((const float*)(p + scales_at) + part * kTile + column); }
  Floats minimum(int part) const { return load_floats((const float*)(p + minima_at) + part * kTile + column); }

  // The blocks of one head, from b on.
  static void unpack(const TileView<F>& w, int b, uint8_t* to) {
    for (int column = 0; column < kTile; column += kColumns) {
      const auto scales = w.scales(b, column);
      for (int i = 0; i < Scales::blocks; i++) {
        uint8_t* block = to + i * bytes;
        unrolled<0, kGroups>([&](auto g) { Weights(F::Numbers::template group<g>(w.block(b + i, column))).save(block + g * group_bytes, column); });
        for (int part = 0; part < Scales::parts; part++) {
          save_floats((float*)(block + scales_at) + part * kTile + column, scales.scale(i, part));
          if constexpr (Scales::offset) save_floats((float*)(block + minima_at) + part * kTile + column, scales.minimum(i, part));
        }
      }
    }
  }
};

// -bias * the sum of a part's activations.
template <class F>
inline Ints bias_of(const Quantized& x, size_t at, int part) {
  const int32_t neg8 = F::Scales::parts == 1 ? x.neg8[at] : part == 0 ? x.neg8_first[at] : x.neg8[at] - x.neg8_first[at];
  return spread(F::bias % 8 ? neg8 / 8 * F::bias : neg8 * (F::bias / 8));
}

// d * the sum of a part's activations.
template <class F>
inline Floats sum_of(const Quantized& x, size_t at, int part) {
  if constexpr (F::Scales::parts == 1) return spread(x.s[at]);
  const int32_t neg8 = part == 0 ? x.neg8_first[at] : x.neg8[at] - x.neg8_first[at];
  return spread(x.d[at] * float(neg8 / -8));
}

// One part of one block into the chains of MR rows, the first of which is at `at`.
template <class F, class A, int MR, int Part, class Block>
inline void add_part(const Block& block, const Quantized& x, size_t at, Floats* acc) {
  constexpr int groups = kGroups / F::Scales::parts;
  Ints sum[MR];
  for (int r = 0; r < MR; r++) {
    if constexpr (Block::Weights::less_bias)
      sum[r] = spread(0);
    else
      sum[r] = bias_of<F>(x, at + r, Part);
  }
  sum_groups<F, Part * groups, (Part + 1) * groups, MR>(block, (const A*)x.q + at * kBlock, sum);
  const Floats d = block.scale(Part);
  for (int r = 0; r < MR; r++) acc[r] = fma(mul(d, spread(x.d[at + r])), to_floats(sum[r]), acc[r]);
  if constexpr (F::Scales::offset) {
    const Floats m = block.minimum(Part);
    for (int r = 0; r < MR; r++) acc[r] = fma(m, sum_of<F>(x, at + r, Part), acc[r]);
  }
}

template <class F, class A, int MR, class Block>
inline void add_block(const Block& block, const Quantized& x, size_t at, Floats* acc) {
  add_part<F, A, MR, 0>(block, x, at, acc);
  if constexpr (F::Scales::parts == 2) add_part<F, A, MR, 1>(block, x, at, acc);
}

// --- one tile ---------------------------------------------------------------------------------------------------------------

// The chains of MR rows of kColumns columns, of which `cols` exist; to and from `out`.
template <int MR>
inline void load_rows(const float* out, size_t ldo, int cols, Floats* acc) {
  for (int r = 0; r < MR; r++) acc[r] = cols >= kColumns ? load_floats(out + r * ldo) : load_floats(out + r * ldo, cols);
}
template <int MR>
inline void save_rows(const Floats* acc, float* out, size_t ldo, int cols) {
  for (int r = 0; r < MR; r++) cols >= kColumns ? save_floats(out + r * ldo, acc[r]) : save_floats(out + r * ldo, acc[r], cols);
}

// Blocks that are handled together: a multiple of what any head serves; they stay in the first-level cache even unpacked.
constexpr int kRun = 8;

// MR rows within a panel, from packed blocks: a run of them for some columns, then for the next.
template <class F, class A, int MR>
inline void packed_rows(const TileView<F>& w, int nb, const Quantized& x, int row, float* out, size_t ldo, int cols) {
  constexpr int heads = F::Scales::blocks, across = kTile / kColumns;
  Floats chains[across][MR];
  for (int from = 0; from < nb; from += kRun)
    for (int c = 0; c < across; c++) {
      Floats acc[MR];
      for (int r = 0; r < MR; r++) acc[r] = from == 0 ? spread(0.0f) : chains[c][r];
      for (int b = from; b < nb && b < from + kRun; b += heads) {
        const auto scales = w.scales(b, c * kColumns);
        for (int i = 0; i < heads; i++)
          add_block<F, A, MR>(PackedBlock<F, A>{w.block(b + i, c * kColumns), scales, i}, x, Quantized::at(row, nb, b + i), acc);
      }
      for (int r = 0; r < MR; r++) chains[c][r] = acc[r];
    }
  for (int c = 0; c * kColumns < cols; c++) save_rows<MR>(chains[c], out + c * kColumns, ldo, cols - c * kColumns);
}

// MR rows within a panel, kColumns columns, blocks [b, b + count), unpacked at `blocks`; the chains so far are in `out` unless b is 0.
template <class F, class A, int MR>
inline void unpacked_rows(const uint8_t* blocks, int column, int b, int count, int nb, const Quantized& x, int row, float* out, size_t ldo,
                          int cols) {
  Floats acc[MR];
  for (auto& chain : acc) chain = spread(0.0f);
  if (b > 0) load_rows<MR>(out, ldo, cols, acc);
  size_t at = Quantized::at(row, nb, b);
  for (int i = 0; i < count; i++, at += kPanel)
    add_block<F, A, MR>(UnpackedBlock<F, A>{blocks + i * UnpackedBlock<F, A>::bytes, column}, x, at, acc);
  save_rows<MR>(acc, out, ldo, cols);
}

// Many rows, a multiple of kRowsInt: a run of blocks is unpacked once for all of them.
template <class F, class A>
inline void many_rows(const TileView<F>& w, int nb, const Quantized& x, int row0, int rows, float* out, size_t ldo, int cols) {
  alignas(64) uint8_t blocks[kRun * UnpackedBlock<F, A>::bytes];
  for (int b = 0; b < nb; b += kRun) {
    const int count = nb - b < kRun ? nb - b : kRun;
    for (int i = 0; i < count; i += F::Scales::blocks) UnpackedBlock<F, A>::unpack(w, b + i, blocks + i * UnpackedBlock<F, A>::bytes);
    for (int r = 0; r < rows; r += kRowsInt)
      for (int c = 0; c < cols; c += kColumns)
        unpacked_rows<F, A, kRowsInt>(blocks, c, b, count, nb, x, row0 + r, out + r * ldo + c, ldo, cols - c);
  }
}
constexpr int kUnpackRows = 2 * kRowsInt;  // rows from which unpacking ahead pays

// Rows begin at a multiple of kPanel, so that no group of rows crosses a panel.
template <class F, class A>
inline void int_tile(const Packed& w, int t, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
  const TileView<F> view(w, t);
  const int nb = w.blocks(), cols = w.n - t * kTile < kTile ? w.n - t * kTile : kTile;
  float* o = out + size_t(row0) * ldo + size_t(t) * kTile;
  int r = 0;
  if (rows >= kUnpackRows) {
    r = rows / kRowsInt * kRowsInt;
    many_rows<F, A>(view, nb, x, row0, r, o, ldo, cols);
  }
  for (; r + kRowsInt <= rows; r += kRowsInt) packed_rows<F, A, kRowsInt>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
  if constexpr (kRowsInt > 4)
    for (; r + 4 <= rows; r += 4) packed_rows<F, A, 4>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
  for (; r + 2 <= rows; r += 2) packed_rows<F, A, 2>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
  for (; r < rows; r++) packed_rows<F, A, 1>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
}

// `w` is in a quantised format.
inline void linear_int(const Packed& w, int t, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
  with_layout(w.format, [&](auto layout) {
    using F = decltype(layout);
    x.bytes == 1 ? int_tile<F, int8_t>(w, t, x, row0, rows, out, ldo) : int_tile<F, int16_t>(w, t, x, row0, rows, out, ldo);
  });
}

}  // namespace pagoda::PAGODA_NS
