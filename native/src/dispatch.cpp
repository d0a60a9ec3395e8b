#include "dispatch.h"

#include <stdexcept>

namespace pagoda {
namespace {

std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    found.push_back(&avx512::kernels);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) found.push_back(&avx2::kernels);
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
