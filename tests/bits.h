// Comparing tensors bit by bit, and laying one out with other strides, by plain loops over bytes: what the tests
// compare with must not run through the ops under test.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::test {

// fn(offset of an element in (sizes, strides)), in row-major order.
template <class F> void for_each_offset(const Dims& sizes, const Dims& strides, F&& fn) {
  const int64_t n = sizes.numel();
  Dims index = Dims::filled(sizes.rank(), 0);
  for (int64_t i = 0; i < n; ++i) {
    int64_t offset = 0;
    for (int d = 0; d < sizes.rank(); ++d) offset += index[d] * strides[d];
    fn(offset);
    for (int d = sizes.rank() - 1; d >= 0 && ++index[d] == sizes[d]; --d) index[d] = 0;
  }
}

inline std::string bytes_of(const Storage& storage) {
  std::string bytes(storage.bytes(), '\0');
  copy_bytes(kCPU, bytes.data(), storage.device(), storage.data(), bytes.size());
  return bytes;
}

// The elements in row-major order.
inline std::string bytes_of(const Tensor& t) {
  const size_t width = size_of(t.dtype());
  const std::string storage = bytes_of(t.storage());
  const char* data = storage.data() + t.storage_offset() * static_cast<int64_t>(width);
  std::string bytes;
  bytes.reserve(static_cast<size_t>(t.nbytes()));
  for_each_offset(t.sizes(), t.strides(),
                  [&](int64_t at) { bytes.append(data + at * static_cast<int64_t>(width), width); });
  return bytes;
}

// A tensor of the same values with these strides (of a buffer of `extent` elements, the first at `offset`). Bytes
// between the elements are 0xFF: NaN, so that reading one is seen.
inline Tensor with_strides(const Tensor& t, const Dims& strides, int64_t offset, int64_t extent) {
  const size_t width = size_of(t.dtype());
  std::string memory(static_cast<size_t>(extent) * width, '\xFF');
  const std::string bytes = bytes_of(t);
  size_t next = 0;
  for_each_offset(t.sizes(), strides, [&](int64_t at) {
    std::memcpy(memory.data() + static_cast<size_t>(offset + at) * width, bytes.data() + next, width);
    next += width;
  });
  Storage storage = Storage::allocate(memory.size(), t.device());
  copy_bytes(t.device(), storage.data(), kCPU, memory.data(), memory.size());
  return Tensor::from_storage(std::move(storage), offset, t.sizes(), strides, t.dtype());
}

inline Tensor dense_copy(const Tensor& t) {
  return with_strides(t, contiguous_strides(t.sizes()), 0, t.sizes().numel());
}

struct Layout {
  std::string name;
  Tensor tensor;
};

// The same values in every layout that a user can make: transposed, every second element, a view that starts inside its
// storage, rows with a gap; and, with values of its own, expanded along the first and along the last dimension.
inline std::vector<Layout> layouts_of(const Tensor& dense) {
  const Dims& sizes = dense.sizes();
  const int rank = sizes.rank();
  const int64_t n = sizes.numel();
  std::vector<Layout> layouts;
  layouts.push_back({"offset", with_strides(dense, contiguous_strides(sizes), 3, n + 5)});
  if (rank == 0) return layouts;
  if (rank >= 2) {
    Dims reversed;
    for (int d = rank - 1; d >= 0; --d) reversed.push_back(sizes[d]);
    const Dims steps = contiguous_strides(reversed);
    Dims strides = sizes;
    for (int d = 0; d < rank; ++d) strides[d] = steps[rank - 1 - d];
    layouts.push_back({"transposed", with_strides(dense, strides, 0, n)});
    Dims swapped = contiguous_strides(sizes);
    Dims outer = sizes;
    std::swap(outer[rank - 2], outer[rank - 1]);
    swapped = contiguous_strides(outer);
    std::swap(swapped[rank - 2], swapped[rank - 1]);
    layouts.push_back({"last two transposed", with_strides(dense, swapped, 0, n)});
    if (rank == 4) {
      const Dims last = contiguous_strides({sizes[0], sizes[2], sizes[3], sizes[1]});
      layouts.push_back({"channels last", with_strides(dense, {last[0], last[3], last[1], last[2]}, 0, n)});
      const int64_t image = last[0] + 3;  // as a part of larger images
      layouts.push_back({"channels last, with gaps",
                         with_strides(dense, {image, last[3], last[1], last[2]}, 2, image * sizes[0] + 2)});
    }
    Dims wide = sizes;
    wide[rank - 1] += 3;
    layouts.push_back({"rows with a gap", with_strides(dense, contiguous_strides(wide), 2, wide.numel() + 2)});
  }
  Dims doubled = sizes;
  doubled[rank - 1] = doubled[rank - 1] * 2 + 1;
  Dims stepped = contiguous_strides(doubled);
  stepped[rank - 1] = 2;
  layouts.push_back({"every second", with_strides(dense, stepped, 1, doubled.numel() + 1)});
  for (int d : {0, rank - 1}) {
    if (sizes[d] < 2 || n == 0 || (d != 0 && rank == 1)) continue;
    Dims kept = sizes;
    kept[d] = 1;
    const Tensor one = Tensor::from_storage(dense.storage(), dense.storage_offset(), kept, dense.strides(),
                                            dense.dtype());
    const Tensor copy = dense_copy(one);
    Dims strides = contiguous_strides(kept);
    strides[d] = 0;
    layouts.push_back({"expanded along " + std::to_string(d),
                       Tensor::from_storage(copy.storage(), 0, sizes, strides, dense.dtype())});
  }
  return layouts;
}

// Equal in every bit; any two NaNs are equal.
inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined())
    return ::testing::AssertionFailure() << (a.defined() ? "only one" : "the other") << " is defined";
  if (!a.defined()) return ::testing::AssertionSuccess();
  if (a.dtype() != b.dtype())
    return ::testing::AssertionFailure() << name_of(a.dtype()) << " and " << name_of(b.dtype());
  if (!(a.sizes() == b.sizes()))
    return ::testing::AssertionFailure() << to_string(a.sizes()) << " and " << to_string(b.sizes());
  const std::string x = bytes_of(a), y = bytes_of(b);
  if (x == y) return ::testing::AssertionSuccess();
  const size_t width = size_of(a.dtype());
  auto value = [&](const std::string& bytes, size_t i) {
    return visit_dtype(a.dtype(), [&](auto tag) {
      typename decltype(tag)::type v;
      std::memcpy(static_cast<void*>(&v), bytes.data() + i * width, width);
      return static_cast<double>(v);
    });
  };
  for (size_t i = 0; i * width < x.size(); ++i) {
    if (std::memcmp(x.data() + i * width, y.data() + i * width, width) == 0) continue;
    const double u = value(x, i), v = value(y, i);
    if (u != u && v != v) continue;
    return ::testing::AssertionFailure() << "element " << i << " of " << to_string(a.sizes()) << ": " << u << " and "
                                         << v << " differ by " << u - v;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace rondo::test
