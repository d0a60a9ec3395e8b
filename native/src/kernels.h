// The kernels' door: plain structures and one table of functions for each instruction set.
// Shapes and layouts are said here; the order of every sum is said in docs/arithmetic.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagoda {

constexpr int kTile = 16;      // output features packed side by side
constexpr int kBlock = 32;     // inputs that share a scale
constexpr int kSpan = 256;     // keys of one attention partial, at absolute positions
constexpr int kGroupMax = 24;  // query vectors handled together by the attention kernel
constexpr int kHeadMax = 1024;  // elements of a head, if keys are integers

enum class Format : int {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
  Q4_Z32, Q4_Z128, Q8_Z32, Q8_Z128, F8_E4M3, F8_E5M2
};

// f(gate) * up; in the order of `Activation` in backends/ops.py.
enum class Act : int { Silu, GeluTanh, SwigluClamped };

// A matrix [n, k] in tiles of 16 rows of the matrix (output features). A tile is, for quantised formats, all blocks' integers,
// then their scales (formats.h); for the others, k groups of 16 numbers. 8-bit floats have a scale for each block: 16 f32 a block,
// after all numbers.
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

// Keys and values as integers are those of the head's vector turned by a Walsh-Hadamard matrix (docs/arithmetic.md), Int8 with
// one scale for a token's head, Int4 with scale and offset for every kBlock elements.
enum class KVFormat : int { F32, F16, Int8, Int4 };

// One layer of one KV group. A page holds, for each head:
//   scales   f16 [sets][slots] of the keys, then of the values; Int8 has one set, Int4 two for each block: scale, offset
//   keys     [key_rows][slots]; a row is an element of the head, in Int4 two of them (the even one in the low bits)
//   values   [slots][padded]; in Int4 byte j of a block of 32 has element j in its low bits and 16 + j in its high ones
struct KVPages {
  KVFormat format;
  int heads, dim, padded, slots;  // slots: a power of two
  size_t page_bytes, head_bytes;  // head_bytes: scales, keys and values of one head in one page
  uint8_t* base;

  // Strides; `base` is the caller's. `padded` is a multiple of what one vector load of values brings.
  static KVPages layout(KVFormat format, int heads, int dim, int slots) {
    KVPages kv{format, heads, dim, 0, slots, 0, 0, nullptr};
    const int unit = format == KVFormat::Int4 ? kBlock : kTile;
    kv.padded = (dim + unit - 1) / unit * unit;
    const size_t bytes = kv.scale_bytes() * 2 + (size_t(kv.key_rows()) * kv.key_bytes() + kv.value_bytes()) * size_t(slots);
    kv.head_bytes = (bytes + 1) / 2 * 2;  // every head's scales are aligned
    kv.page_bytes = kv.head_bytes * size_t(heads);
    return kv;
  }
  bool integers() const { return format == KVFormat::Int8 || format == KVFormat::Int4; }
  int blocks() const { return format == KVFormat::Int4 ? (dim + kBlock - 1) / kBlock : int(format == KVFormat::Int8); }
  int sets() const { return format == KVFormat::Int4 ? 2 * blocks() : blocks(); }
  int key_rows() const { return format == KVFormat::Int4 ? (dim + 1) / 2 : dim; }
  size_t key_bytes() const { return format == KVFormat::F32 ? 4 : format == KVFormat::F16 ? 2 : 1; }  // of one slot in one row
  size_t value_bytes() const { return format == KVFormat::Int4 ? size_t(padded) / 2 : size_t(padded) * key_bytes(); }  // of one slot
  size_t scale_bytes() const { return size_t(sets()) * size_t(slots) * 2; }

