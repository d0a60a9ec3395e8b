#include "step_job.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "require.h"
#include "tree.h"

namespace pagoda {
namespace {

constexpr size_t kTileBytes = 32 * 1024;  // weights that one tile of work streams
constexpr int kTilesPerThread = 4;        // of a row-wise instruction, so that none waits long
constexpr int kLeastNumbers = 2048;       // of such a tile: with less, meeting takes longer than the work

}  // namespace

int columns_per_tile(const Packed& w) { return std::max(2, int(kTileBytes / w.tile_bytes) / 2 * 2); }  // kernels take them in pairs

StepJob::StepJob(std::shared_ptr<Program> program, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, Step step, int threads)
    : program_(std::move(program)),
      kv_(std::move(kv)),
      slots_(std::move(slots)),
      step_(std::move(step)),
      threads_(threads),
      scratch_(size_t(threads)) {}

float* StepJob::row(int b, int r) const { return buffer(b).x + size_t(r) * size_t(shape(b).width); }

int StepJob::rows(int b) const {
  const size_t rows = shape(b).sampled ? step_.sampled.size() : step_.positions.size();
  return int(shape(b).chosen ? rows * size_t(shape(b).chosen) : rows);
}

// Query heads to a key-value head.
int StepJob::queries(const Instruction& i) const {
  const KVPages& kv = kv_->layer(i.whole[0], i.whole[1]);
  return shape(i.in[0]).width / kv.dim / kv.heads;
}

// --- before and after the stages ---------------------------------------------------------------------------------------------

void StepJob::begin() {
  for (auto& s : step_.starts) slots_->start(s.slot, std::move(s.prompt));
  for (const auto& c : step_.copies) kv_->copy(c.group, c.source, c.target, c.slots);
  for (size_t r = 0; r < step_.ids.size(); r++)
    if (step_.ids[r] < 0) step_.ids[r] = known_by_now(step_.ids[r], size_t(step_.sequences[r]));
  for (size_t b = 0; b < program_->shapes_.size(); b++) {
    const BufferShape& shape = program_->shapes_[b];
    const size_t rows = shape.sampled ? step_.sampled.size() : step_.positions.size();
    program_->buffers_[b].reserve(shape, shape.most(std::max(rows, size_t(1))));
  }
  for (const auto& i : program_->instructions_) {
    if (i.op != Op::Attend) continue;
    const KVPages& kv = kv_->layer(i.whole[0], i.whole[1]);
    const std::pair key(i.whole[0], i.whole[2]);
    const auto at = attention_.try_emplace(key, step_.positions, step_.sequences, i.whole[2], kv.heads, queries(i), threads_).first;
    at->second.reserve(queries(i), kv.padded);
  }
  before_ = rows_before(step_);
  visit_shared(step_, before_, [&](size_t row, size_t path) { shared_[int(row)].push_back(path); });
  drawn_.resize(step_.draws.size());
  if (step_.clocked) nanoseconds_ = std::vector<std::atomic<int64_t>>(program_->instructions_.size() + 1);
  for (int at = 0; const auto& d : step_.draws) {
    first_.push_back(at);
    at += 1 + d.drafts;
  }
}

// The token that an id under 0 stands for.
int32_t StepJob::known_by_now(int32_t id, size_t sequence) const {
  const int32_t token = id == -1 ? slots_->last(step_.slots[sequence]) : slots_->guess(step_.guesses[sequence], size_t(-2 - id));
  require(token >= 0, "a row waits for a token that no step has sampled");
  require(!program_->vocabulary_ || token < program_->vocabulary_, "a sampled token is not in the model's vocabulary");
  return token;
}

std::vector<int> StepJob::stages() {
  begin();
  std::vector<int> counts;
  for (const auto& i : program_->instructions_) counts.push_back(tiles(i));
  counts.push_back(int(step_.draws.size()));
  return counts;
}

// --- from stages and tiles to instructions and rows --------------------------------------------------------------------------

// The value whose rows a row-wise instruction goes through.
int StepJob::through(const Instruction& i) const { return i.op == Op::Norm || i.op == Op::Act ? i.in[0] : i.out[0]; }

int StepJob::rows_of(const Instruction& i) const { return i.op == Op::Store ? int(step_.positions.size()) : rows(through(i)); }

int StepJob::rows_per_tile(const Instruction& i, int rows) const {
  const int width = shape(i.in.empty() ? i.out[0] : i.in[0]).width;
  return std::max({1, kLeastNumbers / width, rows / (threads_ * kTilesPerThread)});
}

int StepJob::matrix_tiles(int weight) const {
  const Packed& p = program_->weights_[size_t(weight)]->packed();
  return parts(p.tiles(), columns_per_tile(p));
}

int StepJob::tiles(const Instruction& i) {
  switch (i.op) {
    case Op::Linear: {
      int count = 0;
      for (const int w : i.weights) count += matrix_tiles(w);
      return rows(i.out[0]) ? count : 0;
    }
    case Op::Group: return 1;
    case Op::Experts: return std::min(i.whole[0], rows(i.in[0])) * expert_tiles(i);  // as many as may be active
    case Op::Attend: return int(plan(i).tasks().size());
    case Op::Merge: return int(plan(i).splits().size());
    case Op::Output: return step_.outputs ? 1 : 0;
    default: {
      const int n = rows_of(i);
      return n ? parts(n, rows_per_tile(i, n)) : 0;
    }
  }
}

void StepJob::run(int stage, int tile, int worker) {
  if (!step_.clocked) return run_tile(stage, tile, worker);
  const auto start = std::chrono::steady_clock::now();
  run_tile(stage, tile, worker);
  const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start);
  nanoseconds_[size_t(stage)].fetch_add(taken.count(), std::memory_order_relaxed);
}

