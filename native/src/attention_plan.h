// Which query rows meet which spans of keys in one step: the same for all layers of a KV group that have one window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace pagoda {

class AttentionPlan {
 public:
  struct Task {
    int row, rows, sequence, head;  // `rows` rows of one sequence
    int span, spans;                // spans of keys, at absolute positions
    int split;                      // of its first row, in `splits`; -1 if the task has all of its rows' spans
  };
  // A row whose spans several tasks share; they leave partials, which are merged later.
  struct Split {
    int row, head;
    int span, spans;  // those it sees
    int first;        // partial of the first of them and the group's first query; those of a span lie together
  };

  // One task for each key-value head and block of rows, as many as the kernel takes with `queries` query heads each; where those
  // are too few for the threads, one for each span too. Spans that lie before a row's window (0: none) are nobody's.
  AttentionPlan(const std::vector<int32_t>& positions, const std::vector<int32_t>& sequences, int window, int heads, int queries, int threads);
  // Make room for partials of at most `queries` query heads to a key-value head, each of `padded` elements.
  void reserve(int queries, int padded);

  const std::vector<Task>& tasks() const { return tasks_; }
  const std::vector<Split>& splits() const { return splits_; }
  // The partial of one query of a split row in one span, as left by `keep`; `out` may be written first.
  Partial partial(const Split& split, int span, int query);
  void keep(const Split& split, int span, int query, const Partial& p);

 private:
  static constexpr int kHead = 16;  // floats before a partial's output, so that it is aligned
  float* at(const Split& split, int span, int query) {
    return memory_.data() + size_t(split.first + (span - split.span) * queries_ + query) * size_t(stride_);
  }
  std::vector<Task> tasks_;
  std::vector<Split> splits_;
  std::vector<float> memory_;
  int queries_ = 0, stride_ = 0;
};

}  // namespace pagoda
