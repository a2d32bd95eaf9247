#include "rondo/optim/seam.h"

#include "rondo/runtime/autograd/autograd.h"

namespace rondo::optim {

struct Seams::State {
  std::vector<Seam> plan;
  std::vector<std::vector<bool>> arrived;  // by seam and parameter: whether the gradient was final in this backward
  std::vector<size_t> waiting;             // by seam: how many of its gradients are not final yet
  std::vector<std::vector<int64_t>> hooks;
  Callback callback;

  void start_over() {
    for (size_t s = 0; s < plan.size(); ++s) {
      arrived[s].assign(plan[s].parameters.size(), false);
      waiting[s] = plan[s].parameters.size();
    }
  }
  void arrive(size_t seam, size_t parameter) {
    if (arrived[seam][parameter]) return;  // a second backward before finish(): the gradient was final already
    arrived[seam][parameter] = true;
    if (--waiting[seam] == 0) callback(plan[seam]);
  }
};

Seams::Seams(const nn::ModuleBase& model, Callback callback) : state_(std::make_shared<State>()) {
  state_->plan = plan_seams(model);
  const std::vector<Seam>& plan = state_->plan;
  state_->callback = std::move(callback);
  state_->arrived.resize(plan.size());
  state_->waiting.resize(plan.size());
  state_->hooks.resize(plan.size());
  for (size_t s = 0; s < plan.size(); ++s)
    for (size_t i = 0; i < plan[s].parameters.size(); ++i)
      state_->hooks[s].push_back(
          autograd::on_accumulated(plan[s].parameters[i], [state = std::weak_ptr<State>(state_), s, i] {
            if (const std::shared_ptr<State> alive = state.lock()) alive->arrive(s, i);
          }));
  state_->start_over();
}

Seams::~Seams() {
  for (size_t s = 0; s < state_->plan.size(); ++s)
    for (size_t i = 0; i < state_->hooks[s].size(); ++i)
      autograd::remove_on_accumulated(state_->plan[s].parameters[i], state_->hooks[s][i]);
}

const std::vector<Seam>& Seams::plan() const { return state_->plan; }

void Seams::finish() {
  for (size_t s = 0; s < state_->plan.size(); ++s) {
    if (state_->waiting[s] == 0) continue;
    Seam seam = state_->plan[s];
    seam.complete = false;
    state_->callback(seam);
  }
  state_->start_over();
}

}  // namespace rondo::optim
