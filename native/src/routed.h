// Which rows of a step go to which expert of a mixture, and where: the rows of an expert lie together, so that its weights are
// read once for all of them. Knows nothing of what experts compute.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace pagoda {

// Rows [first, first + rows) of routed values are those of one expert; `first` begins a panel.
struct ExpertRows {
  int expert, first, rows;
};

// A routed row is one row of the step for one of its experts. Routed rows are numbered row by row, best expert first.
class Routed {
 public:
  // `expert(r, j)` is the number of the j-th best expert of row r.
  template <class Expert>
  void group(int rows, int chosen, int experts, Expert expert) {
    std::vector<int> counts(size_t(experts), 0);
    for (int r = 0; r < rows; r++)
      for (int j = 0; j < chosen; j++) counts[size_t(expert(r, j))]++;
    active_.clear();
    std::vector<int> next(size_t(experts), 0);
    for (int e = 0, at = 0; e < experts; e++) {
      if (!counts[size_t(e)]) continue;
      next[size_t(e)] = at;
      active_.push_back({e, at, counts[size_t(e)]});
      at += (counts[size_t(e)] + kPanel - 1) / kPanel * kPanel;
    }
    // The most wanted first: what comes last should be short, since threads wait for it.
    std::stable_sort(active_.begin(), active_.end(), [](const ExpertRows& a, const ExpertRows& b) { return a.rows > b.rows; });
    places_.resize(size_t(rows) * size_t(chosen));
    for (int r = 0; r < rows; r++)
      for (int j = 0; j < chosen; j++) places_[size_t(r) * size_t(chosen) + size_t(j)] = next[size_t(expert(r, j))]++;
  }

  // Experts to which any row goes.
  const std::vector<ExpertRows>& active() const { return active_; }
  // Where the n-th routed row lies.
  int place(int n) const { return places_[size_t(n)]; }

 private:
  std::vector<ExpertRows> active_;
  std::vector<int> places_;
};

}  // namespace pagoda
