// From a file's rows to tiles of 16 output features. Packing reorders; it never rounds.
#pragma once

#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace pagoda {

// Numbers of a row that the file stores together: rows are a multiple of it.
int stored_block(Format format);
// Bytes of one row of k numbers as the file stores it.
size_t stored_row_bytes(Format format, int k);
// Whether kernels read its integers with integer activations; the others take f32 ones.
bool has_integers(Format format);
size_t packed_tile_bytes(Format format, int k);

// A packed matrix; it and its neighbours of one call of `pack` hold their memory together.
class Weight : public std::enable_shared_from_this<Weight> {
 public:
  Weight(std::shared_ptr<const uint8_t> memory, const Packed& packed) : memory_(std::move(memory)), packed_(packed) {}
  // Packs one matrix by itself.
  Weight(Pool& pool, Format format, int n, int k, const uint8_t* raw);
  Weight(const Weight&) = delete;
  const Packed& packed() const { return packed_; }
  size_t bytes() const { return size_t(packed_.tiles()) * packed_.tile_bytes; }
  // Row v of the matrix in f32, as the file defines its numbers.
  void row(int v, float* out) const { row(v, 0, packed_.k, out); }
  // Its numbers [from, from + count) alone.
  void row(int v, int from, int count, float* out) const;

 private:
  std::shared_ptr<const uint8_t> memory_;
  Packed packed_;
};

// A matrix [n, k] as files have it, row after row: in memory, or, if `raw` is null, in an open file.
struct Unpacked {
  Format format;
  int n, k;
  const uint8_t* raw;
  int descriptor;
  int64_t offset;
};

// A file could not be read, or is shorter than was said.
struct ReadFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Bytes [offset, offset + bytes) of an open file. Throws ReadFailed.
void read_file(int descriptor, int64_t offset, size_t bytes, uint8_t* to);

// Packs all of them, all threads at once. Of a file, each thread reads what it packs next, so that beside what is packed there
// are never more than some hundred kilobytes of it in memory. Throws ReadFailed and std::bad_alloc.
std::vector<std::shared_ptr<Weight>> pack(Pool& pool, const std::vector<Unpacked>& matrices);

}  // namespace pagoda
