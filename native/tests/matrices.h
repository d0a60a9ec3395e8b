// Matrices as files store them, made at random, for the tests of packing and of the kernels that read them.
#pragma once

#include <memory>

#include "check.h"
#include "dispatch.h"
#include "isa.h"
#include "pack.h"

namespace pagoda::test {

constexpr Format kFormats[] = {Format::F32, Format::F16, Format::BF16, Format::Q4_0, Format::Q4_1, Format::Q8_0};
constexpr Format kQuantized[] = {Format::Q4_0, Format::Q4_1, Format::Q8_0};

inline std::string name_of(Format format) {
  constexpr const char* names[] = {"f32", "f16", "bf16", "q4_0", "q4_1", "q8_0"};
  return names[int(format)];
}

// Every usable instruction set but the oracle.
inline std::vector<const Kernels*> vector_kernels() {
  std::vector<const Kernels*> found;
  for (const auto& isa : usable_isas())
    if (isa != "scalar") found.push_back(&kernels_for(isa));
  return found;
}

template <class T>
inline void append(std::vector<uint8_t>& to, T value) {
  const auto* p = (const uint8_t*)&value;
  to.insert(to.end(), p, p + sizeof(T));
}

// A finite half: of any size now and then, else as scales are.
inline uint16_t random_half(Random& random) {
  if (random.below(8) == 0) return uint16_t(random.bits() % 0x7c00 | (random.bits() & 0x8000));
  return f32_to_f16(random.number() * 0.25f);
}

// An element and its bytes; `k` numbers of it, or k / 32 blocks, are a row.
inline std::vector<uint8_t> random_matrix(Random& random, Format format, int n, int k) {
  std::vector<uint8_t> raw;
  const bool quantized = format == Format::Q4_0 || format == Format::Q4_1 || format == Format::Q8_0;
  for (size_t i = 0; i < size_t(n) * size_t(quantized ? k / kBlock : k); i++) {
    if (format == Format::F32) append(raw, random.awkward());
    if (format == Format::F16) append(raw, random_half(random));
    if (format == Format::BF16) {
      const float x = random.awkward();
      uint32_t u;
      std::memcpy(&u, &x, 4);
      append(raw, uint16_t(u >> 16));
    }
    if (!quantized) continue;
    append(raw, random_half(random));
    if (format == Format::Q4_1) append(raw, random_half(random));
    for (int j = 0; j < (format == Format::Q8_0 ? 32 : 16); j++) append(raw, uint8_t(random.bits()));
  }
  return raw;
}

// Row v in f32, from the file's bytes and the formats' definitions alone.
inline std::vector<float> defined_row(Format format, const std::vector<uint8_t>& raw, int v, int k) {
  std::vector<float> row;
  const uint8_t* p = raw.data() + size_t(v) * stored_row_bytes(format, k);
  const auto half = [](const uint8_t* at) { return f16_to_f32(uint16_t(at[0] | at[1] << 8)); };
  while (int(row.size()) < k) {
    if (format == Format::F32) {
      float x;
      std::memcpy(&x, p, 4);
      row.push_back(x), p += 4;
    } else if (format == Format::F16) {
      row.push_back(half(p)), p += 2;
    } else if (format == Format::BF16) {
      const uint32_t u = uint32_t(p[0] | p[1] << 8) << 16;
      float x;
      std::memcpy(&x, &u, 4);
      row.push_back(x), p += 2;
    } else if (format == Format::Q8_0) {
      for (int i = 0; i < 32; i++) row.push_back(half(p) * float(int8_t(p[2 + i])));
      p += 34;
    } else {
      const bool offset = format == Format::Q4_1;
      const uint8_t* q = p + (offset ? 4 : 2);
      for (int i = 0; i < 32; i++) {
        const int nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
        row.push_back(offset ? half(p) * float(nibble) + half(p + 2) : half(p) * float(nibble - 8));
      }
      p = q + 16;
    }
  }
  return row;
}

// Rows of integer activations that own their memory: whole panels, as many as the rows need.
struct Integers {
  std::vector<uint8_t> q;
  std::vector<float> d, s;
  std::vector<int32_t> neg8, neg8_first;
  int bytes, blocks;

  Integers(int rows, int k, int bytes) : bytes(bytes), blocks(k / kBlock) {
    const size_t n = size_t((rows + kPanel - 1) / kPanel) * kPanel * size_t(blocks);
    q.resize(n * kBlock * size_t(bytes)), d.resize(n), s.resize(n), neg8.resize(n), neg8_first.resize(n);
  }
  Quantized view() { return {bytes, q.data(), d.data(), s.data(), neg8.data(), neg8_first.data()}; }
  size_t block(int row, int b) const { return Quantized::at(row, blocks, b); }
  // Input i of a row.
  int integer(int row, int i) const {
    constexpr int parity[] = {0, 2, 1, 3};
    const size_t at = block(row, i / kBlock) * kBlock + size_t(i % kBlock);
    if (bytes == 1) return int8_t(q[at]);
    int16_t two;
    std::memcpy(&two, q.data() + (at / 4 * 4 + size_t(parity[i % 4])) * 2, 2);
    return two;
  }
  bool operator==(const Integers& o) const { return q == o.q && same(d, o.d) && same(s, o.s) && neg8 == o.neg8 && neg8_first == o.neg8_first; }
};

inline Integers quantized(const Kernels& kernels, const std::vector<float>& x, int rows, int k, int bytes) {
  Integers made(rows, k, bytes);
  for (int r = 0; r < rows; r++) kernels.quantize(x.data() + size_t(r) * size_t(k), k, made.view(), r);
  return made;
}

}  // namespace pagoda::test
