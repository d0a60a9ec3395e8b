// What a caller must get right.
#pragma once

#include <stdexcept>

namespace pagoda {

inline void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

}  // namespace pagoda
