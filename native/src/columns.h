// Columns of a tile side by side: what the matrix kernels need of an instruction set. kColumns of a tile's 16 columns lie in
// one register: one zmm (16), one ymm (8), or a plain number (1). Knows nothing of formats.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels.h"
#include "simd.h"

// In a kernel's innermost loops whatever is not inlined keeps sums in memory.
#define PAGODA_INLINE inline __attribute__((always_inline))

namespace pagoda::PAGODA_NS {

// Floats and Ints: a number for each column. Bytes: four bytes for each column, of four consecutive inputs.
//
// What products need besides: kAcross registers side by side make a strip, kRows rows of which are summed at a time.
// `pairs_less`, `low_bits_of_pairs`: of each column's two int16. `spread_four`: four bytes for all columns. `add_pairs`: each column's sum and
// two products of int16; `add_fours`: four, of unsigned bytes and signed ones. AVX2 has none of the latter: products.h.
#if PAGODA_AVX512

constexpr int kColumns = 16;
using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void save_bytes(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a); }
// Towards the lowest bit by N, or away from it by -N. Bits of the neighbouring byte may come in: mask them.
template <int N>
inline Bytes right(Bytes a) {
  if constexpr (N > 0) return _mm512_srli_epi16(a, N);
  if constexpr (N < 0) return _mm512_slli_epi16(a, -N);
  return a;
}
inline Bytes masked(Bytes a, int byte) { return _mm512_and_si512(a, _mm512_set1_epi8(char(byte))); }
inline Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
inline Bytes look_up(Bytes nibbles, const uint8_t* table) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), nibbles);
}

inline Ints spread(int32_t a) { return _mm512_set1_epi32(a); }
inline Ints load_unsigned(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
inline Ints load_signed(const uint8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }
inline Ints right(Ints a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
inline Ints left(Ints a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
inline Ints low_bits(Ints a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi32(mask)); }
inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints minus(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Floats as_floats(Ints bits) { return _mm512_castsi512_ps(bits); }

inline Floats spread(float a) { return _mm512_set1_ps(a); }
inline Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
inline Floats load_floats(const float* p, int n) { return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p); }
inline void save_floats(float* p, Floats a) { _mm512_storeu_ps(p, a); }
inline void save_floats(float* p, Floats a, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a); }
inline Floats load_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

constexpr int kAcross = 2, kRows = 8;  // 16 sums in 32 registers
inline Bytes pairs_less(Bytes a, int b) { return _mm512_sub_epi16(a, _mm512_set1_epi16(int16_t(b))); }
inline Bytes low_bits_of_pairs(Bytes a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi16(int16_t(mask))); }
inline Bytes spread_four(const uint8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return _mm512_set1_epi32(four);
}
inline Ints add_pairs(Ints sum, Bytes w, Bytes a) { return _mm512_dpwssd_epi32(sum, w, a); }
inline Ints add_fours(Ints sum, Bytes w, Bytes a) { return _mm512_dpbusd_epi32(sum, w, a); }

#elif PAGODA_AVX2

constexpr int kColumns = 8;
using Floats = __m256;
using Ints = __m256i;
using Bytes = __m256i;

inline Bytes load_bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void save_bytes(uint8_t* p, Bytes a) { _mm256_storeu_si256((__m256i*)p, a); }
template <int N>
inline Bytes right(Bytes a) {
  if constexpr (N > 0) return _mm256_srli_epi16(a, N);
  if constexpr (N < 0) return _mm256_slli_epi16(a, -N);
  return a;
}
inline Bytes masked(Bytes a, int byte) { return _mm256_and_si256(a, _mm256_set1_epi8(char(byte))); }
inline Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
inline Bytes look_up(Bytes nibbles, const uint8_t* table) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), nibbles);
}

inline Ints spread(int32_t a) { return _mm256_set1_epi32(a); }
inline Ints load_unsigned(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
inline Ints load_signed(const uint8_t* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
inline Ints right(Ints a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
inline Ints left(Ints a, int n) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n)); }
inline Ints low_bits(Ints a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi32(mask)); }
inline Ints plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints minus(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline Floats as_floats(Ints bits) { return _mm256_castsi256_ps(bits); }

inline Floats spread(float a) { return _mm256_set1_ps(a); }
inline Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
inline Floats load_floats(const float* p, int n) {
  alignas(32) float t[8] = {};
  std::memcpy(t, p, size_t(n) * 4);
  return _mm256_load_ps(t);
}
inline void save_floats(float* p, Floats a) { _mm256_storeu_ps(p, a); }
inline void save_floats(float* p, Floats a, int n) {
  alignas(32) float t[8];
  _mm256_store_ps(t, a);
  std::memcpy(p, t, size_t(n) * 4);
}
inline Floats load_halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

constexpr int kAcross = 2, kRows = 4;  // 8 sums in 16 registers
inline Bytes pairs_less(Bytes a, int b) { return _mm256_sub_epi16(a, _mm256_set1_epi16(int16_t(b))); }
inline Bytes low_bits_of_pairs(Bytes a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi16(int16_t(mask))); }
inline Bytes spread_four(const uint8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}
// Here and now: GCC else puts a block's additions off until after all its products, which then do not fit the registers.
inline __m256i at_once(__m256i a) {
  asm("" : "+x"(a));
  return a;
}
inline Ints add_pairs(Ints sum, Bytes w, Bytes a) { return at_once(_mm256_add_epi32(sum, _mm256_madd_epi16(w, a))); }
// Sums of two products as int16. The weights are unsigned and small; or signed, giving their sign to the activations.
inline Bytes small_fours(Bytes w, Bytes a) { return _mm256_maddubs_epi16(w, a); }
inline Bytes signed_fours(Bytes w, Bytes a) { return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w)); }
inline Bytes plus_pairs(Bytes a, Bytes b) { return at_once(_mm256_add_epi16(a, b)); }

