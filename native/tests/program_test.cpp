// The executor on a hand-made model of one layer: however rows come in steps, whatever the threads, the page size, the
// instruction set and the fusions, logits have the bits of the kernels called one row at a time. Bad steps are refused.
#include "step_job.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "dispatch.h"
#include "matrices.h"

namespace pagoda::test {
namespace {

constexpr int kVocabulary = 70, kWidth = 64, kHeads = 4, kKVHeads = 2, kDim = 16, kHidden = 96, kPositions = 704;
constexpr float kEps = 1e-5f, kScale = 0.25f;
enum Matrix { kEmbedding, kQuery, kKey, kValue, kOut, kGate, kUp, kDown, kHead };
enum Buffers { X, H, HQ, Q, K, V, Q2, K2, A, AQ, O, Y, N, NQ, G, U, F, FQ, D, Z, P, PN, PQ, L, kBuffers };

// The model's constants, and its instructions with and without fusions.
struct Model {
  std::vector<std::shared_ptr<Weight>> weights;
  std::vector<std::vector<float>> norms;
  RopeAngles angles{{}, {}, kDim, true};

  Model() {
    Random random(51);
    Pool pool(1);
    const auto weight = [&](Format format, int n, int k) {
      weights.push_back(std::make_shared<Weight>(pool, format, n, k, random_matrix(random, definition_of(format), n, k).data()));
    };
    weight(Format::Q8_0, kVocabulary, kWidth);
    weight(Format::Q4_1, kHeads * kDim, kWidth);
    weight(Format::Q4_1, kKVHeads * kDim, kWidth);
    weight(Format::Q4_0, kKVHeads * kDim, kWidth);
    weight(Format::Q4_0, kWidth, kHeads * kDim);
    weight(Format::Q4_1, kHidden, kWidth);
    weight(Format::Q4_1, kHidden, kWidth);
    weight(Format::Q8_0, kWidth, kHidden);
    weight(Format::Q8_0, kVocabulary, kWidth);
    for (int i = 0; i < 3; i++) norms.push_back(random.numbers(kWidth));
    for (int i = 0; i < kPositions * kDim / 2; i++) {
      const double angle = double(i / (kDim / 2)) * std::pow(100.0, -(i % (kDim / 2)) / 8.0);
      angles.cos.push_back(float(std::cos(angle))), angles.sin.push_back(float(std::sin(angle)));
    }
  }
  static std::vector<BufferShape> shapes() {
    std::vector<BufferShape> s(kBuffers, {false, 0, kWidth});
    for (const int b : {HQ, AQ, NQ, FQ, PQ}) s[size_t(b)].integer = 2;
    for (const int b : {K, V, K2}) s[size_t(b)].width = kKVHeads * kDim;
    for (const int b : {G, U, F, FQ}) s[size_t(b)].width = kHidden;
    for (const int b : {P, PN, PQ, L}) s[size_t(b)].sampled = true;
    s[L].width = kVocabulary;
    return s;
  }
  static std::vector<Instruction> plain() {
    return {{Op::Embed, {}, {X}, {kEmbedding}, {}, {}, ""},
            {Op::Norm, {X, -1}, {-1, H, -1}, {0}, {1}, {kEps}, ""},
            {Op::Quantize, {H}, {HQ}, {}, {}, {}, ""},
            {Op::Linear, {HQ}, {Q, K, V}, {kQuery, kKey, kValue}, {}, {}, ""},
            {Op::Rope, {Q, K}, {Q2, K2}, {0}, {kDim}, {}, ""},
            {Op::Store, {K2, V}, {}, {}, {0, 0}, {}, ""},
            {Op::Attend, {Q2}, {A}, {}, {0, 0, 0}, {kScale, 0}, ""},
            {Op::Merge, {A}, {A}, {}, {0, 0, 0}, {kScale, 0}, ""},
            {Op::Quantize, {A}, {AQ}, {}, {}, {}, ""},
            {Op::Linear, {AQ}, {O}, {kOut}, {}, {}, ""},
            {Op::Add, {X, O}, {Y}, {}, {}, {}, ""},
            {Op::Norm, {Y, -1}, {-1, N, -1}, {1}, {1}, {kEps}, ""},
            {Op::Quantize, {N}, {NQ}, {}, {}, {}, ""},
            {Op::Linear, {NQ}, {G, U}, {kGate, kUp}, {}, {}, ""},
            {Op::Act, {G, U}, {F, -1}, {}, {0}, {}, ""},
            {Op::Quantize, {F}, {FQ}, {}, {}, {}, ""},
            {Op::Linear, {FQ}, {D}, {kDown}, {}, {}, ""},
            {Op::Add, {Y, D}, {Z}, {}, {}, {}, ""},
            {Op::Pick, {Z}, {P}, {}, {}, {}, ""},
            {Op::Norm, {P, -1}, {-1, PN, -1}, {2}, {1}, {kEps}, ""},
            {Op::Quantize, {PN}, {PQ}, {}, {}, {}, ""},
            {Op::Linear, {PQ}, {L}, {kHead}, {}, {}, ""},
            {Op::Output, {L}, {}, {}, {}, {}, "logits"}};
  }
  static std::vector<Instruction> fused() {
    return {{Op::Embed, {}, {X}, {kEmbedding}, {}, {}, ""},
            {Op::Norm, {X, -1}, {-1, -1, HQ}, {0}, {1}, {kEps}, ""},
            {Op::Linear, {HQ}, {Q, K, V}, {kQuery, kKey, kValue}, {}, {}, ""},
            {Op::RopeStore, {Q, K, V}, {Q2}, {0}, {kDim, 0, 0}, {}, ""},
            {Op::Attend, {Q2}, {A}, {}, {0, 0, 0}, {kScale, 0}, ""},
            {Op::Merge, {A}, {A}, {}, {0, 0, 0}, {kScale, 0}, ""},
            {Op::Quantize, {A}, {AQ}, {}, {}, {}, ""},
            {Op::Linear, {AQ}, {O}, {kOut}, {}, {}, ""},
            {Op::Norm, {X, O}, {Y, -1, NQ}, {1}, {1}, {kEps}, ""},
            {Op::Linear, {NQ}, {G, U}, {kGate, kUp}, {}, {}, ""},
            {Op::Act, {G, U}, {-1, FQ}, {}, {0}, {}, ""},
            {Op::Linear, {FQ}, {D}, {kDown}, {}, {}, ""},
            {Op::Add, {Y, D}, {Z}, {}, {}, {}, ""},
            {Op::Pick, {Z}, {P}, {}, {}, {}, ""},
            {Op::Norm, {P, -1}, {-1, PN, PQ}, {2}, {1}, {kEps}, ""},
            {Op::Linear, {PQ}, {L}, {kHead}, {}, {}, ""},
            {Op::Output, {L}, {}, {}, {}, {}, "logits"}};
  }
  std::shared_ptr<Program> program(const std::string& isa, bool fusions = true) const {
    return std::make_shared<Program>(kernels_for(isa), fusions ? fused() : plain(), shapes(), weights, norms, std::vector{angles}, L);
  }
};

const Model& model() {
  static const Model made;
  return made;
}

std::shared_ptr<KVStore> store_of(int pages, int slots, KVFormat format = KVFormat::F16) {
  return std::make_shared<KVStore>(std::vector<GroupShape>{{1, kKVHeads, kDim, pages}}, slots, format);
}

// The same model, one row at a time, by the scalar kernels alone.
class Plainly {
 public:
  explicit Plainly(KVFormat format) : store_(store_of(kPositions / 16 + 1, 16, format)), table_(kPositions / 16 + 1) {
    for (size_t i = 0; i < table_.size(); i++) table_[i] = int32_t(i);
  }
  // The logits after this token.
  std::vector<float> next(int32_t token) {
    std::vector<float> x(kWidth);
    model().weights[kEmbedding]->row(token, x.data());
    const auto h = normed(x, 0);
    auto q = product(kQuery, h), key = product(kKey, h);
    const auto value = product(kValue, h);
    const size_t at = size_t(position_) * kDim / 2;
    k_.rope(q.data(), kHeads, kDim, kDim, model().angles.cos.data() + at, model().angles.sin.data() + at, true);
    k_.rope(key.data(), kKVHeads, kDim, kDim, model().angles.cos.data() + at, model().angles.sin.data() + at, true);
    k_.store_kv(store_->layer(0, 0), table_[size_t(position_ / 16)], position_ % 16, key.data(), value.data());
    const auto y = sum(x, product(kOut, attended(q)));
    const auto n = normed(y, 1), gate = product(kGate, n), up = product(kUp, n);
    std::vector<float> f(kHidden);
    k_.act(Act::Silu, gate.data(), up.data(), kHidden, f.data());
    position_++;
    return product(kHead, normed(sum(y, product(kDown, f)), 2));
  }

