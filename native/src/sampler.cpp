#include "sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

namespace pagoda {
namespace {

struct Candidate {
  float z;
  int32_t id;
  // By (z descending, id ascending).
  bool operator<(const Candidate& o) const { return z != o.z ? z > o.z : id < o.id; }
};

double gumbel(uint32_t word) {
  const double u = (double(word) + 0.5) * 0x1p-32;
  return -log_exact(-log_exact(u));
}

// At least gumbel(word): -log(u) >= 1 - u, and 1 - u >= 2^-(leading zeros of ~word + 1), in units of 2^-32.
double gumbel_bound(uint32_t word) { return 0.69314718055994531 * (std::countl_zero(~word) + 1) + 1e-9; }

class Noise {
 public:
  explicit Noise(const DrawRow& row) : row_(row) {}
  uint32_t word(int32_t id) {
    const auto block = uint32_t(id) / 4;
    if (block != block_) {
      words_ = philox({block, uint32_t(row_.position), uint32_t(row_.choice), 0}, uint32_t(row_.seed), uint32_t(row_.seed >> 32));
      block_ = block;
    }
    return words_[uint32_t(id) % 4];
  }

 private:
  const DrawRow& row_;
  uint32_t block_ = UINT32_MAX;
  std::array<uint32_t, 4> words_{};
};

constexpr float kGreedyBelow = 1e-5f;  // under it z might not be finite
constexpr double kMostNoise = 22.9;  // the greatest gumbel: u = 1 - 2^-33

// Whether one of them is not under the floor.
bool reaches(const float* z, int n, double floor) {
  const float under = std::nextafter(float(floor), -INFINITY);
  int count = 0;
  for (int i = 0; i < n; i++) count += !(z[i] < under);
  return count > 0;
}

// The best of z + gumbel, ties to the lower id; candidates in any order. `fallback` wins if no z is a number.
class Race {
 public:
  Race(const DrawRow& row, int32_t fallback) : noise_(row), winner_(fallback) {}
  void enter(float z, int32_t id) {
    if (double(z) + kMostNoise < best_) return;
    run(z, id, noise_.word(id));
  }
  // All tokens. Most are passed by many at a time: none of them could win with the most noise there is, or that they have.
  void enter_all(const float* z, int n) {
    constexpr int many = 64;
    uint32_t words[many];
    for (int from = 0; from < n; from += many) {
      const int size = std::min(n - from, many);
      if (!reaches(z + from, size, best_ - kMostNoise)) continue;
      uint32_t most = 0;
      for (int i = 0; i < size; i++) words[i] = noise_.word(from + i), most = std::max(most, words[i]);
      if (!reaches(z + from, size, best_ - gumbel_bound(most))) continue;
      for (int i = 0; i < size; i++) run(z[from + i], from + i, words[i]);
    }
  }
  int32_t winner() const { return winner_; }

 private:
  void run(float z, int32_t id, uint32_t word) {
    if (double(z) + gumbel_bound(word) < best_) return;
    const double score = double(z) + gumbel(word);
    if (score > best_ || (score == best_ && id < winner_)) best_ = score, winner_ = id;
  }

