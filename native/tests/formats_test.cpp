// Half precision against its definition, and packing against the formats' definitions.
#include <limits>

#include "kv_store.h"
#include "matrices.h"

namespace pagoda::test {
namespace {

float any_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// IEEE 754 binary16, from its definition.
double half_value(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  double x = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  if (exponent == 31) x = fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  return h & 0x8000 ? -x : x;
}

// The half nearest to x, ties to even, by its definition; infinite from 65520 on.
double nearest_half(double x) {
  if (!std::isfinite(x) || x == 0) return x;
  const int exponent = std::max(std::ilogb(x), -14);
  const double unit = std::ldexp(1.0, exponent - 10), rounded = std::nearbyint(x / unit) * unit;
  return std::fabs(rounded) > 65504 ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

// Floats that are hard to round: every half, the midpoint to the next, their neighbours; and many of any kind.
std::vector<float> hard_floats() {
  std::vector<float> found;
  for (int h = 0; h < 0x7c00; h++) {
    const float low = float(half_value(uint16_t(h))), high = h == 0x7bff ? 65536.0f : float(half_value(uint16_t(h + 1)));
    const float middle = (low + high) / 2;
    for (const float x : {low, middle})
      for (const float y : {x, std::nextafterf(x, 0.0f), std::nextafterf(x, INFINITY)}) found.push_back(y), found.push_back(-y);
  }
  Random random(1);
  for (int i = 0; i < 300'000; i++) found.push_back(any_float(uint32_t(random.bits())));
  for (const float x : {0.0f, 1e-45f, 3e38f, INFINITY, NAN}) found.push_back(x), found.push_back(-x);
  while (found.size() % 16) found.push_back(0.0f);
  return found;
}

bool same_number(double a, double b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); }

}  // namespace

TEST("formats", every_half_to_float_and_back) {
  for (int h = 0; h < 65536; h++) {
    const float x = f16_to_f32(uint16_t(h));
    CHECK(same_number(x, half_value(uint16_t(h))));
    CHECK(std::isnan(x) ? std::isnan(f16_to_f32(f32_to_f16(x))) : f32_to_f16(x) == h);
  }
}

TEST("formats", floats_to_the_nearest_half) {
  for (const float x : hard_floats()) CHECK(same_number(half_value(f32_to_f16(x)), nearest_half(x)));
}

// The instructions that convert against the software that does: store_kv converts one way, f16 weights the other.
TEST("formats", conversions_of_every_instruction_set) {
  const auto floats = hard_floats();
  constexpr int kDim = 1024;
  KVStore store({{1, 1, kDim, 2}}, 1, KVFormat::F16);
  const KVPages kv = store.layer(0, 0);
  std::vector<float> none(kDim), one = {1.0f};
  std::vector<uint8_t> halves;
  for (int h = 0; h < 65536; h++) append(halves, uint16_t(h));
  Pool pool(1);
  const Weight column(pool, Format::F16, 65536, 1, halves.data());
  for (const auto* k : vector_kernels()) {
    for (size_t at = 0; at + kDim <= floats.size(); at += kDim) {
      kernels_for("scalar").store_kv(kv, 0, 0, floats.data() + at, none.data());
      k->store_kv(kv, 1, 0, floats.data() + at, none.data());
      CHECK_CASE(std::memcmp(kv.keys(0, 0), kv.keys(1, 0), kDim * 2) == 0, k->name);
    }
    std::vector<float> read(65536);
    k->linear_f32(column.packed(), 0, column.packed().tiles(), one.data(), 0, 1, read.data(), read.size());
    for (int h = 0; h < 65536; h++) CHECK_CASE(same(read[size_t(h)] + 0.0f, f16_to_f32(uint16_t(h)) + 0.0f), k->name);
  }
}

TEST("formats", packed_rows_are_the_stored_rows) {
  Random random(2);
  Pool pool(2);
  for (const auto& d : definitions())
    for (const int n : {1, 2, 15, 16, 17, 31, 33, 50})
      for (const int blocks : {1, 2, 5}) {
        const int k = blocks * d.numbers;  // any width, of dense ones
        const auto raw = random_matrix(random, d, n, k);
        CHECK_CASE(stored_block(d.format) == d.numbers && raw.size() == size_t(n) * stored_row_bytes(d.format, k), d.name);
        const Weight weight(pool, d.format, n, k, raw.data());
        CHECK(weight.bytes() == size_t(weight.packed().tiles()) * packed_tile_bytes(d.format, k));
        std::vector<float> row(size_t(k), NAN);
        for (int v = 0; v < n; v++) {
          weight.row(v, row.data());
          CHECK_CASE(same(row, defined_row(d, raw, v, k)), std::string(d.name) + " n=" + std::to_string(n));
        }
      }
}

}  // namespace pagoda::test
