// Temporaries of a kernel.   Scratch<float> scratch(n + m);  float *a = scratch.take(n), *b = scratch.take(m);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rondo/runtime/base/per_thread.h"

namespace rondo::cpu {

// Temporary buffers of one thread, cut from one block of memory. The block grows as needed, and every call reuses it.
template <class A> class Scratch {
 public:
  explicit Scratch(int64_t count) {
    const size_t lines = count * sizeof(A) / sizeof(Line) + kMaxBuffers;
    std::vector<Line>* const kept = PerThread<std::vector<Line>>::get();
    std::vector<Line>& block = kept != nullptr ? *kept : own_;
    if (block.size() < lines) block = std::vector<Line>(lines);
    next_ = block.data();
  }
  // Returns memory for `count` elements, aligned to a cache line. Its values are unspecified.
  template <class E = A> E* take(int64_t count) {
    static_assert(sizeof(E) == sizeof(A));
    E* buffer = reinterpret_cast<E*>(next_);
    next_ += (count * sizeof(A) + sizeof(Line) - 1) / sizeof(Line);
    return buffer;
  }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  static constexpr int kMaxBuffers = 24;
  std::vector<Line> own_;  // used while the thread ends, after its block was destroyed
  Line* next_;
};

}  // namespace rondo::cpu
