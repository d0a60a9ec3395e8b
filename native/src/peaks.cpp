// The loops that measure.h names, for one instruction set: CMake compiles this file once for each.
//
// Multiply-adds run in independent chains, enough to hide each instruction's latency (4 or 5 cycles, two a cycle). The
// empty assembly says that a value may have changed, so that the compiler neither folds the loop nor leaves registers.
#include "isa.h"
#include "measure.h"

#if PAGODA_AVXVNNI
#include "avxvnni.h"
#elif PAGODA_AVX2 || PAGODA_AVX512
#include <immintrin.h>
#elif PAGODA_NEON
#include <arm_neon.h>
#endif

namespace pagoda::PAGODA_NS {
namespace {

#if PAGODA_AVX512 || PAGODA_AVX2 || PAGODA_NEON

#if PAGODA_NEON
#define PAGODA_REGISTER "w"
using F = float32x4_t;
using I = int32x4_t;
constexpr int kChains = 12, kBytes = 16;
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline I pairs(I sum, I a, I b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
inline I fours(I sum, I a, I b) { return vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)); }
inline I either(I a, const uint8_t* p) { return vorrq_s32(a, vreinterpretq_s32_u8(vld1q_u8(p))); }
#elif PAGODA_AVX512
#define PAGODA_REGISTER "v"
using F = __m512;
using I = __m512i;
constexpr int kChains = 12, kBytes = 64;
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline I pairs(I sum, I a, I b) { return _mm512_dpwssd_epi32(sum, a, b); }
inline I fours(I sum, I a, I b) { return _mm512_dpbusd_epi32(sum, a, b); }
inline I either(I a, const uint8_t* p) { return _mm512_or_si512(a, _mm512_loadu_si512(p)); }
#else
#define PAGODA_REGISTER "v"
using F = __m256;
using I = __m256i;
constexpr int kChains = 12, kBytes = 32;
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
#if PAGODA_AVXVNNI
inline I pairs(I sum, I a, I b) { return dot_pairs(sum, a, b); }
inline I fours(I sum, I a, I b) { return dot_fours(sum, a, b); }
#else
inline I pairs(I sum, I a, I b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
// Any bytes: their products in pairs, the pairs' sums in pairs (`b` stands for the ones). Nibbles need the second less often.
inline I fours(I sum, I a, I b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), b)); }
#endif
inline I either(I a, const uint8_t* p) { return _mm256_or_si256(a, _mm256_loadu_si256((const __m256i*)p)); }
#endif

template <class T, class Step>
inline void chains(int64_t rounds, Step step) {
  T sums[kChains] = {}, a = {}, b = {};
  for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
    for (int c = 0; c < kChains; c++) {
      asm volatile("" : "+" PAGODA_REGISTER(a), "+" PAGODA_REGISTER(b));  // others by now, so that no two chains share a product
      sums[c] = step(sums[c], a, b);
    }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; c++) asm volatile("" : : PAGODA_REGISTER(sums[c]));
}

void f32(int64_t rounds) {
  chains<F>(rounds, [](F s, F a, F b) { return fma(a, b, s); });
}
void int16(int64_t rounds) {
  chains<I>(rounds, [](I s, I a, I b) { return pairs(s, a, b); });
}
void int8(int64_t rounds) {
  chains<I>(rounds, [](I s, I a, I b) { return fours(s, a, b); });
}

void read(const uint8_t* p, int64_t bytes) {
  I any[8] = {};
  for (const uint8_t* end = p + bytes; p < end; p += 8 * kBytes)
    for (int c = 0; c < 8; c++) any[c] = either(any[c], p + c * kBytes);
  for (int c = 0; c < 8; c++) asm volatile("" : : PAGODA_REGISTER(any[c]));
}

constexpr int64_t kF32 = kChains * kBytes / 4, kInt16 = kChains * kBytes / 2, kInt8 = kChains * kBytes;

#else

constexpr int kChains = 8;

// One number at a time, whatever the compiler could do with several.
template <class T, class Step>
inline void chains(int64_t rounds, T a, T b, Step step) {
  T sums[kChains] = {};
  for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
    for (int c = 0; c < kChains; c++) sums[c] = step(sums[c], a, b);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; c++) asm volatile("" : : "g"(sums[c]));
}

void f32(int64_t rounds) {
  volatile float one = 1.0f;
  chains<float>(rounds, one, one, [](float s, float a, float b) {
#if defined(__x86_64__)
    asm volatile("" : "+x"(a));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(a));
#endif
    return s + a * b;
  });
}

void integers(int64_t rounds) {
  volatile int32_t one = 1;
  chains<int32_t>(rounds, one, one, [](int32_t s, int32_t a, int32_t b) {
    asm volatile("" : "+r"(a));
    return s + a * b;
  });
}

void read(const uint8_t* p, int64_t bytes) {
  uint64_t any[8] = {}, word;
  for (const uint8_t* end = p + bytes; p < end; p += 64)
    for (int c = 0; c < 8; c++) {
      std::memcpy(&word, p + c * 8, 8);
      any[c] |= word;
    }
  for (int c = 0; c < 8; c++) asm volatile("" : : "r"(any[c]));
}

constexpr int64_t kF32 = kChains, kInt16 = kChains, kInt8 = kChains;
constexpr auto int16 = integers, int8 = integers;

#endif

}  // namespace

#define PAGODA_STRING2(x) #x
#define PAGODA_STRING(x) PAGODA_STRING2(x)

extern const Peaks peaks = {PAGODA_STRING(PAGODA_NS), kF32, kInt16, kInt8, f32, int16, int8, read};

}  // namespace pagoda::PAGODA_NS
