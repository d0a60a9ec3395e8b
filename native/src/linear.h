// Matrix products over packed tiles: one 16-column tile times a few rows at a time.
// An output element is one chain in order of k (of blocks, if quantised), so any tiling of rows and columns has the same bits.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

// What a quantised format is, to a kernel: bits of a stored number, what to take from it, whether a block has an offset.
struct Q4_0 {
  static constexpr int bits = 4, bias = 8;
  static constexpr bool offset = false;
};
struct Q4_1 {
  static constexpr int bits = 4, bias = 0;
  static constexpr bool offset = true;
};
struct Q8_0 {  // stored with 128 added, so that numbers are unsigned
  static constexpr int bits = 8, bias = 128;
  static constexpr bool offset = false;
};

template <class F>
constexpr int block_bytes() {
  return kBlock * kTile * F::bits / 8;
}

template <class F>
struct TileView {
  const uint8_t* q;
  const uint16_t *d, *m;
  explicit TileView(const Packed& w, int t)
      : q(w.tile(t)), d((const uint16_t*)(q + size_t(w.blocks()) * block_bytes<F>())), m(d + size_t(w.blocks()) * kTile) {}
};

// Element (column c, input i) of a block, as stored. Inputs lie in groups of four, 16 columns side by side; nibble formats
// keep an even group in the low halves and the odd group after it in the high halves of the same 64 bytes.
template <class F>
inline int stored(const uint8_t* block, int c, int i) {
  const int group = i / 4, at = c * 4 + i % 4;
  if constexpr (F::bits == 8) {
    return block[group * 64 + at];
  } else {
    const uint8_t byte = block[group / 2 * 64 + at];
    return group % 2 ? byte >> 4 : byte & 15;
  }
}

// A = int8_t or int16_t: the activations. Integer sums are exact, so each instruction set may form them as it likes.
#if PAGODA_AVX512

inline __m512i four_bytes(const void* a) {
  int four;
  std::memcpy(&four, a, 4);
  return _mm512_set1_epi32(four);
}

// sum += weights of 16 columns x 4 inputs (bytes) * activations.
inline __m512i dot(__m512i sum, __m512i w, const int8_t* a) { return _mm512_dpbusd_epi32(sum, w, four_bytes(a)); }
inline __m512i dot(__m512i sum, __m512i even, __m512i odd, const int16_t* a) {
  return _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sum, even, four_bytes(a)), odd, four_bytes(a + 2));
}

// One block into sum[MR]; `a` is the block of the first row, those of the next rows follow.
template <class F, int MR>
inline void block(const uint8_t* q, const int8_t* a, __m512i* sum) {
  if constexpr (F::bits == 4) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int v = 0; v < 4; v++) {
      const __m512i p = _mm512_loadu_si512(q + v * 64);
      const __m512i lo = _mm512_and_si512(p, low), hi = _mm512_and_si512(_mm512_srli_epi16(p, 4), low);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], lo, a + r * kBlock + v * 8);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], hi, a + r * kBlock + v * 8 + 4);
    }
  } else {
    for (int v = 0; v < 8; v++) {
      const __m512i p = _mm512_loadu_si512(q + v * 64);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], p, a + r * kBlock + v * 4);
    }
  }
}
template <class F, int MR>
inline void block(const uint8_t* q, const int16_t* a, __m512i* sum) {
  if constexpr (F::bits == 4) {
    const __m512i low = _mm512_set1_epi16(15);
    for (int v = 0; v < 4; v++) {
      const __m512i p = _mm512_loadu_si512(q + v * 64);
      const __m512i e0 = _mm512_and_si512(p, low), o0 = _mm512_and_si512(_mm512_srli_epi16(p, 8), low);
      const __m512i e1 = _mm512_and_si512(_mm512_srli_epi16(p, 4), low), o1 = _mm512_srli_epi16(p, 12);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], e0, o0, a + r * kBlock + v * 8);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], e1, o1, a + r * kBlock + v * 8 + 4);
    }
  } else {
    const __m512i low = _mm512_set1_epi16(255);
    for (int v = 0; v < 8; v++) {
      const __m512i p = _mm512_loadu_si512(q + v * 64);
      const __m512i e = _mm512_and_si512(p, low), o = _mm512_srli_epi16(p, 8);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], e, o, a + r * kBlock + v * 4);
    }
  }
}

