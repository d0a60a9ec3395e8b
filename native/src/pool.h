// Worker threads that run jobs of many small tiles.
//
// A job is a list of stages; a stage is a number of tiles that may run in any order, after all tiles of the stage before.
// Tiles are handed out one at a time from a counter, and a stage is over when its tiles are done, not when all workers
// have come by: a worker that the system has put aside holds up nothing but the tile in its hands. Stages of a single tile
// are run by whoever finishes the stage before, who has what it reads at hand; the others wait once for all of them. Waiting
// is a brief spin, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pagoda {

class Job {
 public:
  virtual ~Job() = default;
  // Called by worker 0 before the first stage: the tile count of each stage.
  virtual std::vector<int> stages() = 0;
  virtual void run(int stage, int tile, int worker) = 0;
  // Called by worker 0 after the last stage, unless a tile threw.
  virtual void end() {}

  // Until the job is over; rethrows what a tile threw.
  void wait();
  bool over() const { return over_.load(std::memory_order_acquire); }
  double seconds() const { return seconds_; }

 private:
  friend class Pool;
  // A stage, and those of a single tile that follow it: [first, end).
  struct alignas(64) Round {
    std::atomic<uint32_t> next{0}, done{0};
    uint32_t tiles = 0;
    size_t first = 0, end = 0;
  };
  void plan();
  void work(int worker);
  // The tiles of a round that this worker gets hold of, and what follows them if it does the last; whether it did.
  bool take(Round& round, int worker);
  void run_safely(size_t stage, uint32_t tile, int worker);
  void fail();

  std::vector<int> tiles_;  // of each stage
  std::vector<Round> rounds_;
  alignas(64) std::atomic<uint32_t> rounds_over_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<bool> over_{false};
  double seconds_ = 0;
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return int(workers_.size()); }
  // Jobs run one at a time, in order of submission.
  void submit(std::shared_ptr<Job> job);
  // Run f(i) for i in [0, n) and wait.
  template <class F>
  void each(int n, F f);

 private:
  void lead();
  void follow(int worker);
  void publish(std::shared_ptr<Job> job);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable queued_, published_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::atomic<uint32_t> arrivals_{0};     // jobs ever queued
  std::atomic<uint32_t> generation_{0};   // jobs ever published
  std::shared_ptr<Job> current_;
  std::atomic<bool> stop_{false};
};

template <class F>
void Pool::each(int n, F f) {
  struct Each : Job {
    int n;
    F f;
    Each(int n, F f) : n(n), f(std::move(f)) {}
    std::vector<int> stages() override { return {n}; }
    void run(int, int tile, int) override { f(tile); }
  };
  auto job = std::make_shared<Each>(n, std::move(f));
  submit(job);
  job->wait();
}

}  // namespace pagoda
