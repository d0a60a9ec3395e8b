// Memory behind the pages of all KV groups: one region for each layer, committed when made.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace pagoda {

// Without layers, a group's pages are numbers only.
struct GroupShape {
  int layers, heads, dim, pages;
};

class KVStore : public std::enable_shared_from_this<KVStore> {
 public:
  // Throws std::bad_alloc if the memory cannot be had. The pool, if there is one, helps to commit it.
  KVStore(std::vector<GroupShape> groups, int slots, KVFormat format, Pool* pool = nullptr);
  KVStore(const KVStore&) = delete;
  const KVPages& layer(int group, int layer) const { return layers_.at(size_t(group)).at(size_t(layer)); }
  int pages(int group) const { return groups_.at(size_t(group)).pages; }
  int groups() const { return int(groups_.size()); }
  int slots() const { return slots_; }  // of a page
  size_t bytes() const { return bytes_; }
  // The first `slots` slots of a page to another, in every layer.
  void copy(int group, int source, int target, int slots);
  // One page of every group, all layers: its bytes as they stand, `unit_bytes` of them.
  size_t unit_bytes() const;
  void read(const std::vector<int>& unit, uint8_t* to) const;
  void write(const std::vector<int>& unit, const uint8_t* from);
  // Throws std::invalid_argument unless there is a page of each group.
  void check_unit(const std::vector<int>& unit) const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(uint8_t* p) const;
  };
  std::vector<GroupShape> groups_;
  int slots_;
  std::vector<std::vector<KVPages>> layers_;
  std::vector<std::unique_ptr<uint8_t, Unmap>> memory_;
  size_t bytes_ = 0;
};

}  // namespace pagoda