std::vector<double> StepJob::times() const {
  std::vector<double> seconds;
  for (const auto& n : nanoseconds_) seconds.push_back(double(n.load()) * 1e-9);
  return seconds;
}

void StepJob::run_tile(int stage, int tile, int worker) {
  if (size_t(stage) == program_->instructions_.size()) return draw_rows(tile);
  const Instruction& i = program_->instructions_[size_t(stage)];
  switch (i.op) {
    case Op::Linear: return linear(i, tile);
    case Op::Group: return group(i);
    case Op::Experts: return experts(i, tile);
    case Op::Attend: return attend(i, tile, worker);
    case Op::Merge: return merge(i, tile);
    case Op::Output: return output(i);
    default: {
      const int n = rows_of(i), per = rows_per_tile(i, n);
      const bool routed = i.op != Op::Store && i.op != Op::Gather && shape(through(i)).chosen;
      for (int r = tile * per; r < std::min(n, (tile + 1) * per); r++) run_row(i, routed ? routed_.place(r) : r, worker);
    }
  }
}

// --- row by row --------------------------------------------------------------------------------------------------------------

void StepJob::run_row(const Instruction& i, int r, int worker) {
  const Kernels& k = program_->kernels_;
  const auto copy = [&](const float* from) { std::memcpy(row(i.out[0], r), from, size_t(shape(i.out[0]).width) * sizeof(float)); };
  switch (i.op) {
    case Op::Embed: return program_->weights_[size_t(i.weights[0])]->row(step_.ids[size_t(r)], row(i.out[0], r));
    case Op::Input: return copy(step_.inputs.at(i.text).data() + size_t(r) * size_t(shape(i.out[0]).width));
    case Op::Pick: return copy(row(i.in[0], step_.sampled[size_t(r)]));
    case Op::Quantize: return k.quantize(row(i.in[0], r), shape(i.in[0]).width, buffer(i.out[0]).q, r);
    case Op::Add: return k.add(row(i.in[0], r), row(i.in[1], r), shape(i.out[0]).width, row(i.out[0], r));
    case Op::Scale: return k.scale(row(i.in[0], r), i.real[0], shape(i.out[0]).width, row(i.out[0], r));
    case Op::SoftCap: return k.soft_cap(row(i.in[0], r), i.real[0], shape(i.out[0]).width, row(i.out[0], r));
    case Op::Route: return k.route(row(i.in[0], r), shape(i.in[0]).width, i.whole[0], i.whole[1] == 1, row(i.out[0], r));
    case Op::Gather: return gather(i, r);
    case Op::Combine: return combine(i, r);
    case Op::Permute: return permute(i, r);
    case Op::Norm: return norm(i, r, worker);
    case Op::Act: return act(i, r, worker);
    case Op::Rope:
    case Op::RopeStore: return rope(i, r);
    case Op::Store: return store(i.whole[0], i.whole[1], r, row(i.in[0], r), row(i.in[1], r));
    default: return;
  }
}

void StepJob::norm(const Instruction& i, int r, int worker) {
  const Kernels& k = program_->kernels_;
  const int d = shape(i.in[0]).width;
  const float* x = row(i.in[0], r);
  if (i.in[1] >= 0) {
    k.add(x, row(i.in[1], r), d, row(i.out[0], r));
    x = row(i.out[0], r);
  }
  float* y = i.out[1] >= 0 ? row(i.out[1], r) : scratch_[size_t(worker)].floats(size_t(d));
  const int heads = i.whole[0], part = d / heads;
  for (int h = 0; h < heads; h++)
    k.norm(x + h * part, program_->vectors_[size_t(i.weights[0])].data(), i.real[0], part, y + h * part);
  if (i.out[2] >= 0) k.quantize(y, d, buffer(i.out[2]).q, r);
}

