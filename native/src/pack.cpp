#include "pack.h"

#include <cstring>

#include "large_pages.h"
#include "stored.h"

// Packing and single rows are plain code: the scalar build's view of a tile.
namespace pagoda {
namespace {

using namespace PAGODA_NS;

constexpr size_t kAlign = 64;

// Bytes of a number in a dense format; 0: quantised.
size_t dense_bytes(Format format) {
  switch (format) {
    case Format::F32: return 4;
    case Format::F16:
    case Format::BF16: return 2;
    default: return 0;
  }
}

// Sixteen rows of blocks to one tile; rows past the end are zeros.
template <class F>
void pack_quantized(const uint8_t* raw, int rows, int nb, uint8_t* tile) {
  constexpr int blocks = F::Scales::blocks;
  uint8_t* heads = tile + size_t(nb) * F::Numbers::bytes;
  if (rows < kTile) std::memset(tile, 0, size_t(nb) * F::Numbers::bytes + size_t(nb / blocks) * F::Scales::bytes);
  for (int c = 0; c < rows; c++)
    for (int b = 0; b < nb; b += blocks, raw += Stored<F>::bytes) {
      Stored<F>::scales(raw, heads + size_t(b / blocks) * F::Scales::bytes, c);
      for (int i = 0; i < blocks; i++) {
        uint8_t integers[kBlock];
        Stored<F>::integers(raw, i, integers);
        F::Numbers::pack(tile + size_t(b + i) * F::Numbers::bytes, c, integers);
      }
    }
}

void pack_dense(size_t bytes, const uint8_t* raw, int rows, int k, uint8_t* tile) {
  if (rows < kTile) std::memset(tile, 0, size_t(k) * kTile * bytes);
  for (int c = 0; c < rows; c++)
    for (int i = 0; i < k; i++)
      std::memcpy(tile + (size_t(i) * kTile + size_t(c)) * bytes, raw + (size_t(c) * size_t(k) + size_t(i)) * bytes, bytes);
}

template <class F>
void quantized_row(const Packed& w, int v, float* out) {
  const TileView<F> view(w, v / kTile);
  for (int b = 0; b < w.blocks(); b++) dequantise<F>(view, b, v % kTile, out + b * kBlock);
}

void dense_row(const Packed& w, int v, float* out) {
  const uint8_t* tile = w.tile(v / kTile);
  for (int i = 0; i < w.k; i++) {
    const size_t at = size_t(i) * kTile + size_t(v % kTile);
    if (w.format == Format::F32)
      out[i] = ((const float*)tile)[at];
    else if (w.format == Format::F16)
      out[i] = f16_to_f32(((const uint16_t*)tile)[at]);
    else
      out[i] = bits_float(uint32_t(((const uint16_t*)tile)[at]) << 16);
  }
}

}  // namespace

int stored_block(Format format) {
  if (dense_bytes(format)) return 1;
  return with_layout(format, [](auto layout) { return kBlock * decltype(layout)::Scales::blocks; });
}

size_t stored_row_bytes(Format format, int k) {
  if (const size_t bytes = dense_bytes(format)) return size_t(k) * bytes;
  return size_t(k / stored_block(format)) * with_layout(format, [](auto layout) { return size_t(Stored<decltype(layout)>::bytes); });
}

size_t packed_tile_bytes(Format format, int k) {
  size_t bytes = size_t(k) * kTile * dense_bytes(format);
  if (!bytes) {
    bytes = with_layout(format, [&](auto layout) {
      using F = decltype(layout);
      return size_t(k / kBlock) * F::Numbers::bytes + size_t(k / kBlock / F::Scales::blocks) * F::Scales::bytes;
    });
  }
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

Weight::Weight(Pool& pool, Format format, int n, int k, const uint8_t* raw)
    : packed_{format, n, k, packed_tile_bytes(format, k), nullptr} {
  memory_ = large_page_memory(bytes());
  packed_.data = memory_.get();
  const size_t row = stored_row_bytes(format, k), dense = dense_bytes(format);
  pool.each(packed_.tiles(), [&](int t) {
    const int rows = n - t * kTile < kTile ? n - t * kTile : kTile;
    const uint8_t* in = raw + size_t(t) * kTile * row;
    uint8_t* out = memory_.get() + size_t(t) * packed_.tile_bytes;
    if (dense) return pack_dense(dense, in, rows, k, out);
    with_layout(format, [&](auto layout) { pack_quantized<decltype(layout)>(in, rows, packed_.blocks(), out); });
  });
}

void Weight::row(int v, float* out) const {
  if (dense_bytes(packed_.format)) return dense_row(packed_, v, out);
  with_layout(packed_.format, [&](auto layout) { quantized_row<decltype(layout)>(packed_, v, out); });
}

}  // namespace pagoda
