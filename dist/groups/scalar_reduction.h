// ScalarReduction: sums or averages, over the ranks, a number that each rank computes, such as a step's loss.
//
//   dist::ScalarReduction loss(*group, dist::ReduceOp::kAverage, {{part}}, "loss");   // after backward
//   optimizer.step();
//   log.write({.step = step, .loss = loss.value()});
//
// The collective begins as early as the number can be read without waiting. In a group without a device it begins in
// the constructor: collectives of host tensors complete in order, so one that is issued after a ShardedOptimizer's step
// would wait for all of its parameters. In a group with a device it begins in value(): reading the number waits for
// everything enqueued on the device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/groups/process_group.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

class ScalarReduction {
 public:
  struct Term {
    Tensor value;  // a tensor of one element
    double weight = 1;
  };
  // A rank's number is the sum of weight * value over its terms, in f64. The group must outlive this object.
  ScalarReduction(ProcessGroup& group, ReduceOp op, std::vector<Term> terms, std::string_view name);
  // Waits for all ranks. Returns the same bits on every rank. Throws what Work::wait() throws.
  double value();

 private:
  void begin();

  ProcessGroup& group_;
  ReduceOp op_;
  std::vector<Term> terms_;
  std::string name_;
  Tensor reduced_;  // undefined until the collective has begun
  Work work_;
};

}  // namespace rondo::dist
#pragma GCC visibility pop
