#include "rondo/compile/region/marks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "rondo/compile/log.h"

namespace rondo::compile {
namespace {

std::string to_text(const DynamicRange& range) {
  std::string text = range.max == INT64_MAX ? absl::StrCat(range.min, " or more")
                                            : absl::StrCat(range.min, "..", range.max);
  if (range.multiple_of > 1) absl::StrAppend(&text, ", a multiple of ", range.multiple_of);
  return text;
}

bool allows(const DynamicRange& range, int64_t size) {
  return size >= range.min && size <= range.max && size % range.multiple_of == 0;
}

}  // namespace

DynamicRange checked_range(const char* who, DynamicRange range, std::source_location where) {
  const auto fail = [&](const std::string& what) { throw_op_error(who, what, where); };
  const std::vector<int64_t>& bounds = range.bucket_bounds;
  if (!bounds.empty()) {
    if (range.buckets != 1) fail("a number of buckets and their bounds are too much: give one of them");
    for (size_t i = 1; i < bounds.size(); ++i)
      if (bounds[i] <= bounds[i - 1]) fail("bucket bounds must ascend");
    if (range.max == INT64_MAX) range.max = bounds.back();
    if (bounds.front() < range.min || bounds.back() != range.max)
      fail(absl::StrCat("bucket bounds must lie in ", to_text(range), " and end with its largest size, not with ",
                        bounds.back()));
  }
  if (range.min < 0) fail(absl::StrCat("min must not be negative: ", range.min));
  if (range.multiple_of < 1) fail(absl::StrCat("multiple_of must be positive, not ", range.multiple_of));
  constexpr int kMostBuckets = 1024;  // each bucket has its own code
  if (range.buckets < 1 || range.buckets > kMostBuckets)
    fail(absl::StrCat("buckets must be from 1 to ", kMostBuckets, ", not ", range.buckets));
  if (range.buckets > 1 && range.max == INT64_MAX) fail("buckets need max");
  if (range.max < range.min || range.max / range.multiple_of * range.multiple_of < range.min)
    fail(absl::StrCat("no size is ", to_text(range)));
  return range;
}

void mark_dynamic(const Tensor& tensor, int64_t dim, DynamicRange range, std::source_location where) {
  constexpr const char* kWho = "mark_dynamic";
  if (!tensor.defined()) throw_op_error(kWho, "the tensor is undefined", where);
  const int rank = tensor.rank();
  if (dim < -rank || dim >= rank)
    throw_op_error(kWho, absl::StrCat("dimension ", dim, " is out of range for ", to_string(tensor.sizes())), where);
  const int d = static_cast<int>(dim < 0 ? dim + rank : dim);
  range = checked_range(kWho, std::move(range), where);
  if (!allows(range, tensor.sizes()[d]))
    throw_op_error(
        kWho,
        absl::StrCat("dim ", d, " of ", to_string(tensor.sizes()), " is ", tensor.sizes()[d], ", not ", to_text(range)),
        where);
  TensorImpl& impl = *tensor.impl();
  auto dims = std::make_unique<DynamicDims>();
  if (impl.marks != nullptr) *dims = *impl.marks;
  std::erase_if(dims->marks, [&](const DynamicDims::Mark& mark) { return mark.dim == d; });
  dims->marks.push_back({d, std::move(range)});
  impl.marks = std::move(dims);
}

void check_options(std::span<const DynamicArgument> dynamic) {
  for (const DynamicArgument& a : dynamic) {
    if (a.argument < 0) throw Error(absl::StrCat("CompileOptions::dynamic: no argument ", a.argument));
    checked_range("CompileOptions::dynamic", a.range, std::source_location::current());
  }
}

void check_arguments(const std::string& region, const nn::ModuleCall& call, std::span<const DynamicArgument> dynamic) {
  for (const DynamicArgument& a : dynamic) {
    const auto fail = [&](const std::string& what) {
      throw_op_error(region, absl::StrCat("CompileOptions::dynamic: ", what), std::source_location::current());
    };
    const auto index = static_cast<size_t>(a.argument);
    if (index >= call.inputs.size())
      fail(absl::StrCat("there is no argument ", a.argument, call.inputs.empty() ? " that is known to be a tensor" : "",
                        "; mark the tensor itself (mark_dynamic)"));
    const Tensor& tensor = *call.inputs[index];
    if (!tensor.defined()) continue;
    const int rank = tensor.rank();
    if (a.dim < -rank || a.dim >= rank)
      fail(absl::StrCat("dimension ", a.dim, " of argument ", a.argument, " is out of range for ",
                        to_string(tensor.sizes())));
    const int d = static_cast<int>(a.dim < 0 ? a.dim + rank : a.dim);
    if (!allows(a.range, tensor.sizes()[d]))
      fail(absl::StrCat("dim ", d, " of argument ", a.argument, ", ", to_string(tensor.sizes()), ", is ",
                        tensor.sizes()[d], ", not ", to_text(a.range)));
  }
}

bool is_marked(std::span<const Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& t) { return t.defined() && t.impl()->marks != nullptr; });
}

