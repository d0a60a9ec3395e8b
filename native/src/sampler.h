// From logits to tokens. What is computed, and in which order, is said in src/pagoda/backends/sampling.py, its reference.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"

namespace pagoda {

// How one row is sampled.
struct DrawRow {
  int32_t slot;
  uint64_t seed;
  int32_t choice, position;  // position: of the token to be chosen
  float temperature, top_p, min_p, repetition, frequency, presence;
  int32_t top_k, logprobs;  // top_k 0: all; logprobs -1: none
  int32_t drafts;           // the rows after this one are of so many drafts, to be verified
};

struct DrawResult {
  int32_t token = 0;
  float logprob = 0;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
};

// The tokens of each sequence, kept beside the sampler so that a step can be planned before the one in flight has ended.
// Touched by the pool's leading thread only, or by tiles that it waits for, each of which has slots of its own.
class Slots : public std::enable_shared_from_this<Slots> {
 public:
  // A new sequence takes the slot; grows to hold it.
  void start(int slot, std::vector<int32_t> prompt) {
    if (size_t(slot) >= slots_.size()) slots_.resize(size_t(slot) + 1);
    slots_[size_t(slot)] = {std::move(prompt), {}};
  }
  void push(int slot, int32_t token) { slots_.at(size_t(slot)).output.push_back(token); }
  // The token sampled last; -1 if none was.
  int32_t last(int slot) const {
    const auto& output = slots_.at(size_t(slot)).output;
    return output.empty() ? -1 : output.back();
  }
  // Token i of the slot's output; -1 if there are not so many.
  int32_t guess(int slot, size_t i) const {
    const auto& output = slots_.at(size_t(slot)).output;
    return i < output.size() ? output[i] : -1;
  }
  const std::vector<int32_t>& prompt(int slot) const { return slots_.at(size_t(slot)).prompt; }
  const std::vector<int32_t>& output(int slot) const { return slots_.at(size_t(slot)).output; }

 private:
  struct Slot {
    std::vector<int32_t> prompt, output;
  };
  std::vector<Slot> slots_;
};

// Sample one row; overwrites its logits.
DrawResult draw(const Kernels& kernels, float* logits, int vocabulary, const DrawRow& row, const Slots& slots);

// Philox4x32-10 (Salmon, Moraes, Dror & Shaw 2011): four random words of a counter under a key of two words.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, uint32_t k0, uint32_t k1);

// log(x) for x > 0, with no help from the C library: the same bits on every machine.
double log_exact(double x);

// sin and cos of x >= 0, likewise.
void sincos_exact(double x, double& sine, double& cosine);

}  // namespace pagoda
