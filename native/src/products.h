// Sums of products of one block: a few rows of integer activations with the weights of a strip of columns. Integer sums are
// exact, so each instruction set forms them as it likes. Knows nothing of scales; linear.h makes chains of these sums.
#pragma once

#include "formats.h"

namespace pagoda::PAGODA_NS {

constexpr int kStrip = kAcross * kColumns;  // columns side by side

// A step multiplies four bytes of a row's activations, four int8 or two int16, with the weights of those inputs.
template <class A>
constexpr int kSteps = kGroups * int(sizeof(A));

// How F's weights are multiplied with A. A group's four inputs are one step of int8, or two of int16: the even ones, then the
// odd ones. A weight is what `of` gives less `bias`. `run`: steps of int8 that may be summed in int16, if they have to be.
template <class F, class A>
struct Operand {
#if PAGODA_AVX2
  static constexpr bool is_signed = sizeof(A) == 1 && F::Numbers::largest > 63;  // 128 * 127 * 2 fits
  static constexpr int run = is_signed ? 1 : 32767 / (254 * F::Numbers::largest);
#else
  static constexpr bool is_signed = false;
  static constexpr int run = 0;
#endif
  static constexpr int bias = is_signed ? 0 : F::bias;
  template <int Step>
  static Bytes of(const uint8_t* block) {
    if constexpr (sizeof(A) == 2) return F::Numbers::template pairs<Step / 2, Step % 2>(block);
    const Bytes group = F::Numbers::template group<Step / int(sizeof(A))>(block);
#if PAGODA_AVX2
    if constexpr (is_signed) return _mm256_sub_epi8(group, _mm256_set1_epi8(char(F::bias)));
#endif
    return group;
  }
};

// sum[row][register] = start(row) + steps [From, To), for MR rows, the first of which has its activations at `a`.
// w.step<S>(v): the weights of step S in register v of the strip.
template <class A, int MR, int From, int To, class Weights, class Start>
PAGODA_INLINE void add_steps(const Weights& w, const uint8_t* a, Start start, Ints (*sum)[kAcross]) {
  constexpr int chains = MR * kAcross < 8 ? 2 : 1;  // one long chain would wait for itself
  Ints sums[chains][MR][kAcross];
  unrolled<From, To>([&](auto s) __attribute__((always_inline)) {
    constexpr int chain = s % chains;
    Bytes weights[kAcross];
    for (int v = 0; v < kAcross; v++) weights[v] = w.template step<s>(v);
    for (int r = 0; r < MR; r++) {
      const Bytes four = spread_four(a + r * kBlock * sizeof(A) + s * 4);
      for (int v = 0; v < kAcross; v++) {
        Ints& to = sums[chain][r][v];
        const Ints before = s == From ? start(r) : s < From + chains ? spread(0) : to;
#if PAGODA_AVX2
        to = add_pairs(before, weights[v], four);
#else
        to = sizeof(A) == 2 ? add_pairs(before, weights[v], four) : add_fours(before, weights[v], four);
#endif
      }
    }
  });
  for (int r = 0; r < MR; r++)
    for (int v = 0; v < kAcross; v++) sum[r][v] = chains == 2 ? plus(sums[0][r][v], sums[chains - 1][r][v]) : sums[0][r][v];
}

#if PAGODA_AVX2

template <class A, int MR, int From, int To, class Weights, class Start>
  requires(sizeof(A) == 1)
PAGODA_INLINE void add_steps(const Weights& w, const uint8_t* a, Start start, Ints (*sum)[kAcross]) {
  constexpr int run = Weights::run;
  Bytes pairs[MR][kAcross];
  unrolled<From, To>([&](auto s) __attribute__((always_inline)) {
    Bytes weights[kAcross];
    for (int v = 0; v < kAcross; v++) weights[v] = w.template step<s>(v);
    for (int r = 0; r < MR; r++) {
      const Bytes four = spread_four(a + r * kBlock + s * 4);
      for (int v = 0; v < kAcross; v++) {
        const Bytes more = run == 1 ? signed_fours(weights[v], four) : small_fours(weights[v], four);
        pairs[r][v] = (s - From) % run ? plus_pairs(pairs[r][v], more) : more;
        if constexpr ((s - From) % run == run - 1 || s == To - 1)
          sum[r][v] = add_pairs(s - From < run ? start(r) : sum[r][v], pairs[r][v], _mm256_set1_epi16(1));
      }
    }
  });
}

#endif

}  // namespace pagoda::PAGODA_NS
