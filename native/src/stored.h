// How model files store quantised blocks (and the catalogue those of checkpoints that have other layouts): for each format, the bytes of a block (of 32 or 256 numbers), its integers, made
// unsigned, and its scales, into a packed tile. Written from ggml's description of its formats; the same as pagoda.quant, which
// the tests compare with this. Knows how a tile lies only through formats.h.
#pragma once

#include "formats.h"

namespace pagoda::PAGODA_NS {

// Nibbles [from 0 or 4] of n bytes.
inline void nibbles(const uint8_t* in, int n, int shift, uint8_t* out) {
  for (int i = 0; i < n; i++) out[i] = in[i] >> shift & 15;
}

// 16 bytes: the low nibbles are numbers 0 to 15, the high ones 16 to 31.
inline void nibble_block(const uint8_t* in, uint8_t* out) {
  nibbles(in, 16, 0, out);
  nibbles(in, 16, 4, out + 16);
}

// Bits [shift, shift + width) of 32 bytes, on top of what is there.
inline void add_bits(const uint8_t* in, int shift, int width, int to, uint8_t* out) {
  for (int i = 0; i < kBlock; i++) out[i] = uint8_t(out[i] | (in[i] >> shift & ((1 << width) - 1)) << to);
}

// The fifth bits of 32 numbers, one after the other.
inline void add_fifth_bits(const uint8_t* in, uint8_t* out) {
  for (int i = 0; i < kBlock; i++) out[i] = uint8_t(out[i] | (in[i / 8] >> i % 8 & 1) << 4);
}

// `integers` gives the 32 numbers of sub-block b; `scales` writes all of the block's.
template <class F>
struct Stored;

template <>
struct Stored<Q4_0> {
  static constexpr int bytes = 18;
  static void integers(const uint8_t* in, int, uint8_t* out) { nibble_block(in + 2, out); }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Q4_0::Scales::pack(head, column, in, nullptr); }
};

template <>
struct Stored<Q4_1> {
  static constexpr int bytes = 20;
  static void integers(const uint8_t* in, int, uint8_t* out) { nibble_block(in + 4, out); }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Q4_1::Scales::pack(head, column, in, in + 2); }
};

template <>
struct Stored<Q5_0> {
  static constexpr int bytes = 22;
  static void integers(const uint8_t* in, int, uint8_t* out) {
    nibble_block(in + 6, out);
    add_fifth_bits(in + 2, out);
  }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Q5_0::Scales::pack(head, column, in, nullptr); }
};

template <>
struct Stored<Q5_1> {
  static constexpr int bytes = 24;
  static void integers(const uint8_t* in, int, uint8_t* out) {
    nibble_block(in + 8, out);
    add_fifth_bits(in + 4, out);
  }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Q5_1::Scales::pack(head, column, in, in + 2); }
};

template <>
struct Stored<Q8_0> {
  static constexpr int bytes = 34;
  static void integers(const uint8_t* in, int, uint8_t* out) {
    for (int i = 0; i < kBlock; i++) out[i] = in[2 + i] ^ 128;
  }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Q8_0::Scales::pack(head, column, in, nullptr); }
};

// Sixteen bytes of scale and minimum, 64 of pairs of bits, d, m.
template <>
struct Stored<Q2_K> {
  static constexpr int bytes = 84;
  static void integers(const uint8_t* in, int b, uint8_t* out) {
    std::memset(out, 0, kBlock);
    add_bits(in + 16 + b / 4 * 32, b % 4 * 2, 2, 0, out);
  }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Q2_K::Scales::pack(head, column, in + 80, in + 82, in); }
};