 private:
  std::vector<float> normed(const std::vector<float>& x, size_t which) const {
    std::vector<float> y(x.size());
    k_.norm(x.data(), model().norms[which].data(), kEps, int(x.size()), y.data());
    return y;
  }
  std::vector<float> sum(const std::vector<float>& x, const std::vector<float>& y) const {
    std::vector<float> z(x.size());
    k_.add(x.data(), y.data(), int(x.size()), z.data());
    return z;
  }
  std::vector<float> product(Matrix which, const std::vector<float>& x) const {
    const Packed& w = model().weights[which]->packed();
    auto in = quantized(k_, x, 1, w.k, 2);
    std::vector<float> y(static_cast<size_t>(w.n));
    k_.linear_int(w, 0, w.tiles(), in.view(), 0, 1, y.data(), y.size());
    return y;
  }
  std::vector<float> attended(const std::vector<float>& q) const {
    const KVPages& kv = store_->layer(0, 0);
    const size_t padded = size_t(kv.padded);
    std::vector<float> y(q.size()), held(2 * padded), turned(size_t(kv.query_floats())), scratch(kv.attend_floats(1));
    for (int head = 0; head < kHeads; head++) {
      Partial state{0, 0, held.data()}, part{0, 0, held.data() + padded};
      Queries qs{1, {q.data() + head * kDim}, {position_}, {}};
      if (kv.integers()) k_.query(kv, qs.q[0], turned.data()), qs.q[0] = turned.data();
      for (int span = 0; span <= position_ / kSpan; span++) {
        k_.attend(kv, table_.data(), qs, head * kKVHeads / kHeads, span, {kScale, 0}, span ? &part : &state, scratch.data());
        if (span) k_.merge(state, part, kv.padded);
      }
      k_.finish(state, nullptr, kDim, y.data() + head * kDim);
      if (kv.integers()) k_.turn_back(y.data() + head * kDim, kDim);
    }
    return y;
  }