std::vector<MarkedDim> marked_dims(std::span<const Tensor> inputs) {
  std::vector<MarkedDim> dims;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    if (const DynamicDims* marks = inputs[i].impl()->marks.get(); marks != nullptr)
      for (const DynamicDims::Mark& mark : marks->marks)
        dims.push_back({static_cast<int32_t>(i), mark.dim, mark.range});
  }
  return dims;
}

void add_marked_arguments(std::vector<MarkedDim>& dims, std::span<const Tensor> inputs, const nn::ModuleCall& call,
                          std::span<const DynamicArgument> dynamic) {
  for (const DynamicArgument& a : dynamic) {
    const auto index = static_cast<size_t>(a.argument);
    for (size_t i = 0; index < call.inputs.size() && i < inputs.size(); ++i) {
      if (call.inputs[index]->impl() != inputs[i].impl()) continue;
      const int d = static_cast<int>(a.dim < 0 ? a.dim + inputs[i].rank() : a.dim);
      dims.push_back({static_cast<int32_t>(i), d,
                      checked_range("CompileOptions::dynamic", a.range, std::source_location::current())});
    }
  }
}

std::pair<int64_t, int64_t> bucket_of(const DynamicRange& range, int64_t size) {
  int64_t low = range.min;
  if (!range.bucket_bounds.empty()) {
    for (int64_t bound : range.bucket_bounds) {
      if (size <= bound) return {low, bound};
      low = bound + 1;
    }
    return {low, range.max};
  }
  // Bounds grow by a constant factor. Narrower buckets would gain little: their code saves only a part of one or two
  // steps of a kernel. Bounds are multiples of kLanes, where a kernel's steps end.
  double bound = static_cast<double>(std::max<int64_t>(range.min, 1));
  const double factor = std::pow(static_cast<double>(range.max) / bound, 1.0 / range.buckets);
  for (int i = 1; i < range.buckets; ++i) {
    bound *= factor;
    const int64_t high = (static_cast<int64_t>(bound) + kLanes - 1) / kLanes * kLanes;
    if (high >= range.max) break;
    if (size <= high) return {low, high};
    low = std::max(low, high + 1);
  }
  return {low, range.max};
}

OtherRecordings::OtherRecordings(const Graph& recorded, std::span<const MarkedDim> dims) : recorded_(recorded) {
  for (size_t i = 0; i < dims.size(); ++i) {
    const MarkedDim& marked = dims[i];
    const int64_t size = recorded.value(recorded.inputs[static_cast<size_t>(marked.input)]).sizes[marked.dim];
    if (!may_vary(size)) continue;
    auto [low, high] = bucket_of(marked.range, size);
    auto variable = std::find_if(variables_.begin(), variables_.end(),
                                 [&](const SizeVariable& v) { return v.size == size; });
    if (variable == variables_.end()) variable = variables_.insert(variable, {size, 0, INT64_MAX, 1});
    variable->min = std::max(variable->min, low);
    variable->max = std::min(variable->max, high);
    variable->multiple_of = std::lcm(variable->multiple_of, marked.range.multiple_of);
    dims_.push_back({marked.input, marked.dim, static_cast<int32_t>(variable - variables_.begin())});
    marked_.push_back(static_cast<int32_t>(i));
  }
  // A variable that cannot vary is a constant.
  for (size_t v = variables_.size(); v-- > 0;) {
    SizeVariable& variable = variables_[v];
    const int64_t m = variable.multiple_of;
    variable.min = (std::max<int64_t>(variable.min, 2) + m - 1) / m * m;
    if (variable.max != INT64_MAX) variable.max = variable.max / m * m;
    if (variable.min < variable.max) continue;
    variables_.erase(variables_.begin() + static_cast<std::ptrdiff_t>(v));
    for (size_t d = dims_.size(); d-- > 0;) {
      if (dims_[d].variable == static_cast<int32_t>(v)) {
        dims_.erase(dims_.begin() + static_cast<std::ptrdiff_t>(d));
        marked_.erase(marked_.begin() + static_cast<std::ptrdiff_t>(d));
      } else if (dims_[d].variable > static_cast<int32_t>(v)) {
        --dims_[d].variable;
      }
    }
  }
}

