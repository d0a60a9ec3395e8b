// Attention over pages: every instruction set, page size, head size and grouping of queries gives the bits of the scalar
// build over pages of 16, one query at a time; those are about what the definition says. KV stores copy what they say.
#include <algorithm>
#include <numeric>

#include "check.h"
#include "dispatch.h"
#include "kv_store.h"
#include "matrices.h"

namespace pagoda::test {
namespace {

constexpr KVFormat kKVFormats[] = {KVFormat::F32, KVFormat::F16, KVFormat::Int8, KVFormat::Int4};

const Kernels& scalar_kernels() { return kernels_for("scalar"); }

// A sequence whose keys and values lie in shuffled pages; slots that no token has are NaN.
class Cache {
 public:
  Cache(Random& random, KVFormat format, int heads, int dim, int slots, int length)
      : pages_((length + slots - 1) / slots + 1), store_({{1, heads, dim, pages_}}, slots, format), kv_(store_.layer(0, 0)), table_(size_t(pages_)) {
    std::iota(table_.begin(), table_.end(), 0);
    for (int i = pages_ - 1; i > 0; i--) std::swap(table_[size_t(i)], table_[size_t(random.below(i + 1))]);
    memory_.assign(kv_.page_bytes * size_t(pages_), 0xff);
    kv_.base = memory_.data();  // of its exact size, so that a sanitizer sees what goes past it
  }
  void store(const Kernels& kernels, int position, const float* k, const float* v) {
    kernels.store_kv(kv_, table_[size_t(position / kv_.slots)], position % kv_.slots, k, v);
  }
  const KVPages& kv() const { return kv_; }
  // What is stored of a token's head: its key or its value, undone.
  std::vector<double> stored(int position, int head, bool key) const {
    const int page = table_[size_t(position / kv_.slots)], slot = position % kv_.slots, dim = kv_.dim;
    const uint8_t* numbers = key ? kv_.keys(page, head) : kv_.values(page, head) + size_t(slot) * kv_.value_bytes();
    const uint16_t* scales = key ? kv_.key_scales(page, head) : kv_.value_scales(page, head);
    const auto scale = [&](int set) { return double(f16_to_f32(scales[size_t(set * kv_.slots + slot)])); };
    std::vector<double> turned;
    for (int i = 0; i < dim; i++) {
      const size_t at = key ? size_t(i * kv_.slots + slot) : size_t(i);
      if (kv_.format == KVFormat::F32) {
        turned.push_back(double(((const float*)numbers)[at]));
      } else if (kv_.format == KVFormat::F16) {
        turned.push_back(double(f16_to_f32(((const uint16_t*)numbers)[at])));
      } else if (kv_.format == KVFormat::Int8) {
        turned.push_back(double(int8_t(numbers[at])) * scale(0));
      } else {
        const int pair = numbers[key ? i / 2 * kv_.slots + slot : i / 32 * 16 + i % 16], high = key ? i % 2 : i / 16 % 2;
        turned.push_back((double(high ? pair >> 4 : pair & 15) - 7.5) * scale(i / 32 * 2) + scale(i / 32 * 2 + 1));
      }
    }
    if (!kv_.integers()) return turned;
    const int n = dim & -dim;
    std::vector<double> x(size_t(dim), 0.0);
    for (int i = 0; i < dim; i++)
      for (int j = i / n * n; j < i / n * n + n; j++) x[size_t(i)] += (__builtin_popcount(unsigned(i & j) % unsigned(n)) % 2 ? -1 : 1) * turned[size_t(j)] / n;
    return x;
  }
  const int32_t* table() const { return table_.data(); }
  const std::vector<uint8_t>& memory() const { return memory_; }

 private:
  int pages_;
  KVStore store_;
  KVPages kv_;
  std::vector<int32_t> table_;
  std::vector<uint8_t> memory_;
};

struct Sequence {
  int heads, dim, length;
  std::vector<float> k, v;  // [length, heads, dim]

