#include "attention_plan.h"

#include <algorithm>
#include <cstring>

namespace pagoda {
namespace {

// Rows of one sequence from r on, at most `most`.
int block_of(const std::vector<int32_t>& sequences, int r, int most) {
  int n = 1;
  while (size_t(r + n) < sequences.size() && n < most && sequences[size_t(r + n)] == sequences[size_t(r)]) n++;
  return n;
}

}  // namespace

AttentionPlan::AttentionPlan(const std::vector<int32_t>& positions, const std::vector<int32_t>& sequences, int window, int heads, int queries,
                             int threads) {
  const int rows = int(positions.size()), most = std::max(1, kGroupMax / queries);
  int blocks = 0;
  for (int r = 0; r < rows; r += block_of(sequences, r, most)) blocks++;
  const bool split = blocks * heads < 4 * threads;
  for (int r = 0; r < rows;) {
    const int n = block_of(sequences, r, most), span = first_seen(positions[size_t(r)], window) / kSpan;
    const int spans = positions[size_t(r + n - 1)] / kSpan + 1 - span;
    for (int h = 0; h < heads; h++) {
      if (!split || spans == 1) {
        tasks_.push_back({r, n, sequences[size_t(r)], h, span, spans, -1});
        continue;
      }
      const int first = int(splits_.size());
      for (int s = span; s < span + spans; s++) tasks_.push_back({r, n, sequences[size_t(r)], h, s, 1, first});
      for (int i = r; i < r + n; i++) {
        const int begin = first_seen(positions[size_t(i)], window) / kSpan;
        splits_.push_back({i, h, begin, positions[size_t(i)] / kSpan + 1 - begin, 0});
      }
    }
    r += n;
  }
}

void AttentionPlan::reserve(int queries, int padded) {
  if (splits_.empty() || queries <= queries_) return;
  queries_ = queries;
  stride_ = kHead + padded;
  int next = 0;
  for (auto& s : splits_) {
    s.first = next;
    next += s.spans * queries;
  }
  memory_.resize(size_t(next) * size_t(stride_));
}

Partial AttentionPlan::partial(const Split& split, int span, int query) {
  float* p = at(split, span, query);
  return {p[0], p[1], p + kHead};
}

void AttentionPlan::keep(const Split& split, int span, int query, const Partial& p) {
  float* to = at(split, span, query);
  to[0] = p.max, to[1] = p.sum;
  std::memcpy(to + kHead, p.out, size_t(stride_ - kHead) * sizeof(float));
}

}  // namespace pagoda