  const Kernels& k_ = kernels_for("scalar");
  std::shared_ptr<KVStore> store_;
  std::vector<int32_t> table_;
  int position_ = 0;
};

struct Text {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // after each token
  Text(Random& random, size_t length, KVFormat format) {
    Plainly plainly(format);
    for (size_t i = 0; i < length; i++) {
      tokens.push_back(random.below(kVocabulary));
      logits.push_back(plainly.next(tokens.back()));
    }
  }
};

// Sequences side by side in one KV store: sequence b has the pages b * width ...
struct Batch {
  const std::vector<Text>& texts;
  int width;
  std::vector<size_t> computed;
  Batch(const std::vector<Text>& texts, int slots) : texts(texts), width((kPositions + slots - 1) / slots), computed(texts.size()) {}

  // The next `chunk` tokens of each sequence that has any; every row is sampled.
  Step next(size_t chunk, std::vector<const std::vector<float>*>& expected) {
    Step step;
    step.tables.push_back({{}, width});
    int sequence = 0;
    for (size_t b = 0; b < texts.size(); b++) {
      const size_t end = std::min(computed[b] + chunk, texts[b].tokens.size());
      if (computed[b] == end) continue;
      for (size_t p = computed[b]; p < end; p++) {
        step.sampled.push_back(int32_t(step.ids.size()));
        step.ids.push_back(texts[b].tokens[p]), step.positions.push_back(int32_t(p)), step.sequences.push_back(sequence);
        expected.push_back(&texts[b].logits[p]);
      }
      for (int p = 0; p < width; p++) step.tables[0].pages.push_back(int32_t(b) * width + (p * 7 + 3) % width);
      computed[b] = end, sequence++;
    }
    return step;
  }
};

std::shared_ptr<StepJob> run(Pool& pool, std::shared_ptr<Program> program, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, Step step) {
  program->check(step, *kv, slots != nullptr);
  auto job = std::make_shared<StepJob>(std::move(program), std::move(kv), std::move(slots), std::move(step), pool.threads());
  pool.submit(job);
  return job;
}

// Whether all texts, `chunk` tokens of each in a step, come out as they did plainly.
bool agrees(const std::vector<Text>& texts, Pool& pool, std::shared_ptr<Program> program, std::shared_ptr<KVStore> kv, int slots, size_t chunk) {
  Batch batch(texts, slots);
  for (;;) {
    std::vector<const std::vector<float>*> expected;
    Step step = batch.next(chunk, expected);
    if (expected.empty()) return true;
    auto job = run(pool, program, kv, nullptr, std::move(step));
    job->wait();
    const auto& got = job->outputs().at("logits");
    if (job->widths().at("logits") != kVocabulary || got.size() != expected.size() * kVocabulary) return false;
    for (size_t r = 0; r < expected.size(); r++)
      for (size_t i = 0; i < kVocabulary; i++)
        if (!same(got[r * kVocabulary + i], (*expected[r])[i])) return false;
  }
}

// A tree after the last of some known tokens, whose keys and values before it are in pages 0, 1, 2 ...: row 0 is that token's, row
// i + 1 draft i's. Each path after the first has pages of its own from where it leaves another.
struct Tree {
  std::vector<int> tokens, parents, path, depth;
  Step step;

