// The kinds of steps of a random program: for each kind, how to choose its operands and how to run it. To add one: a
// line in the table of its family's file.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "rondo/runtime/random/random.h"
#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

// The state that a step sees while it runs.
struct Scene {
  const Step& step;
  std::vector<Tensor> in;
  int64_t batch;
  int64_t counter;  // training steps so far
  bool training;
  // Side effects on the test's own state.
  std::vector<Tensor>& kept;      // escapes from forward
  std::vector<Tensor>& retained;  // whose gradient is compared too
  int64_t& hook_calls;
  Generator& generator;  // of the run, besides the default one

  Dims sizes() const { return concrete(step.sizes, batch); }
  int64_t n(size_t i) const { return step.ints[i]; }
  // A dimension, an index or a bound that was chosen at another batch size.
  int64_t dim(size_t i) const { return step.ints[i]; }
};

// A program while it grows: its values so far, run eagerly.
class Draft {
 public:
  Random& random;
  explicit Draft(Random& random) : random(random) {}
  virtual ~Draft() = default;
  virtual const Tensor& tensor(ValueId id) const = 0;
  // A value that fulfils `fits`, more often a late one; kNone if there is none.
  virtual ValueId value(const std::function<bool(const Tensor&)>& fits) = 0;
  // A leaf of these sizes, new or one that is there; a parameter if it can be one and `weight` asks for it.
  virtual ValueId leaf(DType dtype, const Dims& sizes, bool weight) = 0;
  // A buffer of these sizes, new or one that is there: what the block keeps from call to call.
  virtual ValueId state(DType dtype, const Dims& sizes) = 0;
  // Integers in [0, bound).
  virtual ValueId indices(const Dims& sizes, int64_t bound) = 0;
  // Sizes with multiples of the batch size coded as such.
  virtual Dims coded(const Dims& sizes) const = 0;

  ValueId floating();
  ValueId floating(int min_rank);
  // A value that broadcasts with `id` and has its dtype, or, now and then, any floating dtype.
  ValueId partner(ValueId id);
};

enum StepFlags : unsigned {
  kEffect = 1,   // on something besides its results: never dropped as unused
  kSizes = 2,    // takes Step::sizes
  kScalar = 4,   // takes Step::scalar
  kInPlace = 8,  // writes to operand 0
  kReads = 16,   // the value of operand 1, as it is: nothing is recorded where that is an argument
  kCounts = 32,  // takes the number of the training step, which no argument tells
  kMerges = 64,  // a product for each step of a loop, which default mode may merge (transform/merge_products.cc)
  // What a region may break for (breaks.h).
  kOwnMemory = 128,  // writes memory that it made itself
  kHost = 256,       // reads or writes values on the host
  kTape = 512,       // watches gradients, or goes backward
  kOwnNode = 1024,   // makes a tape node of its own
  kImages = 2048,    // makes an image, whose layout default mode may choose (transform/lay_out.h)
};
struct StepKind {
  const char* name;
  int weight;  // how often it is drawn
  // Fills in operands and numbers; false if nothing fits.
  bool (*pick)(Draft&, Step&);
  std::vector<Tensor> (*run)(Scene&);
  unsigned flags = 0;
  bool has(StepFlags flag) const { return (flags & flag) != 0; }
};

std::span<const StepKind> pointwise_steps();
std::span<const StepKind> shape_steps();
std::span<const StepKind> layer_steps();
std::span<const StepKind> index_steps();
std::span<const StepKind> loop_steps();
std::span<const StepKind> write_steps();
std::span<const StepKind> node_steps();
std::span<const StepKind> effect_steps();
// All of these, in this order.
std::vector<const StepKind*> all_steps();

}  // namespace rondo::fuzz
