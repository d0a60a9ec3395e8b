// One step of a program, as a job of the pool: each instruction is a stage, its rows or columns are the tiles.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention_plan.h"
#include "program.h"
#include "routed.h"

namespace pagoda {

// Work of a matrix is shared out by so many tiles of 16 columns.
int columns_per_tile(const Packed& w);
inline int parts(int n, int per) { return (n + per - 1) / per; }

class StepJob : public Job {
 public:
  StepJob(std::shared_ptr<Program> program, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, Step step, int threads);
  std::vector<int> stages() override;
  void run(int stage, int tile, int worker) override;

  const std::map<std::string, std::vector<float>>& outputs() const { return outputs_; }
  const std::map<std::string, int>& widths() const { return widths_; }
  // Of each draw, its tokens: those of drafts as long as the drafts are right, and one more.
  const std::vector<std::vector<DrawResult>>& drawn() const { return drawn_; }
  // Seconds of each stage, its tiles together, in the order of the instructions and then the sampling; empty if not clocked.
  std::vector<double> times() const;

 private:
  const BufferShape& shape(int buffer) const { return program_->shapes_[size_t(buffer)]; }
  Buffer& buffer(int number) const { return program_->buffers_[size_t(number)]; }
  float* row(int buffer, int r) const;
  int rows(int buffer) const;
  int queries(const Instruction& i) const;
  AttentionPlan& plan(const Instruction& i) { return attention_.at({i.whole[0], i.whole[2]}); }

  void run_tile(int stage, int tile, int worker);
  void begin();
  int32_t known_by_now(int32_t id, size_t sequence) const;
  int tiles(const Instruction& i);
  int matrix_tiles(int weight) const;
  int expert_tiles(const Instruction& i) const;
  int through(const Instruction& i) const;
  int rows_of(const Instruction& i) const;
  int rows_per_tile(const Instruction& i, int rows) const;
  // One row of a row-wise instruction.
  void run_row(const Instruction& i, int r, int worker);
  void norm(const Instruction& i, int r, int worker);
  void act(const Instruction& i, int r, int worker);
  void rope(const Instruction& i, int r);
  void store(int group, int layer, int r, const float* k, const float* v);
  // One tile of the others.
  void linear(const Instruction& i, int tile);
  void experts(const Instruction& i, int tile);
  void group(const Instruction& i);
  // The n-th routed row.
  void gather(const Instruction& i, int n);
  void combine(const Instruction& i, int r);
  void permute(const Instruction& i, int r);
  void attend(const Instruction& i, int tile, int worker);
  void merge(const Instruction& i, int tile);
  // A query head's output, out of the merged partials.
  void finish(const Instruction& i, const KVPages& kv, const Partial& state, int head, float* out) const;
  void output(const Instruction& i);
  void draw_rows(int tile);
  // Of the sampled rows after `at`, up to `last`, the one whose token follows it; 0 if there is none.
  size_t drafted(size_t at, size_t last, int32_t token) const;

  std::shared_ptr<Program> program_;
  std::shared_ptr<KVStore> kv_;
  std::shared_ptr<Slots> slots_;
  Step step_;
  int threads_;
  std::map<std::pair<int, int>, AttentionPlan> attention_;  // by KV group and window
  Routed routed_;                            // of the mixture that is being computed
  std::vector<Aligned> scratch_;             // per worker
  std::map<std::string, std::vector<float>> outputs_;
  std::map<std::string, int> widths_;
  std::vector<std::vector<DrawResult>> drawn_;
  std::vector<int> first_;  // of each draw, its first sampled row
  std::vector<int> before_;  // of each row, the one that it follows
  std::map<int, std::vector<size_t>> shared_;  // of rows of trees: which other paths they are on
  std::vector<std::atomic<int64_t>> nanoseconds_;  // by stage, if the step is clocked
};

}  // namespace pagoda