#else

constexpr int kColumns = 1;
using Floats = float;
using Ints = int32_t;
using Bytes = uint32_t;

inline Bytes load_bytes(const uint8_t* p) {
  uint32_t a;
  std::memcpy(&a, p, 4);
  return a;
}
template <int N>
inline Bytes right(Bytes a) {  // in each half, as the others do
  constexpr int n = N < 0 ? -N : N;
  constexpr uint32_t kept = N < 0 ? 0xffffu << n & 0xffffu : 0xffffu >> n;
  return (N < 0 ? a << n : a >> n) & kept * 0x00010001u;
}
inline Bytes masked(Bytes a, int byte) { return a & (uint32_t(byte) * 0x01010101u); }
inline Bytes either(Bytes a, Bytes b) { return a | b; }
inline int byte_of(Bytes a, int i) { return int(a >> (8 * i) & 255); }
inline Bytes look_up(Bytes nibbles, const uint8_t* table) {
  Bytes found = 0;
  for (int i = 0; i < 4; i++) found |= Bytes(table[byte_of(nibbles, i)]) << (8 * i);
  return found;
}

inline Ints spread(int32_t a) { return a; }
inline Ints load_unsigned(const uint8_t* p) { return *p; }
inline Ints load_signed(const uint8_t* p) { return int8_t(*p); }
inline Ints right(Ints a, int n) { return int32_t(uint32_t(a) >> n); }
inline Ints left(Ints a, int n) { return int32_t(uint32_t(a) << n); }
inline Ints low_bits(Ints a, int mask) { return a & mask; }
inline Ints plus(Ints a, Ints b) { return a + b; }
inline Ints minus(Ints a, Ints b) { return a - b; }
inline Floats to_floats(Ints a) { return float(a); }
inline Floats as_floats(Ints bits) { return bits_float(uint32_t(bits)); }

inline Floats spread(float a) { return a; }
inline Floats load_floats(const float* p) { return *p; }
inline Floats load_floats(const float* p, int) { return *p; }
inline void save_floats(float* p, Floats a) { *p = a; }
inline void save_floats(float* p, Floats a, int) { *p = a; }
inline Floats load_halves(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return f16_to_f32(h);
}
inline Floats mul(Floats a, Floats b) { return a * b; }
inline Floats add(Floats a, Floats b) { return a + b; }
inline Floats fma(Floats a, Floats b, Floats c) { return std::fmaf(a, b, c); }

constexpr int kAcross = 1, kRows = 4;
inline void save_bytes(uint8_t* p, Bytes a) { std::memcpy(p, &a, 4); }
inline Bytes pairs_less(Bytes a, int b) { return ((a - Bytes(b)) & 0xffffu) | ((a >> 16) - Bytes(b)) << 16; }
inline Bytes low_bits_of_pairs(Bytes a, int mask) { return a & (uint32_t(mask) * 0x00010001u); }
inline Bytes spread_four(const uint8_t* p) { return load_bytes(p); }
inline Ints add_pairs(Ints sum, Bytes w, Bytes a) {
  for (int i = 0; i < 32; i += 16) sum += int16_t(w >> i) * int16_t(a >> i);
  return sum;
}
inline Ints add_fours(Ints sum, Bytes w, Bytes a) {
  for (int i = 0; i < 4; i++) sum += byte_of(w, i) * int8_t(byte_of(a, i));
  return sum;
}

#endif

// Of each column's four bytes the even two as int16, or the odd two.
inline Bytes even(Bytes a) { return low_bits_of_pairs(a, 255); }
inline Bytes odd(Bytes a) { return right<8>(a); }

// Byte J of each column's four.
template <int J>
inline Ints byte_at(Bytes a) {
  return low_bits(right(Ints(a), 8 * J), 255);
}

// f(integral_constant i) for i in [From, To).
template <int From, int To, class Fn>
PAGODA_INLINE void unrolled(Fn&& f) {
  const auto each_of = [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, From + I>{}), ...);
  };
  each_of(std::make_integer_sequence<int, To - From>{});
}

}  // namespace pagoda::PAGODA_NS
