// Speed of the matrix kernels on one core: billions of multiply-adds a second of CPU time, for each format, kind of
// activations and number of rows; for one row also the bytes of weights read. Best of many.
//
//   kernels [ISA] [FORMAT,...] [N] [K]
//
// CPU time of this thread, so that other work on the machine disturbs little; interleave runs to compare two builds.
#include <ctime>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "pack.h"

using namespace pagoda;

namespace {

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

const std::vector<std::pair<std::string, Format>> kFormats = {
    {"q4_0", Format::Q4_0}, {"q4_1", Format::Q4_1}, {"q8_0", Format::Q8_0}, {"q5_0", Format::Q5_0}, {"q5_1", Format::Q5_1},
    {"q4_k", Format::Q4_K}, {"q5_k", Format::Q5_K}, {"q6_k", Format::Q6_K}, {"q2_k", Format::Q2_K}, {"q3_k", Format::Q3_K},
    {"iq4_nl", Format::IQ4_NL}, {"iq4_xs", Format::IQ4_XS}, {"mxfp4", Format::MXFP4}};

struct Activations {
  std::vector<uint8_t> q;
  std::vector<float> d, s;
  std::vector<int32_t> neg8, neg8_first;
  Quantized view;
  Activations(const Kernels& kernels, int bytes, int rows, int k, std::mt19937& random) {
    const size_t padded = size_t(rows + kPanel - 1) / kPanel * kPanel, blocks = padded * size_t(k / kBlock);
    q.resize(padded * size_t(k) * size_t(bytes));
    d.resize(blocks), s.resize(blocks), neg8.resize(blocks), neg8_first.resize(blocks);
    view = {bytes, q.data(), d.data(), s.data(), neg8.data(), neg8_first.data()};
    std::vector<float> x(static_cast<size_t>(k));
    for (int r = 0; r < rows; r++) {
      for (auto& v : x) v = float(int(random() % 2001) - 1000) / 1000;
      kernels.quantize(x.data(), k, view, r);
    }
  }
};

double seconds_of_product(const Kernels& kernels, const Packed& w, const Quantized& x, int rows) {
  std::vector<float> out(size_t(rows) * size_t(w.n));
  const double work = double(rows) * w.n * w.k;
  const int repeats = 1 + int(3e7 / work);
  double best = 1e9;
  for (double spent = 0; spent < 0.15;) {
    const double start = cpu_seconds();
    for (int j = 0; j < repeats; j++)
      kernels.linear_int(w, 0, w.tiles(), x, 0, rows, out.data(), size_t(w.n));
    const double took = cpu_seconds() - start;
    spent += took;
    if (took / repeats < best) best = took / repeats;
  }
  return best;
}

void measure(const Kernels& kernels, const std::string& name, Format format, int n, int k, Pool& pool) {
  std::mt19937 random(1);
  std::vector<uint8_t> raw(size_t(n) * stored_row_bytes(format, k));
  for (auto& byte : raw) byte = uint8_t(0x30 + (random() & 0x3f));  // as f16 or as an exponent: neither tiny nor infinite
  const Weight w(pool, format, n, k, raw.data());
  for (int bytes : {1, 2}) {
    std::printf("%-7s int%-2d", name.c_str(), bytes * 8);
    for (int rows : {1, 2, 4, 8, 16, 32, 256}) {
      const Activations x(kernels, bytes, rows, k, random);
      const double seconds = seconds_of_product(kernels, w.packed(), x.view, rows);
      std::printf("  %d: %.0f", rows, double(rows) * n * k / seconds / 1e9);
      if (rows == 1) std::printf(" (%.1f GB/s)", double(w.bytes()) / seconds / 1e9);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels& kernels = kernels_for(argc > 1 ? argv[1] : usable_isas()[0]);
  const std::string wanted = argc > 2 ? "," + std::string(argv[2]) + "," : "";
  const int n = argc > 3 ? std::atoi(argv[3]) : 1536, k = argc > 4 ? std::atoi(argv[4]) : 768;
  Pool pool(1);
  std::printf("%s, %d x %d, GMAC/s by rows\n", kernels.name, n, k);
  for (const auto& [name, format] : kFormats)
    if (wanted.empty() || wanted.find("," + name + ",") != std::string::npos) measure(kernels, name, format, n, k, pool);
}
