// Which instruction set this translation unit is compiled for: set by CMake, one build of kernels.cpp for each.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef PAGODA_NS
#define PAGODA_NS scalar
#endif

#if PAGODA_AVXVNNI
#define PAGODA_AVX2 1
#elif PAGODA_AVX2
#define PAGODA_NO_DOTS 1  // no instruction adds products of bytes to a sum
#endif

namespace pagoda {

// Half precision in software, for packing and for the scalar build: exact one way, rounded to nearest even the other.
// Static, as all that several instruction sets compile: a linker that kept one set's copy would run it on every machine.
[[maybe_unused]] static inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  uint32_t u;
  if (exponent == 31) {
    u = sign | 0x7f800000 | fraction << 13;
  } else if (exponent) {
    u = sign | (exponent + 112) << 23 | fraction << 13;
  } else {
    const float f = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&u, &f, 4);
    u |= sign;
  }
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

[[maybe_unused]] static inline uint16_t f32_to_f16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t sign = uint16_t(u >> 16 & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return uint16_t(sign | 0x7e00 | (u >> 13 & 0x1ff));
  if (u >= 0x47800000) return uint16_t(sign | 0x7c00);
  if (u < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded by the addition
    float a;
    std::memcpy(&a, &u, 4);
    a = a + 0.5f;
    uint32_t r;
    std::memcpy(&r, &a, 4);
    return uint16_t(sign | uint16_t(r - 0x3f000000));
  }
  u += 0xfff + (u >> 13 & 1);
  return uint16_t(sign | uint16_t((u - 0x38000000) >> 13));
}

}  // namespace pagoda
