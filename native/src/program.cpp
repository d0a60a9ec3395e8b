#include "program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace pagoda {

namespace {

constexpr int kTileBytes = 32 * 1024;  // weights that one tile of work streams, if few rows share them
constexpr int kRowBlock = 8;           // rows of one attention task

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

}  // namespace

// Which query rows meet which spans of keys. The same for all layers of a group.
struct StepJob::AttentionPlan {
  struct Task {
    int row, rows, sequence, head;  // `rows` rows of one sequence
    int span, spans;                // spans of keys, at absolute positions
    int split;                      // of its first row, in `splits`; -1 if the task has all of its rows' spans
  };
  struct Split {  // a row whose spans several tasks share
    int row, head, span_count;
    std::vector<int> partials;  // index of the first query's partial, per span
  };
  std::vector<Task> tasks;
  std::vector<Split> splits;
  std::vector<float> memory;  // partials: max, sum, out
  int stride = 0;             // floats of a partial
  Partial partial(int i) {
    float* p = memory.data() + size_t(i) * size_t(stride);
    return {p[0], p[1], p + 16};
  }
  void keep(int i, const Partial& p) {
    float* m = memory.data() + size_t(i) * size_t(stride);
    m[0] = p.max, m[1] = p.sum;
  }
};

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
  for (const auto& i : instructions_)
    if (i.op == Op::Embed) vocabulary_ = weights_.at(size_t(i.weights.at(0)))->packed().n;
}

std::shared_ptr<StepJob> Program::job(std::shared_ptr<Program> self, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, Step step,
                                      int threads) {
  const size_t rows = step.positions.size();
  require(rows > 0, "a step needs at least one row");
  require(step.ids.size() == rows && step.sequences.size() == rows, "ids, positions and sequences must be of one length");
  require(int(step.tables.size()) == kv->groups(), "a page table is needed for each KV group");
  require(step.sequences.back() >= 0 && step.sequences.back() < 1 << 20, "sequences are numbered from 0");
  const int batch = step.sequences.back() + 1;
  require(step.slots.empty() || int(step.slots.size()) == batch, "one slot is needed for each sequence");
  for (size_t r = 0; r < rows; r++) {
    require(step.ids[r] >= (step.slots.empty() ? 0 : -1) && (!vocabulary_ || step.ids[r] < vocabulary_), "a token id is out of range");
    require(step.sequences[r] >= 0 && step.sequences[r] < batch && step.positions[r] >= 0, "sequences and positions must not be negative");
    if (r && step.sequences[r] == step.sequences[r - 1])
      require(step.positions[r] > step.positions[r - 1], "positions must ascend within a sequence");
    else if (r)
      require(step.sequences[r] > step.sequences[r - 1], "sequences must not descend");
    for (const auto& table : ropes_)
      require(size_t(step.positions[r]) < table.cos.size() / size_t(table.dims / 2), "a position is past the rotary table");
  }
  for (size_t g = 0; g < step.tables.size(); g++) {
    const auto& table = step.tables[g];
    const int slots_per_page = kv->layer(int(g), 0).slots;
    require(table.pages.size() == size_t(batch) * size_t(table.width), "a page table has the wrong size");
    for (size_t r = 0; r < rows; r++) {
      if (r + 1 < rows && step.sequences[r + 1] == step.sequences[r]) continue;
      const int used = step.positions[r] / slots_per_page + 1;
      require(used <= table.width, "a page table is too short for its positions");
      for (int p = 0; p < used; p++) {
        const int page = table.pages[size_t(step.sequences[r]) * size_t(table.width) + size_t(p)];
        require(page >= 0 && page < kv->pages(int(g)), "a page number is out of range");
      }
    }
  }
  for (const auto& i : instructions_)
    if (i.op == Op::Input) {
      const auto given = step.inputs.find(i.text);
      const BufferShape& shape = shapes_[size_t(i.out[0])];
      if (given == step.inputs.end() || given->second.size() != (shape.sampled ? step.sampled.size() : rows) * size_t(shape.width))
        throw std::invalid_argument("input " + i.text + " is missing or has the wrong size");
    }
  require(slots || (step.starts.empty() && step.slots.empty()), "slots are needed");
  for (const auto& start : step.starts) {
    require(start.slot >= 0 && start.slot < 1 << 24, "a slot is out of range");
    for (const int t : start.prompt) require(t >= 0 && t < vocabulary_, "a token id of a prompt is out of range");
  }
  for (const auto& c : step.copies) {
    require(c.group >= 0 && c.group < kv->groups(), "a page copy names a group that is not there");
    require(std::min(c.source, c.target) >= 0 && std::max(c.source, c.target) < kv->pages(c.group), "a page copy is out of range");
    require(c.slots >= 0 && c.slots <= kv->layer(c.group, 0).slots, "a page copy is longer than a page");
  }
  for (const int s : step.sampled) require(s >= 0 && size_t(s) < rows, "a sampled row is out of range");
  require(step.draws.empty() || step.draws.size() == step.sampled.size(), "one draw is needed for each sampled row");
  require(step.draws.empty() || (logits_ >= 0 && slots), "sampling needs logits and slots");
  return std::make_shared<StepJob>(std::move(self), std::move(kv), std::move(slots), std::move(step), threads);
}