template <class F, class A, int MR>
inline void int_rows(const TileView<F>& w, int nb, const Quantized& x, int row, float* out, size_t ldo, int cols) {
  V acc[MR];
  for (auto& v : acc) v = zero();
  size_t at = Quantized::at(row, nb, 0);
  for (int b = 0; b < nb; b++, at += kPanel) {
    __m512i sum[MR];
    for (int r = 0; r < MR; r++) {
      if constexpr (F::bias == 0)
        sum[r] = _mm512_setzero_si512();
      else if constexpr (F::bias == 8)
        sum[r] = _mm512_set1_epi32(x.neg8[at + r]);
      else
        sum[r] = _mm512_slli_epi32(_mm512_set1_epi32(x.neg8[at + r]), 4);
    }
    block<F, MR>(w.q + size_t(b) * block_bytes<F>(), (const A*)x.q + at * kBlock, sum);
    const V d = load_f16(w.d + b * kTile);
    for (int r = 0; r < MR; r++) acc[r] = fma(mul(d, set1(x.d[at + r])), V{_mm512_cvtepi32_ps(sum[r])}, acc[r]);
    if constexpr (F::offset) {
      const V m = load_f16(w.m + b * kTile);
      for (int r = 0; r < MR; r++) acc[r] = fma(m, set1(x.s[at + r]), acc[r]);
    }
  }
  for (int r = 0; r < MR; r++) cols == kTile ? store(out + r * ldo, acc[r]) : store_n(out + r * ldo, acc[r], cols);
}
constexpr int kRowsInt = 8;

#elif PAGODA_AVX2

inline __m256i four_bytes(const void* a) {
  int four;
  std::memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// One block of half a tile (8 columns, 32 of every 64 bytes) into sum[MR].
template <class F, int MR>
inline void block(const uint8_t* q, const int8_t* a, __m256i* sum) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (F::bits == 4) {  // 15 * 127 * 2 * 8 fits int16: a whole block is summed in it
    const __m256i low = _mm256_set1_epi8(15);
    __m256i s16[MR];
    for (int v = 0; v < 4; v++) {
      const __m256i p = _mm256_loadu_si256((const __m256i*)(q + v * 64));
      const __m256i lo = _mm256_and_si256(p, low), hi = _mm256_and_si256(_mm256_srli_epi16(p, 4), low);
      for (int r = 0; r < MR; r++) {
        const __m256i t = _mm256_maddubs_epi16(lo, four_bytes(a + r * kBlock + v * 8));
        s16[r] = v ? _mm256_add_epi16(s16[r], t) : t;
      }
      for (int r = 0; r < MR; r++) s16[r] = _mm256_add_epi16(s16[r], _mm256_maddubs_epi16(hi, four_bytes(a + r * kBlock + v * 8 + 4)));
    }
    for (int r = 0; r < MR; r++) sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(s16[r], ones));
  } else {  // unsigned bytes would overflow a pair: split by parity, as int16
    const __m256i low = _mm256_set1_epi16(255);
    for (int v = 0; v < 8; v++) {
      const __m256i p = _mm256_loadu_si256((const __m256i*)(q + v * 64));
      const __m256i e = _mm256_and_si256(p, low), o = _mm256_srli_epi16(p, 8);
      for (int r = 0; r < MR; r++) {
        const __m256i t = four_bytes(a + r * kBlock + v * 4);
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(t, 8), 8), odd = _mm256_srai_epi16(t, 8);
        sum[r] = _mm256_add_epi32(sum[r], _mm256_add_epi32(_mm256_madd_epi16(e, even), _mm256_madd_epi16(o, odd)));
      }
    }
  }
}
template <class F, int MR>
inline void block(const uint8_t* q, const int16_t* a, __m256i* sum) {
  const auto dot = [](__m256i s, __m256i even, __m256i odd, const int16_t* x) {
    s = _mm256_add_epi32(s, _mm256_madd_epi16(even, four_bytes(x)));
    return _mm256_add_epi32(s, _mm256_madd_epi16(odd, four_bytes(x + 2)));
  };
  if constexpr (F::bits == 4) {
    const __m256i low = _mm256_set1_epi16(15);
    for (int v = 0; v < 4; v++) {
      const __m256i p = _mm256_loadu_si256((const __m256i*)(q + v * 64));
      const __m256i e0 = _mm256_and_si256(p, low), o0 = _mm256_and_si256(_mm256_srli_epi16(p, 8), low);
      const __m256i e1 = _mm256_and_si256(_mm256_srli_epi16(p, 4), low), o1 = _mm256_srli_epi16(p, 12);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], e0, o0, a + r * kBlock + v * 8);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], e1, o1, a + r * kBlock + v * 8 + 4);
    }
  } else {
    const __m256i low = _mm256_set1_epi16(255);
    for (int v = 0; v < 8; v++) {
      const __m256i p = _mm256_loadu_si256((const __m256i*)(q + v * 64));
      const __m256i e = _mm256_and_si256(p, low), o = _mm256_srli_epi16(p, 8);
      for (int r = 0; r < MR; r++) sum[r] = dot(sum[r], e, o, a + r * kBlock + v * 4);
    }
  }
}

