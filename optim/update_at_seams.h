// UpdateAtSeams: the optimizer in backward. Each block is updated at its seam (compile/seam.h), as soon as its
// gradients are final, while backward goes on below it; its gradients are then dropped, so that those of about one
// block exist at a time.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   optim::UpdateAtSeams updates(model, optimizer);   // instead of optimizer.step()
//   for (...) {
//     optimizer.set_lr(schedule(step));               // before backward
//     model.loss(x, y).backward();                    // updates the blocks, from the last to the first
//     updates.finish();                               // and what is left: the end of the step
//   }
//
// Parameters, states, averages and copies have the bits of one step() after backward, eager and compiled, with the same
// kernels. The differences:
//
// - What must see all gradients before the first update is refused: max_norm, grad_scale, check_finite, a GradScaler
// and
//   clip_grad_norm_. So a gradient that is not finite reaches its parameter.
// - Accumulation: all but the last backward of a step run under `const auto more = updates.no_update();`. A second
// backward
//   that adds to what is updated already is an Error.
// - Updates write parameters that the tape has saved: another backward through the same graph (retain_graph) throws
//   StaleTensorError. A checkpoint() that runs again after a parameter it shares was updated leads to the Error above;
//   one that reads a parameter by detach() alone is not noticed.
// - An exception during backward leaves updated what has been updated, with its step counts; abandon() ends such a
// step.
// - Several optimizers on one model have an UpdateAtSeams each. Under DistributedDataParallel it is made from that, and
// a
//   bucket is updated once it is averaged (dist/ddp.h).
//
// In between, no option of the optimizer can be set, nor its state saved or loaded: Error.
// Model (or source) and optimizer must outlive this. Thread safety: the thread that runs backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rondo/compile/seam.h"
#include "rondo/modules/module.h"
#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Says when gradients are final, where that is later than at the seam: dist::DistributedDataParallel is one.
class GradientSource {
 public:
  using Listener = std::function<void(std::span<const Tensor> parameters)>;
  virtual ~GradientSource() = default;
  // From now on `listener` is called, once for each parameter and step, when its grad() is final; from within
  // backward() or whatever ends a step. The result is for remove_on_final.
  virtual int64_t on_final(Listener listener) = 0;
  virtual void remove_on_final(int64_t id) = 0;
  // Throws Error if there are gradients of this step that listeners have not been told of.
  virtual void check_finished() const = 0;
};

struct UpdateAtSeamsOptions {
  // Of every update. Only zero_grad may differ from its default.
  StepOptions step = {};
  // Gradients are dropped right after their parameters' update, unless step.zero_grad keeps them as zeros. false: they
  // stay until zero_grad().
  bool drop_grads = true;
};

// Of one step; counts parameters of the optimizer.
struct UpdateReport {
  int64_t at_seams = 0;          // updated during backward (or while a source ended the step)
  int64_t at_end = 0;            // by finish(): what stands in no block, or in a block that backward did not go through
  int64_t without_gradient = 0;  // left alone, as their step counts
};

class UpdateAtSeams {
 public:
  // Throws Error if an option asks for what seams cannot do, the optimizer has an UpdateAtSeams or no parameter of the
  // model, or if somebody else has the gradients: DistributedDataParallel, or the UpdateAtSeams of another optimizer.
  UpdateAtSeams(nn::ModuleBase& model, Optimizer& optimizer, UpdateAtSeamsOptions options = {});
  UpdateAtSeams(GradientSource& source, Optimizer& optimizer, UpdateAtSeamsOptions options = {});
  ~UpdateAtSeams();
  UpdateAtSeams(const UpdateAtSeams&) = delete;
  UpdateAtSeams& operator=(const UpdateAtSeams&) = delete;

  // Ends a step: updates the parameters that have a gradient and no update yet. Throws as Optimizer::step() does,
  // before any of these changes; and if a source has not finished.
  UpdateReport finish();
  // Ends a step that an exception interrupted: nothing more is updated, and the gradients of the rest are dropped, as
  // they may be incomplete. What was updated stays so: a second try of the same batch moves it once more.
  UpdateReport abandon();
  // In this step, so far.
  bool is_updated(const Tensor& parameter) const;

  // While it lives, backward only adds to the gradients. (Under a source: what that has for this, as no_sync().)
  class [[nodiscard]] NoUpdate {
   public:
    explicit NoUpdate(UpdateAtSeams& updates);
    ~NoUpdate();
    NoUpdate(const NoUpdate&) = delete;
    NoUpdate& operator=(const NoUpdate&) = delete;

   private:
    UpdateAtSeams& updates_;
  };
  NoUpdate no_update() { return NoUpdate(*this); }

 private:
  UpdateAtSeams(Optimizer& optimizer, UpdateAtSeamsOptions options, GradientSource* source);
  void claim(std::span<const Tensor> parameters);
  void let_go();
  void start_over_seams();
  void update(std::span<const size_t> slots);
  UpdateReport end_step();

  Optimizer& optimizer_;
  const UpdateAtSeamsOptions options_;
  GradientSource* const source_;
  std::unordered_map<const TensorImpl*, size_t> slot_of_;
  std::vector<Tensor> claimed_;
  std::vector<std::pair<Tensor, int64_t>> hooks_;
  std::unique_ptr<compile::Seams> seams_;  // without a source
  int64_t listener_ = 0;                   // of the source
  std::vector<bool> updated_;              // by slot of the optimizer, in this step
  UpdateReport report_;
  bool listening_ = true;
  bool held_ = false;  // under no_update()
};

}  // namespace rondo::optim
#pragma GCC visibility pop
