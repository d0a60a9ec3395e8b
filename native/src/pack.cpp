#include "pack.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "large_pages.h"
#include "stored.h"

// Packing and single rows are plain code: the scalar build's view of a tile.
namespace pagoda {
namespace {

using namespace PAGODA_NS;

constexpr size_t kAlign = 64;

bool eight_bit_floats(Format format) { return format == Format::F8_E4M3 || format == Format::F8_E5M2; }

// Bytes of a number in a dense format; 0: in blocks.
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

template <class T>
void pack_dense(const uint8_t* raw, int rows, int k, uint8_t* tile) {
  constexpr int strip = 64;  // of inputs: their lines stay in the first-level cache until all rows are in them
  if (rows < kTile) std::memset(tile, 0, size_t(k) * kTile * sizeof(T));
  for (int from = 0; from < k; from += strip)
    for (int c = 0; c < rows; c++)
      for (int i = from; i < std::min(from + strip, k); i++)
        std::memcpy(tile + size_t(i * kTile + c) * sizeof(T), raw + (size_t(c) * size_t(k) + size_t(i)) * sizeof(T), sizeof(T));
}

void pack_eight_bit_floats(const uint8_t* raw, int rows, int k, uint8_t* tile) {
  float* scales = (float*)(tile + size_t(k) * kTile);
  if (rows < kTile) std::memset(tile, 0, size_t(k) * kTile + size_t(k / kBlock) * kTile * sizeof(float));
  for (int c = 0; c < rows; c++)
    for (int b = 0; b < k / kBlock; b++, raw += kStoredFloats) {
      std::memcpy(scales + b * kTile + c, raw, sizeof(float));
      for (int i = 0; i < kBlock; i++) tile[(b * kBlock + i) * kTile + c] = raw[4 + i];
    }
}

void eight_bit_row(const Packed& w, int v, int from, int count, float* out) {
  const uint8_t* tile = w.tile(v / kTile);
  const float* scales = (const float*)(tile + size_t(w.k) * kTile);
  for (int i = from; i < from + count; i++) {
    const uint8_t a = tile[i * kTile + v % kTile];
    const float d = scales[i / kBlock * kTile + v % kTile];
    out[i - from] = w.format == Format::F8_E4M3 ? f16_to_f32(e4m3_bits(a)) * (d * kE4M3) : f16_to_f32(e5m2_bits(a)) * d;
  }
}

template <class F>
void quantized_row(const Packed& w, int v, int from, int count, float* out) {
  const TileView<F> view(w, v / kTile);
  for (int i = from, end = from + count; i < end;) {
    float block[kBlock];
    dequantise<F>(view, i / kBlock, v % kTile, block);
    const int some = std::min(end - i, kBlock - i % kBlock);
    std::memcpy(out + (i - from), block + i % kBlock, size_t(some) * sizeof(float));
    i += some;
  }
}

void dense_row(const Packed& w, int v, int from, int count, float* out) {
  const uint8_t* tile = w.tile(v / kTile);
  for (int i = 0; i < count; i++) {
    const size_t at = size_t(from + i) * kTile + size_t(v % kTile);
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
  if (eight_bit_floats(format)) return kBlock;
  return with_layout(format, [](auto layout) { return kBlock * decltype(layout)::Scales::blocks; });
}

bool has_integers(Format format) {
  return !dense_bytes(format) && !eight_bit_floats(format);
}

size_t stored_row_bytes(Format format, int k) {
  if (const size_t bytes = dense_bytes(format)) return size_t(k) * bytes;
  if (eight_bit_floats(format)) return size_t(k / kBlock) * kStoredFloats;
  return size_t(k / stored_block(format)) * with_layout(format, [](auto layout) { return size_t(Stored<decltype(layout)>::bytes); });
}

size_t packed_tile_bytes(Format format, int k) {
  size_t bytes = size_t(k) * kTile * dense_bytes(format);
  if (eight_bit_floats(format)) {
    bytes = size_t(k) * kTile + size_t(k / kBlock) * kTile * sizeof(float);
  } else if (!bytes) {
    bytes = with_layout(format, [&](auto layout) {
      using F = decltype(layout);
      return size_t(k / kBlock) * F::Numbers::bytes + size_t(k / kBlock / F::Scales::blocks) * F::Scales::bytes;
    });
  }
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

namespace {

constexpr size_t kPiece = size_t(128) << 10;  // of a file, read at a time: stays in the second-level cache until it is packed

// Tiles of a matrix that one thread packs in one go.
struct Piece {
  size_t matrix;
  int first, last;
};

std::vector<Piece> pieces(const std::vector<Unpacked>& matrices) {
  std::vector<Piece> all;
  for (size_t m = 0; m < matrices.size(); m++) {
    const size_t tile = stored_row_bytes(matrices[m].format, matrices[m].k) * kTile;
    const int tiles = (matrices[m].n + kTile - 1) / kTile, step = int(std::max<size_t>(1, kPiece / tile));
    for (int t = 0; t < tiles; t += step) all.push_back({m, t, std::min(t + step, tiles)});
  }
  return all;
}

void pack_tiles(const Packed& packed, int first, int last, const uint8_t* raw, uint8_t* out) {
  const size_t row = stored_row_bytes(packed.format, packed.k), number = dense_bytes(packed.format);
  for (int t = first; t < last; t++, raw += row * kTile, out += packed.tile_bytes) {
    const int rows = std::min(kTile, packed.n - t * kTile);
    if (number == 4)
      pack_dense<uint32_t>(raw, rows, packed.k, out);
    else if (number == 2)
      pack_dense<uint16_t>(raw, rows, packed.k, out);
    else if (eight_bit_floats(packed.format))
      pack_eight_bit_floats(raw, rows, packed.k, out);
    else
      with_layout(packed.format, [&](auto layout) { pack_quantized<decltype(layout)>(raw, rows, packed.blocks(), out); });
  }
}

// Packs each matrix to where its `packed` says, in memory that nobody else reads yet.
void fill(Pool& pool, const std::vector<Unpacked>& matrices, const std::vector<Packed>& packed) {
  const auto list = pieces(matrices);
  pool.each(int(list.size()), [&](int i) {
    const auto [at, first, last] = list[size_t(i)];
    const Unpacked& m = matrices[at];
    const size_t row = stored_row_bytes(m.format, m.k), begin = size_t(first) * kTile * row;
    const size_t size = size_t(std::min(last * kTile, m.n)) * row - begin;
    std::unique_ptr<uint8_t[]> read;
    if (!m.raw) {
      read.reset(new uint8_t[size]);
      read_file(m.descriptor, m.offset + int64_t(begin), size, read.get());
    }
    pack_tiles(packed[at], first, last, m.raw ? m.raw + begin : read.get(), (uint8_t*)packed[at].tile(first));
  });
}

size_t packed_bytes(const Packed& packed) { return size_t(packed.tiles()) * packed.tile_bytes; }

}  // namespace

void read_file(int descriptor, int64_t offset, size_t bytes, uint8_t* to) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(descriptor, to + done, bytes - done, offset + int64_t(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ReadFailed("byte " + std::to_string(offset + int64_t(done)) + " cannot be read: " + std::strerror(errno));
    if (got == 0) throw ReadFailed("the file ended at byte " + std::to_string(offset + int64_t(done)));
    done += size_t(got);
  }
}

std::vector<std::shared_ptr<Weight>> pack(Pool& pool, const std::vector<Unpacked>& matrices) {
  std::vector<Packed> packed;
  size_t bytes = 0;
  for (const auto& m : matrices) {
    packed.push_back({m.format, m.n, m.k, packed_tile_bytes(m.format, m.k), nullptr});
    bytes += packed_bytes(packed.back());
  }
  const std::shared_ptr<const uint8_t> memory = large_page_memory(bytes);
  std::vector<std::shared_ptr<Weight>> weights;
  const uint8_t* data = memory.get();
  for (auto& p : packed) {
    p.data = data;
    data += packed_bytes(p);
    weights.push_back(std::make_shared<Weight>(memory, p));
  }
  fill(pool, matrices, packed);
  return weights;
}

Weight::Weight(Pool& pool, Format format, int n, int k, const uint8_t* raw) : packed_{format, n, k, packed_tile_bytes(format, k), nullptr} {
  memory_ = large_page_memory(bytes());
  packed_.data = memory_.get();
  fill(pool, {{format, n, k, raw, -1, 0}}, {packed_});
}

void Weight::row(int v, int from, int count, float* out) const {
  if (dense_bytes(packed_.format)) return dense_row(packed_, v, from, count, out);
  if (eight_bit_floats(packed_.format)) return eight_bit_row(packed_, v, from, count, out);
  with_layout(packed_.format, [&](auto layout) { quantized_row<decltype(layout)>(packed_, v, from, count, out); });
}

}  // namespace pagoda
