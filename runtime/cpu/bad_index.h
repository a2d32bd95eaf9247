// Errors for indices out of range. A kernel neither reads nor writes at a bad index. The error depends only on the
// index, its position and the call, so it is the same for any number of threads, and for kernels that check before they
// run or while they run.
#pragma once

#include <mutex>
#include <optional>

#include "rondo/runtime/op/op.h"

namespace rondo::cpu {

// Throws Error, with the position of the first bad index and the caller's line, unless all values of the dense i64
// tensor `indices` are in [0, size) or equal `allowed`.
void require_indices(const KernelContext& context, const Tensor& indices, int64_t size,
                     std::optional<int64_t> allowed = std::nullopt);

// An i64 tensor of indices.
struct Indices {
  const int64_t* data;
  const Dims &sizes, &strides;
};
// Throws Error for the first index, in row-major order, that is not in [0, size). `at_position`: the message also gives
// the index's position in that order.
void require_in_range(const char* op, const Indices& indices, int64_t size, bool at_position,
                      std::source_location where);
// Throws the same error for indices that are known to contain a bad one.
[[noreturn]] void throw_bad_index(const char* op, const Tensor& indices, int64_t size, bool at_position,
                                  std::source_location where);

// Collects the bad index with the smallest position among those that the threads of one kernel find.
//
//   BadIndex bad(size);
//   parallel_for(... if (bad.is(k, at)) continue; ...);
//   bad.check(context);
class BadIndex {
 public:
  explicit BadIndex(int64_t size) : size_(size) {}
  // If `index` is out of range, records it and returns true. `position`: its position in the memory of its tensor.
  bool is(int64_t index, int64_t position) {
    if (static_cast<uint64_t>(index) < static_cast<uint64_t>(size_)) [[likely]]
      return false;
    note(index, position);
    return true;
  }
  void check(const KernelContext& context) const;  // throws Error if there was a bad index

 private:
  void note(int64_t index, int64_t position);
  int64_t size_;
  std::mutex mutex_;  // guards the members below
  std::optional<int64_t> position_;
  int64_t index_ = 0;
};

}  // namespace rondo::cpu
