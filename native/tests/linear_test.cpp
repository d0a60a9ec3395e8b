// Quantising and matrix products: every instruction set against scalar, bit for bit; scalar against exact sums, roughly.
#include "matrices.h"

namespace pagoda::test {
namespace {

const Kernels& scalar_kernels() { return kernels_for("scalar"); }

constexpr float kCanary = 12345.0f;

// One product of a random shape: 1 to 5 tiles of which the last may be partial, rows from row0 on.
struct Case {
  const Definition& format;
  int n, k, row0, rows, together;
  std::vector<uint8_t> raw;
  std::vector<float> x;  // [row0 + rows, k]
  std::unique_ptr<Weight> weight;

  Case(Random& random, Pool& pool, const Definition& format, int rows)
      : format(format),
        n(random.between(1, 72)),
        k(format.numbers == 256 ? 256 * random.between(1, 2) : kBlock * random.between(1, 20)),
        row0(kPanel * random.below(3)),
        rows(rows),
        together(random.between(1, 5)) {
    raw = random_matrix(random, format, n, k);
    const size_t size = size_t(row0 + rows) * size_t(k);
    x = random.below(2) ? random.numbers(size) : random.awkwards(size);
    weight = std::make_unique<Weight>(pool, format.format, n, k, raw.data());
  }
  std::string about(const char* isa) const {
    return std::string(format.name) + " n=" + std::to_string(n) + " k=" + std::to_string(k) + " rows=" + std::to_string(rows) + " " + isa;
  }
  // The product of all tiles, `together` at a time; rows before row0 stay as they are.
  template <class F>
  std::vector<float> product_of(F product) const {
    std::vector<float> out(size_t(row0 + rows) * size_t(n), kCanary);
    const int tiles = weight->packed().tiles();
    for (int t = 0; t < tiles; t += together) product(t, std::min(together, tiles - t), out.data());
    for (int i = 0; i < row0 * n; i++) CHECK(out[size_t(i)] == kCanary);
    return out;
  }
  std::vector<float> product_int(const Kernels& kernels, const Quantized& in) const {
    return product_of([&](int t, int tiles, float* out) { kernels.linear_int(weight->packed(), t, tiles, in, row0, rows, out, size_t(n)); });
  }
  std::vector<float> product_f32(const Kernels& kernels) const {
    return product_of([&](int t, int tiles, float* out) { kernels.linear_f32(weight->packed(), t, tiles, x.data(), row0, rows, out, size_t(n)); });
  }
};

// Output element (row, column), and the sum of its terms' sizes, which the tolerance is measured in.
struct Exact {
  double sum = 0, size = 0;
  void add(double term) { sum += term, size += std::fabs(term); }
  bool near(float got) const { return std::fabs(double(got) - sum) <= 1e-5 * size || !(size < 1e37) || size < 1e-30; }
};

}  // namespace

TEST("linear", quantize_keeps_its_definition) {
  Random random(11);
  for (const int bytes : {1, 2})
    for (int trial = 0; trial < 300; trial++) {
      const int k = kBlock * random.between(1, 8), top = bytes == 1 ? 127 : 32767;
      const auto x = trial % 2 ? random.awkwards(size_t(k)) : random.numbers(size_t(k));
      const int rows = random.between(1, 10), row = rows - 1;
      auto above = std::vector<float>(size_t(row) * size_t(k));
      above.insert(above.end(), x.begin(), x.end());
      const auto made = quantized(scalar_kernels(), above, rows, k, bytes);
      for (int b = 0; b < k / kBlock; b++) {
        float largest = 0;
        int sum = 0, first = 0;
        for (int i = b * kBlock; i < (b + 1) * kBlock; i++) {
          largest = std::max(largest, std::fabs(x[size_t(i)]));
          sum += made.integer(row, i);
          if (i % kBlock < 16) first = sum;
        }
        const size_t at = made.block(row, b);
        const float d = made.d[at];
        CHECK(same(d, largest / float(top)) && same(made.s[at], d * float(sum)) && made.neg8[at] == -8 * sum && made.first[at] == -8 * first);
        for (int i = b * kBlock; i < (b + 1) * kBlock && largest > 1e-30f; i++) {
          CHECK(std::abs(made.integer(row, i)) <= top);
          CHECK(std::fabs(double(x[size_t(i)]) - double(d) * made.integer(row, i)) <= 0.505 * double(d));
        }
      }
    }
}

TEST("linear", quantize_on_every_instruction_set) {
  Random random(12);
  for (const int bytes : {1, 2})
    for (int trial = 0; trial < 400; trial++) {
      const int k = kBlock * random.between(1, 10), rows = random.between(1, 10);
      const auto x = trial % 2 ? random.awkwards(size_t(rows) * size_t(k)) : random.numbers(size_t(rows) * size_t(k));
      const auto expected = quantized(scalar_kernels(), x, rows, k, bytes);
      for (const auto* kernels : vector_kernels()) CHECK_CASE(quantized(*kernels, x, rows, k, bytes) == expected, kernels->name);
    }
}

// A broken model may compute infinities and worse: garbage out, but defined garbage, the same everywhere.
TEST("linear", quantize_what_is_not_finite) {
  Random random(13);
  for (const int bytes : {1, 2})
    for (int trial = 0; trial < 100; trial++) {
      auto x = random.numbers(2 * kBlock);
      for (int i = random.between(1, 6); i > 0; i--) x[size_t(random.below(2 * kBlock))] = random.below(2) ? INFINITY : -NAN;
      const auto expected = quantized(scalar_kernels(), x, 1, 2 * kBlock, bytes);
      for (const auto* kernels : vector_kernels()) CHECK_CASE(quantized(*kernels, x, 1, 2 * kBlock, bytes) == expected, kernels->name);
    }
}

TEST("linear", integers_on_every_instruction_set) {
  Random random(14);
  Pool pool(1);
  for (const auto& format : definitions())
    for (const int bytes : {1, 2})
      for (int rows = 1; rows <= 26 && !format.dense(); rows++) {
        const Case c(random, pool, format, rows);
        auto in = quantized(scalar_kernels(), c.x, c.row0 + rows, c.k, bytes);
        const auto expected = c.product_int(scalar_kernels(), in.view());
        for (const auto* kernels : vector_kernels())
          CHECK_CASE(same(c.product_int(*kernels, in.view()), expected), c.about(kernels->name));
      }
}

// The largest sums there are: every weight and every activation at the end of its range.
TEST("linear", integers_at_their_limits) {
  Pool pool(1);
  constexpr int kN = 16, kK = 256;
  for (const auto& format : definitions())
    for (const uint8_t stored : {uint8_t(0x00), uint8_t(0xff), uint8_t(0x80), uint8_t(0x7f)})
      for (const int rows : {1, 16})
        for (const float sign : {1.0f, -1.0f}) {
          if (format.dense()) continue;
          std::vector<uint8_t> raw(stored_row_bytes(format.format, kK) * kN, stored);
          for (size_t block = 0; block < raw.size(); block += size_t(format.bytes)) {
            for (const int at : format.halves) raw[block + size_t(at)] = 0x00, raw[block + size_t(at) + 1] = 0x3c;
            if (format.format == Format::MXFP4) raw[block] = 127;
          }
          const Weight weight(pool, format.format, kN, kK, raw.data());
          for (const int bytes : {1, 2}) {
            auto in = quantized(scalar_kernels(), std::vector<float>(size_t(rows) * kK, sign), rows, kK, bytes);
            std::vector<float> expected(size_t(rows) * kN), got(expected.size());
            scalar_kernels().linear_int(weight.packed(), 0, 1, in.view(), 0, rows, expected.data(), kN);
            for (const auto* kernels : vector_kernels()) {
              kernels->linear_int(weight.packed(), 0, 1, in.view(), 0, rows, got.data(), kN);
              CHECK_CASE(same(expected, got), std::string(format.name) + " " + kernels->name);
            }
          }
        }
}

TEST("linear", floats_on_every_instruction_set) {
  Random random(15);
  Pool pool(1);
  for (const auto& format : definitions())
    for (int rows = 1; rows <= 20; rows++) {
      const Case c(random, pool, format, rows);
      const auto expected = c.product_f32(scalar_kernels());
      for (const auto* kernels : vector_kernels()) CHECK_CASE(same(c.product_f32(*kernels), expected), c.about(kernels->name));
    }
}

TEST("linear", products_are_about_right) {
  Random random(16);
  Pool pool(1);
  for (const auto& format : definitions())
    for (int trial = 0; trial < 12; trial++) {
      Case c(random, pool, format, random.between(1, 4));
      c.x = random.numbers(c.x.size());  // so that products of scales stay within f32
      const bool quantised = !format.dense();
      auto in = quantized(scalar_kernels(), c.x, c.row0 + c.rows, c.k, 1 + trial % 2);
      const auto floats = c.product_f32(scalar_kernels());
      const auto integers = quantised ? c.product_int(scalar_kernels(), in.view()) : floats;
      for (int r = c.row0; r < c.row0 + c.rows; r++)
        for (int v = 0; v < c.n; v++) {
          const auto w = defined_row(format, c.raw, v, c.k);
          Exact f32, ints;
          for (int i = 0; i < c.k; i++) {
            f32.add(double(c.x[size_t(r * c.k + i)]) * double(w[size_t(i)]));
            ints.add(double(in.d[in.block(r, i / kBlock)]) * in.integer(r, i) * double(w[size_t(i)]));
          }
          CHECK_CASE(f32.near(floats[size_t(r * c.n + v)]), c.about("f32"));
          CHECK_CASE(!quantised || ints.near(integers[size_t(r * c.n + v)]), c.about("integers"));
        }
    }
}

}  // namespace pagoda::test
