// Marked dimensions: turns what users say (mark_dynamic, CompileOptions::dynamic) into what the compiler knows of a
// recording. Marks are not in a recording's key. They only choose which code is generated for a new recording, and all
// code that fits a recording gives the same results.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/compile/capture/resize.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/options.h"
#include "rondo/modules/module.h"

namespace rondo::compile {

// A marked dimension of an input of a recording.
struct MarkedDim {
  int32_t input;
  int dim;
  DynamicRange range;
};

// Throws Error if CompileOptions::dynamic does not allow an argument of the call. `region`: the name in the message.
void check_arguments(const std::string& region, const nn::ModuleCall& call, std::span<const DynamicArgument> dynamic);
// Throws Error if the options themselves make no sense.
void check_options(std::span<const DynamicArgument> dynamic);
// Returns `range` with all its fields set: `max` follows from the bounds. Throws Error, in the name of `who`, if the
// range makes no sense.
DynamicRange checked_range(const char* who, DynamicRange range, std::source_location where);

bool is_marked(std::span<const Tensor> tensors);
// Returns the marks of these tensors.
std::vector<MarkedDim> marked_dims(std::span<const Tensor> inputs);
// Adds the marks that `dynamic` gives to those arguments of a call that are among `inputs`.
void add_marked_arguments(std::vector<MarkedDim>& dims, std::span<const Tensor> inputs, const nn::ModuleCall& call,
                          std::span<const DynamicArgument> dynamic);

// A size that varies, with the range that code is generated for: the bucket that holds the present size.
struct SizeVariable {
  int64_t size;
  int64_t min, max;
  int64_t multiple_of;
};
// Returns the smallest and the largest size of the bucket that holds `size`.
std::pair<int64_t, int64_t> bucket_of(const DynamicRange& range, int64_t size);

// A recording at other sizes of its marked dimensions. Computed at the first use. Thread safe.
class OtherRecordings {
 public:
  // `recorded` must outlive this. Dimensions of equal size are one variable.
  OtherRecordings(const Graph& recorded, std::span<const MarkedDim> dims);
  // True if a size varies. (A bucket with a single size is a constant, and so are the sizes 0 and 1.)
  bool any() const { return !variables_.empty(); }
  // Returns the ranges that code is generated for, as a key.
  std::vector<int64_t> ranges() const;
  // Applies `derive` to the recording at each of the other sizes. If it throws, the result for that size is nullopt.
  OtherSizes map(absl::FunctionRef<Graph(const Graph&)> derive) const;
  // A dimension of a result of the recording whose size always equals that of a marked dimension of an input.
  struct Follower {
    int32_t output;
    int dim;
    int32_t marked;  // index into the constructor's `dims`
  };
  std::vector<Follower> followers() const;

 private:
  void prepare() const;
  const Graph& recorded_;
  std::vector<SizeVariable> variables_;
  std::vector<VariableDim> dims_;
  std::vector<int32_t> marked_;  // for each of dims_: its index in the constructor's `dims`
  mutable std::mutex mutex_;     // guards the members below until they are prepared
  mutable bool prepared_ = false;
  mutable std::optional<Graph> next_, smallest_, largest_;
};

// Passes marks on from the inputs of a recording to its results. Thread safe.
class ResultMarks {
 public:
  explicit ResultMarks(const Graph& recorded) : recorded_(recorded) {}  // which outlives this
  // Marks each dimension of `results` whose size always equals that of a marked dimension of `inputs`. `results` begins
  // with the recording's outputs.
  void propagate(std::span<const Tensor> inputs, std::span<const Tensor> results) const;

 private:
  const std::vector<OtherRecordings::Follower>& followers(std::span<const MarkedDim> dims) const;
  const Graph& recorded_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<std::pair<int32_t, int>>, std::vector<OtherRecordings::Follower>> known_;
};

}  // namespace rondo::compile
