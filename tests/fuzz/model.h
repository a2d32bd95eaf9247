// A random program as modules, as a user would write them: blocks with parameters, a stack of blocks, functions inside.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

// The values of a program while its steps run.
class Interpreter {
 public:
  int64_t batch = 5, counter = 0;
  bool training = true;
  bool anneals = false;  // scalars shrink with the counter
  bool wild = false;     // ... and are no usual numbers in odd steps
  std::vector<Tensor> kept, retained;
  int64_t hook_calls = 0;
  rondo::Generator generator{99};

  void bind(ValueId id, Tensor tensor) { values_[id] = std::move(tensor); }
  const Tensor& value(ValueId id) const;
  bool has(ValueId id) const { return values_.contains(id); }
  void release(ValueId id) { values_.erase(id); }
  void clear() { values_.clear(); }
  // Both throw what the ops throw. `run` minds the step's condition and binds its results.
  void run(const Step& step);
  std::vector<Tensor> call(const Step& step, int64_t times = 1);

 private:
  std::map<ValueId, Tensor> values_;
};

uint64_t mix(uint64_t a, uint64_t b);
// Values of a leaf, in f64.
std::vector<double> numbers(const Leaf& leaf, int64_t n, uint64_t seed);
// The same, each moved by at most this much of itself, to see what depends on it.
std::vector<double> perturbed(std::vector<double> values, double perturbation, uint64_t seed);
// The tensor of an input or parameter; the same for the same arguments.
Tensor make_leaf(const Program& program, const Leaf& leaf, int64_t batch, uint64_t salt, double perturbation = 0);

// The state that the blocks of one run share.
struct Scenery {
  Scenery(const Program& program, double perturbation);

  const Program& program;
  const double perturbation;
  Interpreter machine;
  std::map<ValueId, Tensor> inputs;  // of this call
  ValueId first_input = kNone;       // what a stack hands from block to block
  std::map<ValueId, size_t> last_use;
  const Tensor nothing = Tensor::zeros({1});
  // Parts of the program that are functions of their own, by Step::part - 1. They find their operands by themselves, as
  // a lambda does, and in `range` the steps to run.
  std::vector<std::function<void(const Tensor&)>> parts;
  std::pair<size_t, size_t> range;

  // Steps [begin, end), which lie in part `within` or in parts of it.
  void run_steps(size_t begin, size_t end, int within);
};

// One copy of the program, with parameters of its own.
struct Block : nn::Module<Block> {
  Block(Scenery* scenery);
  // As forward, through the call operator.
  std::vector<Tensor> call(const Tensor& first);

  // Finds its inputs in the scenery, but for the first one.
  std::vector<Tensor> forward(const Tensor& first);
  // A function of its arguments and nothing else, with one result (Program::as_function).
  Tensor forward(const Tensor& a, const Tensor& b) { return apply({&a, &b}); }
  Tensor forward(const Tensor& a, const Tensor& b, const Tensor& c) { return apply({&a, &b, &c}); }
  Tensor forward(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d) { return apply({&a, &b, &c, &d}); }

  Scenery& scenery;
  std::map<ValueId, Tensor*> lasting;  // parameters and buffers

 private:
  std::vector<Tensor> run();
  Tensor apply(const std::vector<const Tensor*>& arguments);
};

// Program::layers blocks, one after the other.
struct Stack : nn::Module<Stack> {
  explicit Stack(Scenery* scenery);
  std::vector<Tensor> forward(const Tensor& first);

  Scenery& scenery;
  nn::ModuleList<Block> h;
};

// Inputs of a block that takes them as arguments.
inline constexpr size_t kMaxArguments = 4;
bool takes_arguments(const Program& program);

}  // namespace rondo::fuzz