void StepJob::act(const Instruction& i, int r, int worker) {
  const Kernels& k = program_->kernels_;
  const int d = shape(i.in[0]).width;
  float* y = i.out[0] >= 0 ? row(i.out[0], r) : scratch_[size_t(worker)].floats(size_t(d));
  k.act(Act(i.whole[0]), row(i.in[0], r), row(i.in[1], r), d, y);
  if (i.out[1] >= 0) k.quantize(y, d, buffer(i.out[1]).q, r);
}

void StepJob::rope(const Instruction& i, int r) {
  const RopeAngles& angles = program_->ropes_[size_t(i.weights[0])];
  const int dim = i.whole[0], half = angles.dims / 2;
  const size_t at = size_t(step_.positions[size_t(r)]) * size_t(half);
  const auto turn = [&](float* x, int width) {
    program_->kernels_.rope(x, width / dim, dim, angles.dims, angles.cos.data() + at, angles.sin.data() + at, angles.adjacent);
  };
  const auto turn_into = [&](int from, int to) {
    std::memcpy(row(to, r), row(from, r), size_t(shape(from).width) * sizeof(float));
    turn(row(to, r), shape(to).width);
  };
  turn_into(i.in[0], i.out[0]);
  if (i.op == Op::Rope) return turn_into(i.in[1], i.out[1]);
  turn(row(i.in[1], r), shape(i.in[1]).width);  // its last use: turned where it lies
  store(i.whole[1], i.whole[2], r, row(i.in[1], r), row(i.in[2], r));
}

void StepJob::store(int group, int layer, int r, const float* k, const float* v) {
  const KVPages& kv = kv_->layer(group, layer);
  const auto& table = step_.tables[size_t(group)];
  const int position = step_.positions[size_t(r)];
  const auto page_of = [&](size_t path) { return table.pages[path * size_t(table.width) + size_t(position / kv.slots)]; };
  const int own = page_of(size_t(step_.sequences[size_t(r)]));
  program_->kernels_.store_kv(kv, own, position % kv.slots, k, v);
  if (shared_.empty()) return;
  const auto others = shared_.find(r);
  if (others == shared_.end()) return;
  for (int last = own; const size_t path : others->second) {
    const int page = page_of(path);
    if (page != own && page != last) program_->kernels_.store_kv(kv, page, position % kv.slots, k, v);
    last = page;
  }
}

// --- the rest ----------------------------------------------------------------------------------------------------------------

void StepJob::linear(const Instruction& i, int tile) {
  const int n = rows(i.out[0]);
  for (size_t j = 0; j < i.weights.size(); j++) {
    const Packed& w = program_->weights_[size_t(i.weights[j])]->packed();
    const int per = columns_per_tile(w), count = parts(w.tiles(), per);
    if (tile >= count) {
      tile -= count;
      continue;
    }
    const Buffer& in = buffer(i.in[0]);
    float* out = buffer(i.out[j]).x;
    const int first = tile * per, tiles = std::min(w.tiles() - first, per);
    shape(i.in[0]).integer ? program_->kernels_.linear_int(w, first, tiles, in.q, 0, n, out, size_t(w.n))
                           : program_->kernels_.linear_f32(w, first, tiles, in.x, 0, n, out, size_t(w.n));
    if (i.whole.empty()) return;
    const float* bias = program_->vectors_[size_t(i.whole[j])].data();
    const int begin = first * kTile, end = std::min(w.n, (first + tiles) * kTile);
    for (int r = 0; r < n; r++) program_->kernels_.add_to(out + size_t(r) * size_t(w.n) + begin, bias + begin, end - begin);
    return;
  }
}

void StepJob::permute(const Instruction& i, int r) {
  const float* x = row(i.in[0], r);
  float* y = row(i.out[0], r);
  for (size_t j = 0; j < i.whole.size(); j++) y[j] = x[i.whole[j]];
}

