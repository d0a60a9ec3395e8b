#include "kv_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "require.h"

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

KVStore::KVStore(std::vector<GroupShape> groups, int slots, KVFormat format, Pool* pool) : groups_(std::move(groups)), slots_(slots) {
  if (slots < 1 || slots & (slots - 1)) throw std::invalid_argument("a page has a number of slots that is a power of two");
  for (const auto& g : groups_) {
    if (format >= KVFormat::Int8 && g.dim > kHeadMax) throw std::invalid_argument("a head is too wide for keys as integers");
    if (!g.layers) {
      layers_.emplace_back();
      continue;
    }
    KVPages kv = KVPages::layout(format, g.heads, g.dim, slots);
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

namespace {

// The first `slots` of each row's `stride` slots of `bytes` bytes.
void copy_rows(uint8_t* to, const uint8_t* from, int rows, int stride, int slots, size_t bytes) {
  for (int r = 0; r < rows; r++) {
    const size_t at = size_t(r) * size_t(stride) * bytes;
    std::memcpy(to + at, from + at, size_t(slots) * bytes);
  }
}

}  // namespace

void KVStore::copy(int group, int source, int target, int slots) {
  for (const auto& kv : layers_.at(size_t(group)))
    for (int h = 0; h < kv.heads; h++) {
      copy_rows(kv.head(target, h), kv.head(source, h), 2 * kv.sets(), kv.slots, slots, 2);
      copy_rows(kv.keys(target, h), kv.keys(source, h), kv.key_rows(), kv.slots, slots, kv.key_bytes());
      std::memcpy(kv.values(target, h), kv.values(source, h), size_t(slots) * kv.value_bytes());
    }
}

size_t KVStore::unit_bytes() const {
  size_t bytes = 0;
  for (const auto& group : layers_)
    for (const auto& kv : group) bytes += kv.page_bytes;
  return bytes;
}

void KVStore::read(const std::vector<int>& unit, uint8_t* to) const {
  for (size_t g = 0; g < layers_.size(); g++)
    for (const auto& kv : layers_[g]) {
      std::memcpy(to, kv.head(unit[g], 0), kv.page_bytes);
      to += kv.page_bytes;
    }
}

void KVStore::write(const std::vector<int>& unit, const uint8_t* from) {
  for (size_t g = 0; g < layers_.size(); g++)
    for (const auto& kv : layers_[g]) {
      std::memcpy(kv.head(unit[g], 0), from, kv.page_bytes);
      from += kv.page_bytes;
    }
}

void KVStore::check_unit(const std::vector<int>& unit) const {
  require(unit.size() == layers_.size(), "a page of each KV group is needed");
  for (size_t g = 0; g < unit.size(); g++) require(unit[g] >= 0 && unit[g] < groups_[g].pages, "a page to be moved is out of range");
}

}  // namespace pagoda
