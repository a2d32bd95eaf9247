// The part of a random stream that an op reads.
//
// Note [Random state]. A random op takes a tensor on its device, i64 [2] = {seed, base}, and an attribute, the
//   increment: it draws the numbers of (seed, base + increment). The attribute is part of a recording's key and the
//   tensor is not, so increments must not depend on how far the stream has come. Within a SharedRandomState the first
//   draw from a generator makes the tensor, and later draws count from there: a region has one state tensor for each
//   generator, the same increments in every call, and a captured step draws new numbers when the tensor gets a new
//   base. The numbers are the same with and without it: those of the generator's next offset.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

struct RandomState {
  Tensor state;  // i64 [2]
  int64_t increment = 0;
};

// A dropout of probability p in [0, 1] keeps an element if its random word w is at least `threshold` (on integers: w,
// as a number in [0, 1), is at least p), and multiplies kept elements by `factor`.
struct DropoutRule {
  explicit DropoutRule(double p)
      : threshold(static_cast<uint32_t>(std::min(p * 0x1p32, 4294967295.0))), factor(p == 1 ? 0 : 1 / (1 - p)) {}
  uint32_t threshold;
  double factor;  // 1 / (1 - p); 0 if p is 1, as the largest word is at least any threshold
};

// Takes the generator's next offset.
RandomState next_random_state(Generator& source, Device device);

// While it lives, this thread's random ops share state tensors. Scopes nest; the innermost counts.
class SharedRandomState final : GeneratorHolder {
 public:
  SharedRandomState();
  ~SharedRandomState();
  // The next draw from each generator makes its tensor anew, and increments count from there.
  void restart() { streams_.clear(); }
  // True if the innermost scope has made the tensor for a generator; `is_state_at`: for this state of it.
  static bool is_state(const Tensor& tensor);
  static bool is_state_at(const Tensor& tensor, const GeneratorState& drawn);
  // The latest draws of the state's generator have not happened. Does nothing if the generator is gone or was set to
  // another state since.
  static void take_back(const Tensor& state, uint64_t draws);
  // A draw waits from the time that it is handed out to a recorder until the op that it is for is recorded.
  void op_recorded(std::span<const Tensor* const> operands) {
    if (!streams_.empty()) [[unlikely]]
      note_recorded(operands);
  }
  // What is recorded runs while an op's draw waits. If that throws, the draw has not happened.
  void take_back_waiting();

 private:
  friend RandomState next_random_state(Generator& source, Device device);
  void forget(const Generator& generator) noexcept override;
  struct Stream {
    Generator* source;  // null once it was destroyed
    uint64_t seed, base;
    Tensor state;
    uint64_t waiting = 0;
  };
  static Stream* stream_of(const Tensor& state);
  void note_recorded(std::span<const Tensor* const> operands);
  static void take_back(const Stream& stream, uint64_t draws);
  std::vector<Stream> streams_;
  SharedRandomState* outer_;
};

}  // namespace rondo
