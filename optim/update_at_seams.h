// UpdateAtSeams: optimizer updates during backward. Each block is updated at its seam (seam.h), as soon as its
// gradients are final, while backward goes on with the blocks before it. The block's gradients are then dropped, so
// that the gradients of about one block exist at a time.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   optim::UpdateAtSeams updates(model, optimizer);   // instead of optimizer.step()
//   for (...) {
//     optimizer.set_lr(schedule(step));               // before backward
//     model.loss(x, y).backward();                    // updates the blocks, from the last to the first
//     updates.finish();                               // updates the rest and ends the step
//   }
//
// Parameters, states, averages and copies get the same bits as with one step() after backward, eager and compiled, from
// the same kernels. Note [Beside step()] at the end of this file has the differences.
//
// Accumulation: all but the last backward of a step run under `const auto more = updates.no_update();`.
// Model (or source) and optimizer must outlive this object. Thread safety: only for the thread that runs backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "rondo/modules/module.h"
#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Tells when gradients are final, if that is later than their seam in backward: dist::DistributedDataParallel first
// averages them.
class GradientSource {
 public:
  using Listener = std::function<void(std::span<const Tensor> parameters)>;
  virtual ~GradientSource() = default;
  // From now on `listener` is called, once for each parameter and step, when the parameter's grad() is final: inside
  // backward(), or inside the call that ends the step. Returns the id for remove_on_final.
  virtual int64_t on_final(Listener listener) = 0;
  virtual void remove_on_final(int64_t id) = 0;
  // Throws Error if listeners have not been called for all gradients of this step.
  virtual void check_finished() const = 0;
};

struct UpdateAtSeamsOptions {
  // The options of every update. Only zero_grad may differ from its default.
  StepOptions step = {};
  // Gradients are dropped right after their parameters' update, unless step.zero_grad keeps them as zeros. With false,
  // gradients stay until zero_grad().
  bool drop_grads = true;
};

// One step, counted in parameters of the optimizer; with a ShardedOptimizer, in this process's pieces of them.
struct UpdateReport {
  int64_t at_seams = 0;          // parameters updated during backward (or while a source ended the step)
  int64_t at_end = 0;            // parameters updated by finish(), because their seam was not reached
  int64_t without_gradient = 0;  // parameters without an update; their step counts did not change
};

class UpdateAtSeams {
  struct State;

 public:
  // Throws Error if an option needs all gradients, if the optimizer has an UpdateAtSeams already or no parameter of the
  // model, or if DistributedDataParallel or another optimizer's UpdateAtSeams works on the gradients.
  UpdateAtSeams(nn::ModuleBase& model, Optimizer& optimizer, UpdateAtSeamsOptions options = {});
  UpdateAtSeams(GradientSource& source, Optimizer& optimizer, UpdateAtSeamsOptions options = {});
  ~UpdateAtSeams();
  UpdateAtSeams(const UpdateAtSeams&) = delete;
  UpdateAtSeams& operator=(const UpdateAtSeams&) = delete;

  // Ends a step: updates the parameters that have a gradient and no update yet. Throws what Optimizer::step() throws,
  // before any of these parameters changes; that no parameter has a gradient is an error only if this holds for the
  // whole step. Throws Error if the source has not finished.
  UpdateReport finish();
  // Ends a step that an exception interrupted: nothing more is updated, and the gradients of the other parameters are
  // dropped, as they may be incomplete. Updates stay: if the batch is tried again, these parameters are updated twice.
  UpdateReport abandon();
  // Returns whether this step has updated the parameter so far. With a ShardedOptimizer: whether all of this process's
  // pieces of the parameter are updated; false if this process has no piece.
  bool is_updated(const Tensor& parameter) const;

  // While a NoUpdate lives, backward only adds to the gradients. With a GradientSource, use the scope of the source
  // instead: no_sync() of DistributedDataParallel.
  class [[nodiscard]] NoUpdate {
   public:
    explicit NoUpdate(UpdateAtSeams& updates);
    ~NoUpdate();
    NoUpdate(const NoUpdate&) = delete;
    NoUpdate& operator=(const NoUpdate&) = delete;

   private:
    State& state_;
  };
  NoUpdate no_update() { return NoUpdate(*this); }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop

// Note [Beside step()]. The differences:
// - Options that need all gradients before the first update are refused: max_norm, grad_scale, check_finite, a
//   GradScaler and clip_grad_norm_. So a gradient that is not finite reaches its parameter.
// - During a step no option of the optimizer can be set, and its state cannot be saved or loaded: these calls throw
//   Error. A second backward throws Error, too, if it adds to the gradient of a parameter that is updated already.
// - Updates write parameters that the tape has saved: another backward through the same graph (retain_graph) throws
//   StaleTensorError. A parameter that several checkpoints (autograd) use is updated when all of them have run again. A
//   checkpoint that reads a parameter only through detach() is not noticed.
// - After an exception during backward, updated parameters keep their update and their step count. abandon() ends such
//   a step.
// - Several optimizers on one model have an UpdateAtSeams each. With DistributedDataParallel, pass that object as the
//   source: a bucket is updated once it is averaged (dist/ddp/ddp.h). A ShardedOptimizer must be made first and outlive
//   the UpdateAtSeams: each process then updates its pieces of the bucket's parameters, and finish() sends them.
