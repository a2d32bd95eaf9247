#include "rondo/compile/seam.h"

#include <unordered_map>

#include "rondo/compile/region.h"
#include "rondo/runtime/autograd.h"

namespace rondo::compile {

struct Seams::State {
  std::vector<Seam> plan;
  std::vector<std::vector<bool>> arrived;  // by seam and parameter, in this backward
  std::vector<size_t> waiting;             // parameters that have not
  std::vector<std::vector<int64_t>> hooks;
  size_t next = 0;  // seams before it have been called back
  Callback callback;

  void start_over() {
    next = 0;
    for (size_t s = 0; s < plan.size(); ++s) {
      arrived[s].assign(plan[s].parameters.size(), false);
      waiting[s] = plan[s].parameters.size();
    }
  }
  void arrive(size_t seam, size_t parameter) {
    if (arrived[seam][parameter]) return;  // a second backward before finish(): the gradient was final already
    arrived[seam][parameter] = true;
    --waiting[seam];
    while (next < plan.size() && waiting[next] == 0) callback(plan[next++]);
  }
};

Seams::Seams(nn::ModuleBase& model, Callback callback) : state_(std::make_shared<State>()) {
  std::vector<nn::ModuleBase*> blocks = repeated_blocks(model);
  std::vector<Seam>& plan = state_->plan;
  for (size_t i = blocks.size(); i-- > 0;) plan.push_back({blocks[i]->path(), {}, true});
  plan.push_back({"", {}, true});
  // The last seam that uses a parameter; what no block has belongs to the rest.
  std::unordered_map<const TensorImpl*, size_t> seam_of;
  for (size_t s = 0; s < blocks.size(); ++s)
    for (const Tensor& p : blocks[blocks.size() - 1 - s]->parameters()) seam_of[p.impl()] = s;
  std::unordered_map<const TensorImpl*, size_t> uses;
  for (const Tensor* slot : model.tensor_slots()) ++uses[slot->impl()];
  for (nn::ModuleBase* block : blocks)
    for (const Tensor* slot : block->tensor_slots()) --uses[slot->impl()];
  for (const Tensor& p : model.parameters()) {
    if (!p.requires_grad()) continue;
    const auto found = seam_of.find(p.impl());
    const bool also_outside = uses[p.impl()] > 0;
    plan[found == seam_of.end() || also_outside ? plan.size() - 1 : found->second].parameters.push_back(p);
  }
  std::erase_if(plan, [](const Seam& seam) { return seam.parameters.empty(); });
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
  for (; state_->next < state_->plan.size(); ++state_->next) {
    Seam seam = state_->plan[state_->next];
    seam.complete = state_->waiting[state_->next] == 0;
    state_->callback(seam);
  }
  state_->start_over();
}

}  // namespace rondo::compile
