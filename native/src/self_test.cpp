#include "self_test.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "kv_store.h"
#include "pack.h"

namespace pagoda {
namespace {

using Outcome = std::vector<float>;

// The same numbers on every machine: Marsaglia's xorshift.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2 + 1) {}
  uint32_t bits() {
    state_ ^= state_ << 13, state_ ^= state_ >> 17, state_ ^= state_ << 5;
    return state_;
  }
  float number() { return float(int32_t(bits())) * 0x1p-31f; }
  std::vector<float> numbers(int n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (auto& v : x) v = number();
    return x;
  }

 private:
  uint32_t state_;
};

// A format, the inputs of the matrix it is tried with, and the upper bytes of halves and singles in a block, which must not be
// infinite.
struct Sample {
  const char* name;
  Format format;
  int k;
  std::vector<size_t> halves;
};

const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = {
      {"q4_0", Format::Q4_0, 96, {1}},     {"q4_1", Format::Q4_1, 96, {1, 3}},   {"q5_0", Format::Q5_0, 64, {1}},
      {"q8_0", Format::Q8_0, 96, {1}},     {"q4_k", Format::Q4_K, 256, {1, 3}},  {"q6_k", Format::Q6_K, 256, {209}},
      {"q2_k", Format::Q2_K, 256, {81, 83}}, {"iq4_nl", Format::IQ4_NL, 64, {1}}, {"f16", Format::F16, 40, {1}},
      {"q4_z32", Format::Q4_Z32, 96, {3, 5}}, {"q8_z128", Format::Q8_Z128, 256, {3, 5}}, {"f8_e4m3", Format::F8_E4M3, 64, {3}}};
  return all;
}

constexpr int kRows[] = {1, 5, 19};  // one, some, and enough to unpack a tile for

std::shared_ptr<Weight> weight(Pool& pool, const Sample& sample) {
  const int block = stored_block(sample.format);
  const size_t bytes = stored_row_bytes(sample.format, block);
  std::vector<uint8_t> raw(size_t(kTile) * stored_row_bytes(sample.format, sample.k));
  Random random(1);
  for (auto& byte : raw) byte = uint8_t(random.bits() >> 7);
  for (size_t at = 0; at < raw.size(); at += bytes)
    for (const size_t half : sample.halves) raw[at + half] &= 0xbf;
  return std::make_shared<Weight>(pool, sample.format, kTile, sample.k, raw.data());
}

// Activations of whole panels, in memory of their own.
struct Activations {
  std::vector<uint8_t> q;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  Quantized view;

  Activations(const Kernels& kernels, int rows, int k, int bytes) {
    const size_t n = size_t((rows + kPanel - 1) / kPanel) * kPanel * size_t(k / kBlock);
    q.resize(n * kBlock * size_t(bytes)), scales.resize(2 * n), sums.resize(2 * n);
    view = {bytes, q.data(), scales.data(), scales.data() + n, sums.data(), sums.data() + n};
    const auto x = Random(2).numbers(rows * k);
    for (int r = 0; r < rows; r++) kernels.quantize(x.data() + size_t(r) * size_t(k), k, view, r);
  }
};

Outcome quantized(const Kernels& kernels, int bytes) {
  const Activations made(kernels, kPanel, 96, bytes);
  Outcome all = made.scales;
  all.insert(all.end(), made.sums.begin(), made.sums.end());
  all.insert(all.end(), made.q.begin(), made.q.end());
  return all;
}

