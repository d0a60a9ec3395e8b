// The pool: what jobs may rely on, whatever the system does with the threads. Runs under a thread sanitizer too.
#include "pool.h"

#include <chrono>
#include <functional>
#include <stdexcept>

#include "check.h"

namespace pagoda::test {
namespace {

using std::chrono::milliseconds;

// A job made of functions.
struct Work : Job {
  std::vector<int> counts;
  std::function<void(int, int, int)> tile;
  std::function<void()> ending = [] {};
  Work(std::vector<int> counts, std::function<void(int, int, int)> tile) : counts(std::move(counts)), tile(std::move(tile)) {}
  std::vector<int> stages() override { return counts; }
  void run(int stage, int t, int worker) override { tile(stage, t, worker); }
  void end() override { ending(); }
};

// Counts of a job's tiles, one number for each.
struct Tally {
  std::vector<std::vector<std::atomic<int>>> of;
  explicit Tally(const std::vector<int>& counts) {
    for (const int n : counts) of.emplace_back(size_t(n));
  }
  bool all(int times) const {
    for (const auto& stage : of)
      for (const auto& n : stage)
        if (n.load() != times) return false;
    return true;
  }
};

template <class F>
bool eventually(F ready) {
  for (int i = 0; i < 20'000 && !ready(); i++) std::this_thread::sleep_for(milliseconds(1));
  return ready();
}

const std::vector<int> kShapes[] = {{1}, {0}, {}, {7, 1, 3}, {1, 0, 50, 0, 1}, {300, 2, 300}};

}  // namespace

TEST("pool", every_tile_once_and_stages_in_order) {
  for (const int threads : {1, 2, 3, 8}) {
    Pool pool(threads);
    CHECK(pool.threads() == threads);
    for (int round = 0; round < 20; round++)
      for (const auto& counts : kShapes) {
        Tally tally(counts);
        std::vector<int> plain(counts.size());  // of tiles not done; no atomics: the stages order it
        std::atomic<int> wrong{0}, ended{0};
        auto job = std::make_shared<Work>(counts, [&](int stage, int tile, int worker) {
          if (worker < 0 || worker >= threads) wrong++;
          if (stage && tile == 0)
            for (const auto& n : tally.of[size_t(stage) - 1])
              if (n.load(std::memory_order_relaxed) != 1) wrong++;
          if (tile == 0) plain[size_t(stage)] = stage ? plain[size_t(stage) - 1] + 1 : 1;
          tally.of[size_t(stage)][size_t(tile)].fetch_add(1, std::memory_order_relaxed);
        });
        job->ending = [&] { ended++; };
        pool.submit(job);
        job->wait();
        CHECK(job->over() && job->seconds() >= 0);
        CHECK(tally.all(1) && wrong == 0 && ended == 1);
      }
  }
}

TEST("pool", a_stage_sees_what_the_one_before_wrote) {
  Pool pool(4);
  for (int round = 0; round < 50; round++) {
    constexpr int kN = 64;
    std::vector<int> a(kN), b(kN);
    auto job = std::make_shared<Work>(std::vector<int>{kN, kN, kN}, [&](int stage, int t, int) {
      if (stage == 0) a[size_t(t)] = t;
      if (stage == 1) b[size_t(t)] = a[size_t((t + 1) % kN)] + a[size_t((t + kN / 2) % kN)];
      if (stage == 2) a[size_t(t)] = b[size_t((t + 3) % kN)];
    });
    pool.submit(job);
    job->wait();
    for (int t = 0; t < kN; t++) CHECK(a[size_t(t)] == (t + 4) % kN + (t + 3 + kN / 2) % kN);
  }
}

TEST("pool", stages_of_one_tile_are_run_by_who_finished_the_one_before) {
  for (const int threads : {1, 3}) {
    Pool pool(threads);
    for (int round = 0; round < 30; round++) {
      const std::vector<int> counts = {1, 1, 40, 1, 0, 1, 1, 40, 1};
      std::vector<int> by(counts.size(), -1);  // of the stages of one tile: the worker
      auto job = std::make_shared<Work>(counts, [&](int stage, int, int worker) {
        if (counts[size_t(stage)] == 1) by[size_t(stage)] = worker;
      });
      pool.submit(job);
      job->wait();
      CHECK(by[0] == by[1] && by[0] >= 0 && by[3] == by[5] && by[5] == by[6] && by[3] >= 0 && by[8] >= 0);
    }
  }
}

TEST("pool", a_stage_of_one_tile_may_throw) {
  Pool pool(2);
  std::atomic<int> later{0};
  auto job = std::make_shared<Work>(std::vector<int>{5, 1, 1, 5}, [&](int stage, int, int) {
    if (stage == 1) throw std::runtime_error("tile");
    if (stage > 1) later++;
  });
  pool.submit(job);
  CHECK_THROWS(job->wait(), std::runtime_error);
  CHECK(job->over() && later == 0);
}

TEST("pool", what_a_tile_throws_comes_out_of_wait) {
  for (const int threads : {1, 3}) {
    Pool pool(threads);
    for (int round = 0; round < 30; round++) {
      std::atomic<int> later{0};
      std::atomic<bool> ended{false};
      auto job = std::make_shared<Work>(std::vector<int>{20, 20}, [&](int stage, int tile, int) {
        if (stage == 0 && tile % 7 == 3) throw std::runtime_error("tile");
        if (stage == 1) later++;
      });
      job->ending = [&] { ended = true; };
      pool.submit(job);
      CHECK_THROWS(job->wait(), std::runtime_error);
      CHECK(job->over() && later == 0);
      CHECK_THROWS(job->wait(), std::runtime_error);  // and again
      int sum = 0;
      pool.each(1, [&](int) { sum = 1; });  // the pool goes on
      CHECK(sum == 1);
    }
  }
}

TEST("pool", what_planning_and_ending_throw_comes_out_of_wait) {
  struct Planless : Job {
    std::vector<int> stages() override { throw std::invalid_argument("stages"); }
    void run(int, int, int) override {}
  };
  Pool pool(2);
  auto planless = std::make_shared<Planless>();
  pool.submit(planless);
  CHECK_THROWS(planless->wait(), std::invalid_argument);
  auto endless = std::make_shared<Work>(std::vector<int>{3}, [](int, int, int) {});
  endless->ending = [] { throw std::logic_error("end"); };
  pool.submit(endless);
  CHECK_THROWS(endless->wait(), std::logic_error);
}

TEST("pool", a_job_that_failed_does_not_end) {
  Pool pool(2);
  bool ended = false;
  auto job = std::make_shared<Work>(std::vector<int>{1}, [](int, int, int) { throw std::runtime_error("tile"); });
  job->ending = [&] { ended = true; };
  pool.submit(job);
  CHECK_THROWS(job->wait(), std::runtime_error);
  CHECK(!ended);
}

TEST("pool", many_tiny_jobs_from_several_threads) {
  Pool pool(3);
  constexpr int kCallers = 4, kJobs = 300;
  std::atomic<int> done{0}, wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; c++)
    callers.emplace_back([&] {
      for (int i = 0; i < kJobs; i++) {
        std::vector<int> made(5);
        pool.each(5, [&](int t) { made[size_t(t)] = t + i; });
        for (int t = 0; t < 5; t++)
          if (made[size_t(t)] != t + i) wrong++;
        done++;
      }
    });
  for (auto& c : callers) c.join();
  CHECK(done == kCallers * kJobs && wrong == 0);
}

TEST("pool", jobs_run_in_the_order_of_submission) {
  Pool pool(2);
  std::vector<int> order;  // written by `end` only, which worker 0 calls
  std::vector<std::shared_ptr<Work>> jobs;
  for (int i = 0; i < 100; i++) {
    auto job = std::make_shared<Work>(std::vector<int>{i % 3}, [](int, int, int) {});
    job->ending = [&order, i] { order.push_back(i); };
    pool.submit(job);
    jobs.push_back(std::move(job));
  }
  jobs.back()->wait();
  for (int i = 0; i < 100; i++) CHECK(order[size_t(i)] == i && jobs[size_t(i)]->over());
}

TEST("pool", queued_jobs_are_done_before_it_goes) {
  for (const int threads : {1, 4})
    for (int round = 0; round < 20; round++) {
      std::atomic<int> tiles{0};
      std::vector<std::shared_ptr<Work>> jobs;
      {
        Pool pool(threads);
        for (int i = 0; i < 10; i++) {
          jobs.push_back(std::make_shared<Work>(std::vector<int>{3, 2}, [&](int, int, int) { tiles++; }));
          pool.submit(jobs.back());
        }
      }
      CHECK(tiles == 50);
      for (auto& job : jobs) {
        CHECK(job->over());
        job->wait();
      }
    }
}

TEST("pool", comes_and_goes_without_work) {
  for (int round = 0; round < 30; round++) Pool pool(1 + round % 5);
}

// A worker put to sleep holds up nothing but the tile in its hands: the others do the rest of the stage meanwhile.
TEST("pool", a_sleeping_worker_holds_up_its_tile_only) {
  Pool pool(3);
  constexpr int kTiles = 40;
  for (int round = 0; round < 5; round++) {
    std::atomic<int> done{0};
    std::atomic<bool> met{false};
    auto job = std::make_shared<Work>(std::vector<int>{kTiles, 1}, [&](int stage, int tile, int) {
      if (stage == 0 && tile == 0) met = eventually([&] { return done == kTiles - 1; });
      if (stage == 1 && done != kTiles) met = false;
      done++;
    });
    pool.submit(job);
    job->wait();
    CHECK(met && done == kTiles + 1);
  }
}

// Longer than any spin: the others sleep too, and wake.
TEST("pool", waits_outlast_the_spin) {
  Pool pool(3);
  for (int round = 0; round < 3; round++) {
    std::atomic<int> done{0};
    auto job = std::make_shared<Work>(std::vector<int>{3, 3, 3}, [&](int, int tile, int) {
      if (tile == 1) std::this_thread::sleep_for(milliseconds(20));
      done++;
    });
    pool.submit(job);
    job->wait();
    CHECK(done == 9);
    std::this_thread::sleep_for(milliseconds(5));  // until the workers sleep between jobs
  }
}

TEST("pool", waiting_from_several_threads) {
  Pool pool(2);
  std::atomic<bool> go{false};
  auto job = std::make_shared<Work>(std::vector<int>{2}, [&](int, int, int) { CHECK(eventually([&] { return go.load(); })); });
  pool.submit(job);
  std::atomic<int> woken{0};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; i++)
    waiting.emplace_back([&] {
      job->wait();
      woken++;
    });
  CHECK(!job->over());
  go = true;
  for (auto& w : waiting) w.join();
  CHECK(woken == 3);
}

}  // namespace pagoda::test
