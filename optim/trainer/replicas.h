// Replicas: the processes that train one model together, as a Trainer needs them. Each has a copy of the model; they
// share the batches. dist::TrainerReplicas (dist/ddp/trainer_replicas.h) is one.
//
// Every process calls the same functions in the same order, and waits for the others in them. If a process is late,
// ends or fails, the others get an error that names it. After an error nothing more can be called.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/modules/state_dict.h"
#include "rondo/optim/optimizer.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

class Replicas {
 public:
  virtual ~Replicas() = default;
  virtual int rank() const = 0;  // the rank of this process; rank 0 writes the files
  virtual int size() const = 0;

  // Returns the sum of each value over the processes, with the same bits in all of them.
  virtual std::vector<double> sum(const std::vector<double>& values, std::string_view name) = 0;
  // Sums weight * value over all `terms` and processes, in f64. The tensors have one element. The exchange begins as
  // soon as the tensors can be read without waiting. The returned function waits for the sum; call it once.
  virtual std::function<double()> begin_sum(std::vector<std::pair<double, Tensor>> terms, std::string_view name) = 0;
  // Throws an Error in every process unless all pass the same lines; the error names a process and a line that differ.
  virtual void require_equal(const std::vector<std::string>& lines, std::string_view name) = 0;

  // Runs loss.backward(). The gradients of all but the last backward of a step stay in this process.
  virtual void backward(const Tensor& loss, bool is_last) = 0;
  // Called after the last backward of a step: gradients become the averages over the processes. `ran_backward`: false
  // if this process ran no backward in this step. Its gradients then count as zeros.
  virtual void average_gradients(bool ran_backward) = 0;
  // True if layers of the model wait for the other processes, as a synchronised BatchNorm does. A process without a
  // batch then runs an empty batch in its place: the Trainer calls the loss function with tensors of 0 rows, and
  // ignores the loss, which may be NaN.
  virtual bool layers_wait() const { return false; }
  // True if each process has a part of this optimizer's states. Then all processes must call optimizer_state().
  virtual bool share_states_of(const Optimizer& /*optimizer*/) const { return false; }
  // Returns the states of whole parameters in process 0. The result is of no use in other processes.
  virtual nn::StateDict optimizer_state(const Optimizer& optimizer) { return optimizer.state_dict(); }
  // Restores what optimizer_state() gave, on any number of processes. Throws nn::StateDictError, before anything is
  // changed.
  virtual void load_optimizer_state(Optimizer& optimizer, const nn::StateDict& state) {
    optimizer.load_state_dict(state);
  }
  // Called after the optimizer's step: a place for checks.
  virtual void end_step() {}

 protected:
  Replicas() = default;
  Replicas(const Replicas&) = default;
  Replicas& operator=(const Replicas&) = default;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
