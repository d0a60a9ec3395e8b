// The kernels' door: plain structures and one table of functions for each instruction set.
// Shapes and layouts are said here; the order of every sum is said in docs/arithmetic.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagoda {

constexpr int kTile = 16;      // output features packed side by side
constexpr int kBlock = 32;     // inputs that share a scale
constexpr int kSpan = 256;     // keys of one attention partial, at absolute positions
constexpr int kGroupMax = 8;   // query vectors handled together by the attention kernel

enum class Format : int { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 };

// A matrix [n, k] in tiles of 16 rows of the matrix (output features). A tile is, for quantised formats, all blocks' integers,
// then their scales (formats.h); for the others, k groups of 16 numbers.
struct Packed {
  Format format;
  int n, k;
  size_t tile_bytes;
  const uint8_t* data;
  const uint8_t* tile(int t) const { return data + size_t(t) * tile_bytes; }
  int tiles() const { return (n + kTile - 1) / kTile; }
  int blocks() const { return k / kBlock; }
};

// Activations as integers: per row and block of 32, x = d * q; `s` is d * sum(q), `neg8` is -8 * sum(q), `neg8_first` is
// that of the first 16 alone. Eight rows make a panel, block by block: [panel][block][row of 8][32], so that a kernel walks one stream for eight rows. In int16 the inputs
// of each group of four lie as 0, 2, 1, 3: what two multiply-adds of pairs want once a group's weights are split by parity.
constexpr int kPanel = 8;
struct Quantized {
  int bytes;      // of a number: 1 or 2
  uint8_t* q;     // [panels, k / 32, 8, 32]
  float* d;       // [panels, k / 32, 8]
  float* s;       // likewise
  int32_t* neg8;  // likewise
  int32_t* neg8_first;  // likewise
  // Where block b of a row lies, in `d` and what follows it; times 32, in `q`.
  static size_t at(int row, int blocks, int b) { return (size_t(row / kPanel) * size_t(blocks) + size_t(b)) * kPanel + size_t(row % kPanel); }
};

enum class KVFormat : int { F32, F16 };

// One layer of one KV group. A page holds, for each head, keys as [head_dim][slots], then values as [slots][padded dim].
struct KVPages {
  KVFormat format;
  int heads, dim, padded, slots;
  size_t page_bytes, head_bytes, value_offset;  // head_bytes: keys and values of one head in one page
  uint8_t* base;
  size_t element() const { return format == KVFormat::F16 ? 2 : 4; }
  uint8_t* keys(int page, int head) const { return base + size_t(page) * page_bytes + size_t(head) * head_bytes; }
  uint8_t* values(int page, int head) const { return keys(page, head) + value_offset; }
};

// The part of a softmax-weighted sum that comes from one span of keys, or from several merged: max, sum, unnormalised output.
struct Partial {
  float max, sum;
  float* out;  // [padded dim]
};

// Some query vectors of one sequence that share a key-value head, and where each one's keys end.
struct Queries {
  int count;                        // at most kGroupMax
  const float* q[kGroupMax];        // [dim]
  int last[kGroupMax];              // position of the row: keys 0..last are visible; not descending
};

struct Kernels {
  const char* name;
  // One row of k numbers into row `row` of `to`.
  void (*quantize)(const float* x, int k, const Quantized& to, int row);
  // Rows [row0, row0 + rows) of x times one tile: out[row * ldo + 16 * tile ..]. Of integers, row0 begins a panel.
  void (*linear_int)(const Packed& w, int tile, const Quantized& x, int row0, int rows, float* out, size_t ldo);
  void (*linear_f32)(const Packed& w, int tile, const float* x, int row0, int rows, float* out, size_t ldo);
  void (*norm)(const float* x, const float* w, float eps, int n, float* y);
  void (*silu_mul)(const float* gate, const float* up, int n, float* y);
  void (*add)(const float* x, const float* y, int n, float* z);
  // One row: heads vectors of dim, of which the first `dims` elements turn; cos and sin are [dims / 2].
  void (*rope)(float* x, int heads, int dim, int dims, const float* cos, const float* sin, bool adjacent);
  void (*store_kv)(const KVPages& kv, int page, int slot, const float* k, const float* v);
  // Attention over the keys of span `span` (positions 256 * span ..): fills `count` partials. `scratch` is count * 256 floats
  // and 16 * dim more.
  void (*attend)(const KVPages& kv, const int32_t* table, const Queries& queries, int head, int span, float scale, Partial* parts,
                 float* scratch);
  void (*merge)(Partial& into, const Partial& part, int padded);
  void (*finish)(const Partial& part, int dim, float* out);
  // Sampling helpers over n logits.
  int (*argmax)(const float* x, int n);
  float (*max)(const float* x, int n);
  float (*sum_exp)(const float* x, int n, float max);
};

namespace scalar { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

}  // namespace pagoda
