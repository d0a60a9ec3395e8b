// The stored forms of keys and values, element by element: how they are turned, quantised, written and loaded. The order of
// these operations is docs/arithmetic.md's; sums over what is loaded are attention.h's.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

// Two elements of 4 bits, n for the number n - 7.5; the first one in the low bits.
struct Nibbles {
  uint8_t pair;
};

inline V load_element(const float* p) { return load(p); }
inline V load_element(const uint16_t* p) { return load_f16(p); }

#if PAGODA_AVX512
inline V load_element(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
inline void load_pair(const Nibbles* p, V& low, V& high) {
  // A permutation looks at the low four bits of its indices alone.
  const __m512 numbers = _mm512_setr_ps(-7.5f, -6.5f, -5.5f, -4.5f, -3.5f, -2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f, 6.5f, 7.5f);
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  low = {_mm512_permutexvar_ps(x, numbers)};
  high = {_mm512_permutexvar_ps(_mm512_srli_epi32(x, 4), numbers)};
}
// Lane i of the result is lane i ^ H.
template <int H>
inline V across(V a) {
  if constexpr (H < 4)
    return {_mm512_permute_ps(a.x, H == 1 ? 0xB1 : 0x4E)};
  else
    return {_mm512_shuffle_f32x4(a.x, a.x, H == 4 ? 0xB1 : 0x4E)};
}
#elif PAGODA_AVX2
inline V load_element(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
inline __m256 centred(__m256i x) { return _mm256_sub_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(7.5f)); }
inline void load_pair(const Nibbles* p, V& low, V& high) {
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)), y = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)));
  const __m256i mask = _mm256_set1_epi32(15);
  low = {centred(_mm256_and_si256(x, mask)), centred(_mm256_and_si256(y, mask))};
  high = {centred(_mm256_srli_epi32(x, 4)), centred(_mm256_srli_epi32(y, 4))};
}
template <int H>
inline V across(V a) {
  if constexpr (H == 8)
    return {a.hi, a.lo};
  else if constexpr (H == 4)
    return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
  else
    return {_mm256_permute_ps(a.lo, H == 1 ? 0xB1 : 0x4E), _mm256_permute_ps(a.hi, H == 1 ? 0xB1 : 0x4E)};
}
#elif PAGODA_NEON
inline V from_bytes(int8x16_t a) {
  const int16x8_t low = vmovl_s8(vget_low_s8(a)), high = vmovl_s8(vget_high_s8(a));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
inline V load_element(const int8_t* p) { return from_bytes(vld1q_s8(p)); }
inline void load_pair(const Nibbles* p, V& low, V& high) {
  const uint8x16_t x = vld1q_u8(&p->pair);
  low = sub(from_bytes(vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(15)))), set1(7.5f));
  high = sub(from_bytes(vreinterpretq_s8_u8(vshrq_n_u8(x, 4))), set1(7.5f));
}
template <int H>
inline V across(V a) {
  return quarters([&](int i) {
    if constexpr (H == 1) return vrev64q_f32(a.x[i]);
    else if constexpr (H == 2) return vextq_f32(a.x[i], a.x[i], 2);
    else return a.x[i ^ H / 4];
  });
}
#else
inline V load_element(const int8_t* p) {
  return each([&](int i) { return float(p[i]); });
}
inline void load_pair(const Nibbles* p, V& low, V& high) {
  low = each([&](int i) { return float(p[i].pair & 15) - 7.5f; });
  high = each([&](int i) { return float(p[i].pair >> 4) - 7.5f; });
}
template <int H>
inline V across(V a) {
  return each([&](int i) { return a.x[i ^ H]; });
}
#endif

// Lanes i and i + H, where i has no bit H, become their sum and their difference.
template <int H>
inline V butterfly(V a) {
  alignas(64) static constexpr auto signs = [] {
    struct {
      float x[kLanes];
    } s{};
    for (int i = 0; i < kLanes; i++) s.x[i] = i & H ? -1.0f : 1.0f;
    return s;
  }();
  return add(across<H>(a), mul(a, load(signs.x)));
}

