// Matrix products of f32 activations with packed tiles: dense formats always, quantised ones when asked to.
// An output element is one chain over the inputs.
#pragma once

#include "formats.h"

namespace pagoda::PAGODA_NS {

// 16 weights of input k, which is asked for in ascending order from 0. Quantised ones are kept for a block at a time.
template <class F>
struct QuantizedSource {
  TileView<F> view;
  alignas(64) float block[kBlock][kTile];
  QuantizedSource(const Packed& w, int t) : view(w, t) {}
  V at(int k) {
    if (k % kBlock == 0) unpack(k / kBlock);
    return load(block[k % kBlock]);
  }
  void unpack(int b) {
    for (int column = 0; column < kTile; column += kColumns) {
      Floats weights[kBlock];
      dequantise<F>(view, b, column, weights);
      for (int i = 0; i < kBlock; i++) save_floats(block[i] + column, weights[i]);
    }
  }
};
struct SourceF32 {
  const float* p;
  SourceF32(const Packed& w, int t) : p((const float*)w.tile(t)) {}
  V at(int k) { return load(p + size_t(k) * kTile); }
};
struct SourceF16 {
  const uint16_t* p;
  SourceF16(const Packed& w, int t) : p((const uint16_t*)w.tile(t)) {}
  V at(int k) { return load_f16(p + size_t(k) * kTile); }
};
struct SourceBF16 {
  const uint16_t* p;
  SourceBF16(const Packed& w, int t) : p((const uint16_t*)w.tile(t)) {}
  V at(int k) { return load_bf16(p + size_t(k) * kTile); }
};
// Scaled; what E4M3 lacks to its bits is a power of two, and goes into the scale.
template <V (*Load)(const uint8_t*), bool E4M3>
struct SourceF8 {
  const uint8_t* p;
  const float* scales;
  V d = zero();
  SourceF8(const Packed& w, int t) : p(w.tile(t)), scales((const float*)(p + size_t(w.k) * kTile)) {}
  V at(int k) {
    if (k % kBlock == 0) d = mul(load(scales + k / kBlock * kTile), set1(E4M3 ? kE4M3 : 1.0f));
    return mul(Load(p + size_t(k) * kTile), d);
  }
};

template <class S, int MR>
inline void f32_rows(S& source, int k, const float* x, float* out, size_t ldo, int cols) {
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
  S source(w, t);
  const int cols = w.n - t * kTile < kTile ? w.n - t * kTile : kTile;
  float* o = out + size_t(row0) * ldo + size_t(t) * kTile;
  const float* a = x + size_t(row0) * w.k;
  int r = 0;
#if PAGODA_AVX512
  for (; r + 8 <= rows; r += 8) f32_rows<S, 8>(source, w.k, a + size_t(r) * w.k, o + r * ldo, ldo, cols);
#endif
  for (; r + 4 <= rows; r += 4) f32_rows<S, 4>(source, w.k, a + size_t(r) * w.k, o + r * ldo, ldo, cols);
  for (; r < rows; r++) f32_rows<S, 1>(source, w.k, a + size_t(r) * w.k, o + r * ldo, ldo, cols);
}

inline void f32_tile(const Packed& w, int t, const float* x, int row0, int rows, float* out, size_t ldo) {
  switch (w.format) {
    case Format::F32: return f32_tile<SourceF32>(w, t, x, row0, rows, out, ldo);
    case Format::F16: return f32_tile<SourceF16>(w, t, x, row0, rows, out, ldo);
    case Format::BF16: return f32_tile<SourceBF16>(w, t, x, row0, rows, out, ldo);
    case Format::F8_E4M3: return f32_tile<SourceF8<load_e4m3, true>>(w, t, x, row0, rows, out, ldo);
    case Format::F8_E5M2: return f32_tile<SourceF8<load_e5m2, false>>(w, t, x, row0, rows, out, ldo);
    default: with_layout(w.format, [&](auto layout) { f32_tile<QuantizedSource<decltype(layout)>>(w, t, x, row0, rows, out, ldo); });
  }
}

inline void linear_f32(const Packed& w, int t, int tiles, const float* x, int row0, int rows, float* out, size_t ldo) {
  for (int end = t + tiles; t < end; t++) f32_tile(w, t, x, row0, rows, out, ldo);
}

}  // namespace pagoda::PAGODA_NS
