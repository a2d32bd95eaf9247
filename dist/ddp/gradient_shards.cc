#include "rondo/dist/ddp/gradient_shards.h"

#include <algorithm>

namespace rondo::dist {
namespace {

int64_t aligned(int64_t numel) { return (numel + kShardAlign - 1) / kShardAlign * kShardAlign; }

}  // namespace

ShardLayout lay_out_shards(const Bucket& bucket, std::vector<int64_t>& load) {
  const auto world_size = static_cast<int64_t>(load.size());
  ShardLayout layout;
  layout.spans.resize(bucket.slots.size());
  std::vector<int64_t> fill(load.size());
  // First places the parameters that must be whole, the largest first.
  std::vector<size_t> whole;
  int64_t total = 0;
  for (size_t k = 0; k < bucket.slots.size(); ++k) {
    total += aligned(bucket.slots[k].numel);
    if (bucket.slots[k].in_one_row) whole.push_back(k);
  }
  std::stable_sort(whole.begin(), whole.end(),
                   [&](size_t a, size_t b) { return bucket.slots[a].numel > bucket.slots[b].numel; });
  for (const size_t k : whole) {
    const auto rank = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    const int64_t numel = bucket.slots[k].numel;
    layout.spans[k].push_back({static_cast<int>(rank), fill[rank], 0, numel});
    fill[rank] += aligned(numel);
    load[rank] += numel;
  }
  layout.row = std::max(aligned((total + world_size - 1) / world_size), *std::max_element(fill.begin(), fill.end()));
  // The other parameters fill the rows, one row after the other.
  size_t rank = 0;
  for (size_t k = 0; k < bucket.slots.size(); ++k) {
    if (bucket.slots[k].in_one_row) continue;
    const int64_t numel = bucket.slots[k].numel;
    int64_t begin = 0;
    do {
      while (fill[rank] == layout.row && rank + 1 < load.size()) ++rank;
      const int64_t taken = std::min(numel - begin, layout.row - fill[rank]);
      layout.spans[k].push_back({static_cast<int>(rank), fill[rank], begin, taken});
      fill[rank] += aligned(taken);
      load[rank] += taken;
      begin += taken;
    } while (begin < numel);
  }
  return layout;
}

}  // namespace rondo::dist