// bytes 0: activations in f32
Outcome product(const Kernels& kernels, const Packed& w, int bytes) {
  Outcome all;
  for (const int rows : kRows) {
    std::vector<float> out(size_t(rows) * kTile);
    if (bytes) {
      const Activations x(kernels, rows, w.k, bytes);
      kernels.linear_int(w, 0, 1, x.view, 0, rows, out.data(), kTile);
    } else {
      kernels.linear_f32(w, 0, 1, Random(3).numbers(rows * w.k).data(), 0, rows, out.data(), kTile);
    }
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Three queries over a span and a piece of the next, merged.
Outcome attended(const Kernels& kernels, KVFormat format) {
  constexpr int dim = 40, slots = 16, length = kSpan + 21, pages = (length + slots - 1) / slots, count = 3;
  KVStore store({{1, 1, dim, pages}}, slots, format);
  const KVPages& kv = store.layer(0, 0);
  Random random(4);
  std::vector<int32_t> table;
  for (int p = 0; p < pages; p++) table.push_back(pages - 1 - p);
  for (int p = 0; p < length; p++) {
    const auto key = random.numbers(dim), value = random.numbers(dim);
    kernels.store_kv(kv, table[size_t(p / slots)], p % slots, key.data(), value.data());
  }
  const size_t padded = size_t(kv.padded), floats = size_t(kv.query_floats());
  std::vector<float> queries(count * floats), held(2 * count * padded), scratch(kv.attend_floats(count)), out(count * dim);
  Partial parts[2 * count];
  Queries asked{};
  asked.count = count;
  for (size_t n = 0; n < count; n++) {
    const auto q = random.numbers(dim);
    if (kv.integers())
      kernels.query(kv, q.data(), queries.data() + n * floats);
    else
      std::copy(q.begin(), q.end(), queries.data() + n * floats);
    asked.q[n] = queries.data() + n * floats;
    asked.last[n] = length - count + int(n);
    parts[n].out = held.data() + n * padded, parts[count + n].out = held.data() + (count + n) * padded;
  }
  for (int span = 0; span < 2; span++) kernels.attend(kv, table.data(), asked, 0, span, {0.3f, 0}, parts + span * count, scratch.data());
  for (size_t n = 0; n < count; n++) {
    kernels.merge(parts[n], parts[count + n], kv.padded);
    kernels.finish(parts[n], nullptr, dim, out.data() + n * dim);
    if (kv.integers()) kernels.turn_back(out.data() + n * dim, dim);
  }
  return out;
}

constexpr int kWidth = 77;  // ends amid a vector on every instruction set

template <class F>
Outcome row(F fill) {
  Outcome y(kWidth);
  fill(y.data());
  return y;
}

struct Check {
  std::string name;
  std::function<Outcome(const Kernels&)> run;
};

void add_rows(std::vector<Check>& all) {
  static const auto x = Random(5).numbers(kWidth), y = Random(6).numbers(kWidth);
  all.push_back({"norm", [](const Kernels& k) { return row([&](float* z) { k.norm(x.data(), y.data(), 1e-5f, kWidth, z); }); }});
  for (const auto act : {Act::Silu, Act::GeluTanh, Act::SwigluClamped})
    all.push_back({"act", [act](const Kernels& k) { return row([&](float* z) { k.act(act, x.data(), y.data(), kWidth, z); }); }});
  all.push_back({"soft_cap", [](const Kernels& k) { return row([&](float* z) { k.soft_cap(x.data(), 0.7f, kWidth, z); }); }});
  all.push_back({"add", [](const Kernels& k) { return row([&](float* z) { k.add(x.data(), y.data(), kWidth, z); }); }});
  for (const bool adjacent : {false, true})
    all.push_back({"rope", [adjacent](const Kernels& k) {
                     Outcome z = x;
                     k.rope(z.data(), 1, kWidth, kWidth - 1, y.data(), x.data(), adjacent);
                     return z;
                   }});
  all.push_back({"sampling", [](const Kernels& k) {
                   return Outcome{float(k.argmax(x.data(), kWidth)), k.max(x.data(), kWidth), k.sum_exp(x.data(), kWidth, 1.0f)};
                 }});
}

// In the order of what rests on what.
std::vector<Check> checks(Pool& pool) {
  std::vector<Check> all;
  add_rows(all);
  for (const int bytes : {1, 2})
    all.push_back({"quantize to " + std::to_string(8 * bytes) + " bits", [bytes](const Kernels& k) { return quantized(k, bytes); }});
  for (const auto& sample : samples())
    for (const int bytes : {0, 1, 2}) {
      if (bytes && !has_integers(sample.format)) continue;
      all.push_back({std::string("linear, ") + sample.name + (bytes ? " by " + std::to_string(8 * bytes) + " bits" : " by f32"),
                     [bytes, w = weight(pool, sample)](const Kernels& k) { return product(k, w->packed(), bytes); }});
    }
  const std::pair<const char*, KVFormat> kv[] = {{"f32", KVFormat::F32}, {"f16", KVFormat::F16}, {"int8", KVFormat::Int8}, {"int4", KVFormat::Int4}};
  for (const auto& [name, format] : kv)
    all.push_back({std::string("attend, KV in ") + name, [format = format](const Kernels& k) { return attended(k, format); }});
  return all;
}

}  // namespace

std::string self_test(const Kernels& kernels) {
  Pool pool(1);
  for (const auto& check : checks(pool)) {
    const Outcome found = check.run(kernels), right = check.run(scalar::kernels);
    if (std::memcmp(found.data(), right.data(), right.size() * sizeof(float)) != 0) return check.name;
  }
  return "";
}

}  // namespace pagoda
