// What each stored weight format means, number by number, from its published description: a second time, apart from
// native/src/stored.h. Also how many bytes a block takes and where its f16 fields lie.
#pragma once

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"
#include "kernels.h"

namespace pagoda::test {

struct Definition {
  Format format;
  const char* name;
  int numbers, bytes;       // of a block
  std::vector<int> halves;  // offsets of f16 fields
  // Number n of the block at p.
  float (*number)(const uint8_t* p, int n);
  bool dense() const { return numbers == 1; }
};

namespace defined {

inline float half(const uint8_t* p) { return f16_to_f32(uint16_t(p[0] | p[1] << 8)); }
inline float f32(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
// Sixteen bytes whose low nibbles are numbers 0 to 15.
inline int nibble(const uint8_t* p, int n) { return n < 16 ? p[n] & 15 : p[n - 16] >> 4; }
inline int bit(const uint8_t* p, int n) { return p[n / 8] >> n % 8 & 1; }
// Four pairs of bits to a byte, 128 numbers to 32 bytes.
inline int pair(const uint8_t* p, int n) { return p[n / 128 * 32 + n % 32] >> n % 128 / 32 * 2 & 3; }
// Q4_K and Q5_K: the six bits of scale j, or of minimum j if `minimum`.
inline int six(const uint8_t* p, int j, bool minimum) {
  const int near = j + (minimum ? 4 : 0);
  if (j < 4) return p[near] & 63;
  return (minimum ? p[j + 4] >> 4 : p[j + 4] & 15) | p[near - 4] >> 6 << 4;
}
inline float k_number(const uint8_t* p, int n, int q) {
  const float scale = half(p) * float(six(p + 4, n / 32, false)), minimum = half(p + 2) * float(six(p + 4, n / 32, true));
  return scale * float(q) - minimum;
}
inline int k_nibble(const uint8_t* p, int n) { return p[n / 64 * 32 + n % 32] >> n / 32 % 2 * 4 & 15; }
constexpr int kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr double kE2M1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};

inline float q3_k(const uint8_t* p, int n) {
  const uint8_t* s = p + 96;
  const int sub = n / 16, low = sub < 8 ? s[sub] & 15 : s[sub - 8] >> 4, high = s[8 + sub % 4] >> sub / 4 * 2 & 3;
  const int q = pair(p + 32, n) - (p[n % 32] >> n / 32 & 1 ? 0 : 4);
  return half(p + 108) * float((low | high << 4) - 32) * float(q);
}
inline float q6_k(const uint8_t* p, int n) {
  const int quarter = n % 128 / 32, low = p[n / 128 * 64 + quarter % 2 * 32 + n % 32] >> quarter / 2 * 4 & 15;
  return half(p + 208) * float(int8_t(p[192 + n / 16])) * float((low | pair(p + 128, n) << 4) - 32);
}
inline float iq4_xs(const uint8_t* p, int n) {
  const int b = n / 32, low = p[4 + b / 2] >> b % 2 * 4 & 15, high = (p[2] | p[3] << 8) >> 2 * b & 3;
  return half(p) * float((low | high << 4) - 32) * float(kNonLinear[nibble(p + 8 + 16 * b, n % 32)]);
}

}  // namespace defined

inline const std::vector<Definition>& definitions() {
  using namespace defined;
  using P = const uint8_t*;
  static const std::vector<Definition> all = {
      {Format::F32, "f32", 1, 4, {}, [](P p, int) { return f32(uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24); }},
      {Format::F16, "f16", 1, 2, {0}, [](P p, int) { return half(p); }},
      {Format::BF16, "bf16", 1, 2, {}, [](P p, int) { return f32(uint32_t(p[0]) << 16 | uint32_t(p[1]) << 24); }},
      {Format::Q4_0, "q4_0", 32, 18, {0}, [](P p, int n) { return half(p) * float(nibble(p + 2, n) - 8); }},
      {Format::Q4_1, "q4_1", 32, 20, {0, 2}, [](P p, int n) { return half(p) * float(nibble(p + 4, n)) + half(p + 2); }},
      {Format::Q5_0, "q5_0", 32, 22, {0}, [](P p, int n) { return half(p) * float((nibble(p + 6, n) | bit(p + 2, n) << 4) - 16); }},
      {Format::Q5_1, "q5_1", 32, 24, {0, 2}, [](P p, int n) { return half(p) * float(nibble(p + 8, n) | bit(p + 4, n) << 4) + half(p + 2); }},
      {Format::Q8_0, "q8_0", 32, 34, {0}, [](P p, int n) { return half(p) * float(int8_t(p[2 + n])); }},
      {Format::Q2_K, "q2_k", 256, 84, {80, 82},
       [](P p, int n) { return half(p + 80) * float(p[n / 16] & 15) * float(pair(p + 16, n)) - half(p + 82) * float(p[n / 16] >> 4); }},
      {Format::Q3_K, "q3_k", 256, 110, {108}, q3_k},
      {Format::Q4_K, "q4_k", 256, 144, {0, 2}, [](P p, int n) { return k_number(p, n, k_nibble(p + 16, n)); }},
      {Format::Q5_K, "q5_k", 256, 176, {0, 2}, [](P p, int n) { return k_number(p, n, k_nibble(p + 48, n) | (p[16 + n % 32] >> n / 32 & 1) << 4); }},
      {Format::Q6_K, "q6_k", 256, 210, {208}, q6_k},
      {Format::IQ4_NL, "iq4_nl", 32, 18, {0}, [](P p, int n) { return half(p) * float(kNonLinear[nibble(p + 2, n)]); }},
      {Format::IQ4_XS, "iq4_xs", 256, 136, {0}, iq4_xs},
      {Format::MXFP4, "mxfp4", 32, 17, {}, [](P p, int n) { return float(std::ldexp(kE2M1[nibble(p + 1, n)], p[0] - 127)); }},
  };
  return all;
}

inline const Definition& definition_of(Format format) {
  for (const auto& d : definitions())
    if (d.format == format) return d;
  throw std::logic_error("a format without a definition");
}

}  // namespace pagoda::test