// 32 bytes of third bits, 64 of pairs of bits, 12 of scales, d.
template <>
struct Stored<Q3_K> {
  static constexpr int bytes = 110;
  static void integers(const uint8_t* in, int b, uint8_t* out) {
    std::memset(out, 0, kBlock);
    add_bits(in + 32 + b / 4 * 32, b % 4 * 2, 2, 0, out);
    add_bits(in, b, 1, 2, out);
  }
  static void scales(const uint8_t* in, uint8_t* head, int column) {
    const uint8_t* s = in + 96;
    uint8_t six[16];
    for (int i = 0; i < 16; i++) six[i] = uint8_t((s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4);
    Q3_K::Scales::pack(head, column, in + 108, six);
  }
};

// Q4_K, Q5_K: eight scales, then eight minima, from 12 bytes.
inline void six_bit_integers(const uint8_t* in, uint8_t* out) {
  for (int i = 0; i < 4; i++) {
    out[i] = in[i] & 63;
    out[4 + i] = uint8_t((in[8 + i] & 15) | in[i] >> 6 << 4);
    out[8 + i] = in[4 + i] & 63;
    out[12 + i] = uint8_t(in[8 + i] >> 4 | in[4 + i] >> 6 << 4);
  }
}

// d, m, scales and minima, nibbles.
template <>
struct Stored<Q4_K> {
  static constexpr int bytes = 144;
  static void integers(const uint8_t* in, int b, uint8_t* out) { nibbles(in + 16 + b / 2 * 32, kBlock, b % 2 * 4, out); }
  static void scales(const uint8_t* in, uint8_t* head, int column) {
    uint8_t integers[16];
    six_bit_integers(in + 4, integers);
    Q4_K::Scales::pack(head, column, in, in + 2, integers);
  }
};

// d, m, scales and minima, fifth bits, nibbles.
template <>
struct Stored<Q5_K> {
  static constexpr int bytes = 176;
  static void integers(const uint8_t* in, int b, uint8_t* out) {
    nibbles(in + 48 + b / 2 * 32, kBlock, b % 2 * 4, out);
    add_bits(in + 16, b, 1, 4, out);
  }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Stored<Q4_K>::scales(in, head, column); }
};

// Nibbles, upper pairs of bits, sixteen signed scales, d; each half of the block by itself.
template <>
struct Stored<Q6_K> {
  static constexpr int bytes = 210;
  static void integers(const uint8_t* in, int b, uint8_t* out) {
    nibbles(in + b / 4 * 64 + b % 2 * 32, kBlock, b % 4 / 2 * 4, out);
    add_bits(in + 128 + b / 4 * 32, b % 4 * 2, 2, 4, out);
  }
  static void scales(const uint8_t* in, uint8_t* head, int column) { Q6_K::Scales::pack(head, column, in + 208, in + 192); }
};

template <>
struct Stored<IQ4_NL> {
  static constexpr int bytes = 18;
  static void integers(const uint8_t* in, int, uint8_t* out) { nibble_block(in + 2, out); }
  static void scales(const uint8_t* in, uint8_t* head, int column) { IQ4_NL::Scales::pack(head, column, in, nullptr); }
};

// d, two bytes of upper pairs of bits and four of nibbles of the scales, nibbles.
template <>
struct Stored<IQ4_XS> {
  static constexpr int bytes = 136;
  static void integers(const uint8_t* in, int b, uint8_t* out) { nibble_block(in + 8 + b * 16, out); }
  static void scales(const uint8_t* in, uint8_t* head, int column) {
    uint8_t six[8];
    for (int i = 0; i < 8; i++) six[i] = uint8_t((in[4 + i / 2] >> i % 2 * 4 & 15) | (in[2 + i / 4] >> i % 4 * 2 & 3) << 4);
    IQ4_XS::Scales::pack(head, column, in, six);
  }
};

// f32 scale, f16 shift, nibbles as Q4_0's for each 32 numbers.
template <class F>
struct StoredNibbles {
  static constexpr int bytes = 6 + 16 * F::Scales::blocks;
  static void integers(const uint8_t* in, int b, uint8_t* out) { nibble_block(in + 6 + b * 16, out); }
  static void scales(const uint8_t* in, uint8_t* head, int column) { F::Scales::pack(head, column, in, in + 4); }
};
template <>
struct Stored<Q4_Z32> : StoredNibbles<Q4_Z32> {};
template <>
struct Stored<Q4_Z128> : StoredNibbles<Q4_Z128> {};

// f32 scale, f16 shift, unsigned bytes.
template <class F>
struct StoredBytes {
  static constexpr int bytes = 6 + kBlock * F::Scales::blocks;
  static void integers(const uint8_t* in, int b, uint8_t* out) { std::memcpy(out, in + 6 + b * kBlock, kBlock); }
  static void scales(const uint8_t* in, uint8_t* head, int column) { F::Scales::pack(head, column, in, in + 4); }
};
template <>
struct Stored<Q8_Z32> : StoredBytes<Q8_Z32> {};
template <>
struct Stored<Q8_Z128> : StoredBytes<Q8_Z128> {};

// 8-bit floats: f32 scale, 32 numbers.
constexpr int kStoredFloats = 4 + kBlock;

template <>
struct Stored<MXFP4> {
  static constexpr int bytes = 17;
  static void integers(const uint8_t* in, int, uint8_t* out) { nibble_block(in + 1, out); }
  static void scales(const uint8_t* in, uint8_t* head, int column) { MXFP4::Scales::pack(head, column, in); }
};

}  // namespace pagoda::PAGODA_NS
