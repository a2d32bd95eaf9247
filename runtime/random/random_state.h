// The state that a random op reads: a seed and an offset.
//
// Note [Random state]. A random op takes a state tensor on its device, i64 [2] = {seed, base}, and an attribute, the
//   increment. It draws the numbers of (seed, base + increment). The attribute is part of a recording's key, the values
//   of the tensor are not, so increments must not depend on the position in the stream. Within a SharedRandomState the
//   first draw from a generator creates the state tensor, and later draws have increments relative to its base. A
//   region thus has one state tensor for each generator and the same increments in every call, and a captured step
//   draws new numbers when the tensor gets a new base. With and without a SharedRandomState the numbers are the same:
//   those of the generator's next offset.
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

// Dropout with probability p in [0, 1]: an element is kept if its random 32-bit word is at least `threshold`, which has
// probability 1 - p. Kept elements are multiplied by `factor`.
struct DropoutRule {
  explicit DropoutRule(double p)
      : threshold(static_cast<uint32_t>(std::min(p * 0x1p32, 4294967295.0))), factor(p == 1 ? 0 : 1 / (1 - p)) {}
  uint32_t threshold;
  double factor;  // 1 / (1 - p); 0 if p is 1, because the largest random word then still reaches the threshold
};

// Returns the random state for one op: takes the generator's next offset.
RandomState next_random_state(Generator& source, Device device);

// While in scope, this thread's random ops share state tensors: Note [Random state]. Scopes nest; the innermost counts.
class SharedRandomState final : GeneratorHolder {
 public:
  SharedRandomState();
  ~SharedRandomState();
  // Forgets the state tensors: the next draw from each generator creates a new one, and its increment is 0.
  void restart() { streams_.clear(); }
  // True if `tensor` is a state tensor of the innermost scope. is_state_at() is true only if, in addition, the seed and
  // the base of its stream are those of `drawn`.
  static bool is_state(const Tensor& tensor);
  static bool is_state_at(const Tensor& tensor, const GeneratorState& drawn);
  // Undoes the latest `draws` draws from the generator of `state`. Does nothing if the generator was destroyed since,
  // or set to another state.
  static void take_back(const Tensor& state, uint64_t draws);
  // Under a recorder, a draw is "waiting" until the op that uses it is recorded. This function ends the wait of draws
  // whose state tensor is among `operands`.
  void op_recorded(std::span<const Tensor* const> operands) {
    if (!streams_.empty()) [[unlikely]]
      note_recorded(operands);
  }
  // Undoes the waiting draws. Call it if the recorded ops run and throw while the draw of an op is still waiting.
  void take_back_waiting();

 private:
  friend RandomState next_random_state(Generator& source, Device device);
  void forget(const Generator& generator) noexcept override;
  struct Stream {
    Generator* source;  // null after it was destroyed
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
