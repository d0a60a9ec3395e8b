// Runs the native tests: all of them, or those of the groups named as arguments. First line: the instruction sets that are
// tested; last line: `N passed, N failed`.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <set>

#include "check.h"
#include "dispatch.h"

namespace pagoda::test {
namespace {

constexpr int kShown = 5;  // failures printed of one test
std::mutex printing;
int failures = 0;  // of the running test

// Whether it passed.
bool run(const Test& test) {
  failures = 0;
  const auto start = std::chrono::steady_clock::now();
  try {
    test.run();
  } catch (const std::exception& error) {
    fail("", 0, std::string("uncaught: ") + error.what());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%s %s.%s (%.2f s)\n", failures ? "FAILED" : "ok    ", test.group.c_str(), test.name.c_str(), seconds);
  std::fflush(stdout);
  return failures == 0;
}

}  // namespace

std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

void fail(const char* file, int line, const std::string& what) {
  std::lock_guard lock(printing);
  if (failures++ < kShown) std::printf("%s:%d: %s\n", file, line, what.c_str());
}

}  // namespace pagoda::test

int main(int argc, char** argv) {
  using namespace pagoda::test;
  std::set<std::string> known, wanted(argv + 1, argv + argc);
  for (const auto& test : all_tests()) known.insert(test.group);
  for (const auto& group : wanted)
    if (!known.count(group)) {
      std::fprintf(stderr, "no group of tests is called %s\n", group.c_str());
      return 2;
    }
  std::printf("instruction sets:");
  for (const auto& isa : pagoda::usable_isas()) std::printf(" %s", isa.c_str());
  std::printf("\n");
  int passed = 0, failed = 0;
  for (const auto& test : all_tests())
    if (wanted.empty() || wanted.count(test.group)) run(test) ? passed++ : failed++;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed || !passed ? 1 : 0;
}