  Noise noise_;
  double best_ = -INFINITY;
  int32_t winner_;
};

void penalize(float* logits, const DrawRow& row, const Slots& slots) {
  if (row.repetition == 1.0f && row.frequency == 0.0f && row.presence == 0.0f) return;
  std::unordered_map<int32_t, int32_t> counts;  // in the output
  for (const int32_t t : slots.output(row.slot)) counts[t]++;
  if (row.repetition != 1.0f) {
    auto seen = counts;
    for (const int32_t t : slots.prompt(row.slot)) seen[t];
    for (const auto& [t, n] : seen) logits[t] = logits[t] > 0.0f ? logits[t] / row.repetition : logits[t] * row.repetition;
  }
  for (const auto& [t, n] : counts) logits[t] = logits[t] - (row.frequency * float(n) + row.presence);
}

// The k first by (z descending, id ascending), in order.
std::vector<Candidate> first(const float* z, int n, int k) {
  std::vector<Candidate> heap;  // its front is the last of those kept
  heap.reserve(size_t(k) + 1);
  for (int i = 0; i < n; i++) {
    const Candidate c{z[i], i};
    if (int(heap.size()) == k && !(c < heap.front())) continue;
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end());
    if (int(heap.size()) > k) {
      std::pop_heap(heap.begin(), heap.end());
      heap.pop_back();
    }
  }
  std::sort_heap(heap.begin(), heap.end());
  return heap;
}

// All with z >= floor, in order.
std::vector<Candidate> above(const float* z, int n, float floor) {
  std::vector<Candidate> found;
  for (int i = 0; i < n; i++)
    if (z[i] >= floor) found.push_back({z[i], i});
  std::sort(found.begin(), found.end());
  return found;
}

// e^(z - top) of each, by the kernels' own exp.
std::vector<float> weights(const Kernels& kernels, const std::vector<Candidate>& list, float top) {
  std::vector<float> w;
  w.reserve(list.size());
  for (const auto& c : list) w.push_back(kernels.sum_exp(&c.z, 1, top));
  return w;
}

// How many of the list reach `share` of `total`; 0 if all together do not.
size_t nucleus(const std::vector<float>& w, double share, double total) {
  double sum = 0;
  for (size_t i = 0; i < w.size(); i++)
    if ((sum += double(w[i])) >= share * total) return i + 1;
  return 0;
}

std::vector<Candidate> candidates(const Kernels& kernels, const float* z, int n, const DrawRow& row, float top) {
  std::vector<Candidate> kept;
  std::vector<float> w;
  if (row.top_k > 0 && row.top_k < n) {
    kept = first(z, n, row.top_k);
    w = weights(kernels, kept, top);
    if (row.top_p < 1.0f) {
      double total = 0;
      for (const float p : w) total += double(p);
      if (const size_t k = nucleus(w, double(row.top_p), total)) kept.resize(k);
    }
  } else if (row.top_p < 1.0f) {
    const double total = double(kernels.sum_exp(z, n, top));
    size_t k = 0;
    for (float reach = 4; !k && reach < 100; reach *= 2) {
      kept = above(z, n, top - reach);
      w = weights(kernels, kept, top);
      k = nucleus(w, double(row.top_p), total);
    }
    if (k) kept.resize(k);
  } else {
    kept = above(z, n, top + std::log(row.min_p) - 1.0f);
    w = weights(kernels, kept, top);
  }
  if (row.min_p > 0.0f)
    for (size_t i = 1; i < kept.size(); i++)
      if (w[i] < row.min_p) {
        kept.resize(i);
        break;
      }
  return kept;
}

int32_t choose(const Kernels& kernels, float* z, int n, const DrawRow& row) {
  if (row.temperature < kGreedyBelow) return kernels.argmax(z, n);
  if (row.temperature != 1.0f)
    for (int i = 0; i < n; i++) z[i] = z[i] / row.temperature;
  const int32_t likeliest = kernels.argmax(z, n);
  Race race(row, likeliest);
  race.enter(z[likeliest], likeliest);  // first, so that most others need not run
  if (row.top_k == 0 && row.top_p >= 1.0f && row.min_p == 0.0f) {
    race.enter_all(z, n);
  } else {
    for (const auto& c : candidates(kernels, z, n, row, z[likeliest]))
      if (c.id != likeliest) race.enter(c.z, c.id);
  }
  return race.winner();
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, uint32_t k0, uint32_t k1) {
  for (int i = 0; i < 10; i++) {
    const uint64_t a = uint64_t(0xD2511F53) * c[0], b = uint64_t(0xCD9E8D57) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

double log_exact(double x) {
  auto bits = std::bit_cast<uint64_t>(x);
  int e = int(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffff) | 0x3ff0000000000000);
  if (m > 1.4142135623730951) m *= 0.5, e++;
  // log m = 2 atanh(f), f = (m - 1) / (m + 1), |f| < 0.172
  const double f = (m - 1) / (m + 1), g = f * f;
  double p = 0;
  for (int i = 21; i >= 1; i -= 2) p = p * g + 1.0 / i;
  return 2 * f * p + e * 0.69314718055994531;
}

void sincos_exact(double x, double& sine, double& cosine) {
  // x = n pi/2 + r, pi/2 in three parts of 33, 33 and 53 bits (Cody & Waite): exact products up to n = 2^20.
  const double n = std::nearbyint(x * 0.63661977236758134);
  const double r = ((x - n * 1.57079632673412561417e+00) - n * 6.07710050630396597660e-11) - n * 2.02226624879595063154e-21;
  const double g = r * r;
  double s = 0, c = 0;
  double fact[20] = {1};
  for (int i = 1; i < 20; i++) fact[i] = fact[i - 1] * i;
  for (int i = 17; i >= 1; i -= 2) s = (i % 4 == 1 ? 1.0 : -1.0) / fact[i] + s * g;
  for (int i = 18; i >= 0; i -= 2) c = (i % 4 == 0 ? 1.0 : -1.0) / fact[i] + c * g;
  s *= r;
  switch (int64_t(n) & 3) {
    case 0: sine = s, cosine = c; break;
    case 1: sine = c, cosine = -s; break;
    case 2: sine = -s, cosine = -c; break;
    default: sine = -c, cosine = s;
  }
}

DrawResult draw(const Kernels& kernels, float* logits, int n, const DrawRow& row, const Slots& slots) {
  DrawResult result;
  float normalizer = 0;
  if (row.logprobs >= 0) {
    const float top = kernels.max(logits, n);
    normalizer = top + float(log_exact(double(kernels.sum_exp(logits, n, top))));
    if (row.logprobs > 0)
      for (const auto& c : first(logits, n, std::min(row.logprobs, n))) {
        result.top_ids.push_back(c.id);
        result.top_logprobs.push_back(c.z - normalizer);
      }
  }
  std::vector<float> raw;  // the chosen token's logit, before anything is done to it
  if (row.logprobs >= 0) raw.assign(logits, logits + n);
  penalize(logits, row, slots);
  result.token = choose(kernels, logits, n, row);
  if (row.logprobs >= 0) result.logprob = raw[size_t(result.token)] - normalizer;
  return result;
}

}  // namespace pagoda
