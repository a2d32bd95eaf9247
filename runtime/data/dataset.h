// A Dataset is anything with a length and an item per index.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::data {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Item `index` of [0, size()): one or more tensors, of the same count, shapes and dtypes for every index if items are
  // to be batched. Called from several threads at once when a DataLoader has workers; must depend on `index` alone.
  virtual std::vector<Tensor> get(int64_t index) const = 0;
};

}  // namespace rondo::data
#pragma GCC visibility pop
