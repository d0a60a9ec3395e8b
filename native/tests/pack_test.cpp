// Packing many matrices at once, from memory and from a file, and what happens if the file is shorter than was said.
#include <unistd.h>

#include <cstdio>

#include "large_pages.h"
#include "matrices.h"

namespace pagoda::test {
namespace {

// A file that is gone when its descriptor is.
struct Temporary {
  std::FILE* file = std::tmpfile();
  ~Temporary() { std::fclose(file); }
  int descriptor() const { return fileno(file); }
  int64_t append(const std::vector<uint8_t>& bytes) {
    const int64_t at = lseek(descriptor(), 0, SEEK_END);
    CHECK(write(descriptor(), bytes.data(), bytes.size()) == ssize_t(bytes.size()));
    return at;
  }
};

bool same_tiles(const Weight& a, const Weight& b) { return a.bytes() == b.bytes() && std::memcmp(a.packed().data, b.packed().data, a.bytes()) == 0; }

}  // namespace

TEST("pack", many_at_once_are_each_by_itself) {
  Random random(1);
  Temporary file;
  std::vector<std::vector<uint8_t>> raw;
  std::vector<Unpacked> in_memory, in_file;
  std::vector<std::shared_ptr<Weight>> alone;
  Pool pool(3);
  for (const auto& d : definitions())
    for (const int n : {1, 17, 700}) {  // the last in several pieces
      const int k = 2 * std::max(d.numbers, 128);
      raw.push_back(random_matrix(random, d, n, k));
      in_memory.push_back({d.format, n, k, raw.back().data(), -1, 0});
      in_file.push_back({d.format, n, k, nullptr, file.descriptor(), file.append(raw.back())});
      alone.push_back(std::make_shared<Weight>(pool, d.format, n, k, raw.back().data()));
    }
  for (const auto& list : {in_memory, in_file}) {
    const auto weights = pack(pool, list);
    CHECK(weights.size() == alone.size());
    for (size_t i = 0; i < weights.size(); i++) CHECK_CASE(same_tiles(*weights[i], *alone[i]), "matrix " + std::to_string(i));
  }
}

TEST("pack", a_weight_outlives_its_neighbours) {
  Random random(2);
  const auto& d = definitions().front();
  const auto raw = random_matrix(random, d, 40, 256);
  Pool pool(2);
  std::shared_ptr<Weight> last = pack(pool, std::vector<Unpacked>(5, {d.format, 40, 256, raw.data(), -1, 0})).back();
  std::vector<float> row(256);
  last->row(39, row.data());
  CHECK(same(row, defined_row(d, raw, 39, 256)));
}

TEST("pack", large_pages_hold_what_was_asked_for) {
  std::vector<std::shared_ptr<uint8_t>> held;
  for (const size_t bytes : {size_t(1), size_t(70'000), size_t(9 << 20) + 1, size_t(3)}) {
    held.push_back(large_page_memory(bytes));
    CHECK(size_t(held.back().get()) % 64 == 0);
    std::memset(held.back().get(), int(held.size()), bytes);
  }
  for (size_t i = 0; i < held.size(); i++) CHECK(*held[i] == i + 1);
  CHECK_THROWS(large_page_memory(size_t(1) << 60), std::bad_alloc);
}

TEST("pack", a_file_cut_short_is_an_error) {
  Temporary file;
  file.append(std::vector<uint8_t>(100));
  Pool pool(2);
  CHECK_THROWS(pack(pool, {{Format::F32, 4, 8, nullptr, file.descriptor(), 0}}), ReadFailed);
  CHECK_THROWS(pack(pool, {{Format::F32, 4, 8, nullptr, -1, 0}}), ReadFailed);
  CHECK(pack(pool, {{Format::F32, 3, 8, nullptr, file.descriptor(), 4}}).size() == 1);
  uint8_t four[4] = {1, 1, 1, 1};
  read_file(file.descriptor(), 96, 4, four);
  CHECK(four[0] == 0 && four[3] == 0);
  CHECK_THROWS(read_file(file.descriptor(), 97, 4, four), ReadFailed);
}

}  // namespace pagoda::test
