// Sixteen virtual lanes of f32, whatever the instruction set: one zmm, two ymm, four NEON registers (simd_neon.h), or an array.
// Compiled once per instruction set into its own namespace (see isa.h). Every operation here is one IEEE operation per
// lane, so that code written with it has the same bits everywhere; nothing may contract or reorder.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa.h"

#if PAGODA_AVX2 || PAGODA_AVX512
#include <immintrin.h>
#elif PAGODA_NEON
#include "simd_neon.h"
#endif

namespace pagoda::PAGODA_NS {

constexpr int kLanes = 16;

// Have the line at p brought near: a hint, whatever p is.
inline void prefetch(const void* p) { __builtin_prefetch(p); }

inline float bits_float(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

inline uint32_t float_bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

#if PAGODA_AVX512

struct V {
  __m512 x;
};
inline V zero() { return {_mm512_setzero_ps()}; }
inline V set1(float a) { return {_mm512_set1_ps(a)}; }
inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a.x); }
inline V load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
inline void store_n(float* p, V a, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a.x); }
inline V load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline void store_f16(uint16_t* p, V a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline V load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline V add(V a, V b) { return {_mm512_add_ps(a.x, b.x)}; }
inline V sub(V a, V b) { return {_mm512_sub_ps(a.x, b.x)}; }
inline V mul(V a, V b) { return {_mm512_mul_ps(a.x, b.x)}; }
inline V div(V a, V b) { return {_mm512_div_ps(a.x, b.x)}; }
inline V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
inline V max(V a, V b) { return {_mm512_max_ps(a.x, b.x)}; }
inline V min(V a, V b) { return {_mm512_min_ps(a.x, b.x)}; }
inline V abs(V a) { return {_mm512_abs_ps(a.x)}; }
inline V round(V a) { return {_mm512_roundscale_ps(a.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a where x < y, else b.
inline V less(V x, V y, V a, V b) { return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.x, y.x, _CMP_LT_OQ), b.x, a.x)}; }
// 2^n for whole n in [-126, 127].
inline V exp2i(V n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.x), _mm512_set1_epi32(127)), 23))};
}
inline V swap_pairs(V a) { return {_mm512_permute_ps(a.x, 0xB1)}; }
inline __m256 fold(V a) { return _mm256_add_ps(_mm512_castps512_ps256(a.x), _mm512_extractf32x8_ps(a.x, 1)); }
inline __m256 fold_max(V a) { return _mm256_max_ps(_mm512_castps512_ps256(a.x), _mm512_extractf32x8_ps(a.x, 1)); }
// Whole numbers as bytes, in order; their sum.
inline int32_t store_integers(int8_t* p, V a) {
  const __m512i n = _mm512_cvtps_epi32(a.x);
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(n));
  return _mm512_reduce_add_epi32(n);
}
// Whole numbers as int16, each four of them as 0, 2, 1, 3; their sum.
inline int32_t store_integers(int16_t* p, V a) {
  const __m512i n = _mm512_cvtps_epi32(a.x);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_shuffle_epi32(n, _MM_PERM_DBCA)));
  return _mm512_reduce_add_epi32(n);
}

#elif PAGODA_AVX2

