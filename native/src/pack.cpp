#include "pack.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "isa.h"

namespace pagoda {
namespace {

constexpr size_t kAlign = 64;

struct Shape {
  int bits;        // of a stored number
  bool quantized;  // in blocks of 32, with a scale
  bool offset;     // and an offset
};

Shape shape(Format format) {
  switch (format) {
    case Format::F32: return {32, false, false};
    case Format::F16:
    case Format::BF16: return {16, false, false};
    case Format::Q4_0: return {4, true, false};
    case Format::Q4_1: return {4, true, true};
    case Format::Q8_0: return {8, true, false};
  }
  return {};
}

// The file's block: scale, offset if any, then 32 numbers; nibbles i and i + 16 share byte i.
size_t stored_block_bytes(const Shape& s) { return 2 + (s.offset ? 2 : 0) + size_t(kBlock * s.bits / 8); }

// Sixteen rows of blocks to one tile; rows past the end are zeros.
void pack_quantized(const Shape& s, const uint8_t* raw, int rows, int nb, uint8_t* tile) {
  const size_t in_block = stored_block_bytes(s), out_block = size_t(kBlock * kTile * s.bits / 8);
  auto* d = (uint16_t*)(tile + size_t(nb) * out_block);
  auto* m = d + size_t(nb) * kTile;
  if (rows < kTile) std::memset(tile, 0, size_t(nb) * (out_block + size_t(kTile) * 2 * (s.offset ? 2 : 1)));
  constexpr uint32_t low = 0x0f0f0f0f;
  for (int c = 0; c < rows; c++)
    for (int b = 0; b < nb; b++) {
      const uint8_t* in = raw + (size_t(c) * nb + b) * in_block;
      std::memcpy(d + b * kTile + c, in, 2);
      if (s.offset) std::memcpy(m + b * kTile + c, in + 2, 2);
      const uint8_t* q = in + (s.offset ? 4 : 2);
      uint8_t* out = tile + size_t(b) * out_block + c * 4;
      if (s.bits == 8) {
        for (int g = 0; g < 8; g++) {
          uint32_t four;
          std::memcpy(&four, q + g * 4, 4);
          four ^= 0x80808080;
          std::memcpy(out + g * 64, &four, 4);
        }
        continue;
      }
      for (int v = 0; v < 4; v++) {  // inputs 8v.. low, 8v + 4.. high; inputs from 16 on lie in the file's high nibbles
        uint32_t even, odd;
        std::memcpy(&even, q + v % 2 * 8, 4);
        std::memcpy(&odd, q + v % 2 * 8 + 4, 4);
        const uint32_t both = v < 2 ? (even & low) | (odd & low) << 4 : (even >> 4 & low) | (odd & ~low);
        std::memcpy(out + v * 64, &both, 4);
      }
    }
}

void pack_dense(int bytes, const uint8_t* raw, int rows, int k, uint8_t* tile) {
  std::memset(tile, 0, size_t(k) * kTile * bytes);
  for (int c = 0; c < rows; c++)
    for (int i = 0; i < k; i++)
      std::memcpy(tile + (size_t(i) * kTile + c) * bytes, raw + (size_t(c) * k + i) * bytes, size_t(bytes));
}

}  // namespace

size_t stored_row_bytes(Format format, int k) {
  const Shape s = shape(format);
  return s.quantized ? size_t(k / kBlock) * stored_block_bytes(s) : size_t(k) * size_t(s.bits / 8);
}

size_t packed_tile_bytes(Format format, int k) {
  const Shape s = shape(format);
  const size_t bytes = s.quantized ? size_t(k / kBlock) * (size_t(kBlock * kTile * s.bits / 8) + size_t(kTile) * 2 * (s.offset ? 2 : 1))
                                   : size_t(k) * kTile * size_t(s.bits / 8);
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

void Weight::Free::operator()(uint8_t* p) const { std::free(p); }

Weight::Weight(Pool& pool, Format format, int n, int k, const uint8_t* raw)
    : packed_{format, n, k, packed_tile_bytes(format, k), nullptr} {
  const size_t bytes = size_t(packed_.tiles()) * packed_.tile_bytes;
  memory_.reset((uint8_t*)std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign));
  if (!memory_) throw std::bad_alloc();
  packed_.data = memory_.get();
  const Shape s = shape(format);
  const size_t row = stored_row_bytes(format, k);
  pool.each(packed_.tiles(), [&](int t) {
    const int rows = n - t * kTile < kTile ? n - t * kTile : kTile;
    const uint8_t* in = raw + size_t(t) * kTile * row;
    uint8_t* out = memory_.get() + size_t(t) * packed_.tile_bytes;
    s.quantized ? pack_quantized(s, in, rows, k / kBlock, out) : pack_dense(s.bits / 8, in, rows, k, out);
  });
}

void Weight::row(int v, float* out) const {
  const Shape s = shape(packed_.format);
  const uint8_t* tile = packed_.tile(v / kTile);
  const int c = v % kTile, nb = packed_.blocks();
  if (!s.quantized) {
    for (int i = 0; i < packed_.k; i++) {
      const size_t at = size_t(i) * kTile + c;
      if (packed_.format == Format::F32) {
        out[i] = ((const float*)tile)[at];
      } else if (packed_.format == Format::F16) {
        out[i] = f16_to_f32(((const uint16_t*)tile)[at]);
      } else {
        const uint32_t u = uint32_t(((const uint16_t*)tile)[at]) << 16;
        std::memcpy(out + i, &u, 4);
      }
    }
    return;
  }
  const size_t block = size_t(kBlock * kTile * s.bits / 8);
  const auto* d = (const uint16_t*)(tile + size_t(nb) * block);
  const auto* m = d + size_t(nb) * kTile;
  const float bias = packed_.format == Format::Q4_0 ? 8.0f : packed_.format == Format::Q8_0 ? 128.0f : 0.0f;
  for (int b = 0; b < nb; b++) {
    const float scale = f16_to_f32(d[b * kTile + c]);
    for (int i = 0; i < kBlock; i++) {
      const int group = i / 4, at = c * 4 + i % 4;
      const uint8_t* q = tile + size_t(b) * block;
      const int stored = s.bits == 8 ? q[group * 64 + at] : group % 2 ? q[group / 2 * 64 + at] >> 4 : q[group / 2 * 64 + at] & 15;
      const float x = scale * (float(stored) - bias);
      out[b * kBlock + i] = s.offset ? x + f16_to_f32(m[b * kTile + c]) : x;
    }
  }
}

}  // namespace pagoda
