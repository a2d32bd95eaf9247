// Dims: the sizes or the strides of a tensor. At most kMaxRank numbers, stored inline.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <span>
#include <string>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo {

inline constexpr int kMaxRank = 8;

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> values) { assign(values.begin(), static_cast<int>(values.size())); }
  explicit Dims(std::span<const int64_t> values) { assign(values.data(), static_cast<int>(values.size())); }
  static Dims filled(int rank, int64_t value) {
    Dims dims;
    for (int i = 0; i < rank; ++i) dims.push_back(value);
    return dims;
  }

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t& operator[](int i) { return values_[i]; }
  int64_t back() const { return values_[rank_ - 1]; }
  const int64_t* begin() const { return values_; }
  const int64_t* end() const { return values_ + rank_; }
  int64_t* begin() { return values_; }
  int64_t* end() { return values_ + rank_; }
  void push_back(int64_t value) {
    if (rank_ == kMaxRank) throw Error("a tensor has at most 8 dimensions");
    values_[rank_++] = value;
  }
  void insert(int at, int64_t value) {
    push_back(value);
    std::rotate(begin() + at, end() - 1, end());
  }
  void erase(int at) {
    std::copy(begin() + at + 1, end(), begin() + at);
    --rank_;
  }
  // Returns the product of all sizes; 1 for rank 0.
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : *this) n *= d;
    return n;
  }
  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)  // std::equal would call memcmp: too much for a few numbers
      if (a.values_[i] != b.values_[i]) return false;
    return true;
  }
  operator std::span<const int64_t>() const { return {values_, static_cast<size_t>(rank_)}; }

 private:
  void assign(const int64_t* values, int n) {
    if (n > kMaxRank) throw Error("a tensor has at most 8 dimensions");
    std::copy(values, values + n, values_);
    rank_ = n;
  }
  int64_t values_[kMaxRank] = {};
  int32_t rank_ = 0;
};

// The dimensions that a reduction reduces: one number or a list. An empty list means all dimensions.
//   sum(x)   sum(x, 1)   sum(x, {0, -1})
class ReduceDims {
 public:
  ReduceDims() = default;
  template <std::integral T>
  requires(!std::same_as<T, bool>)  // sum(x, true) is a misplaced keepdim
      ReduceDims(T dim)
      : dims_{static_cast<int64_t>(dim)} {}
  ReduceDims(std::initializer_list<int64_t> dims) : dims_(dims) {}
  ReduceDims(const Dims& dims) : dims_(dims) {}
  operator const Dims&() const { return dims_; }

 private:
  Dims dims_;
};

// Returns the numbers as text: "[8, 512, 64]".
std::string to_string(const Dims& dims);

// Returns the number of elements, or -1 if a size is negative or the product does not fit into 62 bits.
inline int64_t checked_numel(const Dims& sizes) {
  int64_t n = 1;
  bool overflows = false, empty = false;
  for (int64_t d : sizes) {
    if (d < 0) return -1;
    empty = empty || d == 0;
    overflows = overflows || __builtin_mul_overflow(n, d, &n) || n >= int64_t{1} << 62;
  }
  return empty ? 0 : overflows ? -1 : n;
}

// Returns the strides, in elements, of a dense row-major tensor. They wrap around if the number of elements overflows;
// allocation refuses such a tensor.
inline Dims contiguous_strides(const Dims& sizes) {
  Dims strides = sizes;
  uint64_t step = 1;
  for (int i = sizes.rank() - 1; i >= 0; --i) {
    strides[i] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(std::max<int64_t>(sizes[i], 1));
  }
  return strides;
}

// True if (sizes, strides) is dense and row-major. The stride of a dimension of size 1 does not matter.
inline bool is_contiguous(const Dims& sizes, const Dims& strides) {
  int64_t step = 1;
  for (int i = sizes.rank() - 1; i >= 0; --i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

// Returns `dim` as a number from 0: -1 is the last dimension. A scalar counts as one dimension, so rank 0 takes -1, 0.
// Throws Error "op: dimension 3 is out of range for [2, 4]".
int normalize_dim(const char* op, int64_t dim, const Dims& sizes, std::source_location where);
// Like the function above, for a known rank but unknown sizes: the message gives the number of dimensions.
int normalize_dim(const char* op, int64_t dim, int rank, std::source_location where);

// Sets `out` to the shape that `a` and `b` broadcast to, by NumPy's rules. Returns false if they do not broadcast.
bool broadcast_shapes(const Dims& a, const Dims& b, Dims& out);

// Returns the strides that read a tensor of (sizes, strides) as if broadcast to `to`: 0 in each broadcast dimension.
Dims broadcast_strides(const Dims& sizes, const Dims& strides, const Dims& to);

}  // namespace rondo
#pragma GCC visibility pop
