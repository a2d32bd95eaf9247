#include "rondo/runtime/data/function_batches.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::data {

FunctionBatches::FunctionBatches(int64_t size, Make make) : size_(size), make_(std::move(make)) {
  if (size < 0) throw Error(absl::StrCat("FunctionBatches: an epoch of ", size, " batches"));
  if (make_ == nullptr) throw Error("FunctionBatches: the function is empty");
}

std::optional<Batch> FunctionBatches::next() {
  if (position_.batch >= size_) {
    position_ = {position_.epoch + 1, 0};
    return std::nullopt;
  }
  const Position now = position_;
  ++position_.batch;
  return make_(now);
}

void FunctionBatches::seek(Position position) {
  if (position.epoch < 0 || position.batch < 0 || position.batch > size_)
    throw Error(
        absl::StrCat("FunctionBatches::seek: epoch ", position.epoch, ", batch ", position.batch, " of ", size_));
  position_ = position;
}

}  // namespace rondo::data
