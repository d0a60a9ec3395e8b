#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pagoda {
namespace {

using Clock = std::chrono::steady_clock;

// Measured on two cores (benchmarks/busy_neighbour.py): with 20 us decoding on an idle machine is a tenth slower, beside a busy
// neighbour 3 % faster; 200 us is no faster on an idle one. A spin that adapts itself was no better than either.
constexpr auto kSpin = std::chrono::microseconds(60);

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounding to nearest even, denormals kept: part of the arithmetic, so said and not inherited.
void set_float_mode() {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);
#endif
}

// Spin until ready() or the time is up; whether it is ready.
template <class F>
bool spin(F ready) {
  for (auto end = Clock::now() + kSpin;;) {
    for (int i = 0; i < 64; i++) {
      if (ready()) return true;
      pause();
    }
    if (Clock::now() > end) return ready();
  }
}

}  // namespace

void Job::fail() {
  std::lock_guard lock(mutex_);
  if (!failed_.exchange(true)) error_ = std::current_exception();
}

void Job::work(int worker) {
  for (size_t i = 0; i < list_.size(); i++) {
    Stage& stage = list_[i];
    uint32_t mine = 0;
    while (stage.next.load(std::memory_order_relaxed) < stage.tiles) {
      const uint32_t tile = stage.next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= stage.tiles) break;
      if (!failed_.load(std::memory_order_relaxed)) {
        try {
          run(int(i), int(tile), worker);
        } catch (...) {
          fail();
        }
      }
      mine++;
    }
    const auto ended = [&] { return stage.done.load(std::memory_order_acquire) >= stage.tiles; };
    if (mine && stage.done.fetch_add(mine, std::memory_order_acq_rel) + mine == stage.tiles) {
      stage.done.notify_all();
      continue;
    }
    if (spin(ended)) continue;
    for (uint32_t seen = stage.done.load(std::memory_order_acquire); seen < stage.tiles; seen = stage.done.load(std::memory_order_acquire))
      stage.done.wait(seen, std::memory_order_acquire);
  }
}

void Job::wait() {
  // No spin: the caller may be on a core that a worker wants.
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return over(); });
  lock.unlock();
  if (failed_) std::rethrow_exception(error_);
}

Pool::Pool(int threads) {
  workers_.emplace_back([this] { lead(); });
  for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { follow(i); });
}

Pool::~Pool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  queued_.notify_all();
  published_.notify_all();
  for (auto& w : workers_) w.join();
}

void Pool::submit(std::shared_ptr<Job> job) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
    arrivals_.fetch_add(1, std::memory_order_release);
  }
  queued_.notify_one();
}

void Pool::publish(std::shared_ptr<Job> job) {
  {
    std::lock_guard lock(mutex_);
    current_.swap(job);
    generation_.fetch_add(1, std::memory_order_release);
  }
  // The job before goes only now: its end may need the GIL, whose holder may be waiting for the mutex in submit().
  published_.notify_all();
}

void Pool::lead() {
  set_float_mode();
  for (uint32_t seen = 0;; seen++) {
    spin([&] { return arrivals_.load(std::memory_order_acquire) != seen; });
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    const auto start = Clock::now();
    try {
      const auto tiles = job->stages();
      job->list_ = std::vector<Job::Stage>(tiles.size());
      for (size_t i = 0; i < tiles.size(); i++) job->list_[i].tiles = uint32_t(tiles[i]);
      if (workers_.size() > 1) publish(job);
      job->work(0);
      if (!job->failed_) job->end();
    } catch (...) {
      job->fail();
    }
    job->seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
    {
      std::lock_guard lock(job->mutex_);
      job->over_.store(true, std::memory_order_release);
    }
    job->finished_.notify_all();
  }
}

void Pool::follow(int worker) {
  set_float_mode();
  for (uint32_t seen = 0;;) {
    spin([&] { return generation_.load(std::memory_order_acquire) != seen; });
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      published_.wait(lock, [&] { return stop_ || generation_.load() != seen; });
      if (generation_.load() == seen) return;
      seen = generation_.load();
      job = current_;
    }
    job->work(worker);
  }
}

}  // namespace pagoda
