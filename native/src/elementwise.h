// Kernels over one row: norm, activation, addition, rotary embedding, quantising to int8, and the sums that sampling needs.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace pagoda::PAGODA_NS {

inline int tail(int n) { return n % kLanes; }

// Per block of 32: d = max|x| / top, q = round(x * (top / max|x|)), ties to even; top is 127 or 32767.
template <class T>
inline void quantize_as(const float* x, int k, const Quantized& to, int row) {
  constexpr float top = sizeof(T) == 1 ? 127.0f : 32767.0f;
  for (int b = 0; b < k / kBlock; b++) {
    const size_t at = Quantized::at(row, k / kBlock, b);
    T* q = (T*)to.q + at * kBlock;
    const V lo = load(x + b * kBlock), hi = load(x + b * kBlock + kLanes);
    const float largest = reduce_max(max(abs(lo), abs(hi)));
    // Below this the quotient may be infinite: such a block is all zeros.
    const V inverse = set1(largest > 1e-33f ? top / largest : 0.0f);
    // No number is past top, so this holds only what is none: it becomes -top on every machine.
    const auto integers = [&](V v) { return min(max(round(mul(v, inverse)), set1(-top)), set1(top)); };
    const int32_t first = store_integers(q, integers(lo));
    const int32_t sum = first + store_integers(q + kLanes, integers(hi));
    const float d = largest / top;
    to.d[at] = d;
    to.s[at] = d * float(sum);
    to.neg8[at] = -8 * sum;
    to.neg8_first[at] = -8 * first;
  }
}

inline void quantize(const float* x, int k, const Quantized& to, int row) {
  to.bytes == 1 ? quantize_as<int8_t>(x, k, to, row) : quantize_as<int16_t>(x, k, to, row);
}

inline void norm(const float* x, const float* w, float eps, int n, float* y) {
  V acc = zero();
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V a = load(x + i);
    acc = fma(a, a, acc);
  }
  if (tail(n)) {
    const V a = load_n(x + i, tail(n));
    acc = fma(a, a, acc);
  }
  const float mean = reduce_add(acc) / float(n);
  const V inverse = set1(1.0f / std::sqrt(mean + eps));
  for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, mul(mul(load(x + i), inverse), load(w + i)));
  if (tail(n)) store_n(y + i, mul(mul(load_n(x + i, tail(n)), inverse), load_n(w + i, tail(n))), tail(n));
}

// f on whole vectors, then on what is left.
template <class F>
inline void each(const float* x, int n, float* y, F f) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i)));
  if (tail(n)) store_n(y + i, f(load_n(x + i, tail(n))), tail(n));
}
template <class F>
inline void each_two(const float* x, const float* y, int n, float* z, F f) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(z + i, f(load(x + i), load(y + i)));
  if (tail(n)) store_n(z + i, f(load_n(x + i, tail(n)), load_n(y + i, tail(n))), tail(n));
}

// g / (1 + e^-z) * u
inline V gated(V g, V z, V u) { return mul(div(g, add(set1(1.0f), exp(sub(zero(), z)))), u); }

inline void act(Act kind, const float* gate, const float* up, int n, float* y) {
  if (kind == Act::Silu) return each_two(gate, up, n, y, [](V g, V u) { return gated(g, g, u); });
  if (kind == Act::SwigluClamped)
    return each_two(gate, up, n, y, [](V g, V u) {
      const V held = min(g, set1(7.0f));
      return gated(held, mul(held, set1(1.702f)), add(max(min(u, set1(7.0f)), set1(-7.0f)), set1(1.0f)));
    });
  // 2z = g (a + b g^2), with a = 2 sqrt(2 / pi) and b = 0.044715 a
  each_two(gate, up, n, y, [](V g, V u) { return gated(g, mul(g, fma(mul(g, g), set1(0.0713548163f), set1(1.59576912f))), u); });
}

inline void scale(const float* x, float factor, int n, float* y) {
  each(x, n, y, [factor](V v) { return mul(v, set1(factor)); });
}

inline void soft_cap(const float* x, float cap, int n, float* y) {
  each(x, n, y, [cap](V v) { return soft_cap(v, cap); });
}

inline void add(const float* x, const float* y, int n, float* z) {
  each_two(x, y, n, z, [](V a, V b) { return add(a, b); });
}

inline void weigh(const float* x, float w, int n, bool first, float* y) {
  if (first) return scale(x, w, n, y);
  each_two(x, y, n, y, [w](V a, V b) { return fma(set1(w), a, b); });
}

