#include "rondo/runtime/data/packing.h"

#include <algorithm>
#include <functional>
#include <map>

namespace rondo::data {

std::vector<std::vector<int64_t>> pack_best_fit(std::vector<int64_t> lengths, int64_t columns) {
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  std::vector<std::vector<int64_t>> rows;
  std::map<int64_t, std::vector<size_t>> open;  // rows that are not full, by the number of their free columns
  for (const int64_t length : lengths) {
    const auto best = open.lower_bound(length);
    size_t row = rows.size();
    int64_t free = columns;
    if (best == open.end()) {
      rows.emplace_back();
    } else {
      free = best->first;
      row = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    }
    rows[row].push_back(length);
    if (free > length) open[free - length].push_back(row);
  }
  return rows;
}

}  // namespace rondo::data
