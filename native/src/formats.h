// Quantised weight formats as packed tiles hold them: how the integers of a block lie and how its scale is found. A format is
// one `Layout`; how a file stores it is in pack.cpp. Kernels (linear.h) know formats only through this.
//
// A block is 32 inputs of 16 columns; its inputs lie in 8 groups of four, a group's four bytes side by side for each column:
// 64 bytes. Numbers are stored unsigned: a number is what is stored less the format's bias.
#pragma once

#include <cstdlib>

#include "columns.h"

namespace pagoda::PAGODA_NS {

constexpr int kGroups = kBlock / 4;

// --- integers ---------------------------------------------------------------------------------------------------------------

// Numbers of Low + High bits, in planes: the lower bits of all groups, then the upper bits. A plane of w bits is w vectors of
// 64 bytes; a vector holds 8 / w groups, the first in the lowest bits. No bit is wasted.
template <int Low, int High = 0>
struct Planes {
  static constexpr int bytes = 64 * (Low + High), largest = (1 << (Low + High)) - 1;

  // Group G of kColumns columns; `p` is the block plus 4 bytes for each column before.
  template <int G>
  static Bytes group(const uint8_t* p) {
    const Bytes low = plane<Low, G, 0>(p);
    if constexpr (High > 0) return either(low, plane<High, G, Low>(p + Low * 64));
    return low;
  }

  // The even two of group G's inputs as int16, or the odd two: of one plane, taken out at once.
  template <int G, int Odd>
  static Bytes pairs(const uint8_t* p) {
    if constexpr (High > 0) return Odd ? odd(group<G>(p)) : even(group<G>(p));
    constexpr int groups = 8 / Low, from = Low * (G % groups) + 8 * Odd;
    const Bytes moved = right<from>(load_bytes(p + G / groups * 64));
    return from + Low == 16 ? moved : low_bits_of_pairs(moved, (1 << Low) - 1);
  }

  // 32 numbers of one column.
  static void pack(uint8_t* block, int column, const uint8_t* numbers) {
    pack_plane<Low>(block + column * 4, numbers, 0);
    if constexpr (High > 0) pack_plane<High>(block + Low * 64 + column * 4, numbers, Low);
  }

