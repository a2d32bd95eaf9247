// AverageScope: evaluation with the moving averages of an optimizer (Optimizer::track_average).
//
//   {
//     const optim::AverageScope scope(optimizer);
//     accuracy = evaluate(model);                    // or save the model: its parameters are the averages
//   }                                                // the parameters are what they were, bit for bit
//
// Parameters and averages change places, in one pass over both that needs no memory of its own. Compiled regions go on
// as they are: tensors keep their memory. A parameter of 16 bits, whose average is f32, is copied first, and gets its
// average rounded. Buffers that are averaged change places, too.
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
  // With averages that are kept elsewhere, in the order of the optimizer's parameters and of their shapes; the scope
  // uses their memory. For states that are spread over processes:
  //   const optim::AverageScope scope(adamw, model.parameters(), sharded.averages());
  AverageScope(Optimizer& optimizer, std::vector<Tensor> params, std::vector<Tensor> averages);
  // Calls end(). A device that fails there is reported by the optimizer's next step, which the scope then still blocks.
  ~AverageScope();
  AverageScope(const AverageScope&) = delete;
  AverageScope& operator=(const AverageScope&) = delete;

  // The parameters have their own values again. Throws what the device reports.
  void end();

 private:
  void begin(std::vector<Tensor> params, std::vector<Tensor> averages);
  void swap();

  Optimizer& optimizer_;
  std::vector<Tensor> values_, averages_;          // they change places
  std::vector<std::pair<Tensor, Tensor>> copied_;  // of another dtype than their averages: the tensor, its own values
  bool active_ = false;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
