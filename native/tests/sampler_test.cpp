// The sampler: exact functions against long double, Philox against its published vectors, and what a draw may depend on.
// That draws agree with the reference rule token for token is tested in Python (tests/backends/test_sampling.py).
#include "sampler.h"

#include <algorithm>
#include <numeric>

#include "check.h"
#include "dispatch.h"

namespace pagoda::test {
namespace {

const Kernels& scalar_kernels() { return kernels_for("scalar"); }

DrawRow plain_row() {
  DrawRow row{};
  row.seed = 0x123456789abcdefULL, row.position = 7;
  row.temperature = 1, row.top_p = 1, row.repetition = 1, row.logprobs = -1;
  return row;
}

Slots one_slot(std::vector<int32_t> prompt = {}, const std::vector<int32_t>& output = {}) {
  Slots slots;
  slots.start(0, std::move(prompt));
  for (const int32_t t : output) slots.push(0, t);
  return slots;
}

DrawResult drawn(const DrawRow& row, std::vector<float> logits, const Slots& slots = one_slot(), const Kernels& k = scalar_kernels()) {
  return draw(k, logits.data(), int(logits.size()), row, slots);
}

std::vector<float> random_logits(Random& random, int n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (auto& v : x) v = random.below(10) ? random.number() * 8.0f : std::round(random.number() * 8.0f);
  return x;
}

DrawRow random_row(Random& random) {
  DrawRow row = plain_row();
  row.seed = random.bits(), row.choice = random.below(4), row.position = random.below(100'000);
  row.temperature = random.below(3) ? 0.05f + std::fabs(random.number()) * 2 : float(random.below(2));
  if (random.below(2)) row.top_k = random.between(1, 60);
  if (random.below(2)) row.top_p = std::fabs(random.number());
  if (random.below(2)) row.min_p = std::fabs(random.number());
  if (random.below(2)) row.repetition = 1.3f, row.frequency = 0.2f, row.presence = -0.1f;
  row.logprobs = random.between(-1, 3);
  return row;
}

double noise(const DrawRow& row, int32_t id) {
  const auto words = philox({uint32_t(id) / 4, uint32_t(row.position), uint32_t(row.choice), 0}, uint32_t(row.seed), uint32_t(row.seed >> 32));
  return -log_exact(-log_exact((double(words[size_t(id % 4)]) + 0.5) * 0x1p-32));
}

bool equal(const DrawResult& a, const DrawResult& b) {
  return a.token == b.token && same(a.logprob, b.logprob) && a.top_ids == b.top_ids && same(a.top_logprobs, b.top_logprobs);
}

}  // namespace

TEST("sampler", logarithm) {
  Random random(41);
  std::vector<double> x = {1.0, 2.0, 0.5, 1.4142135623730951, 1.4142135623730949, 1 - 0x1p-53, 1 + 0x1p-52, 0x1p-33, 1e-300, 1e300};
  for (int i = 0; i < 100'000; i++) {
    x.push_back((double(uint32_t(random.bits())) + 0.5) * 0x1p-32);
    x.push_back(std::ldexp(double(random.bits() | 1), random.between(-400, 400)));
  }
  for (const double v : x) {
    const long double exact = std::log((long double)v);
    CHECK(std::fabs((long double)log_exact(v) - exact) <= 4e-16L * std::fabs(exact));
  }
}

TEST("sampler", sine_and_cosine) {
  Random random(42);
  std::vector<double> x = {0.0, 0x1p-60, 0.78539816339744828, 1.5707963267948966, 3.1415926535897931, 1e6};
  for (int position = 0; position < 1000; position++)
    for (int i = 0; i < 32; i++) x.push_back(position * std::pow(10000.0, -i / 32.0));
  for (int i = 0; i < 50'000; i++) x.push_back(double(random.bits() >> 11) * 0x1p-53 * (i % 2 ? 10 : 1'600'000));
  for (const double v : x) {
    double s, c;
    sincos_exact(v, s, c);
    CHECK(std::fabs((long double)s - std::sin((long double)v)) <= 3e-16L);
    CHECK(std::fabs((long double)c - std::cos((long double)v)) <= 3e-16L);
  }
}

// Known answers of Random123 (Salmon et al. 2011), philox4x32 with 10 rounds.
TEST("sampler", philox_known_answers) {
  using Words = std::array<uint32_t, 4>;
  constexpr uint32_t ones = 0xffffffff;
  CHECK(philox({0, 0, 0, 0}, 0, 0) == (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK(philox({ones, ones, ones, ones}, ones, ones) == (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// What the race skips unseen would not have won.
TEST("sampler", the_race_is_won_by_the_greatest) {
  Random random(43);
  for (int trial = 0; trial < 300; trial++) {
    const auto logits = random_logits(random, random.between(1, trial % 10 ? 400 : 9000));
    DrawRow row = plain_row();
    row.seed = random.bits(), row.position = trial, row.choice = random.below(3);
    double best = -INFINITY;
    int32_t winner = -1;
    for (int32_t id = 0; id < int32_t(logits.size()); id++)
      if (const double score = double(logits[size_t(id)]) + noise(row, id); score > best) best = score, winner = id;
    CHECK(drawn(row, logits).token == winner);
  }
}

TEST("sampler", draws_have_the_softmax_frequencies) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, -INFINITY, 0.5f, 2.0f};
  double total = 0;
  for (const float x : logits) total += std::exp(double(x));
  constexpr int kDraws = 20'000;
  std::vector<int> count(logits.size());
  DrawRow row = plain_row();
  for (row.position = 0; row.position < kDraws; row.position++) count[size_t(drawn(row, logits).token)]++;
  for (size_t i = 0; i < logits.size(); i++) {
    const double p = std::exp(double(logits[i])) / total;
    CHECK(std::fabs(count[i] - kDraws * p) <= 5 * std::sqrt(kDraws * p * (1 - p)));
  }
}

TEST("sampler", seed_choice_and_position_each_change_the_noise) {
  const std::vector<float> logits(1000, 0.0f);
  DrawRow row = plain_row();
  const int32_t token = drawn(row, logits).token;
  CHECK(drawn(row, logits).token == token);
  row.seed ^= 1ULL << 40;
  CHECK(drawn(row, logits).token != token);
  row = plain_row(), row.seed++;
  CHECK(drawn(row, logits).token != token);
  row = plain_row(), row.choice++;
  CHECK(drawn(row, logits).token != token);
  row = plain_row(), row.position++;
  CHECK(drawn(row, logits).token != token);
}

TEST("sampler", instruction_sets_draw_alike) {
  Random random(44);
  for (int trial = 0; trial < 200; trial++) {
    const auto logits = random_logits(random, random.between(1, trial % 10 ? 300 : 3000));
    const int n = int(logits.size());
    const auto slots = one_slot({0, random.below(n), random.below(n)}, {random.below(n), random.below(n)});
    const DrawRow row = random_row(random);
    const auto expected = drawn(row, logits, slots);
    for (const auto& isa : usable_isas()) CHECK_CASE(equal(drawn(row, logits, slots, kernels_for(isa)), expected), isa);
  }
}

TEST("sampler", filters_that_leave_one) {
  Random random(45);
  for (int trial = 0; trial < 200; trial++) {
    const auto logits = random_logits(random, random.between(1, 200));
    const int32_t first = int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    DrawRow row = plain_row();
    row.position = trial;
    row.temperature = 0;
    CHECK(drawn(row, logits).token == first);
    row.temperature = 0.7f, row.top_k = 1;
    CHECK(drawn(row, logits).token == first);
    row.top_k = 0, row.top_p = 1e-6f;
    CHECK(drawn(row, logits).token == first);
    row.top_p = 1, row.min_p = 1;
    CHECK(logits[size_t(drawn(row, logits).token)] == logits[size_t(first)]);  // equals are all kept
  }
}

TEST("sampler", filters_keep_the_likeliest) {
  Random random(46);
  for (int trial = 0; trial < 200; trial++) {
    const auto logits = random_logits(random, random.between(2, 200));
    const int n = int(logits.size());
    std::vector<int> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
    DrawRow row = plain_row();
    row.position = trial, row.top_k = random.between(1, n);
    const auto rank = [&](int32_t token) { return int(std::find(order.begin(), order.end(), token) - order.begin()); };
    CHECK(rank(drawn(row, logits).token) < row.top_k);
    row.top_k = 0, row.min_p = 0.3f;
    CHECK(double(logits[size_t(drawn(row, logits).token)]) >= double(logits[size_t(order[0])]) + std::log(0.3) - 1e-5);
    row.min_p = 0, row.top_p = 0.5f;
    double total = 0, before = 0;  // all, and all likelier than the token
    for (const float x : logits) total += std::exp(double(x));
    const int at = rank(drawn(row, logits).token);
    for (int i = 0; i < at; i++) before += std::exp(double(logits[size_t(order[size_t(i)])]));
    CHECK(before <= 0.5 * total * (1 + 1e-4));
  }
}

TEST("sampler", penalties) {
  const std::vector<float> logits = {1.0f, 0.9f, -1.0f, 0.8f};
  DrawRow row = plain_row();
  row.temperature = 0;
  row.repetition = 1.3f;
  CHECK(drawn(row, logits, one_slot({0})).token == 1);
  CHECK(drawn(row, logits, one_slot({0}, {1})).token == 3);
  row.repetition = 1, row.presence = 0.5f;
  CHECK(drawn(row, logits, one_slot({0})).token == 0);  // of the output only
  CHECK(drawn(row, logits, one_slot({}, {0})).token == 1);
  row.presence = 0, row.frequency = 0.06f;
  CHECK(drawn(row, logits, one_slot({}, {0})).token == 0);
  CHECK(drawn(row, logits, one_slot({}, {0, 0})).token == 1);
}

TEST("sampler", log_probabilities_are_of_the_raw_logits) {
  Random random(47);
  for (int trial = 0; trial < 100; trial++) {
    const auto logits = random_logits(random, random.between(1, 300));
    const int n = int(logits.size());
    DrawRow row = random_row(random);
    row.logprobs = 5;
    const auto got = drawn(row, logits, one_slot({0}, {random.below(n)}));
    double total = 0;
    for (const float x : logits) total += std::exp(double(x));
    CHECK(std::fabs(got.logprob - (double(logits[size_t(got.token)]) - std::log(total))) <= 1e-5);
    CHECK(int(got.top_ids.size()) == std::min(5, n) && got.top_logprobs.size() == got.top_ids.size());
    for (size_t i = 0; i < got.top_ids.size(); i++) {
      CHECK(std::fabs(got.top_logprobs[i] - (double(logits[size_t(got.top_ids[i])]) - std::log(total))) <= 1e-5);
      if (!i) continue;
      const float a = logits[size_t(got.top_ids[i - 1])], b = logits[size_t(got.top_ids[i])];
      CHECK(a > b || (a == b && got.top_ids[i - 1] < got.top_ids[i]));
    }
  }
}

// A broken model's logits: some token comes out, and it is one that there is.
TEST("sampler", logits_that_are_not_numbers) {
  Random random(48);
  for (int trial = 0; trial < 400; trial++) {
    auto logits = random_logits(random, random.between(1, 40));
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (auto& x : logits)
      if (trial % 4 == 0 || random.below(3) == 0) x = values[random.below(trial % 4 == 0 ? 1 : 3)];
    const auto got = drawn(random_row(random), logits);
    CHECK(got.token >= 0 && got.token < int32_t(logits.size()));
  }
}

TEST("sampler", slots_remember) {
  Slots slots;
  slots.start(3, {5, 6});
  CHECK(slots.last(3) == -1 && slots.prompt(3) == (std::vector<int32_t>{5, 6}) && slots.output(3).empty());
  slots.push(3, 9), slots.push(3, 4);
  CHECK(slots.last(3) == 4 && slots.output(3) == (std::vector<int32_t>{9, 4}));
  slots.start(3, {1});
  CHECK(slots.last(3) == -1 && slots.prompt(3) == std::vector<int32_t>{1});
  CHECK_THROWS(slots.push(4, 1), std::out_of_range);
  CHECK_THROWS(slots.last(-1), std::out_of_range);
}

}  // namespace pagoda::test