 private:
  // The Width bits of group G, as bits To and up.
  template <int Width, int G, int To>
  static Bytes plane(const uint8_t* p) {
    constexpr int groups = 8 / Width, from = Width * (G % groups);
    const Bytes moved = right<from - To>(load_bytes(p + G / groups * 64));
    if constexpr (Width == 8) return moved;
    return masked(moved, ((1 << Width) - 1) << To);
  }
  template <int Width>
  static void pack_plane(uint8_t* p, const uint8_t* numbers, int from) {
    constexpr uint32_t mask = ((1u << Width) - 1) * 0x01010101u;
    constexpr int groups = 8 / Width;
    for (int v = 0; v < Width; v++) {
      uint32_t word = 0;
      for (int j = 0; j < groups; j++) {
        uint32_t four;
        std::memcpy(&four, numbers + (v * groups + j) * 4, 4);
        word |= (four >> from & mask) << (Width * j);
      }
      std::memcpy(p + v * 64, &word, 4);
    }
  }
};

// Nibbles that stand for the numbers of a table of 16.
template <class Table>
struct Lookup {
  static constexpr int bytes = Planes<4>::bytes, largest = Table::largest;
  template <int G>
  static Bytes group(const uint8_t* p) {
    return look_up(Planes<4>::group<G>(p), Table::numbers);
  }
  template <int G, int Odd>
  static Bytes pairs(const uint8_t* p) {
    return Odd ? odd(group<G>(p)) : even(group<G>(p));
  }
  static void pack(uint8_t* block, int column, const uint8_t* numbers) { Planes<4>::pack(block, column, numbers); }
};
struct NonLinear {  // IQ4: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, with 128 added
  static constexpr uint8_t numbers[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
  static constexpr int largest = 241;
};
struct E2M1 {  // twice 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, with 16 added
  static constexpr uint8_t numbers[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
  static constexpr int largest = 28;
};

// --- scales -----------------------------------------------------------------------------------------------------------------

// Scales lie in heads after all blocks' integers. A head serves `blocks` blocks, each of which has `parts` scales (of 32 or 16
// inputs), and offsets if `offset`. Constructed for kColumns columns from `column` on.

constexpr int kHalves = kTile * 2;  // bytes of an f16 for each column

inline void pack_half(uint8_t* p, int column, const uint8_t* half) { std::memcpy(p + column * 2, half, 2); }

// f16 scale and, if Offset, f16 offset.
template <bool Offset>
struct Halves {
  static constexpr int blocks = 1, parts = 1, bytes = kHalves * (Offset ? 2 : 1);
  static constexpr bool offset = Offset;
  Floats d, m;
  Halves(const uint8_t* head, int column) : d(load_halves(head + column * 2)), m(d) {
    if constexpr (Offset) m = load_halves(head + kHalves + column * 2);
  }
  Floats scale(int, int) const { return d; }
  Floats minimum(int, int) const { return m; }
  static void pack(uint8_t* head, int column, const uint8_t* scale, const uint8_t* minimum) {
    pack_half(head, column, scale);
    if constexpr (Offset) pack_half(head + kHalves, column, minimum);
  }
};

// f32 scale; in f16, a whole number that is added to each of the block's numbers: what the bias and the zero point differ by.
template <int Blocks>
struct ZeroPoints {
  static constexpr int blocks = Blocks, parts = 1, bytes = kTile * 4 + kHalves;
  static constexpr bool offset = true;
  Floats d, shift;
  ZeroPoints(const uint8_t* head, int column)
      : d(load_floats((const float*)(head + column * 4))), shift(load_halves(head + kTile * 4 + column * 2)) {}
  Floats scale(int, int) const { return d; }
  Floats minimum(int, int) const { return mul(d, shift); }
  static void pack(uint8_t* head, int column, const uint8_t* scale, const uint8_t* shift) {
    std::memcpy(head + column * 4, scale, 4);
    pack_half(head + kTile * 4, column, shift);
  }
};

// A byte e, which is 2^(e - 128): half of what OCP's E8M0 says, since E2M1 above is doubled. Two factors, both normal.
struct Exponents {
  static constexpr int blocks = 1, parts = 1, bytes = kTile;
  static constexpr bool offset = false;
  Floats d;
  Exponents(const uint8_t* head, int column) : d(power(load_unsigned(head + column))) {}
  Floats scale(int, int) const { return d; }
  static Floats power(Ints e) {
    const Ints half = right(e, 1), bias = spread(63);
    return mul(as_floats(left(plus(half, bias), 23)), as_floats(left(plus(minus(e, half), bias), 23)));
  }
  static void pack(uint8_t* head, int column, const uint8_t* exponent) { head[column] = *exponent; }
};

// N six-bit integers for each of 16 columns, in quarters of N / 4: nibbles of the first quarter share bytes with those of the
// third, of the second with the fourth; upper bits of all four share bytes. So whole vectors are unpacked at a time.
template <int N>
struct SixBits {
  static constexpr int bytes = kTile * N * 3 / 4, quarter = kTile * N / 4;
  alignas(64) uint8_t numbers[kTile * N];
  explicit SixBits(const uint8_t* p) {
    unrolled<0, 4>([&](auto s) {
      const uint8_t *low = p + s % 2 * quarter, *high = p + 2 * quarter;
      for (int i = 0; i < quarter; i++) numbers[s * quarter + i] = uint8_t((low[i] >> s / 2 * 4 & 15) | (high[i] >> s * 2 & 3) << 4);
    });
  }
  Ints at(int i, int column) const { return load_unsigned(numbers + i * kTile + column); }
  static void pack(uint8_t* p, int column, const uint8_t* numbers) {
    constexpr int n = N / 4;
    for (int i = 0; i < 2 * n; i++) p[i * kTile + column] = uint8_t((numbers[i] & 15) | numbers[i + 2 * n] << 4);
    for (int i = 0; i < n; i++) {
      int upper = 0;
      for (int s = 0; s < 4; s++) upper |= numbers[s * n + i] >> 4 << 2 * s;
      p[2 * quarter + i * kTile + column] = uint8_t(upper);
    }
  }
};

// Q4_K, Q5_K: f16 d and m; six bits of scale for each of eight blocks, then six bits of minimum.
struct ScalesAndMinima {
  static constexpr int blocks = 8, parts = 1, bytes = 2 * kHalves + SixBits<16>::bytes;
  static constexpr bool offset = true;
  Floats d, m;
  int column;
  SixBits<16> integers;
  ScalesAndMinima(const uint8_t* head, int column_)
      : d(load_halves(head + column_ * 2)),
        m(mul(load_halves(head + kHalves + column_ * 2), spread(-1.0f))),
        column(column_),
        integers(head + 2 * kHalves) {}
  Floats scale(int b, int) const { return mul(d, to_floats(integers.at(b, column))); }
  Floats minimum(int b, int) const { return mul(m, to_floats(integers.at(8 + b, column))); }
  static void pack(uint8_t* head, int column, const uint8_t* d, const uint8_t* m, const uint8_t* integers) {
    pack_half(head, column, d);
    pack_half(head + kHalves, column, m);
    SixBits<16>::pack(head + 2 * kHalves, column, integers);
  }
};

// Q3_K, IQ4_XS: f16 d; six bits of scale, less 32, for each part of a block.
template <int Parts>
struct CentredScales {
  static constexpr int blocks = 8, parts = Parts, bytes = kHalves + SixBits<8 * Parts>::bytes;
  static constexpr bool offset = false;
  Floats d;
  int column;
  SixBits<8 * Parts> integers;
  CentredScales(const uint8_t* head, int column_) : d(load_halves(head + column_ * 2)), column(column_), integers(head + kHalves) {}
  Floats scale(int b, int part) const { return mul(d, to_floats(minus(integers.at(b * Parts + part, column), spread(32)))); }
  static void pack(uint8_t* head, int column, const uint8_t* d, const uint8_t* scales) {
    pack_half(head, column, d);
    SixBits<8 * Parts>::pack(head + kHalves, column, scales);
  }
};

// Q6_K: f16 d; a signed byte of scale for each half of a block.
struct SignedScales {
  static constexpr int blocks = 8, parts = 2, bytes = kHalves + 16 * kTile;
  static constexpr bool offset = false;
  Floats d;
  const uint8_t* integers;
  SignedScales(const uint8_t* head, int column) : d(load_halves(head + column * 2)), integers(head + kHalves + column) {}
  Floats scale(int b, int part) const { return mul(d, to_floats(load_signed(integers + (2 * b + part) * kTile))); }
  static void pack(uint8_t* head, int column, const uint8_t* d, const uint8_t* scales) {
    pack_half(head, column, d);
    for (int i = 0; i < 16; i++) head[kHalves + i * kTile + column] = scales[i];
  }
};

// Q2_K: f16 d and m; for each half of a block a nibble of scale and one of minimum.
struct NibblePairs {
  static constexpr int blocks = 8, parts = 2, bytes = 2 * kHalves + 16 * kTile;
  static constexpr bool offset = true;
  Floats d, m;
  const uint8_t* integers;
  NibblePairs(const uint8_t* head, int column)
      : d(load_halves(head + column * 2)), m(mul(load_halves(head + kHalves + column * 2), spread(-1.0f))), integers(head + 2 * kHalves + column) {}
  Floats scale(int b, int part) const { return mul(d, to_floats(low_bits(load_unsigned(integers + (2 * b + part) * kTile), 15))); }
  Floats minimum(int b, int part) const { return mul(m, to_floats(right(load_unsigned(integers + (2 * b + part) * kTile), 4))); }
  static void pack(uint8_t* head, int column, const uint8_t* d, const uint8_t* m, const uint8_t* pairs) {
    pack_half(head, column, d);
    pack_half(head + kHalves, column, m);
    for (int i = 0; i < 16; i++) head[2 * kHalves + i * kTile + column] = pairs[i];
  }
};

// --- formats ----------------------------------------------------------------------------------------------------------------

template <class N, class S, int Bias>
struct Layout {
  using Numbers = N;
  using Scales = S;
  static constexpr int bias = Bias;
};

struct Q4_0 : Layout<Planes<4>, Halves<false>, 8> {};
struct Q4_1 : Layout<Planes<4>, Halves<true>, 0> {};
struct Q5_0 : Layout<Planes<4, 1>, Halves<false>, 16> {};
struct Q5_1 : Layout<Planes<4, 1>, Halves<true>, 0> {};
struct Q8_0 : Layout<Planes<8>, Halves<false>, 128> {};
struct Q2_K : Layout<Planes<2>, NibblePairs, 0> {};
struct Q3_K : Layout<Planes<2, 1>, CentredScales<2>, 4> {};
struct Q4_K : Layout<Planes<4>, ScalesAndMinima, 0> {};
struct Q5_K : Layout<Planes<4, 1>, ScalesAndMinima, 0> {};
struct Q6_K : Layout<Planes<4, 2>, SignedScales, 32> {};
struct IQ4_NL : Layout<Lookup<NonLinear>, Halves<false>, 128> {};
struct IQ4_XS : Layout<Lookup<NonLinear>, CentredScales<1>, 128> {};
struct MXFP4 : Layout<Lookup<E2M1>, Exponents, 16> {};
struct Q4_Z32 : Layout<Planes<4>, ZeroPoints<1>, 8> {};
struct Q4_Z128 : Layout<Planes<4>, ZeroPoints<4>, 8> {};
struct Q8_Z32 : Layout<Planes<8>, ZeroPoints<1>, 128> {};
struct Q8_Z128 : Layout<Planes<8>, ZeroPoints<4>, 128> {};

// f(a format's layout); `format` is one of integers.
template <class Fn>
inline auto with_layout(Format format, Fn&& f) {
  switch (format) {
    case Format::Q4_0: return f(Q4_0{});
    case Format::Q4_1: return f(Q4_1{});
    case Format::Q5_0: return f(Q5_0{});
    case Format::Q5_1: return f(Q5_1{});
    case Format::Q8_0: return f(Q8_0{});
    case Format::Q2_K: return f(Q2_K{});
    case Format::Q3_K: return f(Q3_K{});
    case Format::Q4_K: return f(Q4_K{});
    case Format::Q5_K: return f(Q5_K{});
    case Format::Q6_K: return f(Q6_K{});
    case Format::IQ4_NL: return f(IQ4_NL{});
    case Format::IQ4_XS: return f(IQ4_XS{});
    case Format::MXFP4: return f(MXFP4{});
    case Format::Q4_Z32: return f(Q4_Z32{});
    case Format::Q4_Z128: return f(Q4_Z128{});
    case Format::Q8_Z32: return f(Q8_Z32{});
    case Format::Q8_Z128: return f(Q8_Z128{});
    case Format::F32:
    case Format::F16:
    case Format::BF16:
    case Format::F8_E4M3:
    case Format::F8_E5M2: break;
  }
  std::abort();
}

// A tile: all blocks' integers, then the heads.
template <class F>
struct TileView {
  const uint8_t *numbers, *heads;
  explicit TileView(const Packed& w, int t) : numbers(w.tile(t)), heads(numbers + size_t(w.blocks()) * F::Numbers::bytes) {}
  const uint8_t* block(int b, int column) const { return numbers + size_t(b) * F::Numbers::bytes + column * 4; }
  typename F::Scales scales(int b, int column) const { return {heads + size_t(b / F::Scales::blocks) * F::Scales::bytes, column}; }
};

// What the stored weights of block b are, as the file defines them: scale * number, then + offset; with a zero point,
// scale * (number + shift), the sum exact. To [32][kColumns].
template <class F>
inline void dequantise(const TileView<F>& w, int b, int column, Floats* out) {
  const auto scales = w.scales(b, column);
  const uint8_t* block = w.block(b, column);
  const int at = b % F::Scales::blocks;
  unrolled<0, kBlock>([&](auto i) {
    constexpr int part = i * F::Scales::parts / kBlock;
    Floats number = to_floats(minus(byte_at<i % 4>(F::Numbers::template group<i / 4>(block)), spread(F::bias)));
    if constexpr (requires { scales.shift; }) number = add(number, scales.shift);
    out[i] = mul(scales.scale(at, part), number);
    if constexpr (F::Scales::offset && !requires { scales.shift; }) out[i] = add(out[i], scales.minimum(at, part));
  });
}

}  // namespace pagoda::PAGODA_NS
