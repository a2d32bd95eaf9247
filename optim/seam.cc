#include "rondo/optim/seam.h"

#include <unordered_map>
#include <unordered_set>

#include "rondo/runtime/autograd.h"

namespace rondo::optim {

std::vector<Seam> plan_seams(const nn::ModuleBase& model) {
  const std::vector<nn::ModuleBase*> blocks = model.repeated_blocks();
  std::vector<Seam> plan(blocks.size() + 2);
  const size_t after_blocks = 0, before_blocks = blocks.size() + 1;
  std::unordered_map<const TensorImpl*, size_t> seam_of;  // the last seam that uses a parameter of a block
  for (size_t s = 1; s <= blocks.size(); ++s) {
    const nn::ModuleBase& block = *blocks[blocks.size() - s];
    plan[s].path = block.path();
    for (const Tensor& p : block.parameters()) seam_of[p.impl()] = s;
  }
  std::unordered_set<const Tensor*> slots_of_blocks;
  for (const nn::ModuleBase* block : blocks)
    for (const Tensor* slot : block->tensor_slots()) slots_of_blocks.insert(slot);
  std::unordered_map<const TensorImpl*, size_t> uses_outside;
  for (const Tensor* slot : model.tensor_slots())
    if (!slots_of_blocks.contains(slot)) ++uses_outside[slot->impl()];
  bool met_block = false;
  for (const Tensor& p : model.parameters()) {
    const auto of_block = seam_of.find(p.impl());
    met_block = met_block || of_block != seam_of.end();
    if (!p.requires_grad()) continue;
    const size_t uses = uses_outside[p.impl()];
    size_t seam = before_blocks;  // final last: also where a parameter is used in several parts
    if (of_block != seam_of.end() && uses == 0) seam = of_block->second;
    else if (of_block == seam_of.end() && uses == 1 && met_block) seam = after_blocks;
    plan[seam].parameters.push_back(p);
  }
  std::erase_if(plan, [](const Seam& seam) { return seam.parameters.empty(); });
  return plan;
}

struct Seams::State {
  std::vector<Seam> plan;
  std::vector<std::vector<bool>> arrived;  // by seam and parameter, in this backward
  std::vector<size_t> waiting;             // parameters that have not arrived
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
