// A random program as plain data: leaves, a list of steps, outputs, and how it is used. START HERE for the fuzzer; then
// steps.h (what a step can be), generate.h (making one), run.h (running it), differential.h (compiled against eager),
// shrink.h.
//
// A program is concrete: every step names its operands and numbers, so that deleting one leaves the others as they
// were. Sizes are plain numbers, except that a negative size -k stands for k times the batch size, which a run chooses:
// one program runs at several sizes of its leading dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::fuzz {

struct StepKind;

// Values are named once and for all; names of deleted ones are not used again.
using ValueId = int;
inline constexpr ValueId kNone = -1;

struct Meta {
  DType dtype = kF32;
  Dims sizes;  // -k: k times the batch size
};
Dims concrete(const Dims& sizes, int64_t batch);

// The values that a leaf is filled with.
enum class Fill {
  kNormal,
  kHalves,
  kPositive,
  kSpecial
};  // halves have ties; special has infinities, NaN, -0, subnormals
enum class Layout { kDense, kTransposed, kEverySecond, kOffset, kExpanded };
// What a leaf shows of the tensor of another one. kUnwatched: a view that was made under no_grad.
enum class Look { kAsItIs, kAll, kFlat, kTransposed, kFirst, kRest, kEverySecond, kExpanded, kDetached, kUnwatched };
inline constexpr int kLooks = 10;
// The view; undefined if the tensor has none of this kind.
Tensor look_at(const Tensor& base, Look look);
inline constexpr unsigned kEveryCall = 0xFF;

struct Leaf {
  enum class Role {
    kInput,    // another tensor in every call
    kOutside,  // a tensor that forward finds elsewhere; rebound in every second step
    kParameter,
    kBuffer,  // keeps what is written into it
  };
  ValueId id = kNone;
  Role role = Role::kInput;
  Meta meta;
  bool requires_grad = false;
  bool computed =
      false;          // inputs: the result of an op outside the region, so that it has a history and may be written to
  int64_t bound = 0;  // integers are below this
  Fill fill = Fill::kNormal;
  Layout layout = Layout::kDense;
  std::optional<DType> drawn_in;  // its numbers are rounded to this dtype first
  // The tensor of another leaf of the same role: tied weights, an input passed twice, a tensor and its view.
  ValueId same_as = kNone;
  int64_t overlap = -1;         // with same_as: another handle to its memory, this many elements further on
  Look look = Look::kAsItIs;    // with same_as: what it shows of the other tensor
  unsigned calls = kEveryCall;  // with same_as: bit i % 8: in call i, else it has memory of its own. Inputs only
  bool is_same_in(size_t call) const { return same_as != kNone && (calls >> call % 8 & 1) != 0; }
};

struct Step {
  // Whether it runs.
  enum class When {
    kAlways,
    kOddSteps,  // a C++ `if` on the step counter; else the result is operand 0
    kRepeated,  // 1 + counter % 3 times, each on the result of the last
  };
  const StepKind* kind = nullptr;
  std::vector<ValueId> in;  // kNone: an optional operand that is absent
  std::vector<int64_t> ints;
  Dims sizes;  // batch sizes coded as in Meta
  double scalar = 0;
  std::vector<ValueId> out;
  std::vector<Meta> metas;  // of `out`
  When when = When::kAlways;
  bool no_grad = false;
  bool autocast = false;  // to bf16
  int part = 0;           // 0: forward itself; else inside parts[part - 1], with its neighbours of the same part
};

// A function of its own that forward calls.
struct Part {
  int parent = 0;  // as Step::part
  bool compiled = true;
};

struct Program {
  uint64_t seed = 0;  // of the data, and the name of the program
  std::vector<Leaf> leaves;
  std::vector<Step> steps;
  std::vector<ValueId> outputs;
  std::vector<Part> parts;
  int layers = 1;            // blocks, each this program with parameters of its own
  bool tie_layers = false;   // blocks share every second parameter
  bool as_function = false;  // a block is a function of its arguments that returns a tensor: it may be replayed

  // Use: one training step for each batch size.
  std::vector<int64_t> batches = {5};
  int calls = 1;               // before one backward
  bool chained = false;        // a later call or layer takes what an earlier one returned, where it fits
  bool optimise = false;       // parameters change between steps
  bool flip_training = false;  // every second step in eval mode
  bool freeze = false;         // every second step without gradients for the first parameter
  bool few_gradients = false;  // not every output is used
  bool accumulate = false;     // gradients are cleared in every second step only
  bool inference = false;      // every second step under no_grad
  bool autocast = false;       // to bf16, in all steps but the second
  bool flip_leaves = false;    // computed inputs are leaves in every second step
  bool overwrite = false;      // computed inputs are overwritten between the calls and the backward
  // So is every second one of the results, as a whole or in part.
  enum class OverwriteResults {
    kNo,
    kNoGrad,
    kWithGrad,
    kPartNoGrad,
    kPartWithGrad
  } overwrite_results = OverwriteResults::kNo;
  bool anneal = false;   // scalars change in each step
  bool wild = false;     // ... and are NaN, infinite, huge, tiny or -0 in every second one
  bool threads = false;  // compiled code runs with another number of threads in each step
  bool watch = false;    // hooks and retained gradients on what forward returns
  // kCreateGraph: gradients of the gradients.
  enum class Backward { kOnce, kEveryCall, kTwice, kCreateGraph } backward = Backward::kOnce;
  enum class Compiled { kModel, kBlocks, kBoth, kParts } compiled = Compiled::kModel;  // besides the parts
  compile::CompileOptions options;                                                     // besides `exact`

  // By the dtypes that the program was made with, so that its version in f64 chains the same values.
  bool may_chain(ValueId from, ValueId to) const;
  const Leaf* leaf(ValueId id) const;
  const Step* producer(ValueId id) const;
  // The part right below `within` in which `part` lies; 0: none, `part` is `within`.
  int part_inside(int part, int within) const;
};

// Readable, one line a step.
std::string to_string(const Program& program);

// Drops steps without effects whose results nobody uses, and leaves that nobody reads.
void drop_unused(Program& program);

// False if a step knows the batch size although no argument of the block has it: then the block is no function of its
// arguments.
bool batch_is_in_arguments(const Program& program);

// SplitMix64 (Steele, Lea and Flood, 2014): the same programs on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(scramble(seed)) {}  // else neighbouring seeds would give shifted sequences
  uint64_t next() { return scramble(state_ += 0x9E3779B97F4A7C15u); }
  // In [0, n).
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }
  double uniform(double low, double high) { return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1p-53); }
  template <class T> const T& pick(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }

 private:
  static uint64_t scramble(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  uint64_t state_;
};

}  // namespace rondo::fuzz