// Half a tile (8 columns) at a time, to stay within sixteen registers.
template <class F, class A, int MR>
inline void int_half(const TileView<F>& w, int half, int nb, const Quantized& x, int row, float* out, size_t ldo, int cols) {
  __m256 acc[MR];
  for (auto& v : acc) v = _mm256_setzero_ps();
  size_t at = Quantized::at(row, nb, 0);
  for (int b = 0; b < nb; b++, at += kPanel) {
    __m256i sum[MR];
    for (int r = 0; r < MR; r++) sum[r] = F::bias ? _mm256_set1_epi32(x.neg8[at + r] * (F::bias / 8)) : _mm256_setzero_si256();
    block<F, MR>(w.q + size_t(b) * block_bytes<F>() + half * 32, (const A*)x.q + at * kBlock, sum);
    const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(w.d + b * kTile + half * 8)));
    for (int r = 0; r < MR; r++)
      acc[r] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(x.d[at + r])), _mm256_cvtepi32_ps(sum[r]), acc[r]);
    if constexpr (F::offset) {
      const __m256 m = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(w.m + b * kTile + half * 8)));
      for (int r = 0; r < MR; r++) acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(x.s[at + r]), acc[r]);
    }
  }
  for (int r = 0; r < MR; r++) {
    float t[8];
    _mm256_storeu_ps(t, acc[r]);
    std::memcpy(out + r * ldo + half * 8, t, size_t(cols < 8 ? cols : 8) * 4);
  }
}

template <class F, class A, int MR>
inline void int_rows(const TileView<F>& w, int nb, const Quantized& x, int row, float* out, size_t ldo, int cols) {
  int_half<F, A, MR>(w, 0, nb, x, row, out, ldo, cols);
  if (cols > 8) int_half<F, A, MR>(w, 1, nb, x, row, out, ldo, cols - 8);
}
constexpr int kRowsInt = 4;

#else

template <class F, class A, int MR>
inline void int_rows(const TileView<F>& w, int nb, const Quantized& x, int row, float* out, size_t ldo, int cols) {
  constexpr int parity[4] = {0, 2, 1, 3};
  for (int r = 0; r < MR; r++)
    for (int c = 0; c < cols; c++) {
      float acc = 0.0f;
      for (int b = 0; b < nb; b++) {
        const size_t at = Quantized::at(row + r, nb, b);
        const A* a = (const A*)x.q + at * kBlock;
        int32_t sum = 0;
        for (int i = 0; i < kBlock; i++)
          sum += (stored<F>(w.q + size_t(b) * block_bytes<F>(), c, i) - F::bias) * a[sizeof(A) == 1 ? i : i / 4 * 4 + parity[i % 4]];
        acc = std::fmaf(f16_to_f32(w.d[b * kTile + c]) * x.d[at], float(sum), acc);
        if constexpr (F::offset) acc = std::fmaf(f16_to_f32(w.m[b * kTile + c]), x.s[at], acc);
      }
      out[r * ldo + c] = acc;
    }
}
constexpr int kRowsInt = 4;

#endif

// Rows begin at a multiple of kPanel, so that no group of rows crosses a panel.
template <class F, class A>
inline void int_tile(const Packed& w, int t, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
  const TileView<F> view(w, t);
  const int nb = w.blocks(), cols = w.n - t * kTile < kTile ? w.n - t * kTile : kTile;
  int r = 0;
  float* o = out + size_t(row0) * ldo + size_t(t) * kTile;
  for (; r + kRowsInt <= rows; r += kRowsInt) int_rows<F, A, kRowsInt>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
  if constexpr (kRowsInt > 4)
    for (; r + 4 <= rows; r += 4) int_rows<F, A, 4>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
  for (; r + 2 <= rows; r += 2) int_rows<F, A, 2>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
  for (; r < rows; r++) int_rows<F, A, 1>(view, nb, x, row0 + r, o + r * ldo, ldo, cols);
}

