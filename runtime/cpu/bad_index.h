// Indices out of range. A kernel neither reads nor writes there; the error follows from the index, its position and the
// call, so it is the same for any number of threads, now or later.
#pragma once

#include <mutex>
#include <optional>

#include "rondo/runtime/op/op.h"

namespace rondo::cpu {

// Throws Error, with its position and the caller's line, unless all of dense i64 `indices` are in [0, size), or
// `allowed`.
void require_indices(const KernelContext& context, const Tensor& indices, int64_t size,
                     std::optional<int64_t> allowed = std::nullopt);

// A tensor of indices, i64.
struct Indices {
  const int64_t* data;
  const Dims &sizes, &strides;
};
// Throws the Error of the first one, in the order of the tensor, that is not in [0, size). `at_position`: with its
// position in that order.
void require_in_range(const char* op, const Indices& indices, int64_t size, bool at_position,
                      std::source_location where);
// The same, where there is one.
[[noreturn]] void throw_bad_index(const char* op, const Tensor& indices, int64_t size, bool at_position,
                                  std::source_location where);

// The first bad index that the threads of one kernel find.
//
//   BadIndex bad(size);
//   parallel_for(... if (bad.is(k, at)) continue; ...);
//   bad.check(context);
class BadIndex {
 public:
  explicit BadIndex(int64_t size) : size_(size) {}
  // True, and noted, if `index` is out of range. `position`: where it lies in its tensor's memory.
  bool is(int64_t index, int64_t position) {
    if (static_cast<uint64_t>(index) < static_cast<uint64_t>(size_)) [[likely]]
      return false;
    note(index, position);
    return true;
  }
  void check(const KernelContext& context) const;  // throws Error if there was one

 private:
  void note(int64_t index, int64_t position);
  int64_t size_;
  std::mutex mutex_;  // of those below
  std::optional<int64_t> position_;
  int64_t index_ = 0;
};

}  // namespace rondo::cpu
