#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <stdexcept>

#if PAGODA_HAS_NEON
#include <sys/auxv.h>
#endif

namespace pagoda {
namespace {

#if PAGODA_HAS_AVXVNNI
// Not __builtin_cpu_supports, which knows the name in newer compilers alone.
bool has_avxvnni() {
#if PAGODA_EMULATED
  return true;
#else
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#endif
}
#endif

#if PAGODA_HAS_NEON
constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP, which old headers lack
#endif

std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  [[maybe_unused]] const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
#if PAGODA_HAS_AVX
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    found.push_back(&avx512::kernels);
#endif
#if PAGODA_HAS_AVXVNNI
  if (avx2 && has_avxvnni()) found.push_back(&avxvnni::kernels);
#endif
#if PAGODA_HAS_AVX
  if (avx2) found.push_back(&avx2::kernels);
#endif
#if PAGODA_HAS_NEON
  if (getauxval(AT_HWCAP) & kDotProducts) found.push_back(&neon::kernels);
#endif
  found.push_back(&scalar::kernels);
  return found;
}

}  // namespace

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const auto* k : usable()) names.emplace_back(k->name);
  return names;
}

const Kernels& kernels_for(const std::string& isa) {
  for (const auto* k : usable())
    if (isa == k->name) return *k;
  throw std::invalid_argument("instruction set " + isa + " is not one that this machine has");
}

}  // namespace pagoda
