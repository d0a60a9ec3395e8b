// How fast this machine is at the things that limit inference: reading memory, and multiply-adds held in registers.
// Knows no models. Each figure is the best of several short windows: neighbours only ever make a window slower.
#pragma once

#include <cstdint>
#include <string>

#include "pool.h"

namespace pagoda {

// Loops for one instruction set; all that they read and write stays in registers, but for `read`.
struct Peaks {
  const char* name;
  // Each runs `rounds` rounds; a round is as many multiply-adds as the constant beside it says.
  int64_t f32_round, int16_round, int8_round;
  void (*f32)(int64_t rounds);
  void (*int16)(int64_t rounds);
  void (*int8)(int64_t rounds);
  // Loads every byte of [p, p + bytes); bytes is a multiple of 1024.
  void (*read)(const uint8_t* p, int64_t bytes);
};

namespace scalar { extern const Peaks peaks; }
namespace avx2 { extern const Peaks peaks; }
namespace avxvnni { extern const Peaks peaks; }
namespace neon { extern const Peaks peaks; }
namespace avx512 { extern const Peaks peaks; }

// Memory to read: every page has been written once.
class ReadBuffer {
 public:
  // At least 2 MiB. Throws std::bad_alloc if it cannot be had.
  ReadBuffer(Pool& pool, int64_t bytes);
  ~ReadBuffer();
  ReadBuffer(const ReadBuffer&) = delete;
  // Bytes per second that all of the pool's threads together read, going round the buffer for about `seconds`.
  double bandwidth(Pool& pool, const std::string& isa, double seconds) const;

 private:
  uint8_t* p_;
  int pieces_;
};

// Multiply-adds per second of all of the pool's threads together. `kind` is f32, int16 or int8.
double multiply_adds(Pool& pool, const std::string& isa, const std::string& kind, double seconds);

}  // namespace pagoda
