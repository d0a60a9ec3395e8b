// columns.h for AArch64 with dot products: four columns in a register. Of ARMv8.2's instructions `sdot` multiplies signed bytes alone,
// so that numbers above 127 are made signed first (products.h).
#pragma once

#include "kernels.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

constexpr int kColumns = 4;
using Floats = float32x4_t;
using Ints = int32x4_t;
using Bytes = uint8x16_t;

inline Bytes load_bytes(const uint8_t* p) { return vld1q_u8(p); }
inline void save_bytes(uint8_t* p, Bytes a) { vst1q_u8(p, a); }
template <int N>
inline Bytes right(Bytes a) {
  const uint16x8_t pairs = vreinterpretq_u16_u8(a);
  if constexpr (N > 0) return vreinterpretq_u8_u16(vshrq_n_u16(pairs, N));
  if constexpr (N < 0) return vreinterpretq_u8_u16(vshlq_n_u16(pairs, -N));
  return a;
}
inline Bytes masked(Bytes a, int byte) { return vandq_u8(a, vdupq_n_u8(uint8_t(byte))); }
inline Bytes either(Bytes a, Bytes b) { return vorrq_u8(a, b); }
inline Bytes look_up(Bytes nibbles, const uint8_t* table) { return vqtbl1q_u8(vld1q_u8(table), nibbles); }

inline uint8x8_t load_four(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, 4);
  return vcreate_u8(four);
}
inline Ints spread(int32_t a) { return vdupq_n_s32(a); }
inline Ints load_unsigned(const uint8_t* p) { return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_four(p))))); }
inline Ints load_signed(const uint8_t* p) { return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_four(p))))); }
inline Ints right(Ints a, int n) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n))); }
inline Ints left(Ints a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
inline Ints low_bits(Ints a, int mask) { return vandq_s32(a, vdupq_n_s32(mask)); }
inline Ints plus(Ints a, Ints b) { return vaddq_s32(a, b); }
inline Ints minus(Ints a, Ints b) { return vsubq_s32(a, b); }
inline Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }
inline Floats as_floats(Ints bits) { return vreinterpretq_f32_s32(bits); }

inline Floats spread(float a) { return vdupq_n_f32(a); }
inline Floats load_floats(const float* p) { return vld1q_f32(p); }
inline Floats load_floats(const float* p, int n) {
  float t[kColumns] = {};
  std::memcpy(t, p, size_t(n) * 4);
  return vld1q_f32(t);
}
inline void save_floats(float* p, Floats a) { vst1q_f32(p, a); }
inline void save_floats(float* p, Floats a, int n) {
  float t[kColumns];
  vst1q_f32(t, a);
  std::memcpy(p, t, size_t(n) * 4);
}
inline Floats load_halves(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
inline Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }

constexpr int kAcross = 4, kRows = 4;  // 16 sums in 32 registers
inline Bytes pairs_less(Bytes a, int b) { return vreinterpretq_u8_u16(vsubq_u16(vreinterpretq_u16_u8(a), vdupq_n_u16(uint16_t(b)))); }
inline Bytes low_bits_of_pairs(Bytes a, int mask) { return vandq_u8(a, vreinterpretq_u8_u16(vdupq_n_u16(uint16_t(mask)))); }
inline Bytes bytes_less(Bytes a, int b) { return vsubq_u8(a, vdupq_n_u8(uint8_t(b))); }
inline Bytes spread_four(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, 4);
  return vreinterpretq_u8_u32(vdupq_n_u32(four));
}
inline Ints add_pairs(Ints sum, Bytes w, Bytes a) {
  const int16x8_t x = vreinterpretq_s16_u8(w), y = vreinterpretq_s16_u8(a);
  return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
// Four signed bytes by four.
inline Ints add_fours(Ints sum, Bytes w, Bytes a) { return vdotq_s32(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a)); }

}  // namespace pagoda::PAGODA_NS
