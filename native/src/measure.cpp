#include "measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>

#include "dispatch.h"

namespace pagoda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPiece = 2 << 20;    // bytes of one tile of reading
constexpr int kWindowPieces = 24;      // tiles of a window of reading: a few milliseconds
constexpr double kWindow = 3e-3;       // seconds that a window of arithmetic should take: less than a neighbour's turn
constexpr int kPieces = 4;             // tiles of a window for each thread, so that a late one costs less

const Peaks& peaks_for(const std::string& isa) {
#if PAGODA_HAS_AVX
  for (const auto* p : {&avx512::peaks, &avx2::peaks})
    if (isa == p->name) return *p;
#endif
#if PAGODA_HAS_AVXVNNI
  if (isa == avxvnni::peaks.name) return avxvnni::peaks;
#endif
#if PAGODA_HAS_NEON
  if (isa == neon::peaks.name) return neon::peaks;
#endif
  return scalar::peaks;
}

// Of a loop's tiles, each called with its number.
template <class F>
class Window : public Job {
 public:
  Window(int tiles, F run) : tiles_(tiles), run_(run) {}
  std::vector<int> stages() override { return {tiles_}; }
  void run(int, int tile, int) override { run_(tile); }

 private:
  int tiles_;
  F run_;
};

// Seconds, from the first tile's beginning to the last one's end.
template <class F>
double window(Pool& pool, int tiles, F run) {
  auto job = std::make_shared<Window<F>>(tiles, run);
  pool.submit(job);
  job->wait();
  return job->seconds();
}

// The least of many windows, as many as fit into `seconds`, at least two; run(n, tile) is the n-th window's.
template <class F>
double best_window(Pool& pool, int tiles, double seconds, F run) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  double best = 1e9;
  for (int n = 0; n < 2 || Clock::now() < end; n++)
    best = std::min(best, window(pool, tiles, [=](int tile) { run(n, tile); }));
  return best;
}

}  // namespace

ReadBuffer::ReadBuffer(Pool& pool, int64_t bytes) : pieces_(int(bytes / kPiece)) {
  if (bytes < kPiece) throw std::invalid_argument("a buffer of at least 2 MiB is needed to measure reading");
  const size_t size = size_t(pieces_) * size_t(kPiece);
  p_ = (uint8_t*)mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p_ == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(p_, size, MADV_HUGEPAGE);
#endif
  // Pages that were never written are all one page of zeros: each gets memory of its own.
  window(pool, pieces_, [p = p_](int i) {
    for (int64_t at = 0; at < kPiece; at += 4096) p[i * kPiece + at] = 1;
  });
}

ReadBuffer::~ReadBuffer() { munmap(p_, size_t(pieces_) * size_t(kPiece)); }

double ReadBuffer::bandwidth(Pool& pool, const std::string& isa, double seconds) const {
  kernels_for(isa);  // throws if it is not usable here
  const auto read = peaks_for(isa).read;
  const int tiles = std::min(pieces_, kWindowPieces);
  const double best = best_window(pool, tiles, seconds, [=, p = p_, all = int64_t(pieces_)](int n, int i) {
    read(p + (int64_t(n) * tiles + i) % all * kPiece, kPiece);
  });
  return double(tiles) * double(kPiece) / best;
}

double multiply_adds(Pool& pool, const std::string& isa, const std::string& kind, double seconds) {
  kernels_for(isa);
  const Peaks& peaks = peaks_for(isa);
  if (kind != "f32" && kind != "int16" && kind != "int8") throw std::invalid_argument("there are peaks of f32, int16 and int8, none of " + kind);
  const auto loop = kind == "f32" ? peaks.f32 : kind == "int16" ? peaks.int16 : peaks.int8;
  const int64_t each = kind == "f32" ? peaks.f32_round : kind == "int16" ? peaks.int16_round : peaks.int8_round;
  const int tiles = pool.threads() * kPieces;
  int64_t rounds = 1 << 14;
  for (double took = 0; rounds < int64_t(1) << 40; rounds *= 2) {
    took = window(pool, tiles, [=](int) { loop(rounds); });
    if (took > kWindow / 2) break;
  }
  const double best = best_window(pool, tiles, seconds, [=](int, int) { loop(rounds); });
  return double(rounds) * double(each) * tiles / best;
}

}  // namespace pagoda
