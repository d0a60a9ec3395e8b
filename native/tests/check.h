// What every native test uses: tests that register themselves, CHECK, comparison of bits, seeded random numbers.
// Knows nothing of kernels. Each file of tests is one group; `native_tests.cpp` runs them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagoda::test {

struct Test {
  std::string group, name;
  void (*run)();
};

std::vector<Test>& all_tests();

struct Register {
  Register(const char* group, const char* name, void (*run)()) { all_tests().push_back({group, name, run}); }
};

// Counts and prints a failure of the running test; any thread may call it.
void fail(const char* file, int line, const std::string& what);

#define TEST(group, name)                                                                     \
  static void test_##name();                                                                  \
  static const ::pagoda::test::Register register_##name(group, #name, test_##name);           \
  static void test_##name()

#define CHECK(ok)                                                        \
  do {                                                                   \
    if (!(ok)) ::pagoda::test::fail(__FILE__, __LINE__, #ok);            \
  } while (false)

// As CHECK, saying which case it was: `about` is a std::string.
#define CHECK_CASE(ok, about)                                                                    \
  do {                                                                                           \
    if (!(ok)) ::pagoda::test::fail(__FILE__, __LINE__, std::string(#ok) + " in " + (about));    \
  } while (false)

#define CHECK_THROWS(statement, Error)                                                    \
  do {                                                                                    \
    bool thrown = false;                                                                  \
    try {                                                                                 \
      statement;                                                                          \
    } catch (const Error&) {                                                              \
      thrown = true;                                                                      \
    }                                                                                     \
    if (!thrown) ::pagoda::test::fail(__FILE__, __LINE__, "no " #Error " from " #statement); \
  } while (false)

// Equal bits, or both NaN: which operand's NaN an addition hands on is the compiler's choice.
inline bool same(float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b)); }

template <class A>
bool same(const A& a, const A& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++)
    if (!same(a[i], b[i])) return false;
  return true;
}

// The same numbers in every run and on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  uint64_t bits() { return bits_(); }
  int below(int n) { return int(bits_() % uint64_t(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  // In [-1, 1), and in any f32 binade if asked for: zeros of both signs, denormals, huge.
  float number() { return float(int32_t(bits_())) * 0x1p-31f; }
  float awkward() {
    switch (below(12)) {
      case 0: return 0.0f;
      case 1: return -0.0f;
      case 2: return number() * 1e-40f;
      case 3: return number() * 1e-30f;
      case 4: return number() * 1e18f;
      case 5: return number() * 3e38f;
      case 6: return float(between(-8, 8)) * 0.5f;
      default: return number() * 4.0f;
    }
  }
  std::vector<float> numbers(size_t n) {
    std::vector<float> x(n);
    for (auto& v : x) v = number();
    return x;
  }
  std::vector<float> awkwards(size_t n) {
    std::vector<float> x(n);
    for (auto& v : x) v = awkward();
    return x;
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace pagoda::test