StepJob::StepJob(std::shared_ptr<Program> program, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, Step step, int threads)
    : program_(std::move(program)),
      kv_(std::move(kv)),
      slots_(std::move(slots)),
      step_(std::move(step)),
      threads_(threads),
      batch_(step_.sequences.back() + 1),
      scratch_(size_t(threads)) {}

StepJob::~StepJob() = default;

int StepJob::rows(int buffer) const {
  return int(program_->shapes_[size_t(buffer)].sampled ? step_.sampled.size() : step_.positions.size());
}

std::vector<int> StepJob::stages() {
  for (auto& s : step_.starts) slots_->start(s.slot, std::move(s.prompt));
  for (const auto& c : step_.copies) kv_->copy(c.group, c.source, c.target, c.slots);
  for (size_t r = 0; r < step_.ids.size(); r++)
    if (step_.ids[r] < 0) {
      step_.ids[r] = slots_->last(step_.slots[size_t(step_.sequences[r])]);
      require(step_.ids[r] >= 0, "a row waits for a token that no step has sampled");
      require(!program_->vocabulary_ || step_.ids[r] < program_->vocabulary_, "a sampled token is not in the model's vocabulary");
    }
  for (size_t b = 0; b < program_->shapes_.size(); b++) program_->buffers_[b].reserve(program_->shapes_[b], size_t(std::max(rows(int(b)), 1)));
  plan_attention();
  std::vector<int> counts;
  for (const auto& i : program_->instructions_) counts.push_back(tiles(i));
  drawn_.resize(step_.draws.size());
  counts.push_back(int(step_.draws.size()));
  return counts;
}

// One task for each block of rows and key-value head; where those are too few for the threads, one for each span of keys too.
void StepJob::plan_attention() {
  const int rows = int(step_.positions.size());
  for (int g = 0; g < kv_->groups(); g++) {
    const KVPages& kv = kv_->layer(g, 0);
    auto plan = std::make_unique<AttentionPlan>();
    plan->stride = 16 + kv.padded;
    int blocks = 0;
    for (int r = 0; r < rows;) {
      int n = 1;
      while (r + n < rows && n < kRowBlock && step_.sequences[size_t(r + n)] == step_.sequences[size_t(r)]) n++;
      blocks++;
      r += n;
    }
    const bool split = blocks * kv.heads < 4 * threads_;
    for (int r = 0; r < rows;) {
      int n = 1;
      while (r + n < rows && n < kRowBlock && step_.sequences[size_t(r + n)] == step_.sequences[size_t(r)]) n++;
      const int spans = step_.positions[size_t(r + n - 1)] / kSpan + 1;
      for (int h = 0; h < kv.heads; h++) {
        if (!split || spans == 1) {
          plan->tasks.push_back({r, n, step_.sequences[size_t(r)], h, 0, spans, -1});
          continue;
        }
        const int first = int(plan->splits.size());
        for (int s = 0; s < spans; s++) plan->tasks.push_back({r, n, step_.sequences[size_t(r)], h, s, 1, first});
        for (int i = 0; i < n; i++) plan->splits.push_back({r + i, h, step_.positions[size_t(r + i)] / kSpan + 1, {}});
      }
      r += n;
    }
    attention_.push_back(std::move(plan));
  }
}

namespace {
int blocks_of(int n, int per) { return (n + per - 1) / per; }
}  // namespace

// Rows of one tile of a row-wise instruction: a few tiles for each thread, so that none waits long.
void StepJob::row_range(int tile, int rows, int& from, int& to) const {
  const int per = std::max(1, rows / (threads_ * 4));
  from = tile * per;
  to = std::min(rows, from + per);
}

