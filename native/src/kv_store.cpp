#include "kv_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace pagoda {

void KVStore::Unmap::operator()(uint8_t* p) const { munmap(p, bytes); }

namespace {

// Give pages memory, by several threads if there is a pool: the kernel clears each page first.
void commit(uint8_t* p, size_t bytes, Pool* pool) {
  constexpr size_t kPiece = size_t(8) << 20;
  const auto piece = [=](int i) {
    uint8_t* from = p + size_t(i) * kPiece;
    const size_t n = std::min(kPiece, bytes - size_t(i) * kPiece);
#ifdef MADV_POPULATE_WRITE
    if (madvise(from, n, MADV_POPULATE_WRITE) == 0) return;
#endif
    std::memset(from, 0, n);
  };
  const int pieces = int((bytes + kPiece - 1) / kPiece);
  if (pool)
    pool->each(pieces, piece);
  else
    for (int i = 0; i < pieces; i++) piece(i);
}

}  // namespace

KVStore::KVStore(std::vector<GroupShape> groups, int slots, KVFormat format, Pool* pool) : groups_(std::move(groups)) {
  for (const auto& g : groups_) {
    KVPages kv{};
    kv.format = format, kv.heads = g.heads, kv.dim = g.dim, kv.slots = slots;
    kv.padded = (g.dim + 15) / 16 * 16;
    kv.value_offset = size_t(g.dim) * size_t(slots) * kv.element();
    kv.head_bytes = kv.value_offset + size_t(kv.padded) * size_t(slots) * kv.element();
    kv.page_bytes = kv.head_bytes * size_t(g.heads);
    const size_t layer_bytes = kv.page_bytes * size_t(g.pages), bytes = layer_bytes * size_t(g.layers);
    // Committed now: running out later would be a signal, not an error.
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    memory_.emplace_back((uint8_t*)p, Unmap{bytes});
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE);
#endif
    commit((uint8_t*)p, bytes, pool);
    bytes_ += bytes;
    std::vector<KVPages> layers;
    for (int l = 0; l < g.layers; l++) {
      kv.base = (uint8_t*)p + size_t(l) * layer_bytes;
      layers.push_back(kv);
    }
    layers_.push_back(std::move(layers));
  }
}

void KVStore::copy(int group, int source, int target, int slots) {
  for (const auto& kv : layers_.at(size_t(group)))
    for (int h = 0; h < kv.heads; h++) {
      const size_t e = kv.element();
      for (int i = 0; i < kv.dim; i++)
        std::memcpy(kv.keys(target, h) + size_t(i) * kv.slots * e, kv.keys(source, h) + size_t(i) * kv.slots * e, size_t(slots) * e);
      std::memcpy(kv.values(target, h), kv.values(source, h), size_t(slots) * kv.padded * e);
    }
}

}  // namespace pagoda
