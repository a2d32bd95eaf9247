// A Dataset is anything with a length and an item per index.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::data {

// Override one of the two get(); `using Dataset::get;` keeps the other one in sight. Item `index` of [0, size()) is one
// or more tensors, of the same count, shapes and dtypes for every index if items are to be batched. Called from several
// threads at once when a DataLoader has workers.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // An item that depends on `index` alone.
  virtual std::vector<Tensor> get(int64_t index) const;
  // An item that draws random numbers, such as a crop: from `random` alone. A DataLoader passes a generator that is
  // seeded by its own seed, the epoch and the index, so that an item differs from epoch to epoch and is the same for
  // any number of workers and after resume. Default: get(index).
  virtual std::vector<Tensor> get(int64_t index, Generator& random) const;
};

}  // namespace rondo::data
#pragma GCC visibility pop
