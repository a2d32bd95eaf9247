// Dataset: the interface of data with a length and one item for each index.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::data {

// Override one of the two get(); `using Dataset::get;` keeps the other one visible. An item, with index in [0, size()),
// is one or more tensors. To be batched, all items must have the same number of tensors with the same shapes and
// dtypes. The workers of a DataLoader call get() from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Returns an item that depends only on `index`.
  virtual std::vector<Tensor> get(int64_t index) const;
  // Returns an item with random parts, such as a crop. It must draw only from `random`, which a DataLoader seeds by its
  // own seed, the epoch and the index. So an item differs from epoch to epoch, and is the same for any number of
  // workers and after a resume. Default: get(index).
  virtual std::vector<Tensor> get(int64_t index, Generator& random) const;
};

}  // namespace rondo::data
#pragma GCC visibility pop