struct V {
  __m256 lo, hi;
};
inline V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline V load_n(const float* p, int n) {
  alignas(32) float t[16] = {};
  std::memcpy(t, p, size_t(n) * 4);
  return load(t);
}
inline void store_n(float* p, V a, int n) {
  alignas(32) float t[16];
  store(t, a);
  std::memcpy(p, t, size_t(n) * 4);
}
inline V load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline void store_f16(uint16_t* p, V a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline __m256 bf16_half(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline V load_bf16(const uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }
inline V add(V a, V b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline V sub(V a, V b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline V mul(V a, V b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline V div(V a, V b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline V max(V a, V b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline V min(V a, V b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline V abs(V a) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
inline V round(V a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline V less(V x, V y, V a, V b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ))};
}
inline __m256 exp2i_half(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline V exp2i(V n) { return {exp2i_half(n.lo), exp2i_half(n.hi)}; }
inline V swap_pairs(V a) { return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)}; }
inline __m256 fold(V a) { return _mm256_add_ps(a.lo, a.hi); }
inline __m256 fold_max(V a) { return _mm256_max_ps(a.lo, a.hi); }
inline int32_t sum_integers(__m256i lo, __m256i hi) {
  const __m256i s = _mm256_add_epi32(lo, hi);
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xB1)));
}
// Whole numbers as bytes, in order; their sum.
inline int32_t store_integers(int8_t* p, V a) {
  const __m256i lo = _mm256_cvtps_epi32(a.lo), hi = _mm256_cvtps_epi32(a.hi);
  const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xD8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
  return sum_integers(lo, hi);
}
// Whole numbers as int16, each four of them as 0, 2, 1, 3; their sum.
inline int32_t store_integers(int16_t* p, V a) {
  const __m256i lo = _mm256_shuffle_epi32(_mm256_cvtps_epi32(a.lo), 0xD8), hi = _mm256_shuffle_epi32(_mm256_cvtps_epi32(a.hi), 0xD8);
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xD8));
  return sum_integers(lo, hi);
}

#elif !PAGODA_NEON  // scalar: the bit oracle