int StepJob::tiles(const Instruction& i) {
  const auto by_rows = [&](int rows) { return rows ? blocks_of(rows, std::max(1, rows / (threads_ * 4))) : 0; };
  switch (i.op) {
    case Op::Linear: {
      const int n = rows(i.out[0]);
      if (!n) return 0;
      int count = 0;
      for (const int w : i.weights) {
        const Packed& p = program_->weights_[size_t(w)]->packed();
        count += blocks_of(p.tiles(), std::max(1, int(size_t(kTileBytes) / p.tile_bytes)));
      }
      return count;
    }
    case Op::Attend: {
      auto& plan = *attention_[size_t(i.whole[0])];
      const int queries = program_->shapes_[size_t(i.in[0])].width / kv_->layer(i.whole[0], i.whole[1]).dim / kv_->layer(i.whole[0], 0).heads;
      if (!plan.splits.empty() && plan.memory.empty()) {
        // Partials of a split row lie at [row][span][query of the head's group].
        int next = 0;
        for (auto& s : plan.splits)
          for (int k = 0; k < s.span_count; k++, next += queries) s.partials.push_back(next);
        plan.memory.resize(size_t(next) * size_t(plan.stride));
      }
      return int(plan.tasks.size());
    }
    case Op::Merge: return int(attention_[size_t(i.whole[0])]->splits.size());
    case Op::Store: return by_rows(int(step_.positions.size()));
    case Op::Output: return step_.outputs ? 1 : 0;
    case Op::Norm: return by_rows(rows(i.in[0]));
    case Op::Act: return by_rows(rows(i.in[0]));
    default: return by_rows(rows(i.out[0]));
  }
}

void StepJob::linear(const Instruction& i, int tile) {
  const int n = rows(i.out[0]);
  for (size_t j = 0; j < i.weights.size(); j++) {
    const Packed& w = program_->weights_[size_t(i.weights[j])]->packed();
    const int per = std::max(1, int(size_t(kTileBytes) / w.tile_bytes)), count = blocks_of(w.tiles(), per);
    if (tile >= count) {
      tile -= count;
      continue;
    }
    const bool integers = program_->shapes_[size_t(i.in[0])].integer != 0;
    const Buffer& in = program_->buffers_[size_t(i.in[0])];
    float* out = program_->buffers_[size_t(i.out[j])].x;
    for (int t = tile * per; t < std::min(w.tiles(), (tile + 1) * per); t++)
      integers ? program_->kernels_.linear_int(w, t, in.q, 0, n, out, size_t(w.n))
                : program_->kernels_.linear_f32(w, t, in.x, 0, n, out, size_t(w.n));
    return;
  }
}

void StepJob::norm(const Instruction& i, int row) {
  const Kernels& k = program_->kernels_;
  auto& buffers = program_->buffers_;
  const size_t d = size_t(program_->shapes_[size_t(i.in[0])].width), at = size_t(row) * d;
  const float* x = buffers[size_t(i.in[0])].x + at;
  if (i.in[1] >= 0) {
    float* sum = buffers[size_t(i.out[0])].x + at;
    k.add(x, buffers[size_t(i.in[1])].x + at, int(d), sum);
    x = sum;
  }
  std::vector<float> temporary;
  float* y;
  if (i.out[1] >= 0) {
    y = buffers[size_t(i.out[1])].x + at;
  } else {
    temporary.resize(d);
    y = temporary.data();
  }
  k.norm(x, program_->vectors_[size_t(i.weights[0])].data(), i.real[0], int(d), y);
  if (i.out[2] >= 0) {
    k.quantize(y, int(d), buffers[size_t(i.out[2])].q, row);
  }
}

void StepJob::act(const Instruction& i, int row) {
  const Kernels& k = program_->kernels_;
  auto& buffers = program_->buffers_;
  const size_t d = size_t(program_->shapes_[size_t(i.in[0])].width), at = size_t(row) * d;
  std::vector<float> temporary;
  float* y;
  if (i.out[0] >= 0) {
    y = buffers[size_t(i.out[0])].x + at;
  } else {
    temporary.resize(d);
    y = temporary.data();
  }
  k.silu_mul(buffers[size_t(i.in[0])].x + at, buffers[size_t(i.in[1])].x + at, int(d), y);
  if (i.out[1] >= 0) {
    k.quantize(y, int(d), buffers[size_t(i.out[1])].q, row);
  }
}