  Tree(Random& random, const std::vector<int32_t>& known, int slots, int drafts) {
    const int last = int(known.size()) - 1, width = (last + drafts) / slots + 1;
    int fresh = width;
    std::vector<std::vector<int32_t>> tables(1);
    for (int p = 0; p < width; p++) tables[0].push_back(p);
    step.ids = {known.back()}, step.positions = {last}, step.sequences = {0}, step.sampled = {0}, step.parents = {-1};
    for (int i = 0; i < drafts; i++) {
      int parent = i - 1;
      while (parent >= 0 && random.below(3) == 0) parent = parents[size_t(parent)];
      const int leaves = parent < 0 ? 0 : path[size_t(parent)], at = last + 1 + (parent < 0 ? 0 : depth[size_t(parent)]);
      path.push_back(parent == i - 1 ? leaves : int(tables.size()));
      if (parent != i - 1) {
        tables.push_back(tables[size_t(leaves)]);
        for (int p = at / slots; p < width; p++) tables.back()[size_t(p)] = fresh++;
        const int first = at / slots;
        if (last > first * slots) step.copies.push_back({0, first, tables.back()[size_t(first)], last - first * slots});
        step.parents.push_back(parent + 1);
      }
      tokens.push_back(random.below(kVocabulary)), parents.push_back(parent), depth.push_back(at - last);
      step.ids.push_back(tokens.back()), step.positions.push_back(at), step.sequences.push_back(path.back());
      step.sampled.push_back(i + 1);
    }
    step.tables.push_back({{}, width});
    for (const auto& table : tables) step.tables[0].pages.insert(step.tables[0].pages.end(), table.begin(), table.end());
  }
  int pages() const { return int(step.tables[0].pages.size()); }
  // The known tokens and the path to a draft.
  std::vector<int32_t> line(std::vector<int32_t> known, int draft) const {
    if (draft < 0) return known;
    known = line(std::move(known), parents[size_t(draft)]);
    known.push_back(tokens[size_t(draft)]);
    return known;
  }
};

Step one_row() {
  Step step;
  step.ids = {3}, step.positions = {0}, step.sequences = {0}, step.sampled = {0};
  step.tables.push_back({{0, 1}, 2});
  return step;
}

// A token at position 3, and after it two drafts that follow it, in pages of 4 slots.
Step fork() {
  Step step;
  step.ids = {3, 4, 5}, step.positions = {3, 4, 4}, step.sequences = {0, 0, 1}, step.sampled = {0, 1, 2}, step.parents = {-1, 0};
  step.tables.push_back({{0, 1, 0, 2}, 2});
  return step;
}

DrawRow sampled_at(int position) {
  DrawRow row{};
  row.seed = 99, row.position = position, row.temperature = 1, row.top_p = 1, row.repetition = 1, row.logprobs = 2;
  return row;
}

}  // namespace

TEST("program", bits_do_not_depend_on_the_steps) {
  Random random(52);
  int turn = 0;  // goes through threads, page sizes and fusions
  for (const KVFormat format : {KVFormat::F32, KVFormat::F16, KVFormat::Int8, KVFormat::Int4}) {
    std::vector<Text> texts;
    for (const size_t length : {1, 40, format == KVFormat::F16 ? 530 : 270}) texts.emplace_back(random, length, format);
    for (const auto& isa : usable_isas())
      for (const size_t chunk : {3, 50, 600}) {
        const int threads = 1 + turn % 4, slots = 1 << (turn % 7), pages = int(texts.size()) * ((kPositions + slots - 1) / slots);
        const bool fusions = turn % 5 < 3;
        turn++;
        Pool pool(threads);
        CHECK_CASE(agrees(texts, pool, model().program(isa, fusions), store_of(pages, slots, format), slots, chunk),
                   isa + " chunk " + std::to_string(chunk) + " threads " + std::to_string(threads) + " slots " + std::to_string(slots));
      }
  }
}

TEST("program", one_token_at_a_time) {
  Random random(53);
  std::vector<Text> texts;
  for (const size_t length : {20, 300}) texts.emplace_back(random, length, KVFormat::F16);
  Pool pool(2);
  for (const auto& isa : usable_isas())
    CHECK_CASE(agrees(texts, pool, model().program(isa), store_of(200, 16), 16, 1), isa);
}

// Every row of a tree sees its own path, and what a path's pages hold afterwards is what its tokens would have left there.
TEST("program", rows_of_a_tree_see_their_path) {
  Random random(54);
  int turn = 0;
  for (const KVFormat format : {KVFormat::F32, KVFormat::F16, KVFormat::Int8, KVFormat::Int4})
    for (const int slots : {1, 4, 16}) {
      std::vector<int32_t> known;
      for (int i = 0; i < (turn % 6 == 1 ? 257 : 5 + 3 * turn); i++) known.push_back(random.below(kVocabulary));
      const Tree tree(random, known, slots, 12);
      Pool pool(1 + turn % 3);
      const auto program = model().program(usable_isas()[size_t(turn) % usable_isas().size()], turn % 4 < 2);
      const auto kv = store_of(tree.pages(), slots, format);
      Step before;
      for (size_t p = 0; p + 1 < known.size(); p++) before.ids.push_back(known[p]), before.positions.push_back(int(p)), before.sequences.push_back(0);
      before.tables.push_back({std::vector<int32_t>(tree.step.tables[0].pages.begin(), tree.step.tables[0].pages.begin() + tree.step.tables[0].width), tree.step.tables[0].width});
      run(pool, program, kv, nullptr, before)->wait();
      auto job = run(pool, program, kv, nullptr, tree.step);
      job->wait();
      const auto& got = job->outputs().at("logits");
      for (int draft = -1; draft < 12; draft++) {
        Plainly plainly(format);
        std::vector<float> expected;
        auto line = tree.line(known, draft);
        for (const int32_t token : line) expected = plainly.next(token);
        bool equal = true;
        for (size_t i = 0; i < kVocabulary; i++) equal &= same(got[size_t(draft + 1) * kVocabulary + i], expected[i]);
        CHECK_CASE(equal, "draft " + std::to_string(draft) + " slots " + std::to_string(slots));
        const auto& table = tree.step.tables[0];
        const bool leaf = draft >= 0 && std::count(tree.parents.begin(), tree.parents.end(), draft) == 0;
        if (!leaf || int(line.size()) >= table.width * slots) continue;
        const auto from = table.pages.begin() + tree.path[size_t(draft)] * table.width;
        Step after = one_row();  // one more token on its path
        after.ids = {5}, after.positions = {int(line.size())}, after.tables[0] = {{from, from + table.width}, table.width};
        auto next = run(pool, program, kv, nullptr, after);
        next->wait();
        expected = plainly.next(5), equal = true;
        for (size_t i = 0; i < kVocabulary; i++) equal &= same(next->outputs().at("logits")[i], expected[i]);
        CHECK_CASE(equal, "after draft " + std::to_string(draft) + " slots " + std::to_string(slots));
      }
      turn++;
    }
}

// Steps queued before the tokens they read are known, a page copied on the way.
TEST("program", draws_feed_the_steps_behind_them) {
  constexpr int kTokens = 12;
  std::vector<int32_t> expected = {5};
  Plainly plainly(KVFormat::F16);
  auto history = std::make_shared<Slots>();
  history->start(0, {5});
  for (int p = 0; p < kTokens; p++) {
    auto logits = plainly.next(expected.back());
    expected.push_back(draw(kernels_for("scalar"), logits.data(), kVocabulary, sampled_at(p + 1), *history).token);
    history->push(0, expected.back());
  }
  Pool pool(2);
  const auto program = model().program(usable_isas().front());
  const auto kv = store_of(8, 4);
  auto slots = std::make_shared<Slots>();
  std::vector<std::shared_ptr<StepJob>> jobs;
  for (int p = 0; p < kTokens; p++) {
    Step step;
    step.ids = {p ? -1 : 5}, step.positions = {p}, step.sequences = {0}, step.sampled = {0}, step.slots = {2};
    step.tables.push_back({{p < 6 ? 0 : 7, 1, p < 6 ? 2 : 3}, 3});
    if (p == 6) step.copies = {{0, 0, 7, 4}};
    if (p == 0) step.starts = {{2, {5}}};
    auto row = sampled_at(p + 1);
    row.slot = 2;
    step.draws = {row};
    jobs.push_back(run(pool, program, kv, slots, std::move(step)));
  }
  jobs.back()->wait();
  for (size_t p = 0; p < kTokens; p++) {
    CHECK(jobs[p]->drawn().size() == 1 && jobs[p]->drawn()[0].size() == 1);
    CHECK(jobs[p]->drawn()[0][0].token == expected[p + 1] && jobs[p]->drawn()[0][0].top_ids.size() == 2);
  }
  CHECK(slots->output(2) == std::vector<int32_t>(expected.begin() + 1, expected.end()));
}

TEST("program", a_step_without_sampled_rows) {
  Pool pool(2);
  Step step = one_row();
  step.sampled.clear();
  auto job = run(pool, model().program("scalar"), store_of(2, 4), nullptr, step);
  job->wait();
  CHECK(job->outputs().at("logits").empty() && job->drawn().empty());
  step = one_row(), step.outputs = false;
  job = run(pool, model().program("scalar"), store_of(2, 4), nullptr, step);
  job->wait();
  CHECK(job->outputs().empty());
}

TEST("program", tokens_that_nobody_sampled) {
  Pool pool(2);
  const auto program = model().program("scalar");
  const auto kv = store_of(2, 4);
  auto slots = std::make_shared<Slots>();
  slots->start(0, {1});
  Step step = one_row();
  step.ids = {-1}, step.slots = {0};
  CHECK_THROWS(run(pool, program, kv, slots, step)->wait(), std::invalid_argument);
  slots->push(0, kVocabulary);  // not a token of this model
  CHECK_THROWS(run(pool, program, kv, slots, step)->wait(), std::invalid_argument);
  for (const int slot : {-1, 1}) {
    step.slots = {slot};
    CHECK_THROWS(run(pool, program, kv, slots, step)->wait(), std::exception);
  }
  run(pool, program, kv, slots, one_row())->wait();  // the pool goes on
}

TEST("program", bad_steps_are_refused) {
  const auto program = model().program("scalar");
  const auto kv = store_of(4, 4);
  const auto slots = std::make_shared<Slots>();
  const std::function<void(Step&)> damages[] = {
      [](Step& s) { s = Step(); },
      [](Step& s) { s.ids = {kVocabulary}; },
      [](Step& s) { s.ids = {-1}; },
      [](Step& s) { s.ids = {1, 2}; },
      [](Step& s) { s.positions = {-1}; },
      [](Step& s) { s.positions = {8}; },
      [](Step& s) { s.positions = {kPositions}; },
      [](Step& s) { s.sequences = {-1}; },
      [](Step& s) { s.sequences = {1}; },
      [](Step& s) { s.sequences = {INT32_MAX}; },
      [](Step& s) { s.sampled = {1}; },
      [](Step& s) { s.sampled = {-1}; },
      [](Step& s) { s.slots = {0, 1}; },
      [](Step& s) { s.tables.clear(); },
      [](Step& s) { s.tables[0].pages = {4, 0}; },
      [](Step& s) { s.tables[0].pages = {-1, 0}; },
      [](Step& s) { s.tables[0].pages = {0}; },
      [](Step& s) { s.tables[0] = {{}, 0}; },
      [](Step& s) { s.copies = {{0, 0, 4, 1}}; },
      [](Step& s) { s.copies = {{0, -1, 0, 1}}; },
      [](Step& s) { s.copies = {{1, 0, 1, 1}}; },
      [](Step& s) { s.copies = {{0, 0, 1, 5}}; },
      [](Step& s) { s.copies = {{0, 0, 1, -1}}; },
      [](Step& s) { s.starts = {{-1, {}}}; },
      [](Step& s) { s.starts = {{0, {kVocabulary}}}; },
      [](Step& s) { s.draws = {sampled_at(1), sampled_at(1)}; },
      [](Step& s) { s.ids = {3, 3}, s.positions = {1, 1}, s.sequences = {0, 0}; },
      [](Step& s) { s.ids = {3, 3}, s.positions = {1, 0}, s.sequences = {0, 0}; },
      [](Step& s) { s.ids = {3, 3, 3}, s.positions = {0, 0, 1}, s.sequences = {0, 1, 0}; },
      [](Step& s) { s.parents = {0}; },
      [](Step& s) { s.parents = {-2}; },
      [](Step& s) { s.parents = {-1, -1}; },
      [](Step& s) { s = fork(), s.parents = {-1}; },
      [](Step& s) { s = fork(), s.parents = {-1, 2}; },
      [](Step& s) { s = fork(), s.parents = {1, 0}; },
      [](Step& s) { s = fork(), s.parents = {-1, 1}; },
      [](Step& s) { s = fork(), s.parents = {-1, -2}; },
      [](Step& s) { s = fork(), s.parents = {INT32_MIN, INT32_MAX}; },
      [](Step& s) { s = fork(), s.slots = {0, 1}; },
      [](Step& s) { s = fork(), s.slots = {0}; },
      [](Step& s) { s = fork(), s.positions = {3, 4, 5}; },
      [](Step& s) { s = fork(), s.sequences = {0, 0, 2}, s.parents = {-1, 0, 0}; },
      [](Step& s) { s = fork(), s.tables[0].pages = {0, 1, 0, 1}; },  // two rows in one slot
      [](Step& s) { s = fork(), s.tables[0].pages = {0, 1, 9, 2}; },  // where the path's first row's parent would be stored
      [](Step& s) { s = fork(), s.parents = {-1, -1}, s.slots = {0, 0}, s.draws = {sampled_at(4)}, s.draws[0].drafts = 2; },
  };
  int which = 0;
  for (const auto& damage : damages) {
    Step step = one_row();
    damage(step);
    bool refused = false;
    try {
      program->check(step, *kv, true);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK_CASE(refused, "damage " + std::to_string(which++));
  }
  program->check(fork(), *kv, true);
  Step step = one_row();
  step.starts = {{0, {1}}};
  CHECK_THROWS(program->check(step, *kv, false), std::invalid_argument);
}

TEST("program", instruction_sets_by_name) {
  CHECK(usable_isas().back() == "scalar");
  for (const auto& isa : usable_isas()) CHECK(isa == kernels_for(isa).name);
  CHECK_THROWS(kernels_for("mmx"), std::invalid_argument);
}

}  // namespace pagoda::test