void StepJob::attend(const Instruction& i, int tile, int worker) {
  const Kernels& k = program_->kernels_;
  auto& plan = this->plan(i);
  const auto& task = plan.tasks()[size_t(tile)];
  const Scoring scoring{i.real[0], i.real[1]};
  const KVPages& kv = kv_->layer(i.whole[0], i.whole[1]);
  const auto& table = step_.tables[size_t(i.whole[0])];
  const int32_t* pages = table.pages.data() + size_t(task.sequence) * size_t(table.width);
  const int group = queries(i);
  const size_t padded = size_t(kv.padded), working = kv.attend_floats(kGroupMax);
  const size_t query = kv.integers() ? size_t(kv.query_floats()) : 0;
  float* scratch = scratch_[size_t(worker)].floats(working + size_t(kGroupMax) * (2 * padded + query));
  float* held = scratch + working;
  float* turned = held + 2 * size_t(kGroupMax) * padded;

  const int all = task.rows * group;  // query vectors, those of one row together
  for (int first = 0; first < all; first += kGroupMax) {
    Queries qs{};
    Partial state[kGroupMax], part[kGroupMax];
    qs.count = std::min(kGroupMax, all - first);
    const auto row_of = [&](int n) { return task.row + (first + n) / group; };
    const auto head_of = [&](int n) { return task.head * group + (first + n) % group; };
    for (int n = 0; n < qs.count; n++) {
      qs.q[n] = row(i.in[0], row_of(n)) + size_t(head_of(n)) * size_t(kv.dim);
      if (query) {
        k.query(kv, qs.q[n], turned + size_t(n) * query);
        qs.q[n] = turned + size_t(n) * query;
      }
      qs.last[n] = step_.positions[size_t(row_of(n))];
      qs.first[n] = first_seen(qs.last[n], i.whole[2]);
      state[n].out = held + size_t(n) * padded;
      part[n].out = held + size_t(kGroupMax + n) * padded;
    }
    bool begun[kGroupMax] = {};
    for (int s = task.span; s < task.span + task.spans; s++) {
      int from = 0, to = qs.count;  // earlier rows of the block may end before this span, later ones' windows begin after it
      while (from < to && qs.last[from] < s * kSpan) from++;
      while (from < to && qs.first[to - 1] >= (s + 1) * kSpan) to--;
      if (from == to) continue;
      Queries seeing{};
      Partial into[kGroupMax];
      for (int n = from; n < to; n++) {
        seeing.q[seeing.count] = qs.q[n], seeing.last[seeing.count] = qs.last[n], seeing.first[seeing.count] = qs.first[n];
        into[seeing.count++] = begun[n] ? part[n] : state[n];
      }
      k.attend(kv, pages, seeing, task.head, s, scoring, into, scratch);
      for (int n = from; n < to; n++) {
        begun[n] ? k.merge(state[n], into[n - from], kv.padded) : void(state[n] = into[n - from]);
        begun[n] = true;
      }
    }
    for (int n = 0; n < qs.count; n++) {
      if (!begun[n]) continue;
      if (task.split < 0)
        finish(i, kv, state[n], head_of(n), row(i.out[0], row_of(n)) + size_t(head_of(n)) * size_t(kv.dim));
      else
        plan.keep(plan.splits()[size_t(task.split + row_of(n) - task.row)], task.span, (first + n) % group, state[n]);
    }
  }
}

void StepJob::finish(const Instruction& i, const KVPages& kv, const Partial& state, int head, float* out) const {
  const float* sink = i.weights.empty() ? nullptr : program_->vectors_[size_t(i.weights[0])].data() + head;
  program_->kernels_.finish(state, sink, kv.dim, out);
  if (kv.integers()) program_->kernels_.turn_back(out, kv.dim);
}

void StepJob::merge(const Instruction& i, int tile) {
  auto& plan = this->plan(i);
  const auto& split = plan.splits()[size_t(tile)];
  const KVPages& kv = kv_->layer(i.whole[0], i.whole[1]);
  const int group = queries(i);
  for (int head = split.head * group; head < (split.head + 1) * group; head++) {
    const int n = head % group;
    Partial state = plan.partial(split, split.span, n);
    for (int s = split.span + 1; s < split.span + split.spans; s++) program_->kernels_.merge(state, plan.partial(split, s, n), kv.padded);
    finish(i, kv, state, head, row(i.out[0], split.row) + size_t(head) * size_t(kv.dim));
  }
}

void StepJob::output(const Instruction& i) {
  const float* x = buffer(i.in[0]).x;
  widths_[i.text] = shape(i.in[0]).width;
  outputs_[i.text].assign(x, x + size_t(rows(i.in[0])) * size_t(shape(i.in[0]).width));
}

// A draft is right if it is the token that its place would have got without it: then what follows it is looked at, and no other.
void StepJob::draw_rows(int tile) {
  const int logits = program_->logits_;
  DrawRow row_of = step_.draws[size_t(tile)];
  size_t at = size_t(first_[size_t(tile)]);
  for (const size_t last = at + size_t(row_of.drafts);; row_of.position++) {
    const auto& result = drawn_[size_t(tile)].emplace_back(draw(program_->kernels_, row(logits, int(at)), shape(logits).width, row_of, *slots_));
    slots_->push(row_of.slot, result.token);
    if ((at = drafted(at, last, result.token)) == 0) return;
  }
}

size_t StepJob::drafted(size_t at, size_t last, int32_t token) const {
  for (size_t s = at + 1; s <= last; s++) {
    const auto r = size_t(step_.sampled[s]);
    if (before_[r] == step_.sampled[at] && step_.ids[r] == token) return s;
  }
  return 0;
}

}  // namespace pagoda
