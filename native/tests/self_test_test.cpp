// The self-test finds every kernel that is broken, and nothing in those that are not.
#include "self_test.h"

#include "check.h"
#include "dispatch.h"
#include "matrices.h"

namespace pagoda::test {
namespace {

const Kernels& right() { return kernels_for("scalar"); }

// As a faulty instruction would: one bit of one number.
void flip(float& x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  u ^= 1;
  std::memcpy(&x, &u, 4);
}

// Tables of which one kernel is wrong in its last bit, and what the self-test should say of it.
struct Broken {
  const char* said;
  void (*breaks)(Kernels& kernels);
};

const Broken kBroken[] = {
    {"norm", [](Kernels& k) { k.norm = [](const float* x, const float* w, float e, int n, float* y) { right().norm(x, w, e, n, y), flip(y[n - 1]); }; }},
    {"act", [](Kernels& k) { k.act = [](Act kind, const float* g, const float* u, int n, float* y) { right().act(kind, g, u, n, y), flip(y[n / 2]); }; }},
    {"add", [](Kernels& k) { k.add = [](const float* x, const float* y, int n, float* z) { right().add(x, y, n, z), flip(z[0]); }; }},
    {"sampling", [](Kernels& k) { k.argmax = [](const float* x, int n) { return right().argmax(x, n) ^ 1; }; }},
    {"quantize to 8 bits",
     [](Kernels& k) { k.quantize = [](const float* x, int n, const Quantized& to, int row) { right().quantize(x, n, to, row), to.q[7] ^= row == 3; }; }},
    {"linear, q4_0 by f32",
     [](Kernels& k) {
       k.linear_f32 = [](const Packed& w, int tile, int tiles, const float* x, int row0, int rows, float* out, size_t ldo) {
         right().linear_f32(w, tile, tiles, x, row0, rows, out, ldo);
         if (rows > 8) flip(out[ldo * size_t(rows - 1) + 15]);
       };
     }},
    {"linear, q6_k by 16 bits",
     [](Kernels& k) {
       k.linear_int = [](const Packed& w, int tile, int tiles, const Quantized& x, int row0, int rows, float* out, size_t ldo) {
         right().linear_int(w, tile, tiles, x, row0, rows, out, ldo);
         if (w.format == Format::Q6_K && x.bytes == 2 && rows == 1) flip(out[3]);
       };
     }},
    {"attend, KV in f16",
     [](Kernels& k) {
       k.store_kv = [](const KVPages& kv, int page, int slot, const float* key, const float* value) {
         right().store_kv(kv, page, slot, key, value);
         if (kv.format == KVFormat::F16) kv.values(page, 0)[1] ^= 1;
       };
     }},
};

}  // namespace

TEST("self_test", whole_tables_pass) {
  for (const auto& isa : usable_isas()) CHECK_CASE(self_test(kernels_for(isa)).empty(), isa);
}

TEST("self_test", a_broken_kernel_is_named) {
  for (const auto& broken : kBroken)
    for (const auto& isa : usable_isas()) {
      Kernels kernels = kernels_for(isa);
      broken.breaks(kernels);
      CHECK_CASE(self_test(kernels) == broken.said, isa + ": " + self_test(kernels) + " for " + broken.said);
    }
}

}  // namespace pagoda::test
