// BufferAverages: moving averages of a model's buffers. They are updated in an optimizer's steps, as the averages of
// parameters are: a step that is skipped or throws does not update them.
//
//   averages.queue(step, queue, decision);   // joined work of a step (step.h)
//   averages.advance();                      // the step's launches are ready
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rondo/modules/state_dict.h"
#include "rondo/optim/param_slot.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::optim {

class LaunchQueue;
class StepPasses;
struct Decision;

class BufferAverages {
 public:
  // The step that the updates of the averages join.
  struct Joined {
    const char* optimizer;  // the optimizer's name, for messages
    Device device;          // the device of the parameters
    double decay;
    bool warmup;  // AverageOptions::warmup
    StepPasses& passes;
  };

  explicit BufferAverages(std::vector<Tensor> buffers);

  // Return the buffers as given, and the average of each. For a buffer that is not floating-point: the buffer itself.
  const std::vector<Tensor>& buffers() const { return buffers_; }
  std::vector<Tensor> averages() const;

  void queue(const Joined& step, LaunchQueue& queue, const Decision* decision);
  void advance();

  // Adds "buffer.<i>.average" and "buffer.updates" to `out`.
  void list_state(std::vector<nn::NamedTensor>& out) const;
  // Loading: list_targets() lists the tensors to write, and note_loaded() is called when they have been written.
  void list_targets(std::vector<nn::NamedTensor>& out, const Tensor& updates) const;
  void note_loaded(int64_t updates);
  // Forgets the averages: the next step starts new ones.
  void forget();

 private:
  struct Entry {
    size_t buffer;
    Tensor average;
  };
  void refresh() const;  // copies the buffers into averages that no step has updated
  void check_fits(const Entry& entry, const char* optimizer, Device device) const;

  std::vector<Tensor> buffers_;
  std::vector<Entry> entries_;
  std::unique_ptr<StepCount> updates_;
  bool moved_ = false;  // a step has updated the averages, or they were loaded
};

}  // namespace rondo::optim
