#include "kv_store.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace pagoda {

void KVStore::Unmap::operator()(uint8_t* p) const { munmap(p, bytes); }

KVStore::KVStore(std::vector<GroupShape> groups, int slots, KVFormat format) : groups_(std::move(groups)) {
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
#ifdef MADV_POPULATE_WRITE
    if (madvise(p, bytes, MADV_POPULATE_WRITE) != 0)
#endif
      std::memset(p, 0, bytes);
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
