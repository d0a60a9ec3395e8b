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
};

// f32 rows, or rows of integers with their scales; grows, never shrinks.
struct Buffer {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> memory;
  size_t capacity = 0;  // rows
  float* x = nullptr;
  Quantized q{};

  void reserve(const BufferShape& shape, size_t rows) {
    if (rows <= capacity) return;
    capacity = (std::max(rows, capacity * 2) + kPanel - 1) / kPanel * kPanel;
    const size_t k = size_t(shape.width), nb = k / kBlock;
    const size_t row = shape.integer ? k * size_t(shape.integer) + nb * 16 : k * 4;
    const size_t bytes = (capacity * row + 127) / 64 * 64;
    memory.reset((uint8_t*)std::aligned_alloc(64, bytes));
    if (!memory) throw std::bad_alloc();
    uint8_t* p = memory.get();
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
