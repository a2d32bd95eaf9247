#include "rondo/compile/warm_up.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/cache.h"
#include "rondo/compile/region/marks.h"
#include "rondo/compile/region/stashed_gradients.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace rondo::compile {
namespace {

constexpr size_t kMostSteps = 1024;

// Dimensions of inputs that vary together.
struct Variable {
  int64_t size;
  DynamicRange range;
  std::vector<std::pair<size_t, int>> dims;  // index of the input, dimension
};

std::vector<Variable> variables_of(const std::vector<Tensor>& inputs, const std::vector<DynamicArgument>& dynamic,
                                   std::source_location where) {
  std::vector<Variable> variables;
  const auto add = [&](size_t input, int dim, const DynamicRange& range) {
    const int64_t size = inputs[input].size(dim);
    auto same = std::find_if(variables.begin(), variables.end(),
                             [&](const Variable& v) { return v.size == size && v.range == range; });
    if (same == variables.end()) same = variables.insert(same, {size, range, {}});
    same->dims.emplace_back(input, dim);
  };
  if (dynamic.empty())
    for (const MarkedDim& marked : marked_dims(inputs))
      add(static_cast<size_t>(marked.input), marked.dim, marked.range);
  for (const DynamicArgument& a : dynamic) {
    const auto input = static_cast<size_t>(a.argument);
    if (a.argument < 0 || input >= inputs.size() || !inputs[input].defined())
      throw Error(absl::StrCat("warm_up: there is no input ", a.argument));
    const int rank = inputs[input].rank();
    if (a.dim < -rank || a.dim >= rank)
      throw Error(absl::StrCat("warm_up: dimension ", a.dim, " is out of range for input ", a.argument, ", ",
                               to_string(inputs[input].sizes())));
    add(input, static_cast<int>(a.dim < 0 ? a.dim + rank : a.dim), checked_range("warm_up", a.range, where));
  }
  return variables;
}

// Returns the largest size of each bucket, descending. For a bucket without an end: the input's size, or the bucket's
// smallest size if that is larger. At most about kMostSteps sizes.
std::vector<int64_t> sizes_of(const Variable& variable) {
  const DynamicRange& range = variable.range;
  if (range.max == INT64_MAX && range.bucket_bounds.empty()) return {variable.size};
  const int64_t max = range.bucket_bounds.empty() ? range.max : range.bucket_bounds.back();
  std::vector<int64_t> sizes;
  for (int64_t size = range.min; size <= max && sizes.size() <= kMostSteps;) {
    const int64_t high = bucket_of(range, size).second;
    if (high == INT64_MAX) {
      const int64_t least = (std::max<int64_t>(size, 1) + range.multiple_of - 1) / range.multiple_of *
                            range.multiple_of;
      sizes.push_back(std::max(variable.size, least));
      break;
    }
    const int64_t largest = high / range.multiple_of * range.multiple_of;
    if (largest >= std::max<int64_t>(size, 1)) sizes.push_back(largest);
    size = high + 1;
  }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

// Returns `tensor` with `size` elements along `dim`: its elements are repeated, or cut off.
Tensor resized(const Tensor& tensor, int dim, int64_t size) {
  const int64_t before = tensor.size(dim);
  if (before == size) return tensor;
  if (before == 0)
    throw Error(absl::StrCat("warm_up: an input of size ", to_string(tensor.sizes()), " has no elements"));
  std::vector<int64_t> from(static_cast<size_t>(size));
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int64_t>(i) % before;
  return ops::index_select(tensor, dim, Tensor::from(from, {size}, tensor.device()));
}

// Guards the state of a model: the destructor restores the values of its buffers, and check() throws if a parameter was
// written.
class StateKept {
 public:
  explicit StateKept(nn::ModuleBase& model) : parameters_(model.named_parameters()) {
    for (const nn::NamedTensor& p : parameters_) versions_.push_back(p.tensor.version());
    for (const nn::NamedTensor& b : model.named_buffers())
      if (b.tensor.defined()) buffers_.emplace_back(b.tensor, b.tensor.clone());
  }
  ~StateKept() {
    const NoGrad off;
    try {
      for (auto& [buffer, before] : buffers_) buffer.copy_(before);
    } catch (...) {  // the device has failed
    }
  }
  StateKept(const StateKept&) = delete;
  StateKept& operator=(const StateKept&) = delete;
  void check() const {
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].tensor.version() != versions_[i])
        throw Error(absl::StrCat("warm_up: the step changed the parameter ", parameters_[i].name,
                                 "; leave the optimizer's step out, and hold UpdateAtSeams back (NoUpdate)"));
  }

 private:
  const std::vector<nn::NamedTensor> parameters_;
  std::vector<uint32_t> versions_;
  std::vector<std::pair<Tensor, Tensor>> buffers_;
};

}  // namespace

WarmUp warm_up(nn::ModuleBase& model, const std::vector<Tensor>& inputs,
               const std::function<void(std::span<const Tensor>)>& step, const std::vector<DynamicArgument>& dynamic,
               std::source_location where) try {
  if (step == nullptr) throw Error("warm_up: there is no step");
  const std::vector<Variable> variables = variables_of(inputs, dynamic, where);
  std::vector<std::vector<int64_t>> sizes;
  size_t steps = 1;
  for (const Variable& variable : variables) {
    sizes.push_back(sizes_of(variable));
    steps *= sizes.back().size();
    if (steps > kMostSteps)
      throw Error(absl::StrCat("warm_up: the buckets of ", variables.size(), " dimensions have more than ", kMostSteps,
                               " combinations"));
  }
  const auto start = std::chrono::steady_clock::now();
  const int64_t misses = cache_report().misses;
  std::vector<GeneratorState> none;
  const GeneratorScope same_numbers(GeneratorScope::kReplay, none);
  const StashedGradients gradients(model);
  const StateKept state(model);
  for (size_t number = 0; number < steps; ++number) {
    std::vector<Tensor> batch = inputs;
    size_t rest = number;
    for (size_t v = 0; v < variables.size(); ++v) {
      const int64_t size = sizes[v][rest % sizes[v].size()];
      rest /= sizes[v].size();
      for (const auto& [input, dim] : variables[v].dims) batch[input] = resized(batch[input], dim, size);
    }
    for (const MarkedDim& marked : marked_dims(inputs))
      mark_dynamic(batch[static_cast<size_t>(marked.input)], marked.dim, marked.range, where);
    step(batch);
    model.zero_grad();
    state.check();
  }
  for (const Tensor& input : inputs)
    if (input.defined()) synchronize(input.device());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  return {static_cast<int64_t>(steps), cache_report().misses - misses, took.count()};
} catch (const std::bad_alloc&) {
  throw_out_of_memory("warm_up");
} catch (const std::length_error&) {
  throw_out_of_memory("warm_up");
}

}  // namespace rondo::compile
