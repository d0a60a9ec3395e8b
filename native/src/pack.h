// From a file's rows to tiles of 16 output features. Packing reorders; it never rounds.
#pragma once

#include <memory>

#include "kernels.h"
#include "pool.h"

namespace pagoda {

// Numbers of a row that the file stores together: rows are a multiple of it.
int stored_block(Format format);
// Bytes of one row of k numbers as the file stores it.
size_t stored_row_bytes(Format format, int k);
size_t packed_tile_bytes(Format format, int k);

// A packed matrix that owns its memory.
class Weight : public std::enable_shared_from_this<Weight> {
 public:
  Weight(Pool& pool, Format format, int n, int k, const uint8_t* raw);
  Weight(const Weight&) = delete;
  const Packed& packed() const { return packed_; }
  size_t bytes() const { return size_t(packed_.tiles()) * packed_.tile_bytes; }
  // Row v of the matrix in f32, as the file defines its numbers.
  void row(int v, float* out) const;

 private:
  std::shared_ptr<uint8_t> memory_;
  Packed packed_;
};

}  // namespace pagoda