void StepJob::attend(const Instruction& i, int tile, int worker) {
  const Kernels& k = program_->kernels_;
  auto& plan = *attention_[size_t(i.whole[0])];
  const auto& task = plan.tasks[size_t(tile)];
  const KVPages& kv = kv_->layer(i.whole[0], i.whole[1]);
  const auto& table = step_.tables[size_t(i.whole[0])];
  const int32_t* pages = table.pages.data() + size_t(task.sequence) * size_t(table.width);
  const size_t width = size_t(program_->shapes_[size_t(i.in[0])].width);
  const int group = int(width) / kv.dim / kv.heads;
  const float* q = program_->buffers_[size_t(i.in[0])].x;
  float* out = program_->buffers_[size_t(i.out[0])].x;
  auto& scratch = scratch_[size_t(worker)];
  const size_t padded = size_t(kv.padded), working = kv.attend_floats(kGroupMax);
  const size_t query = kv.integers() ? size_t(kv.query_floats()) : 0;
  scratch.resize(working + size_t(kGroupMax) * (2 * padded + query));
  float* held = scratch.data() + working;
  float* queries = held + 2 * size_t(kGroupMax) * padded;

  const int all = task.rows * group;  // query vectors, those of one row together
  for (int first = 0; first < all;) {
    Queries qs{};
    Partial state[kGroupMax], part[kGroupMax];
    int index[kGroupMax];
    for (; qs.count < kGroupMax && first + qs.count < all; qs.count++) {
      const int v = first + qs.count, row = task.row + v / group;
      qs.q[qs.count] = q + size_t(row) * width + size_t(task.head * group + v % group) * size_t(kv.dim);
      if (query) {
        k.query(kv, qs.q[qs.count], queries + size_t(qs.count) * query);
        qs.q[qs.count] = queries + size_t(qs.count) * query;
      }
      qs.last[qs.count] = step_.positions[size_t(row)];
      index[qs.count] = v;
      state[qs.count].out = held + size_t(qs.count) * padded;
      part[qs.count].out = held + size_t(kGroupMax + qs.count) * padded;
    }
    first += qs.count;
    for (int s = task.span; s < task.span + task.spans; s++) {
      Queries seeing = qs;  // earlier rows of the block may end before this span
      int skip = 0;
      while (skip < qs.count && qs.last[skip] < s * kSpan) skip++;
      seeing.count = qs.count - skip;
      for (int n = 0; n < seeing.count; n++) seeing.q[n] = qs.q[n + skip], seeing.last[n] = qs.last[n + skip];
      if (!seeing.count) continue;
      const bool begins = s == task.span;
      k.attend(kv, pages, seeing, task.head, s, i.real[0], (begins ? state : part) + skip, scratch.data());
      if (!begins)
        for (int n = skip; n < qs.count; n++) k.merge(state[n], part[n], kv.padded);
    }
    for (int n = 0; n < qs.count; n++) {
      const int row = task.row + index[n] / group, head = task.head * group + index[n] % group;
      if (qs.last[n] < task.span * kSpan) continue;
      if (task.split < 0) {
        finish(kv, state[n], out + size_t(row) * width + size_t(head) * size_t(kv.dim));
        continue;
      }
      const auto& split = plan.splits[size_t(task.split + row - task.row)];
      const int at = split.partials[size_t(task.span)] + index[n] % group;
      plan.keep(at, state[n]);
      std::memcpy(plan.partial(at).out, state[n].out, padded * 4);
    }
  }
}

void StepJob::finish(const KVPages& kv, const Partial& state, float* out) const {
  program_->kernels_.finish(state, kv.dim, out);
  if (kv.integers()) program_->kernels_.turn_back(out, kv.dim);
}

void StepJob::merge(const Instruction& i, int tile) {
  auto& plan = *attention_[size_t(i.whole[0])];
  const auto& split = plan.splits[size_t(tile)];
  const KVPages& kv = kv_->layer(i.whole[0], i.whole[1]);
  const size_t width = size_t(program_->shapes_[size_t(i.out[0])].width);
  const int group = int(width) / kv.dim / kv.heads;
  float* out = program_->buffers_[size_t(i.out[0])].x + size_t(split.row) * width;
  for (int n = 0; n < group; n++) {
    Partial state = plan.partial(split.partials[0] + n);
    for (int s = 1; s < split.span_count; s++) program_->kernels_.merge(state, plan.partial(split.partials[size_t(s)] + n), kv.padded);
    finish(kv, state, out + size_t(split.head * group + n) * size_t(kv.dim));
  }
}

