#include "program.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "require.h"
#include "tree.h"

namespace pagoda {

Program::Program(const Kernels& kernels, std::vector<Instruction> instructions, std::vector<BufferShape> buffers,
                 std::vector<std::shared_ptr<Weight>> weights, std::vector<std::vector<float>> vectors, std::vector<RopeAngles> ropes,
                 int logits)
    : kernels_(kernels),
      instructions_(std::move(instructions)),
      shapes_(std::move(buffers)),
      weights_(std::move(weights)),
      vectors_(std::move(vectors)),
      ropes_(std::move(ropes)),
      logits_(logits),
      buffers_(shapes_.size()) {
  std::set<int> stored;
  for (const auto& i : instructions_) {
    if (i.op == Op::Permute) {
      const int width = shapes_.at(size_t(i.in.at(0))).width;
      require(i.whole.size() == size_t(shapes_.at(size_t(i.out.at(0))).width), "a permutation has another width than what it makes");
      for (const int column : i.whole) require(column >= 0 && column < width, "a permutation names a column that there is not");
    }
    if (i.op == Op::Embed) vocabulary_ = weights_.at(size_t(i.weights.at(0)))->packed().n;
    if (i.op == Op::Store) stored.insert(i.whole.at(0));
    if (i.op == Op::RopeStore) stored.insert(i.whole.at(1));
    if (i.op != Op::Attend) continue;
    const int window = i.whole.at(2);
    const auto [known, added] = windows_.try_emplace(i.whole.at(0), window);
    if (!added) known->second = window && known->second ? std::max(window, known->second) : 0;
  }
  for (const int group : stored) windows_.try_emplace(group, 0);
}

void Program::check_rows(const Step& step) const {
  const size_t rows = step.positions.size();
  require(rows > 0, "a step needs at least one row");
  require(step.ids.size() == rows && step.sequences.size() == rows, "ids, positions and sequences must be of one length");
  require(step.sequences.back() >= 0 && step.sequences.back() < 1 << 20, "sequences are numbered from 0");
  for (size_t r = 0; r < rows; r++) {
    const int least = step.slots.empty() ? 0 : step.guesses.empty() ? -1 : INT32_MIN;
    require(step.ids[r] >= least && (!vocabulary_ || step.ids[r] < vocabulary_), "a token id is out of range");
    require(step.sequences[r] >= 0 && step.positions[r] >= 0, "sequences and positions must not be negative");
    if (r && step.sequences[r] == step.sequences[r - 1])
      require(step.positions[r] > step.positions[r - 1], "positions must ascend within a sequence");
    else if (r)
      require(step.sequences[r] > step.sequences[r - 1], "sequences must not descend");
    for (const auto& table : ropes_)
      require(size_t(step.positions[r]) < table.cos.size() / size_t(table.dims / 2), "a position is past the rotary table");
  }
  for (const int s : step.sampled) require(s >= 0 && size_t(s) < rows, "a sampled row is out of range");
}

// A path goes on where an earlier row ends, in another path of the same sequence.
void Program::check_parents(const Step& step) const {
  if (step.parents.empty()) return;
  require(step.parents.size() == size_t(step.sequences.back() + 1), "one parent, or -1, is needed for each sequence");
  std::vector<bool> met(step.parents.size());
  for (size_t r = 0; r < step.sequences.size(); r++) {
    const auto path = size_t(step.sequences[r]);
    const int parent = step.parents[path];
    if (met[path]) continue;
    met[path] = true;
    require(parent >= -1 && parent < int(r), "a path's parent must be a row before its first");
    if (parent < 0) continue;
    require(step.positions[size_t(parent)] + 1 == step.positions[r], "a path must go on at the position after its parent's");
    require(step.slots.empty() || step.slots.at(path) == step.slots.at(size_t(step.sequences[size_t(parent)])),
            "a path and its parent's must have one slot");
  }
  for (size_t path = 0; path < met.size(); path++) require(met[path] || step.parents[path] == -1, "a path with a parent has no rows");
}

namespace {

// No slot is written by two rows of trees: a path has pages of its own from where it leaves another.
void check_shared(const Step& step, const Step::Table& table, int pages, int slots) {
  std::map<std::pair<int, int>, size_t> writers;
  const auto write = [&](size_t row, size_t path) {
    const int at = step.positions[row], page = table.pages[path * size_t(table.width) + size_t(at / slots)];
    require(page >= 0 && page < pages, "a page number is out of range");
    require(writers.try_emplace({page, at % slots}, row).first->second == row, "two rows of a tree write the same slot");
  };
  std::set<int> paths;
  const auto before = rows_before(step);
  visit_shared(step, before, [&](size_t row, size_t path) {
    paths.insert({int(path), step.sequences[row]});
    write(row, path);
  });
  for (size_t r = 0; r < step.sequences.size(); r++)
    if (paths.count(step.sequences[r])) write(r, size_t(step.sequences[r]));
}

}  // namespace

void Program::check_tables(const Step& step, const KVStore& kv) const {
  require(int(step.tables.size()) == kv.groups(), "a page table is needed for each KV group");
  const size_t rows = step.positions.size();
  for (int g = 0; g < kv.groups(); g++) {
    const auto& table = step.tables[size_t(g)];
    require(table.pages.size() == size_t(step.sequences.back() + 1) * size_t(table.width), "a page table has the wrong size");
    const auto found = windows_.find(g);
    if (found == windows_.end()) continue;  // no layer of this program has keys there
    const int window = found->second;
    for (size_t r = 0, first = 0; r < rows; r++) {
      if (step.sequences[r] != step.sequences[first]) first = r;
      if (r + 1 < rows && step.sequences[r + 1] == step.sequences[r]) continue;
      const int slots = kv.slots(), used = step.positions[r] / slots + 1;
      require(used <= table.width, "a page table is too short for its positions");
      for (int p = first_seen(step.positions[first], window) / slots; p < used; p++) {
        const int page = table.pages[size_t(step.sequences[r]) * size_t(table.width) + size_t(p)];
        require(page >= 0 && page < kv.pages(g), "a page number is out of range");
      }
    }
    if (!step.parents.empty()) check_shared(step, table, kv.pages(g), kv.slots());
  }
  for (const auto& c : step.copies) {
    require(c.group >= 0 && c.group < kv.groups(), "a page copy names a group that is not there");
    require(std::min(c.source, c.target) >= 0 && std::max(c.source, c.target) < kv.pages(c.group), "a page copy is out of range");
    require(c.slots >= 0 && c.slots <= kv.slots(), "a page copy is longer than a page");
  }
}

namespace {

// Each draw has a slot of its own and rows one after the other, of one sequence or of a tree's paths.
void check_draws(const Step& step) {
  if (step.draws.empty()) return;
  const auto before = rows_before(step);
  std::set<int> slots;
  size_t at = 0;
  for (const auto& d : step.draws) {
    require(slots.insert(d.slot).second, "two draws have one slot");
    require(d.drafts >= 0 && at + size_t(d.drafts) < step.sampled.size(), "there are fewer sampled rows than draws ask for");
    const int first = step.sampled[at];
    for (const size_t end = at + size_t(d.drafts); at < end; at++) {
      const int row = step.sampled[at + 1];
      require(row == step.sampled[at] + 1 && before[size_t(row)] >= first, "drafts are in the rows right after their sequence's");
    }
    at++;
  }
  require(at == step.sampled.size(), "one draw is needed for each sampled row that is no draft's");
}

}  // namespace

void Program::check_inputs(const Step& step) const {
  for (const auto& i : instructions_) {
    if (i.op != Op::Input) continue;
    const auto given = step.inputs.find(i.text);
    const BufferShape& shape = shapes_[size_t(i.out[0])];
    const size_t rows = shape.sampled ? step.sampled.size() : step.positions.size();
    if (given == step.inputs.end() || given->second.size() != rows * size_t(shape.width))
      throw std::invalid_argument("input " + i.text + " is missing or has the wrong size");
  }
}

void Program::check(const Step& step, const KVStore& kv, bool has_slots) const {
  check_rows(step);
  require(step.slots.empty() || step.slots.size() == size_t(step.sequences.back() + 1), "one slot is needed for each sequence");
  check_parents(step);
  check_tables(step, kv);
  check_inputs(step);
  require(step.guesses.empty() || step.guesses.size() == step.slots.size(), "one slot of guesses is needed for each sequence");
  require(has_slots || (step.starts.empty() && step.slots.empty()), "slots are needed");
  for (const auto& start : step.starts) {
    require(start.slot >= 0 && start.slot < 1 << 24, "a slot is out of range");
    for (const int t : start.prompt) require(t >= 0 && (!vocabulary_ || t < vocabulary_), "a token id of a prompt is out of range");
  }
  require(step.draws.empty() || (logits_ >= 0 && has_slots), "sampling needs logits and slots");
  check_draws(step);
}

}  // namespace pagoda
