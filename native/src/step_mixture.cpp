// Mixtures of experts within a step: rows are brought together by expert, multiplied, and each row's experts added again.
#include <algorithm>
#include <cstring>

#include "step_job.h"

namespace pagoda {
namespace {

// A row's integers, `Bytes` to a block, from panel to panel.
template <size_t Bytes>
void copy_blocks(const uint8_t* x, size_t source, int width, uint8_t* y, size_t target) {
  for (size_t b = 0; b < size_t(width / kBlock) * kPanel; b += kPanel) std::memcpy(y + (target + b) * Bytes, x + (source + b) * Bytes, Bytes);
}

}  // namespace

void StepJob::group(const Instruction& i) {
  routed_.group(rows(i.in[0]), i.whole[1], i.whole[0], [&](int r, int j) { return int(row(i.in[0], r)[j]); });
}

// A row to the place of one of its routed rows.
void StepJob::gather(const Instruction& i, int n) {
  const int to = routed_.place(n), from = n / shape(i.out[0]).chosen;
  const int width = shape(i.in[0]).width;
  if (!shape(i.in[0]).integer) return void(std::memcpy(row(i.out[0], to), row(i.in[0], from), size_t(width) * sizeof(float)));
  const Quantized &x = buffer(i.in[0]).q, &y = buffer(i.out[0]).q;
  const size_t source = Quantized::at(from, width / kBlock, 0), target = Quantized::at(to, width / kBlock, 0);
  x.bytes == 1 ? copy_blocks<kBlock>(x.q, source, width, y.q, target) : copy_blocks<2 * kBlock>(x.q, source, width, y.q, target);
  for (size_t b = 0; b < size_t(width / kBlock) * kPanel; b += kPanel) {
    y.d[target + b] = x.d[source + b], y.s[target + b] = x.s[source + b];
    y.neg8[target + b] = x.neg8[source + b], y.neg8_first[target + b] = x.neg8_first[source + b];
  }
}

// Of one expert, all its matrices that the instruction multiplies by.
int StepJob::expert_tiles(const Instruction& i) const {
  int count = 0;
  for (size_t j = 0; j < i.out.size(); j++) count += matrix_tiles(i.weights[j * size_t(i.whole[0])]);
  return count;
}

// Some columns of one expert's matrix, for all rows that are sent to it. Experts without any have no tile.
void StepJob::experts(const Instruction& i, int tile) {
  const int each = expert_tiles(i), expert = tile / each;
  if (size_t(expert) >= routed_.active().size()) return;
  const ExpertRows& at = routed_.active()[size_t(expert)];
  const size_t count = size_t(i.whole[0]), matrices = i.out.size();
  tile %= each;
  size_t j = 0;
  for (int some; tile >= (some = matrix_tiles(i.weights[j * count])); j++) tile -= some;

  const Packed& w = program_->weights_[size_t(i.weights[j * count + size_t(at.expert)])]->packed();
  const int per = columns_per_tile(program_->weights_[size_t(i.weights[j * count])]->packed()), first = tile * per;
  const Buffer& in = buffer(i.in[0]);
  float* out = buffer(i.out[j]).x;
  const int tiles = std::min(w.tiles() - first, per);
  shape(i.in[0]).integer ? program_->kernels_.linear_int(w, first, tiles, in.q, at.first, at.rows, out, size_t(w.n))
                         : program_->kernels_.linear_f32(w, first, tiles, in.x, at.first, at.rows, out, size_t(w.n));
  if (i.weights.size() == matrices * count) return;
  const int begin = first * kTile, columns = std::min(w.n - begin, tiles * kTile);
  std::vector<float> bias(static_cast<size_t>(columns));
  program_->weights_[size_t(i.weights[matrices * count + j])]->row(at.expert, begin, columns, bias.data());
  for (int r = at.first; r < at.first + at.rows; r++) program_->kernels_.add_to(out + size_t(r) * size_t(w.n) + begin, bias.data(), columns);
}

void StepJob::combine(const Instruction& i, int r) {
  const int n = shape(i.out[0]).width, chosen = shape(i.in[1]).width / 2;
  for (int j = 0; j < chosen; j++)
    program_->kernels_.weigh(row(i.in[0], routed_.place(r * chosen + j)), row(i.in[1], r)[chosen + j], n, j == 0, row(i.out[0], r));
}

}  // namespace pagoda