void StepJob::run(int stage, int tile, int worker) {
  const Kernels& k = program_->kernels_;
  auto& buffers = program_->buffers_;
  if (size_t(stage) == program_->instructions_.size()) {
    const size_t n = size_t(program_->shapes_[size_t(program_->logits_)].width);
    drawn_[size_t(tile)] = draw(k, buffers[size_t(program_->logits_)].x + size_t(tile) * n, int(n), step_.draws[size_t(tile)], *slots_);
    return;
  }
  const Instruction& i = program_->instructions_[size_t(stage)];
  const auto f32 = [&](int b) { return buffers[size_t(b)].x; };
  const auto width = [&](int b) { return size_t(program_->shapes_[size_t(b)].width); };
  int from = 0, to = 0;
  switch (i.op) {
    case Op::Linear: return linear(i, tile);
    case Op::Attend: return attend(i, tile, worker);
    case Op::Merge: return merge(i, tile);
    case Op::Output: {
      const float* x = f32(i.in[0]);
      outputs_[i.text].assign(x, x + size_t(rows(i.in[0])) * width(i.in[0]));
      widths_[i.text] = int(width(i.in[0]));
      return;
    }
    case Op::Store: row_range(tile, int(step_.positions.size()), from, to); break;
    case Op::Norm:
    case Op::Act: row_range(tile, rows(i.in[0]), from, to); break;
    default: row_range(tile, rows(i.out[0]), from, to);
  }
  for (int r = from; r < to; r++) {
    const size_t row = size_t(r);
    switch (i.op) {
      case Op::Embed: program_->weights_[size_t(i.weights[0])]->row(step_.ids[row], f32(i.out[0]) + row * width(i.out[0])); break;
      case Op::Input: {
        const auto& given = step_.inputs.at(i.text);
        const size_t n = width(i.out[0]);
        std::memcpy(f32(i.out[0]) + row * n, given.data() + row * n, n * 4);
        break;
      }
      case Op::Quantize: {
        const size_t n = width(i.in[0]);
        k.quantize(f32(i.in[0]) + row * n, int(n), buffers[size_t(i.out[0])].q, int(row));
        break;
      }
      case Op::Norm: norm(i, r); break;
      case Op::Act: act(i, r); break;
      case Op::Add: {
        const size_t n = width(i.out[0]);
        k.add(f32(i.in[0]) + row * n, f32(i.in[1]) + row * n, int(n), f32(i.out[0]) + row * n);
        break;
      }
      case Op::Rope:
      case Op::RopeStore: {
        const RopeAngles& angles = program_->ropes_[size_t(i.weights[0])];
        const int dim = i.whole[0], half = angles.dims / 2;
        const size_t at = size_t(step_.positions[row]) * size_t(half);
        const size_t turned = i.op == Op::Rope ? 2 : 1;
        for (size_t j = 0; j < turned; j++) {
          const size_t n = width(i.in[j]);
          float* y = f32(i.out[j]) + row * n;
          std::memcpy(y, f32(i.in[j]) + row * n, n * 4);
          k.rope(y, int(n) / dim, dim, angles.dims, angles.cos.data() + at, angles.sin.data() + at, angles.adjacent);
        }
        if (i.op == Op::Rope) break;
        const size_t n = width(i.in[1]);
        float* key = f32(i.in[1]) + row * n;  // its last use: turned where it lies
        k.rope(key, int(n) / dim, dim, angles.dims, angles.cos.data() + at, angles.sin.data() + at, angles.adjacent);
        const KVPages& kv = kv_->layer(i.whole[1], i.whole[2]);
        const auto& table = step_.tables[size_t(i.whole[1])];
        const int position = step_.positions[row];
        const int page = table.pages[size_t(step_.sequences[row]) * size_t(table.width) + size_t(position / kv.slots)];
        k.store_kv(kv, page, position % kv.slots, key, f32(i.in[2]) + row * n);
        break;
      }
      case Op::Store: {
        const KVPages& kv = kv_->layer(i.whole[0], i.whole[1]);
        const auto& table = step_.tables[size_t(i.whole[0])];
        const size_t n = width(i.in[0]);
        const int position = step_.positions[row];
        const int page = table.pages[size_t(step_.sequences[row]) * size_t(table.width) + size_t(position / kv.slots)];
        k.store_kv(kv, page, position % kv.slots, f32(i.in[0]) + row * n, f32(i.in[1]) + row * n);
        break;
      }
      case Op::Pick: {
        const size_t n = width(i.in[0]);
        std::memcpy(f32(i.out[0]) + row * n, f32(i.in[0]) + size_t(step_.sampled[row]) * n, n * 4);
        break;
      }
      default: break;
    }
  }
}

void StepJob::end() {
  for (size_t s = 0; s < drawn_.size(); s++) slots_->push(step_.draws[s].slot, drawn_[s].token);
}

}  // namespace pagoda
