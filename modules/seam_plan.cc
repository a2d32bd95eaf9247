#include "rondo/modules/seam_plan.h"

#include <unordered_map>
#include <unordered_set>

namespace rondo::nn {

std::vector<Seam> plan_seams(const ModuleBase& model) {
  const std::vector<ModuleBase*> blocks = model.repeated_blocks();
  std::vector<Seam> plan(blocks.size() + 2);
  const size_t after_blocks = 0, before_blocks = blocks.size() + 1;
  std::unordered_map<const TensorImpl*, size_t> seam_of;  // the last seam that uses a parameter of a block
  for (size_t s = 1; s <= blocks.size(); ++s) {
    const ModuleBase& block = *blocks[blocks.size() - s];
    plan[s].path = block.path();
    for (const Tensor& p : block.parameters()) seam_of[p.impl()] = s;
  }
  std::unordered_set<const Tensor*> slots_of_blocks;
  for (const ModuleBase* block : blocks)
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
    size_t seam = before_blocks;  // the last seam; also for a parameter that several parts use
    if (of_block != seam_of.end() && uses == 0) seam = of_block->second;
    else if (of_block == seam_of.end() && uses == 1 && met_block) seam = after_blocks;
    plan[seam].parameters.push_back(p);
  }
  std::erase_if(plan, [](const Seam& seam) { return seam.parameters.empty(); });
  return plan;
}

}  // namespace rondo::nn
