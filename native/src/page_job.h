// Pages copied out of a KV store and into it, as a job of the pool: in order with the steps before and after it.
#pragma once

#include <memory>
#include <vector>

#include "kv_store.h"
#include "pool.h"

namespace pagoda {

struct PageMove {
  std::vector<int> unit;       // a page of each group
  std::vector<uint8_t> bytes;  // what is loaded; what was saved
};

// First all saves, then all loads: a page may be saved and loaded anew in one job. No page is loaded twice.
class PageJob : public Job {
 public:
  PageJob(std::shared_ptr<KVStore> kv, std::vector<PageMove> saves, std::vector<PageMove> loads)
      : kv_(std::move(kv)), saves_(std::move(saves)), loads_(std::move(loads)) {
    for (auto& save : saves_) kv_->check_unit(save.unit);
    for (const auto& load : loads_) {
      kv_->check_unit(load.unit);
      if (load.bytes.size() != kv_->unit_bytes()) throw std::invalid_argument("a page to be loaded has another size");
    }
  }
  std::vector<int> stages() override { return {int(saves_.size()), int(loads_.size())}; }
  void run(int stage, int tile, int) override {
    if (stage == 1) return kv_->write(loads_[size_t(tile)].unit, loads_[size_t(tile)].bytes.data());
    PageMove& save = saves_[size_t(tile)];
    save.bytes.resize(kv_->unit_bytes());
    kv_->read(save.unit, save.bytes.data());
  }
  std::vector<PageMove>& saves() { return saves_; }

 private:
  std::shared_ptr<KVStore> kv_;
  std::vector<PageMove> saves_, loads_;
};

}  // namespace pagoda