template <class A>
inline void linear_as(const Packed& w, int t, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
  switch (w.format) {
    case Format::Q4_0: return int_tile<Q4_0, A>(w, t, x, row0, rows, out, ldo);
    case Format::Q4_1: return int_tile<Q4_1, A>(w, t, x, row0, rows, out, ldo);
    case Format::Q8_0: return int_tile<Q8_0, A>(w, t, x, row0, rows, out, ldo);
    default: return;  // dense formats read f32: the executor never comes here with one
  }
}

inline void linear_int(const Packed& w, int t, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
  x.bytes == 1 ? linear_as<int8_t>(w, t, x, row0, rows, out, ldo) : linear_as<int16_t>(w, t, x, row0, rows, out, ldo);
}

// --- f32 activations: dense formats always, quantised ones when asked to ---------------------------------------------------

// 16 weights of input i in block b: dequantised as the file defines it.
template <class F>
struct QuantizedSource {
  TileView<F> view;
  QuantizedSource(const Packed& w, int t) : view(w, t) {}
  V at(int k) const {
    const int b = k / kBlock, i = k % kBlock;
    float q[kTile];
    for (int c = 0; c < kTile; c++) q[c] = float(stored<F>(view.q + size_t(b) * block_bytes<F>(), c, i) - F::bias);
    const V scaled = mul(load_f16(view.d + b * kTile), load(q));
    if constexpr (F::offset) return add(scaled, load_f16(view.m + b * kTile));
    return scaled;
  }
};
struct SourceF32 {
  const float* p;
  SourceF32(const Packed& w, int t) : p((const float*)w.tile(t)) {}
  V at(int k) const { return load(p + size_t(k) * kTile); }
};
struct SourceF16 {
  const uint16_t* p;
  SourceF16(const Packed& w, int t) : p((const uint16_t*)w.tile(t)) {}
  V at(int k) const { return load_f16(p + size_t(k) * kTile); }
};
struct SourceBF16 {
  const uint16_t* p;
  SourceBF16(const Packed& w, int t) : p((const uint16_t*)w.tile(t)) {}
  V at(int k) const { return load_bf16(p + size_t(k) * kTile); }
};

template <class S, int MR>
inline void f32_rows(const S& source, int k, const float* x, float* out, size_t ldo, int cols) {
  V acc[MR];
  for (auto& a : acc) a = zero();
  for (int i = 0; i < k; i++) {
    const V w = source.at(i);
    for (int r = 0; r < MR; r++) acc[r] = fma(set1(x[size_t(r) * k + i]), w, acc[r]);
  }
  for (int r = 0; r < MR; r++) cols == kTile ? store(out + r * ldo, acc[r]) : store_n(out + r * ldo, acc[r], cols);
}

template <class S>
inline void f32_tile(const Packed& w, int t, const float* x, int row0, int rows, float* out, size_t ldo) {
  const S source(w, t);
  const int cols = w.n - t * kTile < kTile ? w.n - t * kTile : kTile;
  float* o = out + size_t(row0) * ldo + size_t(t) * kTile;
  const float* a = x + size_t(row0) * w.k;
  int r = 0;
  for (; r + 4 <= rows; r += 4) f32_rows<S, 4>(source, w.k, a + size_t(r) * w.k, o + r * ldo, ldo, cols);
  for (; r < rows; r++) f32_rows<S, 1>(source, w.k, a + size_t(r) * w.k, o + r * ldo, ldo, cols);
}

inline void linear_f32(const Packed& w, int t, const float* x, int row0, int rows, float* out, size_t ldo) {
  switch (w.format) {
    case Format::F32: return f32_tile<SourceF32>(w, t, x, row0, rows, out, ldo);
    case Format::F16: return f32_tile<SourceF16>(w, t, x, row0, rows, out, ldo);
    case Format::BF16: return f32_tile<SourceBF16>(w, t, x, row0, rows, out, ldo);
    case Format::Q4_0: return f32_tile<QuantizedSource<Q4_0>>(w, t, x, row0, rows, out, ldo);
    case Format::Q4_1: return f32_tile<QuantizedSource<Q4_1>>(w, t, x, row0, rows, out, ldo);
    case Format::Q8_0: return f32_tile<QuantizedSource<Q8_0>>(w, t, x, row0, rows, out, ldo);
  }
}

}  // namespace pagoda::PAGODA_NS