// Turns each run of n elements, n the largest power of two that divides dim, by the Walsh-Hadamard matrix: rows of +1 and -1,
// so that one large element is spread over all. Twice turned is n times the vector. Then times `factor`.
inline void turn(float* x, int dim, float factor) {
  const int n = dim & -dim;
  for (int i = 0; i < dim; i += kLanes) {
    const int m = dim - i < kLanes ? dim - i : kLanes;
    V a = load_n(x + i, m);
    if (n > 1) a = butterfly<1>(a);
    if (n > 2) a = butterfly<2>(a);
    if (n > 4) a = butterfly<4>(a);
    if (n > 8) a = butterfly<8>(a);
    store_n(x + i, n > kLanes ? a : mul(a, set1(factor)), m);
  }
  for (int h = kLanes; h < n; h *= 2) {
    const V f = set1(2 * h < n ? 1.0f : factor);
    for (int i = 0; i < dim; i += i % h + kLanes < h ? kLanes : h + kLanes) {
      const V a = load(x + i), b = load(x + i + h);
      store(x + i, mul(add(a, b), f));
      store(x + i + h, mul(sub(a, b), f));
    }
  }
}

inline void turn_back(float* x, int dim) { turn(x, dim, 1.0f / float(dim & -dim)); }

inline void query(const KVPages& kv, const float* q, float* out) {
  std::memset(out, 0, size_t(kv.padded) * 4);
  std::memcpy(out, q, size_t(kv.dim) * 4);
  turn(out, kv.dim, 1.0f / float(kv.dim & -kv.dim));
  for (int b = 0; kv.format == KVFormat::Int4 && b < kv.blocks(); b++)
    out[kv.padded + b] = reduce_add(add(load(out + b * kBlock), load(out + b * kBlock + kLanes)));
}

constexpr float kLargestScale = 65504.0f;  // of f16: scales and offsets are always finite

inline float held(float x) { return x > -kLargestScale ? (x < kLargestScale ? x : kLargestScale) : -kLargestScale; }
inline V held(V x, float low, float high) { return max(min(x, set1(high)), set1(low)); }
inline float inverse_of(uint16_t scale) { return scale ? 1.0f / f16_to_f32(scale) : 0.0f; }

// x [padded] to integers in [-127, 127]; the scale.
inline uint16_t quantise(const float* x, int padded, int8_t* q) {
  V top = zero();
  for (int i = 0; i < padded; i += kLanes) top = max(top, abs(load(x + i)));
  const uint16_t scale = f32_to_f16(held(reduce_max(top) / 127.0f));
  const float inverse = inverse_of(scale);
  for (int i = 0; i < padded; i += kLanes) store_integers(q + i, held(round(mul(load(x + i), set1(inverse))), -127, 127));
  return scale;
}

// A block of 32 to integers in [0, 15], around its middle.
inline void quantise_block(const float* x, int8_t* q, uint16_t& scale, uint16_t& offset) {
  const V a = load(x), b = load(x + kLanes);
  const float high = reduce_max(max(a, b)), low = 0.0f - reduce_max(sub(zero(), min(a, b)));
  scale = f32_to_f16(held((high - low) / 15.0f)), offset = f32_to_f16(held((high + low) * 0.5f));
  const V inverse = set1(inverse_of(scale)), middle = set1(f16_to_f32(offset)), half = set1(7.5f);
  store_integers(q, held(round(add(mul(sub(a, middle), inverse), half)), 0, 15));
  store_integers(q + kLanes, held(round(add(mul(sub(b, middle), inverse), half)), 0, 15));
}

