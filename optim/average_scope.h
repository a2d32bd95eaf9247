// AverageScope: puts the moving averages of an optimizer (Optimizer::track_average) into the parameters, for
// evaluation.
//
//   {
//     const optim::AverageScope scope(optimizer);
//     accuracy = evaluate(model);                    // or save the model: its parameters are the averages
//   }                                                // the parameters are what they were, bit for bit
//
// Parameters and averages are swapped, in one pass over both that needs no extra memory. Compiled regions stay valid:
// tensors keep their memory. A 16-bit parameter, whose average is f32, is copied first and then gets the rounded
// average. Averaged buffers are swapped, too.
//
// Inside the scope, the optimizer refuses to step, to save and to load. One scope at a time. A backward whose forward
// ran before the scope throws StaleTensorError, as after any write to a parameter.
// Thread safety: one thread at a time.
#pragma once

#include <utility>
#include <vector>

#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

class AverageScope {
 public:
  // Throws Error if the optimizer tracks no averages, is in the middle of a step, or has a scope already.
  explicit AverageScope(Optimizer& optimizer);
  // Swaps params[i] with averages[i], which has the same shape. For averages that the optimizer does not hold as a
  // whole, because its states are spread over processes:
  //   const optim::AverageScope scope(adamw, model.parameters(), sharded.averages());
  AverageScope(Optimizer& optimizer, std::vector<Tensor> params, std::vector<Tensor> averages);
  // Calls end() and drops its exception. If the device fails in end(), the averages stay in the parameters, and the
  // optimizer's next step throws.
  ~AverageScope();
  AverageScope(const AverageScope&) = delete;
  AverageScope& operator=(const AverageScope&) = delete;

  // Swaps back: the parameters have their own values again. Throws the device's error, if it has failed.
  void end();

 private:
  void begin(std::vector<Tensor> params, std::vector<Tensor> averages);
  void swap();

  Optimizer& optimizer_;
  std::vector<Tensor> values_, averages_;          // each pair is swapped element by element
  std::vector<std::pair<Tensor, Tensor>> copied_;  // tensors of another dtype than their averages, with a copy
  bool active_ = false;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
