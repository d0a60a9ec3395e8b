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

void Job::plan() {
  tiles_ = stages();
  struct Bounds {
    size_t first, end;
  };
  std::vector<Bounds> bounds;
  for (size_t i = 0; i < tiles_.size(); i++) {
    if (!bounds.empty() && tiles_[i] <= 1)
      bounds.back().end = i + 1;
    else if (tiles_[i])
      bounds.push_back({i, i + 1});
  }
  rounds_ = std::vector<Round>(bounds.size());
  for (size_t i = 0; i < bounds.size(); i++) {
    rounds_[i].first = bounds[i].first, rounds_[i].end = bounds[i].end;
    rounds_[i].tiles = uint32_t(tiles_[bounds[i].first]);
  }
}

void Job::run_safely(size_t stage, uint32_t tile, int worker) {
  if (failed_.load(std::memory_order_relaxed)) return;
  try {
    run(int(stage), int(tile), worker);
  } catch (...) {
    fail();
  }
}

bool Job::take(Round& round, int worker) {
  uint32_t mine = 0;
  while (round.next.load(std::memory_order_relaxed) < round.tiles) {
    const uint32_t tile = round.next.fetch_add(1, std::memory_order_relaxed);
    if (tile >= round.tiles) break;
    run_safely(round.first, tile, worker);
    mine++;
  }
  if (!mine || round.done.fetch_add(mine, std::memory_order_acq_rel) + mine < round.tiles) return false;
  for (size_t stage = round.first + 1; stage < round.end; stage++)
    if (tiles_[stage]) run_safely(stage, 0, worker);
  return true;
}

void Job::work(int worker) {
  for (uint32_t i = 0; i < rounds_.size(); i++) {
    if (take(rounds_[i], worker)) {
      rounds_over_.store(i + 1, std::memory_order_release);
      rounds_over_.notify_all();
      continue;
    }
    if (spin([&] { return rounds_over_.load(std::memory_order_acquire) > i; })) continue;
    for (uint32_t over; (over = rounds_over_.load(std::memory_order_acquire)) <= i;) rounds_over_.wait(over, std::memory_order_acquire);
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
      job->plan();
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
