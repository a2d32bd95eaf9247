// ParamSlot: one parameter of an optimizer, with its state, master weight, average and 16-bit copy.
//
// Invariant: once made, state, master weight and average are written in place, never replaced, until load_state_dict().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "rondo/optim/formula.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::optim {

// The number of updates of a parameter so far: an f64 scalar on its device. The host does not know the value, because
// the device decides whether a step is skipped. Parameters that are always updated together share a count, so a step
// counts and computes scalars once for all of them. If a step updates only some of the sharers, these get a new count.
//
// A count has two places. A step writes the new value to the second place, and the places swap roles when the step's
// passes are enqueued: a step that fails before then has counted nothing.
struct StepCount {
  StepCount(int64_t steps, Device device);
  Device device;
  size_t cohort = 0;  // position in StepLaunches::cohorts_, during a step

  Tensor value() const { return places_.select(0, current_); }
  const double* now() const { return data_ + current_; }  // now() and next(): addresses on the device
  double* next() const { return data_ + (1 - current_); }
  void advance() { current_ = 1 - current_; }
  // Returns how many parameters share this count: the number of CountShares that exist.
  size_t sharers() const { return sharers_; }

 private:
  friend class CountShare;
  Tensor places_;
  double* data_;
  int current_ = 0;
  size_t sharers_ = 0;
};

// One parameter's share of a step count. A copy counts as another share.
class CountShare {
 public:
  CountShare() = default;  // a share of no count
  explicit CountShare(std::shared_ptr<StepCount> count) : count_(std::move(count)) {
    if (count_ != nullptr) ++count_->sharers_;
  }
  CountShare(const CountShare& other) : CountShare(other.count_) {}
  CountShare(CountShare&& other) noexcept : count_(std::move(other.count_)) {}
  CountShare& operator=(CountShare other) noexcept {
    std::swap(count_, other.count_);
    return *this;
  }
  ~CountShare() {
    if (count_ != nullptr) --count_->sharers_;
  }

  const std::shared_ptr<StepCount>& count() const { return count_; }
  StepCount* operator->() const { return count_.get(); }

 private:
  std::shared_ptr<StepCount> count_;
};

struct ParamState {
  CountShare steps;                           // has no count until the parameter has had a gradient
  std::array<StateArray, kMaxStates> arrays;  // in the order of UpdatePlan::states
  bool exists() const { return steps.count() != nullptr; }
};

// Identifies the contents of a tensor: changes with every write.
struct Contents {
  const void* data = nullptr;
  uint32_t version = 0;
  bool operator==(const Contents&) const = default;
  static Contents of(const Tensor& t) { return {t.address(), t.version()}; }
};

struct ParamSlot {
  Tensor param;
  int group = 0;
  // The parameter's dtype when its state and average were last checked to fit it; nullopt: not yet. If the dtype is
  // unchanged, a step need not look at the states, which would be a cache miss for each parameter.
  std::optional<DType> fits;
  const UpdatePlan* plan = nullptr;
  StateInit init;
  ParamState state;

  // The f32 weight of a 16-bit parameter: Note [Master weights] of optimizer.h. Undefined: the parameter itself is
  // updated, or had no gradient yet.
  Tensor master;
  std::byte* master_data = nullptr;
  Contents master_of;  // the parameter's contents when it equalled the rounded master; default: not known

  Tensor average;  // undefined: averages are not tracked, or the parameter is frozen and has no state
  std::byte* average_data = nullptr;
  Contents average_copied;     // the parameter's contents when `average` was copied from it
  bool average_moved = false;  // a step may have updated `average`, or it was loaded: it is no longer a copy
  Tensor copy;                 // the 16-bit copy of the parameter; undefined: none is kept
  Contents copy_of;            // the parameter's contents when `copy` was written

  int signature = -1;  // index into OptimizerState::signatures
  // If plan->matrices: the number of matrices (last two dimensions) in the parameter, and the columns of each of them.
  int64_t matrices = 1;
  int64_t columns = 0;

  ParamState new_state(std::shared_ptr<StepCount> count) const;
  bool wants_master() const { return init.masters && is_low_precision(param.dtype()); }
  // Returns the tensor that a step updates: the master weight if there is one, else the parameter.
  const Tensor& weights() const { return master.defined() ? master : param; }
  void make_master();
  void drop_master();
  // Updates the master weight if something else has written the parameter: Note [Master weights].
  void refresh_master();
  void make_average();
  // Copies the parameter into its average, if no step has updated the average and the parameter was written since the
  // last copy.
  void refresh_average();
  // Copies the parameter into its 16-bit copy, if the parameter was written since the last copy.
  void refresh_copy();
};

}  // namespace rondo::optim
