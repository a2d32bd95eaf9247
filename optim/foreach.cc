#include "rondo/optim/foreach.h"

#include "rondo/runtime/parallel.h"

namespace rondo::optim {

void parallel_for_each(std::span<const int64_t> sizes, absl::FunctionRef<void(size_t, int64_t, int64_t)> fn) {
  std::vector<int64_t> ends;  // ends[i]: elements of the tensors up to and with i
  ends.reserve(sizes.size());
  int64_t total = 0;
  for (int64_t size : sizes) ends.push_back(total += size);
  parallel_for(total, kForeachGrain, [&](int64_t begin, int64_t end) {
    size_t i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    for (; begin < end; ++i) {
      const int64_t start = ends[i] - sizes[i], stop = std::min(end, ends[i]);
      if (begin < stop) fn(i, begin - start, stop - start);
      begin = std::max(begin, stop);
    }
  });
}

}  // namespace rondo::optim