  uint8_t* head(int page, int h) const { return base + size_t(page) * page_bytes + size_t(h) * head_bytes; }
  uint16_t* key_scales(int page, int h) const { return (uint16_t*)head(page, h); }
  uint16_t* value_scales(int page, int h) const { return (uint16_t*)(head(page, h) + scale_bytes()); }
  uint8_t* keys(int page, int h) const { return head(page, h) + 2 * scale_bytes(); }
  uint8_t* values(int page, int h) const { return keys(page, h) + size_t(key_rows()) * size_t(slots) * key_bytes(); }
  // Where a position lies: the entry of a page table, and the slot.
  int page_shift() const { return __builtin_ctz(unsigned(slots)); }
  int page(int position) const { return position >> page_shift(); }
  int slot(int position) const { return position & (slots - 1); }
  // Floats of one query as `attend` reads it: its elements (turned, if keys are integers), then the sum of each block.
  int query_floats() const { return padded + blocks(); }
  // Floats of scratch that `attend` needs for `count` queries.
  size_t attend_floats(int count) const { return (2 * size_t(count) + 1) * kSpan + 128 * size_t(padded) + 64 * size_t(sets()); }
};

// The part of a softmax-weighted sum that comes from one span of keys, or from several merged: max, sum, unnormalised output.
struct Partial {
  float max, sum;
  float* out;  // [padded dim]
};

// Some query vectors of one sequence that share a key-value head, and where each one's keys end.
struct Queries {
  int count;                        // at most kGroupMax
  const float* q[kGroupMax];        // [dim], or as `query` makes it if keys are integers
  int last[kGroupMax];              // position of the row: keys first..last are visible; neither descends
  int first[kGroupMax];
};

// How scores are formed: cap * tanh(q . k * scale / cap), or q . k * scale if there is no cap.
struct Scoring {
  float scale, cap;  // cap 0: none
};

// The first key that a row at this position sees; window 0: there is none, all keys are seen.
inline int first_seen(int position, int window) { return window && position >= window ? position - window + 1 : 0; }

struct Kernels {
  const char* name;
  // One row of k numbers into row `row` of `to`.
  void (*quantize)(const float* x, int k, const Quantized& to, int row);
  // Rows [row0, row0 + rows) of x times tiles [tile, tile + tiles): out[row * ldo + 16 * tile ..]. Of integers, row0 begins a
  // panel, and an even number of tiles is handled best.
  void (*linear_int)(const Packed& w, int tile, int tiles, const Quantized& x, int row0, int rows, float* out, size_t ldo);
  void (*linear_f32)(const Packed& w, int tile, int tiles, const float* x, int row0, int rows, float* out, size_t ldo);
  void (*norm)(const float* x, const float* w, float eps, int n, float* y);
  void (*act)(Act kind, const float* gate, const float* up, int n, float* y);
  void (*add)(const float* x, const float* y, int n, float* z);
  void (*add_to)(float* x, const float* y, int n);
  void (*scale)(const float* x, float factor, int n, float* y);
  void (*soft_cap)(const float* x, float cap, int n, float* y);
  // The k largest of n scores, equal ones by number: numbers in out[0..k), weights in out[k..2k); softmax over all n or over the k.
  void (*route)(const float* scores, int n, int k, bool all, float* out);
  void (*weigh)(const float* x, float w, int n, bool first, float* y);  // y = w * x, or fma(w, x, y)
  // One row: heads vectors of dim, of which the first `dims` elements turn; cos and sin are [dims / 2].
  void (*rope)(float* x, int heads, int dim, int dims, const float* cos, const float* sin, bool adjacent);
  void (*store_kv)(const KVPages& kv, int page, int slot, const float* k, const float* v);
  // If keys are integers: one query [dim] to what `attend` reads [kv.query_floats()], and what `finish` made [dim] turned back.
  void (*query)(const KVPages& kv, const float* q, float* out);
  void (*turn_back)(float* x, int dim);
  // Attention over the keys of span `span` (positions 256 * span ..), of which each query sees at least one: fills `count`
  // partials. `scratch` has kv.attend_floats(count).
  void (*attend)(const KVPages& kv, const int32_t* table, const Queries& queries, int head, int span, const Scoring& scoring, Partial* parts,
                 float* scratch);
  void (*merge)(Partial& into, const Partial& part, int padded);
  // The weighted sum itself; a sink (or null) is a score that takes weight and has no value.
  void (*finish)(const Partial& part, const float* sink, int dim, float* out);
  // Sampling helpers over n logits.
  int (*argmax)(const float* x, int n);
  float (*max)(const float* x, int n);
  float (*sum_exp)(const float* x, int n, float max);
};

namespace scalar { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avxvnni { extern const Kernels kernels; }
namespace neon { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

}  // namespace pagoda
