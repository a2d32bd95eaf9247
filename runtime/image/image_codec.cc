#include "rondo/runtime/image/image_codec.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::io {

ImageBudget::ImageBudget(std::string name, int64_t max_bytes)
    : name_(std::move(name)),
      max_bytes_(std::clamp<int64_t>(max_bytes, 0, std::numeric_limits<int64_t>::max() / 4)),
      max_work_(2 * max_bytes_) {}

void ImageBudget::take(size_t bytes) {
  if (bytes > static_cast<size_t>(max_bytes_ - bytes_))
    throw FileError(name_, absl::StrCat("decoding the image takes more memory than max_bytes = ", max_bytes_));
  bytes_ += static_cast<int64_t>(bytes);
  most_bytes_ = std::max(most_bytes_, bytes_);
}

void ImageBudget::work(uint64_t units) {
  if (units > static_cast<uint64_t>(max_work_ - work_))
    throw FileError(name_, absl::StrCat("decoding the image takes more work than max_bytes = ", max_bytes_,
                                        " allows (ReadImageOptions in image.h)"));
  work_ += static_cast<int64_t>(units);
}

// The size of a block is stored before it, because the libraries do not pass the size when they free a block.
void* ImageBudget::allocate(size_t bytes) {
  take(bytes);
  std::byte* block = nullptr;
  try {
    block = static_cast<std::byte*>(allocator::allocate(bytes + kAlignment));
  } catch (...) {
    bytes_ -= static_cast<int64_t>(bytes);
    throw;
  }
  std::memcpy(block, &bytes, sizeof(bytes));
  return block + kAlignment;
}

void ImageBudget::deallocate(void* data) noexcept {
  if (data == nullptr) return;
  std::byte* const block = static_cast<std::byte*>(data) - kAlignment;
  size_t bytes = 0;
  std::memcpy(&bytes, block, sizeof(bytes));
  allocator::deallocate(block, bytes + kAlignment);
  bytes_ -= static_cast<int64_t>(bytes);
}

std::string_view ImageBytes::front() {
  if (!front_.empty() || at_ == size_) return front_;
  const size_t count = static_cast<size_t>(std::min<uint64_t>(kPiece, size_ - at_));
  if (file_ != nullptr) {
    file_->read(at_, piece_.data(), count);
    front_ = {piece_.data(), count};
  } else {
    front_ = memory_.substr(static_cast<size_t>(at_), count);
  }
  at_ += count;
  return front_;
}

void ImageBytes::drop(size_t count) { front_.remove_prefix(count); }

void ImageDecoder::fail(const char* format, const char* text) const {
  if (thrown_) std::rethrow_exception(thrown_);
  throw FileError(budget_.name(), absl::StrCat("not a whole ", format, " file: ", text));
}

}  // namespace rondo::io
