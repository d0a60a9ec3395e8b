// A recorded forward pass: a flat list of instructions over numbered buffers. `StepJob` runs it, stage by stage, on the pool.
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
  Linear,    // x or [q] -> y.. one weight each; whole: none, or for each the vector that is added
  Norm,      // x, residual? -> sum?, y?, [q]?      vector 0; whole 0: heads; real 0: eps. With a residual, x + residual is normed
  Rope,      // q, k -> q, k    table 0; whole 0: head_dim
  Store,     // k, v ->         whole: group, layer
  RopeStore, // q, k, v -> q    as Rope and Store: whole: head_dim, group, layer
  Attend,    // q -> y          vector 0?: sinks; whole: group, layer, window (0: none); real: scale, soft cap (0: none)
  Merge,     // -> y            as Attend: joins what it split over several spans
  Act,       // gate, up -> y?, [q]?                whole 0: an Act
  Add,       // x, y -> z
  Pick,      // x -> y of class S
  Output,    // x ->            text: name
  Scale,     // x -> y          real 0: factor
  SoftCap,   // x -> y          real 0: cap
  Route,     // scores -> the chosen experts' numbers, then their weights, best first    whole: how many, rule (1: softmax over all)
  Group,     // routes ->       whole: experts, chosen. From here on each row has a routed row for each of its experts, and those of
             //                 one expert lie together (routed.h)
  Gather,    // x or [q] -> the same in routed rows
  Experts,   // x or [q] -> y.. all in routed rows    weights: for each y those of all experts, then one of biases each?; whole: experts
  Combine,   // y of routed rows, routes -> z         the sum of a row's routed rows, weighed, best first
  Permute,   // x -> y          whole: for each column of y, the column of x that it is
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
  // ids: -1 is the sequence's token sampled last, -2 - i token i of its slot in `guesses`
  std::vector<int32_t> ids, positions, sequences, sampled, slots, guesses;
  // Empty, or of each sequence the row of another that its first row follows: it is a path of a tree. -1: none
  std::vector<int32_t> parents;
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
  std::vector<DrawRow> draws;  // empty, or together for all sampled rows: one and those of its drafts each
  bool outputs = true;         // whether the instructions Output copy anything
  bool clocked = false;        // whether to note how long each stage takes
};

class StepJob;

class Program : public std::enable_shared_from_this<Program> {
 public:
  Program(const Kernels& kernels, std::vector<Instruction> instructions, std::vector<BufferShape> buffers,
          std::vector<std::shared_ptr<Weight>> weights, std::vector<std::vector<float>> vectors, std::vector<RopeAngles> ropes,
          int logits);
  Program(const Program&) = delete;
  // Checks every index of a step against the model, the KV store and the rest of it: throws std::invalid_argument.
  void check(const Step& step, const KVStore& kv, bool has_slots) const;

 private:
  friend class StepJob;
  void check_rows(const Step& step) const;
  void check_parents(const Step& step) const;
  void check_inputs(const Step& step) const;
  void check_tables(const Step& step, const KVStore& kv) const;
  const Kernels& kernels_;
  std::vector<Instruction> instructions_;
  std::vector<BufferShape> shapes_;
  std::vector<std::shared_ptr<Weight>> weights_;
  std::vector<std::vector<float>> vectors_;
  std::vector<RopeAngles> ropes_;
  int logits_;  // the buffer that sampling reads; -1 if none
  int vocabulary_ = 0;
  std::map<int, int> windows_;   // of each KV group that layers of it attend to: the widest of their windows, 0 if one has none
  std::vector<Buffer> buffers_;  // grown as steps need; steps run one at a time
};

}  // namespace pagoda
