// Columns of a tile side by side: what the matrix kernels need of an instruction set. kColumns of a tile's 16 columns are
// handled together: one zmm (16), one ymm (8), or a plain number (1). Knows nothing of formats.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

// Floats and Ints: a number for each column. Bytes: four bytes for each column, of four consecutive inputs.
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
inline Bytes right(Bytes a) {
  return N >= 0 ? a >> (N & 31) : a << (-N & 31);
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

#endif

// Byte J of each column's four.
template <int J>
inline Ints byte_at(Bytes a) {
  return low_bits(right(Ints(a), 8 * J), 255);
}

// f(integral_constant i) for i in [From, To).
template <int From, int To, class Fn>
inline void unrolled(Fn&& f) {
  const auto each_of = [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, From + I>{}), ...); };
  each_of(std::make_integer_sequence<int, To - From>{});
}

}  // namespace pagoda::PAGODA_NS