// A head's vector turned, with zeros for what is not finite; what is past its end repeats its last element, so that no
// extreme moves.
inline void turned(const KVPages& kv, const float* x, float* t) {
  std::memcpy(t, x, size_t(kv.dim) * 4);
  turn(t, kv.dim, 1.0f);
  for (int i = kv.dim; i < kv.padded; i++) t[i] = t[kv.dim - 1];
  for (int i = 0; i < kv.padded; i += kLanes) {
    const V a = load(t + i);
    store(t + i, less(abs(a), set1(INFINITY), a, zero()));
  }
}

inline void store_int8(const KVPages& kv, int page, int head, int slot, const float* k, const float* v) {
  alignas(64) float t[kHeadMax];
  alignas(64) int8_t q[kHeadMax];
  const size_t slots = size_t(kv.slots);
  turned(kv, k, t);
  kv.key_scales(page, head)[slot] = quantise(t, kv.padded, q);
  int8_t* keys = (int8_t*)kv.keys(page, head) + slot;
  for (int i = 0; i < kv.dim; i++) keys[size_t(i) * slots] = q[i];
  turned(kv, v, t);
  kv.value_scales(page, head)[slot] = quantise(t, kv.padded, (int8_t*)kv.values(page, head) + size_t(slot) * kv.value_bytes());
}

inline void store_int4(const KVPages& kv, int page, int head, int slot, const float* k, const float* v) {
  alignas(64) float t[kHeadMax];
  alignas(64) int8_t q[kHeadMax];
  const size_t slots = size_t(kv.slots);
  const auto blocks = [&](uint16_t* scales) {
    for (int b = 0; b < kv.blocks(); b++)
      quantise_block(t + b * kBlock, q + b * kBlock, scales[size_t(2 * b) * slots + slot], scales[size_t(2 * b + 1) * slots + slot]);
  };
  turned(kv, k, t);
  blocks(kv.key_scales(page, head));
  uint8_t* keys = kv.keys(page, head) + slot;
  for (int r = 0; r < kv.key_rows(); r++) keys[size_t(r) * slots] = uint8_t(q[2 * r] | q[2 * r + 1] << 4);
  turned(kv, v, t);
  blocks(kv.value_scales(page, head));
  uint8_t* values = kv.values(page, head) + size_t(slot) * kv.value_bytes();
  for (int i = 0; i < kv.padded / 2; i++) values[i] = uint8_t(q[i / 16 * 32 + i % 16] | q[i / 16 * 32 + i % 16 + 16] << 4);
}

template <class E>
inline void store_floats(const KVPages& kv, int page, int head, int slot, const float* k, const float* v) {
  E* keys = (E*)kv.keys(page, head);
  E* values = (E*)kv.values(page, head) + size_t(slot) * kv.padded;
  for (int i = 0; i < kv.dim; i += kLanes) {
    const int n = kv.dim - i < kLanes ? kv.dim - i : kLanes;
    E t[kLanes];
    if constexpr (sizeof(E) == 2) {
      store_f16((uint16_t*)t, load_n(k + i, n));
      store_f16((uint16_t*)values + i, load_n(v + i, n));
    } else {
      store((float*)t, load_n(k + i, n));
      store((float*)values + i, load_n(v + i, n));
    }
    for (int j = 0; j < n; j++) keys[size_t(i + j) * kv.slots + slot] = t[j];
  }
}

inline void store_kv(const KVPages& kv, int page, int slot, const float* k, const float* v) {
  for (int head = 0; head < kv.heads; head++, k += kv.dim, v += kv.dim) switch (kv.format) {
      case KVFormat::F32: store_floats<float>(kv, page, head, slot, k, v); break;
      case KVFormat::F16: store_floats<uint16_t>(kv, page, head, slot, k, v); break;
      case KVFormat::Int8: store_int8(kv, page, head, slot, k, v); break;
      case KVFormat::Int4: store_int4(kv, page, head, slot, k, v); break;
    }
}

}  // namespace pagoda::PAGODA_NS
