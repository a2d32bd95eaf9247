#include "rondo/runtime/data/dataset.h"

namespace rondo::data {

std::vector<Tensor> Dataset::get(int64_t) const {
  throw Error(
      "Dataset::get(index): this dataset overrides neither get(index) nor, for callers that bring a generator, "
      "get(index, generator)");
}
std::vector<Tensor> Dataset::get(int64_t index, Generator&) const { return get(index); }

}  // namespace rondo::data