  Sequence(Random& random, int heads, int dim, int length) : heads(heads), dim(dim), length(length) {
    const size_t n = size_t(length) * size_t(heads) * size_t(dim);
    k = random.numbers(n), v = random.numbers(n);
    for (auto& x : k) x *= 3.0f;
    for (int i = 0; i < 40; i++) {
      const size_t at = size_t(random.below(int(n)));
      k[at] = random.below(2) ? 0.0f : random.number() * 1e-40f, v[at] = random.below(2) ? -0.0f : random.number() * 6e4f;
    }
  }
  void fill(Cache& cache, const Kernels& kernels) const {
    const size_t row = size_t(heads) * size_t(dim);
    for (int p = 0; p < length; p++) cache.store(kernels, p, k.data() + size_t(p) * row, v.data() + size_t(p) * row);
  }
};

// Some query vectors of one head and where each stands.
struct Asked {
  std::vector<float> q;  // [count, dim]
  std::vector<int> last;
  int head, window = 0;
  Scoring scoring{0.3f, 0};
  const float* sink = nullptr;

  Asked(Random& random, const Sequence& s, int count) : q(random.numbers(size_t(count) * size_t(s.dim))), head(random.below(s.heads)) {
    for (int i = 0; i < count; i++) last.push_back(i && random.below(2) ? last.back() : random.below(s.length));
    std::sort(last.begin(), last.end());
  }
  int first(size_t n) const { return first_seen(last[n], window); }
};

constexpr float kSinks[] = {-2.0f, 0.5f, 9.0f};

// One of the forms that scores take: windows, soft caps and sinks, or none of them.
void form(Random& random, Asked& asked) {
  constexpr int windows[] = {0, 0, 1, 7, 16, 40, 200, 256, 300};
  constexpr float caps[] = {0, 0, 0.5f, 20};
  asked.window = windows[random.below(9)];
  asked.scoring.cap = caps[random.below(4)];
  asked.sink = random.below(2) ? kSinks + random.below(3) : nullptr;
}

// All spans of queries [from, from + count) together: attend each, merge in order, finish.
void answer(const Kernels& kernels, const Cache& cache, const Asked& asked, int from, int count, float* out) {
  const KVPages& kv = cache.kv();
  const size_t padded = size_t(kv.padded);
  std::vector<float> held(size_t(count) * padded * 2, NAN), queries(size_t(count * kv.query_floats()), NAN);
  std::vector<Partial> state(static_cast<size_t>(count)), part(static_cast<size_t>(count));
  std::vector<bool> begun(static_cast<size_t>(count));
  for (size_t n = 0; n < size_t(count); n++) state[n].out = held.data() + n * padded, part[n].out = held.data() + (size_t(count) + n) * padded;
  for (int span = 0; span <= asked.last[size_t(from + count - 1)] / kSpan; span++) {
    Queries qs{};
    std::vector<size_t> seeing;
    for (size_t n = 0; n < size_t(count); n++)
      if (asked.last[size_t(from) + n] >= span * kSpan && asked.first(size_t(from) + n) < (span + 1) * kSpan) seeing.push_back(n);
    if (seeing.empty()) continue;
    std::vector<Partial> into;
    for (const size_t n : seeing) {
      qs.q[qs.count] = asked.q.data() + (size_t(from) + n) * size_t(kv.dim);
      if (kv.integers()) {
        float* turned = queries.data() + n * size_t(kv.query_floats());
        kernels.query(kv, qs.q[qs.count], turned);
        qs.q[qs.count] = turned;
      }
      qs.last[qs.count] = asked.last[size_t(from) + n], qs.first[qs.count++] = asked.first(size_t(from) + n);
      into.push_back(begun[n] ? part[n] : state[n]);
    }
    std::vector<float> scratch(kv.attend_floats(qs.count), NAN);
    kernels.attend(kv, cache.table(), qs, asked.head, span, asked.scoring, into.data(), scratch.data());
    for (size_t i = 0; i < seeing.size(); i++) {
      const size_t n = seeing[i];
      if (begun[n])
        kernels.merge(state[n], into[i], kv.padded);
      else
        state[n] = into[i], begun[n] = true;
    }
  }
  for (size_t n = 0; n < size_t(count); n++) {
    kernels.finish(state[n], asked.sink, kv.dim, out + n * size_t(kv.dim));
    if (kv.integers()) kernels.turn_back(out + n * size_t(kv.dim), kv.dim);
  }
}

// All queries, `together` at a time: [count, dim].
std::vector<float> answers(const Kernels& kernels, const Cache& cache, const Asked& asked, int together) {
  const int count = int(asked.last.size());
  std::vector<float> out(asked.q.size(), NAN);
  for (int n = 0; n < count; n += together)
    answer(kernels, cache, asked, n, std::min(together, count - n), out.data() + size_t(n) * size_t(cache.kv().dim));
  return out;
}

// Softmax-weighted sums by definition, over keys and values as they are stored.
std::vector<double> by_definition(const Sequence& s, const Asked& asked, size_t n, const Cache& cache) {
  std::vector<double> scores, sum(size_t(s.dim), 0.0);
  const int first = asked.first(n);
  for (int p = first; p <= asked.last[n]; p++) {
    double dot = 0;
    const auto k = cache.stored(p, asked.head, true);
    for (int i = 0; i < s.dim; i++) dot += double(asked.q[n * size_t(s.dim) + size_t(i)]) * k[size_t(i)];
    const double score = dot * double(asked.scoring.scale), cap = double(asked.scoring.cap);
    scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double weights = asked.sink ? std::exp(double(*asked.sink) - top) : 0;
  for (int p = first; p <= asked.last[n]; p++) {
    const double w = std::exp(scores[size_t(p - first)] - top);
    weights += w;
    const auto v = cache.stored(p, asked.head, false);
    for (int i = 0; i < s.dim; i++) sum[size_t(i)] += w * v[size_t(i)];
  }
  for (auto& x : sum) x /= weights;
  return sum;
}

std::string about(const Kernels& k, int dim, int slots) {
  return std::string(k.name) + " dim=" + std::to_string(dim) + " slots=" + std::to_string(slots);
}

}  // namespace

TEST("attention", bits_are_those_of_one_query_in_scalar) {
  Random random(31);
  for (const KVFormat format : kKVFormats)
    for (const int dim : {1, 8, 16, 24, 40, 64, 64, 80, 128}) {
      const int lengths[] = {1, 15, 17, 63, 256, 257, 530};
      const Sequence s(random, random.between(1, 3), dim, lengths[random.below(7)]);
      Asked asked(random, s, random.between(1, 15));
      form(random, asked);
      Cache oracle(random, format, s.heads, dim, 16, s.length);
      s.fill(oracle, scalar_kernels());
      const auto expected = answers(scalar_kernels(), oracle, asked, 1);
      for (const float x : expected) CHECK(std::isfinite(x));
      for (const int slots : {1, 2, 4, 8, 16, 32, 64}) {
        Cache cache(random, format, s.heads, dim, slots, s.length);
        s.fill(cache, scalar_kernels());
        for (const auto& isa : usable_isas())
          for (const int together : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
            if (isa == "scalar" && together != 5) continue;
            const Kernels& k = kernels_for(isa);
            CHECK_CASE(same(answers(k, cache, asked, together), expected), about(k, dim, slots));
          }
      }
    }
}

TEST("attention", about_what_the_definition_says) {
  Random random(32);
  for (const KVFormat format : kKVFormats)
    for (const int dim : {3, 16, 64})
      for (const int length : {1, 20, 300, 600}) {
        const Sequence s(random, 2, dim, length);
        Asked asked(random, s, 5);
        form(random, asked);
        Cache cache(random, format, 2, dim, 32, length);
        s.fill(cache, scalar_kernels());
        const auto got = answers(scalar_kernels(), cache, asked, 5);
        for (size_t n = 0; n < 5; n++) {
          const auto exact = by_definition(s, asked, n, cache);
          double size = 1;
          for (const double x : exact) size = std::max(size, std::fabs(x));
          for (size_t i = 0; i < size_t(dim); i++) CHECK(std::fabs(double(got[n * size_t(dim) + i]) - exact[i]) <= 2e-5 * size);
        }
      }
}

TEST("attention", storing_on_every_instruction_set) {
  Random random(33);
  for (const KVFormat format : kKVFormats)
    for (int dim = 1; dim <= 70; dim++)
      for (const int slots : {1, 4, 16, 64}) {
        const int heads = random.between(1, 3);
        Random same_shuffle(7);
        std::vector<std::vector<uint8_t>> memories;
        const auto k = random.awkwards(size_t(heads * dim)), v = random.awkwards(size_t(heads * dim));
        const int position = random.below(2 * slots);
        for (const auto& isa : usable_isas()) {
          Cache cache(same_shuffle = Random(7), format, heads, dim, slots, 2 * slots);
          cache.store(kernels_for(isa), position, k.data(), v.data());
          memories.push_back(cache.memory());
        }
        for (const auto& m : memories) CHECK_CASE(m == memories.back(), std::to_string(dim));
      }
}

// The first slots of a page in every layer of the group, and nothing else.
TEST("attention", pages_are_copied) {
  Random random(34);
  for (const KVFormat format : kKVFormats)
    for (const int slots : {1, 4, 16}) {
      KVStore store({{2, 3, 20, 4}, {1, 1, 8, 3}}, slots, format);
      std::vector<std::pair<const KVPages*, std::vector<uint8_t>>> before;
      for (const auto& [group, layer] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
        const KVPages& kv = store.layer(group, layer);
        const size_t bytes = kv.page_bytes * size_t(store.pages(group));
        for (size_t i = 0; i < bytes; i++) kv.base[i] = uint8_t(random.bits());
        before.emplace_back(&kv, std::vector<uint8_t>(kv.base, kv.base + bytes));
      }
      const int copied = random.between(0, slots);
      store.copy(0, 1, 3, copied);
      for (auto& [kv, expected] : before) {
        if (kv != before[2].first) {
          KVPages was = *kv;
          was.base = expected.data();
          for (int h = 0; h < kv->heads; h++)
            for (int slot = 0; slot < copied; slot++) {
              const size_t e = kv->key_bytes(), row = kv->value_bytes();
              for (int i = 0; i < kv->key_rows(); i++) {
                const size_t at = size_t(i * slots + slot) * e;
                std::memcpy(was.keys(3, h) + at, was.keys(1, h) + at, e);
              }
              for (int i = 0; i < 2 * kv->sets(); i++) was.key_scales(3, h)[i * slots + slot] = was.key_scales(1, h)[i * slots + slot];
              std::memcpy(was.values(3, h) + size_t(slot) * row, was.values(1, h) + size_t(slot) * row, row);
            }
        }
        CHECK(std::memcmp(kv->base, expected.data(), expected.size()) == 0);
      }
    }
}

TEST("attention", stores_say_their_sizes) {
  const KVStore store({{2, 3, 20, 5}, {1, 1, 8, 7}}, 4, KVFormat::F16);
  CHECK(store.groups() == 2 && store.pages(0) == 5 && store.pages(1) == 7);
  CHECK(store.layer(0, 1).padded == 32 && store.layer(1, 0).padded == 16);
  CHECK(store.bytes() == size_t(2 * 3 * 5 * 4) * (20 + 32) * 2 + size_t(7 * 4) * (8 + 16) * 2);
  CHECK(KVStore({{2, 3, 20, 5}}, 4, KVFormat::Int8).bytes() == size_t(2 * 3 * 5 * 4) * (20 + 32 + 2 * 2));
  const KVStore mixed({{2, 3, 20, 5}}, 4, {{KVFormat::Int8, KVFormat::F32}});
  CHECK(mixed.layer(0, 0).format == KVFormat::Int8 && mixed.layer(0, 1).format == KVFormat::F32);
  CHECK(mixed.bytes() == size_t(3 * 5 * 4) * ((20 + 32 + 2 * 2) + (20 + 32) * 4) && mixed.unit_bytes() * 5 == mixed.bytes());
  CHECK_THROWS(KVStore({{2, 3, 20, 5}}, 4, {{KVFormat::F16}}), std::invalid_argument);
  CHECK(KVStore({{2, 3, 80, 5}}, 4, KVFormat::Int4).bytes() == size_t(2 * 3 * 5 * 4) * (40 + 48 + 2 * 6 * 2));
  CHECK_THROWS(KVStore({{1, 1, kHeadMax + 16, 1}}, 4, KVFormat::Int8), std::invalid_argument);
  CHECK_THROWS(store.layer(0, 2), std::out_of_range);
  CHECK_THROWS(store.pages(2), std::out_of_range);
  CHECK_THROWS(KVStore({{1 << 20, 1 << 10, 1 << 10, 1 << 20}}, 64, KVFormat::F32), std::bad_alloc);
}

}  // namespace pagoda::test
