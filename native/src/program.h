// A recorded forward pass: a flat list of instructions over numbered buffers, run stage by stage on the pool.
// Python records it once (backends/recorder.py); from then on a step runs without Python.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "kv_store.h"
#include "pack.h"
#include "pool.h"
#include "sampler.h"

namespace pagoda {

// Operands, in order; -1 is an absent one. [q] marks a buffer of integers.
enum class Op : int {
  Embed,     // -> x            weight
  Input,     // -> x            text: name
  Quantize,  // x -> [q]
  Linear,    // x or [q] -> y.. one weight each
  Norm,      // x, residual? -> sum?, y?, [q]?      vector 0; real 0: eps. With a residual, x + residual is normed
  Rope,      // q, k -> q, k    table 0; whole 0: head_dim
  Store,     // k, v ->         whole: group, layer
  RopeStore, // q, k, v -> q    as Rope and Store: whole: head_dim, group, layer
  Attend,    // q -> y          whole: group, layer; real 0: scale
  Merge,     // -> y            whole: group, layer: joins what Attend split over several spans
  Act,       // gate, up -> y?, [q]?
  Add,       // x, y -> z
  Pick,      // x -> y of class S
  Output,    // x ->            text: name
};

struct Instruction {
  Op op;
  std::vector<int> in, out, weights, whole;
  std::vector<float> real;
  std::string text;
};

struct RopeAngles {
  std::vector<float> cos, sin;  // [positions, dims / 2]
  int dims;
  bool adjacent;
};

// All that changes from step to step; owns its arrays.
struct Step {
  std::vector<int32_t> ids, positions, sequences, sampled, slots;  // ids: -1 is the sequence's token sampled last
  struct Table {
    std::vector<int32_t> pages;
    int width;
  };
  std::vector<Table> tables;  // per KV group [sequences, width]
  std::map<std::string, std::vector<float>> inputs;
  struct Copy {
    int group, source, target, slots;
  };
  std::vector<Copy> copies;    // of pages, before anything else
  struct Start {
    int slot;
    std::vector<int32_t> prompt;
  };
  std::vector<Start> starts;   // of sequences, before anything else
  std::vector<DrawRow> draws;  // empty, or one for each sampled row
  bool outputs = true;         // whether the instructions Output copy anything
};

class StepJob;

class Program : public std::enable_shared_from_this<Program> {
 public:
  Program(const Kernels& kernels, std::vector<Instruction> instructions, std::vector<BufferShape> buffers,
          std::vector<std::shared_ptr<Weight>> weights, std::vector<std::vector<float>> vectors, std::vector<RopeAngles> ropes,
          int logits);
  Program(const Program&) = delete;
  // Checks every index of the step against the KV store and the model: throws std::invalid_argument.
  std::shared_ptr<StepJob> job(std::shared_ptr<Program> self, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, Step step,
                               int threads);

 private:
  friend class StepJob;
  const Kernels& kernels_;
  std::vector<Instruction> instructions_;
  std::vector<BufferShape> shapes_;
  std::vector<std::shared_ptr<Weight>> weights_;
  std::vector<std::vector<float>> vectors_;
  std::vector<RopeAngles> ropes_;
  int logits_;  // the buffer that sampling reads; -1 if none
  int vocabulary_ = 0;
  std::vector<Buffer> buffers_;  // grown as steps need; steps run one at a time
};

// One step on its way.
class StepJob : public Job {
 public:
  StepJob(std::shared_ptr<Program> program, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, Step step, int threads);
  ~StepJob() override;
  std::vector<int> stages() override;
  void run(int stage, int tile, int worker) override;
  void end() override;

  const std::map<std::string, std::vector<float>>& outputs() const { return outputs_; }
  const std::map<std::string, int>& widths() const { return widths_; }
  const std::vector<DrawResult>& drawn() const { return drawn_; }
  const Step& step() const { return step_; }

 private:
  struct AttentionPlan;
  int rows(int buffer) const;
  int tiles(const Instruction& i);
  void plan_attention();
  void linear(const Instruction& i, int tile);
  void norm(const Instruction& i, int row);
  void act(const Instruction& i, int row);
  void attend(const Instruction& i, int tile, int worker);
  void merge(const Instruction& i, int tile);
  void finish(const KVPages& kv, const Partial& state, float* out) const;
  void row_range(int tile, int rows, int& from, int& to) const;

  std::shared_ptr<Program> program_;
  std::shared_ptr<KVStore> kv_;
  std::shared_ptr<Slots> slots_;
  Step step_;
  int threads_;
  int batch_;  // sequences
  std::vector<std::unique_ptr<AttentionPlan>> attention_;  // per KV group
  std::vector<std::vector<float>> scratch_;                // per worker
  std::map<std::string, std::vector<float>> outputs_;
  std::map<std::string, int> widths_;
  std::vector<DrawResult> drawn_;
};

}  // namespace pagoda
