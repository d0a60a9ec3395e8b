// The two instructions that AVX-VNNI adds to AVX2: to each 32-bit sum, two products of int16, or four of unsigned bytes and signed
// ones. For tests on machines without them, SIMDe's portable definition of the same.
#pragma once

#include <immintrin.h>

#include "isa.h"

#if PAGODA_EMULATED
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/dpwssd.h>
#endif

namespace pagoda::PAGODA_NS {

#if PAGODA_EMULATED
inline __m256i dot_pairs(__m256i sum, __m256i a, __m256i b) { return simde_mm256_dpwssd_epi32(sum, a, b); }
inline __m256i dot_fours(__m256i sum, __m256i a, __m256i b) { return simde_mm256_dpbusd_epi32(sum, a, b); }
#else
inline __m256i dot_pairs(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
inline __m256i dot_fours(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#endif

}  // namespace pagoda::PAGODA_NS
