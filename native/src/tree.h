// The rows of a step whose drafts are a tree. Each path of it is a sequence of its own to tables and attention: every row is in the
// earliest path that it is on, and `Step::parents` says which row, of another path, a path's first row follows.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace pagoda {

// Of each row, the row that it follows in this step; -1: none.
inline std::vector<int> rows_before(const Step& step) {
  std::vector<int> before(step.sequences.size());
  for (size_t r = 0; r < before.size(); r++) {
    const bool first = !r || step.sequences[r - 1] != step.sequences[r];
    before[r] = !first ? int(r) - 1 : step.parents.empty() ? -1 : step.parents[size_t(step.sequences[r])];
  }
  return before;
}

// Calls visit(row, path) for each row that is on a path without being in it.
template <class Visit>
void visit_shared(const Step& step, const std::vector<int>& before, Visit visit) {
  for (size_t path = 0; path < step.parents.size(); path++)
    for (int r = step.parents[path]; r >= 0; r = before[size_t(r)]) visit(size_t(r), path);
}

}  // namespace pagoda
