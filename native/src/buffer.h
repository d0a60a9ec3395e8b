// The memory of one numbered value of a program.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels.h"

namespace pagoda {

struct BufferShape {
  bool sampled;    // rows of class S, else R
  int integer;     // bytes of a number in blocks of 32, or 0: f32
  int width;
  int chosen = 0;   // of a mixture: experts of a row, each of which has a row of its own here; 0: no such rows
  int experts = 0;  // from which they are chosen: the rows of each begin a panel
  // Rows to have memory for, if the step has `rows`.
  size_t most(size_t rows) const {
    const size_t routed = rows * size_t(chosen);
    return chosen ? routed + size_t(kPanel - 1) * std::min(routed, size_t(experts)) : rows;
  }
};

// Memory that begins a cache line, so that no load of a vector straddles two.
struct Aligned {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> memory;
  size_t bytes = 0;

  // At least so many bytes; what was in it is lost if it grows.
  uint8_t* reserve(size_t wanted) {
    if (wanted > bytes) {
      bytes = (wanted + 63) / 64 * 64;
      memory.reset((uint8_t*)std::aligned_alloc(64, bytes));
      if (!memory) bytes = 0, throw std::bad_alloc();
    }
    return memory.get();
  }
  float* floats(size_t count) { return (float*)reserve(count * sizeof(float)); }
};

// f32 rows, or rows of integers with their scales; grows, never shrinks.
struct Buffer {
  Aligned memory;
  size_t capacity = 0;  // rows
  float* x = nullptr;
  Quantized q{};

  void reserve(const BufferShape& shape, size_t rows) {
    if (rows <= capacity) return;
    capacity = (std::max(rows, capacity * 2) + kPanel - 1) / kPanel * kPanel;
    const size_t k = size_t(shape.width), nb = k / kBlock;
    const size_t row = shape.integer ? k * size_t(shape.integer) + nb * 16 : k * 4;
    uint8_t* p = memory.reserve(capacity * row + 64);
    if (!shape.integer) {
      x = (float*)p;
      return;
    }
    q.bytes = shape.integer;
    q.q = p;
    q.d = (float*)(p + capacity * k * size_t(shape.integer));
    q.s = q.d + capacity * nb;
    q.neg8 = (int32_t*)(q.s + capacity * nb);
    q.neg8_first = q.neg8 + capacity * nb;
  }
};

}  // namespace pagoda
