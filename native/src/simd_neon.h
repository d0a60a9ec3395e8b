// Sixteen lanes as four NEON registers: simd.h for AArch64. Half precision is converted by instructions that every AArch64 has.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace pagoda::PAGODA_NS {

struct V {
  float32x4_t x[4];
};
// f(register i), for each.
template <class F>
inline V quarters(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline V set1(float a) {
  return quarters([&](int) { return vdupq_n_f32(a); });
}
inline V zero() { return set1(0.0f); }
inline V load(const float* p) {
  return quarters([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, V a) {
  for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.x[i]);
}
inline V load_n(const float* p, int n) {
  float t[16] = {};
  std::memcpy(t, p, size_t(n) * 4);
  return load(t);
}
inline void store_n(float* p, V a, int n) {
  float t[16];
  store(t, a);
  std::memcpy(p, t, size_t(n) * 4);
}
inline V load_f16(const uint16_t* p) {
  return quarters([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline void store_f16(uint16_t* p, V a) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.x[i])));
}
inline V load_bf16(const uint16_t* p) {
  return quarters([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline V add(V a, V b) {
  return quarters([&](int i) { return vaddq_f32(a.x[i], b.x[i]); });
}
inline V sub(V a, V b) {
  return quarters([&](int i) { return vsubq_f32(a.x[i], b.x[i]); });
}
inline V mul(V a, V b) {
  return quarters([&](int i) { return vmulq_f32(a.x[i], b.x[i]); });
}
inline V div(V a, V b) {
  return quarters([&](int i) { return vdivq_f32(a.x[i], b.x[i]); });
}
inline V fma(V a, V b, V c) {
  return quarters([&](int i) { return vfmaq_f32(c.x[i], a.x[i], b.x[i]); });
}
// As x86 does it, and unlike the instruction of that name here: the second operand if either is NaN.
inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline V max(V a, V b) {
  return quarters([&](int i) { return larger(a.x[i], b.x[i]); });
}
inline V min(V a, V b) {
  return quarters([&](int i) { return vbslq_f32(vcltq_f32(a.x[i], b.x[i]), a.x[i], b.x[i]); });
}
inline V abs(V a) {
  return quarters([&](int i) { return vabsq_f32(a.x[i]); });
}
inline V round(V a) {
  return quarters([&](int i) { return vrndnq_f32(a.x[i]); });
}
inline V less(V x, V y, V a, V b) {
  return quarters([&](int i) { return vbslq_f32(vcltq_f32(x.x[i], y.x[i]), a.x[i], b.x[i]); });
}
inline V exp2i(V n) {
  return quarters([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.x[i]), vdupq_n_s32(127)), 23)); });
}
inline V swap_pairs(V a) {
  return quarters([&](int i) { return vrev64q_f32(a.x[i]); });
}
// Of each register a whole number, narrowed: two registers of int16.
struct Whole {
  int16x8_t low, high;
  int32_t sum;
};
inline Whole whole(V a) {
  int32x4_t n[4];
  for (int i = 0; i < 4; i++) n[i] = vcvtq_s32_f32(a.x[i]);
  return {vcombine_s16(vmovn_s32(n[0]), vmovn_s32(n[1])), vcombine_s16(vmovn_s32(n[2]), vmovn_s32(n[3])),
          vaddvq_s32(vaddq_s32(vaddq_s32(n[0], n[1]), vaddq_s32(n[2], n[3])))};
}
// Whole numbers as bytes, in order; their sum.
inline int32_t store_integers(int8_t* p, V a) {
  const Whole n = whole(a);
  vst1q_s8(p, vcombine_s8(vmovn_s16(n.low), vmovn_s16(n.high)));
  return n.sum;
}
// Whole numbers as int16, each four of them as 0, 2, 1, 3; their sum.
inline int32_t store_integers(int16_t* p, V a) {
  static constexpr uint8_t places[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  const uint8x16_t order = vld1q_u8(places);
  const Whole n = whole(a);
  vst1q_s16(p, vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(n.low), order)));
  vst1q_s16(p + 8, vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(n.high), order)));
  return n.sum;
}

// The one combining tree.
inline float reduce_add(V a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.x[0], a.x[2]), vaddq_f32(a.x[1], a.x[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float reduce_max(V a) {
  const float32x4_t four = larger(larger(a.x[0], a.x[2]), larger(a.x[1], a.x[3]));
  const float one = vgetq_lane_f32(four, 0), other = vgetq_lane_f32(four, 1);
  const float left = one > vgetq_lane_f32(four, 2) ? one : vgetq_lane_f32(four, 2), right = other > vgetq_lane_f32(four, 3) ? other : vgetq_lane_f32(four, 3);
  return left > right ? left : right;
}

}  // namespace pagoda::PAGODA_NS