std::vector<int64_t> OtherRecordings::ranges() const {
  std::vector<int64_t> key;
  for (const VariableDim& d : dims_) {
    const SizeVariable& v = variables_[static_cast<size_t>(d.variable)];
    key.insert(key.end(), {d.input, d.dim, v.min, v.max, v.multiple_of});
  }
  return key;
}

void OtherRecordings::prepare() const {
  // Backwards of one entry may be compiled by several threads.
  std::lock_guard lock(mutex_);
  if (prepared_) return;
  prepared_ = true;
  std::vector<int64_t> now, next, smallest, largest;
  bool bounded = true;
  for (const SizeVariable& v : variables_) {
    now.push_back(v.size);
    // The next size is the neighbouring multiple of multiple_of. A number that divides both sizes also divides their
    // difference, multiple_of, and so divides all possible sizes.
    next.push_back(v.size - v.multiple_of >= 2 ? v.size - v.multiple_of : v.size + v.multiple_of);
    smallest.push_back(v.min);
    largest.push_back(v.max);
    bounded = bounded && v.max != INT64_MAX;
  }
  const std::optional<Resizing> resizing = Resizing::find(recorded_, dims_, now);
  if (!resizing.has_value()) {
    log::write(log::Topic::kPerfHints,
               "what depends on a marked dimension cannot be told: all sizes are read at run time");
    return;
  }
  next_ = resizing->at(next);
  smallest_ = resizing->at(smallest);
  if (bounded) largest_ = resizing->at(largest);
}

OtherSizes OtherRecordings::map(absl::FunctionRef<Graph(const Graph&)> derive) const {
  prepare();
  const auto derived = [&](const std::optional<Graph>& graph) -> std::optional<Graph> {
    if (!graph.has_value()) return std::nullopt;
    try {
      return derive(*graph);
    } catch (const std::exception&) {
      return std::nullopt;  // the sizes were guessed, and some op of the recording refuses them
    }
  };
  return {derived(next_), derived(smallest_), derived(largest_)};
}

std::vector<OtherRecordings::Follower> OtherRecordings::followers() const {
  prepare();
  std::vector<Follower> result;
  if (!next_.has_value()) return result;
  for (size_t o = 0; o < recorded_.outputs.size(); ++o) {
    const Dims &now = recorded_.value(recorded_.outputs[o]).sizes, &then = next_->value(recorded_.outputs[o]).sizes;
    for (int d = 0; d < now.rank(); ++d) {
      if (now[d] == then[d]) continue;
      for (size_t m = 0; m < dims_.size(); ++m) {
        const VariableDim& v = dims_[m];
        const ValueId input = recorded_.inputs[static_cast<size_t>(v.input)];
        if (now[d] != recorded_.value(input).sizes[v.dim] || then[d] != next_->value(input).sizes[v.dim]) continue;
        result.push_back({static_cast<int32_t>(o), d, marked_[m]});
        break;
      }
    }
  }
  return result;
}

const std::vector<OtherRecordings::Follower>& ResultMarks::followers(std::span<const MarkedDim> dims) const {
  std::vector<std::pair<int32_t, int>> key;
  for (const MarkedDim& d : dims) key.emplace_back(d.input, d.dim);
  std::lock_guard lock(mutex_);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  std::vector<MarkedDim> of_all_sizes;  // the same dimensions, without their ranges
  for (const MarkedDim& d : dims) of_all_sizes.push_back({d.input, d.dim, {}});
  return known_[key] = OtherRecordings(recorded_, of_all_sizes).followers();
}

void ResultMarks::propagate(std::span<const Tensor> inputs, std::span<const Tensor> results) const {
  const std::vector<MarkedDim> dims = marked_dims(inputs);
  for (const OtherRecordings::Follower& f : followers(dims)) {
    TensorImpl& impl = *results[static_cast<size_t>(f.output)].impl();
    auto marks = std::make_unique<DynamicDims>();
    if (impl.marks != nullptr) *marks = *impl.marks;
    std::erase_if(marks->marks, [&](const DynamicDims::Mark& mark) { return mark.dim == f.dim; });
    marks->marks.push_back({f.dim, dims[static_cast<size_t>(f.marked)].range});
    impl.marks = std::move(marks);
  }
}

}  // namespace rondo::compile
