// Kernels over one row: every instruction set against scalar, bit for bit, and scalar against the C library, roughly.
#include "check.h"
#include "dispatch.h"
#include "matrices.h"

namespace pagoda::test {
namespace {

const Kernels& scalar_kernels() { return kernels_for("scalar"); }

// Widths around every multiple of a vector, and a few longer.
std::vector<int> widths() {
  std::vector<int> n;
  for (int i = 1; i <= 70; i++) n.push_back(i);
  for (const int i : {127, 128, 129, 576, 1000}) n.push_back(i);
  return n;
}

std::string about(const char* isa, int n) { return std::string(isa) + " n=" + std::to_string(n); }

// What a kernel that writes n numbers makes of them.
template <class F>
std::vector<float> made(int n, F f) {
  std::vector<float> y(size_t(n), NAN);
  f(y.data());
  return y;
}

// A rotation of `heads` vectors of `dim`, of which the first `dims` elements turn.
struct Turn {
  int heads, dim, dims;
  bool adjacent;
  std::vector<float> cos, sin;

  Turn(Random& random, int dim, bool adjacent)
      : heads(random.between(1, 4)), dim(dim), dims(random.below(2) ? dim : 2 * random.between(1, dim / 2)), adjacent(adjacent) {
    for (int i = 0; i < dims / 2; i++) {
      const float angle = random.below(9) ? random.number() * 3 : 0.0f;
      cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
    }
  }
  std::vector<float> run(const Kernels& kernels, std::vector<float> x) const {
    kernels.rope(x.data(), heads, dim, dims, cos.data(), sin.data(), adjacent);
    return x;
  }
  double exact(const std::vector<float>& x, int at) const {
    const int i = at % dim, half = dims / 2;
    if (i >= dims) return x[size_t(at)];
    const bool first = adjacent ? i % 2 == 0 : i < half;
    const size_t pair = size_t(adjacent ? i / 2 : i % half), other = size_t(at + (first ? 1 : -1) * (adjacent ? 1 : half));
    return double(x[size_t(at)]) * cos[pair] + double(x[other]) * (first ? -sin[pair] : sin[pair]);
  }
};

bool near(double a, double b, double tolerance) { return std::fabs(a - b) <= tolerance * std::max(1.0, std::fabs(b)); }

}  // namespace

TEST("rows", norm_on_every_instruction_set) {
  Random random(21);
  for (const int n : widths()) {
    const bool plain = n % 2;
    const auto x = plain ? random.numbers(size_t(n)) : random.awkwards(size_t(n));
    const auto w = plain ? random.numbers(size_t(n)) : random.awkwards(size_t(n));
    const auto run = [&](const Kernels& k) {
      return made(n, [&](float* y) { k.norm(x.data(), w.data(), 1e-5f, n, y); });
    };
    const auto expected = run(scalar_kernels());
    for (const auto* k : vector_kernels()) CHECK_CASE(same(run(*k), expected), about(k->name, n));
    if (!plain) continue;
    double squares = 0;
    for (const float v : x) squares += double(v) * v;
    for (int i = 0; i < n; i++)
      CHECK(near(expected[size_t(i)], x[size_t(i)] / std::sqrt(squares / n + 1e-5) * w[size_t(i)], 1e-6));
  }
}

TEST("rows", act_on_every_instruction_set) {
  Random random(22);
  for (const int n : widths()) {
    auto gate = random.awkwards(size_t(n));
    const auto up = random.awkwards(size_t(n));
    for (auto& g : gate) g *= random.below(3) ? 1.0f : 30.0f;  // about where e^x leaves the range of f32
    for (const Act kind : {Act::Silu, Act::GeluTanh, Act::SwigluClamped}) {
      const auto run = [&](const Kernels& k) {
        return made(n, [&](float* y) { k.act(kind, gate.data(), up.data(), n, y); });
      };
      const auto expected = run(scalar_kernels());
      for (const auto* k : vector_kernels()) CHECK_CASE(same(run(*k), expected), about(k->name, n));
      for (int i = 0; i < n && kind != Act::SwigluClamped; i++) {
        const double g = gate[size_t(i)], z = kind == Act::Silu ? g : std::sqrt(8 / M_PI) * (g + 0.044715 * g * g * g);
        const double exact = g / (1 + std::exp(-z)) * up[size_t(i)];
        if (std::fabs(z) < 80 && std::fabs(exact) < 1e30) CHECK(near(expected[size_t(i)], exact, 1e-5));
      }
    }
  }
}

TEST("rows", routes_on_every_instruction_set) {
  Random random(27);
  for (const int n : widths())
    for (const bool all : {false, true}) {
      auto scores = random.numbers(size_t(n));
      for (auto& s : scores) s = std::round(3 * s);  // many equals
      const int k = random.between(1, std::min(n, 8));
      const auto run = [&](const Kernels& kernels) {
        return made(2 * k, [&](float* out) { kernels.route(scores.data(), n, k, all, out); });
      };
      const auto expected = run(scalar_kernels());
      for (const auto* kernels : vector_kernels()) CHECK_CASE(same(run(*kernels), expected), about(kernels->name, n));
      double sum = 0, exact = 0;
      for (int j = 0; j < k; j++) sum += expected[size_t(k + j)];
      for (int j = 1; j < k; j++) {
        const float before = scores[size_t(expected[size_t(j - 1)])], now = scores[size_t(expected[size_t(j)])];
        CHECK(before > now || (before == now && expected[size_t(j - 1)] < expected[size_t(j)]));
      }
      for (const float s : scores) exact += std::exp(double(s) - scores[size_t(expected[0])]);
      CHECK(all ? near(expected[size_t(k)], 1 / exact, 1e-5) : near(sum, 1, 1e-5));
    }
}

TEST("rows", scale_and_soft_cap_on_every_instruction_set) {
  Random random(26);
  for (const int n : widths()) {
    auto x = random.awkwards(size_t(n));
    for (auto& v : x) v *= random.below(3) ? 1.0f : 1000.0f;
    for (const float factor : {0.5f, 30.0f, 1e-3f}) {
      const auto scaled = [&](const Kernels& k) { return made(n, [&](float* y) { k.scale(x.data(), factor, n, y); }); };
      const auto capped = [&](const Kernels& k) { return made(n, [&](float* y) { k.soft_cap(x.data(), factor, n, y); }); };
      for (const auto* k : vector_kernels()) {
        CHECK_CASE(same(scaled(*k), scaled(scalar_kernels())), about(k->name, n));
        CHECK_CASE(same(capped(*k), capped(scalar_kernels())), about(k->name, n));
      }
      const auto expected = capped(scalar_kernels());
      for (int i = 0; i < n; i++)
        if (std::isfinite(x[size_t(i)]))
          CHECK(std::fabs(double(expected[size_t(i)]) - factor * std::tanh(double(x[size_t(i)]) / factor)) <= 3e-7 * double(factor));
    }
  }
}

TEST("rows", add_is_exact) {
  Random random(23);
  for (const int n : widths()) {
    const auto x = random.awkwards(size_t(n)), y = random.awkwards(size_t(n));
    std::vector<float> expected(static_cast<size_t>(n));
    for (size_t i = 0; i < expected.size(); i++) expected[i] = x[i] + y[i];
    for (const auto& isa : usable_isas())
      CHECK_CASE(same(made(n, [&](float* z) { kernels_for(isa).add(x.data(), y.data(), n, z); }), expected), about(isa.c_str(), n));
  }
}

TEST("rows", rope_of_both_pairings) {
  Random random(24);
  for (const bool adjacent : {false, true})
    for (int dim = 2; dim <= 130; dim += dim < 70 ? 2 : 12) {
      const Turn turn(random, dim, adjacent);
      for (const bool plain : {true, false}) {
        const size_t n = size_t(turn.heads) * size_t(dim);
        const auto x = plain ? random.numbers(n) : random.awkwards(n), expected = turn.run(scalar_kernels(), x);
        for (const auto* k : vector_kernels()) CHECK_CASE(same(turn.run(*k, x), expected), about(k->name, turn.dims));
        for (int i = 0; plain && i < int(n); i++) CHECK(std::fabs(double(expected[size_t(i)]) - turn.exact(x, i)) <= 2e-7);
      }
    }
}

TEST("rows", sampling_sums_on_every_instruction_set) {
  Random random(25);
  for (const int n : widths())
    for (int kind = 0; kind < 3; kind++) {
      auto x = kind == 0 ? random.numbers(size_t(n)) : random.awkwards(size_t(n));
      if (kind == 2)
        for (auto& v : x) v = random.below(3) ? -INFINITY : std::round(v);  // masked, and many equals
      int first = 0;
      for (int i = 1; i < n; i++)
        if (x[size_t(i)] > x[size_t(first)]) first = i;
      const float top = scalar_kernels().max(x.data(), n);
      const float sum = scalar_kernels().sum_exp(x.data(), n, top);
      CHECK(top == x[size_t(first)]);
      CHECK_CASE(scalar_kernels().argmax(x.data(), n) == first, about("scalar", n));
      double exact = 0;
      for (const float v : x) exact += std::exp(double(v) - double(top));
      CHECK_CASE(std::isinf(top) || near(sum, exact, 1e-5), about("scalar", n));
      for (const auto* k : vector_kernels()) {
        CHECK_CASE(k->argmax(x.data(), n) == first, about(k->name, n));
        CHECK_CASE(same(k->max(x.data(), n), top) && same(k->sum_exp(x.data(), n, top), sum), about(k->name, n));
      }
    }
}

// e^x by way of sum_exp: its whole range, the edges where it becomes 0 and infinite, and what is not a number.
TEST("rows", exponential) {
  Random random(26);
  std::vector<float> x = {0.0f, -0.0f, 1.0f, -87.32f, -87.33f, -87.34f, 88.36f, 88.37f, 88.38f, 1e30f, -1e30f, INFINITY, -INFINITY, NAN};
  for (int i = 0; i < 20'000; i++) x.push_back(random.number() * 90.0f);
  for (const float v : x) {
    const float got = scalar_kernels().sum_exp(&v, 1, 0.0f);
    for (const auto* k : vector_kernels()) CHECK_CASE(same(k->sum_exp(&v, 1, 0.0f), got), k->name);
    if (v < -87.33f) CHECK(got == 0.0f);
    if (v > 88.37f) CHECK(got == INFINITY);
    if (v >= -87.33f && v <= 88.37f) CHECK(std::fabs(got - std::exp(double(v))) <= 1.5e-7 * std::exp(double(v)));
  }
}

}  // namespace pagoda::test