inline void add_to(float* x, const float* y, int n) { add(x, y, n, x); }

// y = x * cos + partner * (-sin for a pair's first element, +sin for its second): one product rounded, then one fma.
inline void rope_adjacent(float* x, int heads, int dim, int dims, const float* cos, const float* sin) {
  int i = 0;
  for (; i + kLanes <= dims; i += kLanes) {
    alignas(64) float c[kLanes], s[kLanes];  // the same for all heads
    for (int j = 0; j < kLanes; j += 2) {
      c[j] = c[j + 1] = cos[(i + j) / 2];
      s[j] = -sin[(i + j) / 2];
      s[j + 1] = sin[(i + j) / 2];
    }
    const V cosines = load(c), sines = load(s);
    for (int h = 0; h < heads; h++) {
      float* at = x + size_t(h) * size_t(dim) + i;
      const V a = load(at);
      store(at, fma(a, cosines, mul(swap_pairs(a), sines)));
    }
  }
  for (; i < dims; i += 2)
    for (int h = 0; h < heads; h++) {
      float* at = x + size_t(h) * size_t(dim) + i;
      const float c = cos[i / 2], s = sin[i / 2], a = at[0], b = at[1];
      at[0] = std::fmaf(a, c, b * -s);
      at[1] = std::fmaf(b, c, a * s);
    }
}

inline void rope_halves(float* x, int dims, const float* cos, const float* sin) {
  const int half = dims / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const V a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, fma(a, c, mul(b, sub(zero(), s))));
    store(x + half + i, fma(b, c, mul(a, s)));
  }
  for (; i < half; i++) {
    const float c = cos[i], s = sin[i], a = x[i], b = x[half + i];
    x[i] = std::fmaf(a, c, b * (0.0f - s));
    x[half + i] = std::fmaf(b, c, a * s);
  }
}

inline void rope(float* x, int heads, int dim, int dims, const float* cos, const float* sin, bool adjacent) {
  if (adjacent) return rope_adjacent(x, heads, dim, dims, cos, sin);
  for (int h = 0; h < heads; h++) rope_halves(x + size_t(h) * dim, dims, cos, sin);
}

inline float max_of(const float* x, int n) {
  V tops[4] = {set1(x[0]), set1(x[0]), set1(x[0]), set1(x[0])};  // so that one need not wait for the one before
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int j = 0; j < 4; j++) tops[j] = max(tops[j], load(x + i + j * kLanes));
  V top = max(max(tops[0], tops[1]), max(tops[2], tops[3]));
  for (; i + kLanes <= n; i += kLanes) top = max(top, load(x + i));
  float best = reduce_max(top);
  for (; i < n; i++) best = x[i] > best ? x[i] : best;
  return best;
}

// The first index of the largest value: found in the first piece whose largest is the largest of all.
inline int argmax(const float* x, int n) {
  constexpr int piece = 1024;
  const auto size = [&](int i) { return n - i < piece ? n - i : piece; };
  int first = 0;
  float top = max_of(x, size(0));
  for (int i = piece; i < n; i += piece) {
    const float largest = max_of(x + i, size(i));
    if (largest > top) top = largest, first = i;
  }
  for (int i = first; i < first + size(first); i++)
    if (x[i] == top) return i;
  return 0;
}

// Sum of e^(x - max), lane = index mod 16.
inline float sum_exp(const float* x, int n, float top) {
  V acc = zero();
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) acc = add(acc, exp(sub(load(x + i), set1(top))));
  if (tail(n)) {
    alignas(64) float t[kLanes];
    for (int j = 0; j < kLanes; j++) t[j] = j < tail(n) ? x[i + j] : -INFINITY;
    acc = add(acc, exp(sub(load(t), set1(top))));
  }
  return reduce_add(acc);
}

inline float exp_of(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

inline void route(const float* scores, int n, int k, bool all, float* out) {
  for (int j = 0; j < k; j++) {
    int best = -1;
    for (int e = 0; e < n; e++) {
      bool taken = false;
      for (int i = 0; i < j; i++) taken = taken || int(out[i]) == e;
      if (!taken && (best < 0 || scores[e] > scores[best])) best = e;
    }
    out[j] = float(best);
  }
  const float top = scores[int(out[0])];
  float sum = all ? sum_exp(scores, n, top) : 0.0f;
  for (int j = 0; j < k; j++) {
    out[k + j] = exp_of(scores[int(out[j])] - top);
    if (!all) sum += out[k + j];
  }
  for (int j = 0; j < k; j++) out[k + j] /= sum;
}

}  // namespace pagoda::PAGODA_NS