struct V {
  float x[16];
};
template <class F>
inline V each(F f) {
  V r;
  for (int i = 0; i < 16; i++) r.x[i] = f(i);
  return r;
}
inline V set1(float a) {
  return each([&](int) { return a; });
}
inline V zero() { return set1(0.0f); }
inline V load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, V a) { std::memcpy(p, a.x, 64); }
inline V load_n(const float* p, int n) {
  return each([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_n(float* p, V a, int n) { std::memcpy(p, a.x, size_t(n) * 4); }
inline V load_f16(const uint16_t* p) {
  return each([&](int i) { return f16_to_f32(p[i]); });
}
inline void store_f16(uint16_t* p, V a) {
  for (int i = 0; i < 16; i++) p[i] = f32_to_f16(a.x[i]);
}
inline V load_bf16(const uint16_t* p) {
  return each([&](int i) { return bits_float(uint32_t(p[i]) << 16); });
}
inline V add(V a, V b) {
  return each([&](int i) { return a.x[i] + b.x[i]; });
}
inline V sub(V a, V b) {
  return each([&](int i) { return a.x[i] - b.x[i]; });
}
inline V mul(V a, V b) {
  return each([&](int i) { return a.x[i] * b.x[i]; });
}
inline V div(V a, V b) {
  return each([&](int i) { return a.x[i] / b.x[i]; });
}
inline V fma(V a, V b, V c) {
  return each([&](int i) { return std::fmaf(a.x[i], b.x[i], c.x[i]); });
}
// As the hardware does it: the second operand if either is NaN.
inline V max(V a, V b) {
  return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}
inline V min(V a, V b) {
  return each([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; });
}
inline V abs(V a) {
  return each([&](int i) { return bits_float(float_bits(a.x[i]) & 0x7fffffffu); });
}
inline V round(V a) {
  return each([&](int i) { return std::nearbyintf(a.x[i]); });
}
inline V less(V x, V y, V a, V b) {
  return each([&](int i) { return x.x[i] < y.x[i] ? a.x[i] : b.x[i]; });
}
inline V exp2i(V n) {
  return each([&](int i) { return bits_float(uint32_t(int32_t(n.x[i]) + 127) << 23); });
}
inline V swap_pairs(V a) {
  return each([&](int i) { return a.x[i ^ 1]; });
}
// Whole numbers as bytes, in order; their sum.
inline int32_t store_integers(int8_t* p, V a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; i++) sum += p[i] = int8_t(a.x[i]);
  return sum;
}
// Whole numbers as int16, each four of them as 0, 2, 1, 3; their sum.
inline int32_t store_integers(int16_t* p, V a) {
  constexpr int place[4] = {0, 2, 1, 3};
  int32_t sum = 0;
  for (int i = 0; i < 16; i++) sum += p[i / 4 * 4 + place[i % 4]] = int16_t(a.x[i]);
  return sum;
}

#endif

// 8-bit floats as f16: E5M2 is the upper half of one, E4M3's number is kE4M3 times what these bits say.
constexpr float kE4M3 = 256.0f;
inline uint16_t e4m3_bits(uint8_t a) { return uint16_t((a & 128) << 8 | (a & 127) << 7); }
inline uint16_t e5m2_bits(uint8_t a) { return uint16_t(a << 8); }
#if PAGODA_AVX512 || PAGODA_AVX2
inline __m256i upper_bytes(const uint8_t* p) { return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8); }
inline V from_f16(__m256i a) {
#if PAGODA_AVX512
  return {_mm512_cvtph_ps(a)};
#else
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
#endif
}
inline V load_e4m3(const uint8_t* p) {  // the sign comes down by one place too, and goes from the lower one
  return from_f16(_mm256_and_si256(_mm256_srai_epi16(upper_bytes(p), 1), _mm256_set1_epi16(int16_t(0xbfff))));
}
inline V load_e5m2(const uint8_t* p) { return from_f16(upper_bytes(p)); }
#else
inline V load_e4m3(const uint8_t* p) {
  uint16_t bits[16];
  for (int i = 0; i < 16; i++) bits[i] = e4m3_bits(p[i]);
  return load_f16(bits);
}
inline V load_e5m2(const uint8_t* p) {
  uint16_t bits[16];
  for (int i = 0; i < 16; i++) bits[i] = e5m2_bits(p[i]);
  return load_f16(bits);
}
#endif

// The one combining tree: lane i + lane i+8, then +4, +2, +1.
#if PAGODA_AVX512 || PAGODA_AVX2
inline float reduce_add(V a) {
  const __m256 eight = fold(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(V a) {
  const __m256 eight = fold_max(a);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#elif !PAGODA_NEON
inline float reduce_add(V a) {
  for (int h = 8; h > 0; h /= 2)
    for (int i = 0; i < h; i++) a.x[i] = a.x[i] + a.x[i + h];
  return a.x[0];
}
inline float reduce_max(V a) {
  for (int h = 8; h > 0; h /= 2)
    for (int i = 0; i < h; i++) a.x[i] = a.x[i] > a.x[i + h] ? a.x[i] : a.x[i + h];
  return a.x[0];
}
#endif

// e^x, to about 1 ulp. 0 below -87.33, so that no denormal appears; infinite above 88.37, the last of its binade.
// x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts (Cody & Waite); e^r by its Taylor polynomial of degree 7.
inline V exp(V x) {
  const V low = set1(-87.33f), high = set1(88.37f);
  const V held = max(min(x, high), low);
  const V n = round(mul(held, set1(1.44269504f)));
  V r = fma(n, set1(-0.693145751953125f), held);
  r = fma(n, set1(-1.42860682e-6f), r);
  V p = set1(1.98412698e-4f);
  p = fma(p, r, set1(1.38888889e-3f));
  p = fma(p, r, set1(8.33333333e-3f));
  p = fma(p, r, set1(4.16666667e-2f));
  p = fma(p, r, set1(1.66666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const V finite = less(x, low, zero(), mul(p, exp2i(n)));
  return less(high, x, set1(INFINITY), finite);
}

// cap * tanh(s / cap), by tanh(x) = 1 - 2 / (e^2x + 1), which is +-1 where e^2x is infinite or 0.
inline V soft_cap(V s, float cap) {
  const V e = exp(mul(s, set1(2.0f / cap)));
  return mul(set1(cap), sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f)))));
}

}  // namespace pagoda::PAGODA_NS
