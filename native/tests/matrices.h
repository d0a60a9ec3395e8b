// Matrices as files store them, made at random, for the tests of packing and of the kernels that read them.
#pragma once

#include <memory>

#include "check.h"
#include "definitions.h"
#include "dispatch.h"
#include "isa.h"
#include "pack.h"

namespace pagoda::test {

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

// Rows of random bytes, with fields of floats made finite.
inline std::vector<uint8_t> random_matrix(Random& random, const Definition& d, int n, int k) {
  std::vector<uint8_t> raw;
  for (size_t i = 0; i < size_t(n) * size_t(k / d.numbers); i++) {
    const size_t block = raw.size();
    for (int j = 0; j < d.bytes; j++) raw.push_back(uint8_t(random.bits()));
    for (const int at : d.halves) {
      const uint16_t h = random_half(random);
      std::memcpy(raw.data() + block + at, &h, 2);
    }
    const float x = random.awkward();
    if (d.format == Format::F32) std::memcpy(raw.data() + block, &x, 4);
    if (d.format == Format::BF16) std::memcpy(raw.data() + block, (const uint8_t*)&x + 2, 2);
    if (d.format == Format::MXFP4 && random.below(8)) raw[block] = uint8_t(random.between(115, 128));
  }
  return raw;
}

// Row v in f32, from the file's bytes and the format's definition alone.
inline std::vector<float> defined_row(const Definition& d, const std::vector<uint8_t>& raw, int v, int k) {
  std::vector<float> row;
  const uint8_t* p = raw.data() + size_t(v) * size_t(k / d.numbers) * size_t(d.bytes);
  for (int i = 0; i < k; i++) row.push_back(d.number(p + size_t(i / d.numbers) * size_t(d.bytes), i % d.numbers));
  return row;
}

// Rows of integer activations that own their memory: whole panels, as many as the rows need.
struct Integers {
  std::vector<uint8_t> q;
  std::vector<float> d, s;
  std::vector<int32_t> neg8, first;  // `first`: of the first 16
  int bytes, blocks;

  Integers(int rows, int k, int bytes) : bytes(bytes), blocks(k / kBlock) {
    const size_t n = size_t((rows + kPanel - 1) / kPanel) * kPanel * size_t(blocks);
    q.resize(n * kBlock * size_t(bytes)), d.resize(n), s.resize(n), neg8.resize(n), first.resize(n);
  }
  Quantized view() { return {bytes, q.data(), d.data(), s.data(), neg8.data(), first.data()}; }
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
  bool operator==(const Integers& o) const { return q == o.q && same(d, o.d) && same(s, o.s) && neg8 == o.neg8 && first == o.first; }
};

inline Integers quantized(const Kernels& kernels, const std::vector<float>& x, int rows, int k, int bytes) {
  Integers made(rows, k, bytes);
  for (int r = 0; r < rows; r++) kernels.quantize(x.data() + size_t(r) * size_t(k), k, made.view(), r);
  return made;
}

}  // namespace pagoda::test
