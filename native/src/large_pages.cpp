#include "large_pages.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pagoda {
namespace {

constexpr size_t kAlign = 64, kPage = size_t(2) << 20, kSpan = 16 * kPage;

size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

#if defined(__linux__)

// Whole large pages: more is reserved than asked for, and the ends are given back. Memory that is not touched takes no room.
std::shared_ptr<uint8_t> large_pages(size_t bytes) {
  const size_t size = up(bytes, kPage), reserved = size + kPage;
  void* p = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  uint8_t* start = (uint8_t*)up(size_t(p), kPage);
  const size_t before = size_t(start - (uint8_t*)p), after = reserved - before - size;
  if (before) munmap(p, before);
  if (after) munmap(start + size, after);
  madvise(start, size, MADV_HUGEPAGE);  // a wish: a system without them goes on with small ones
  return {start, [size](uint8_t* q) { munmap(q, size); }};
}

#else

std::shared_ptr<uint8_t> large_pages(size_t bytes) {
  uint8_t* p = (uint8_t*)std::aligned_alloc(kAlign, up(bytes, kAlign));
  if (!p) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return {p, [](uint8_t* q) { std::free(q); }};
}

#endif

struct Span {
  std::mutex lock;
  std::weak_ptr<uint8_t> pages;  // that small pieces are now cut from
  size_t used = 0;
};

}  // namespace

std::shared_ptr<uint8_t> large_page_memory(size_t bytes) {
  static Span span;
  bytes = up(bytes, kAlign);
  if (bytes > kSpan / 4) return large_pages(bytes);
  const std::lock_guard guard(span.lock);
  auto pages = span.pages.lock();
  if (!pages || span.used + bytes > kSpan) {
    span.pages = pages = large_pages(kSpan);
    span.used = 0;
  }
  uint8_t* piece = pages.get() + span.used;
  span.used += bytes;
  return {pages, piece};
}

}  // namespace pagoda
