#include "rondo/dist/ddp/plan_agreement.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/groups/agreement.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

struct TwoParts {
  std::vector<size_t> first_part_at;  // by index into in_two_parts: the first part's place in the order
  std::string text;                   // describes the choice; the ranks compare it
};

// Chooses the gradients that travel in two parts: Note [Two parts] in row_gather.h.
TwoParts agree_on_parts(StepState& step, const ShardTakers& takers) {
  std::vector<RowGather::Uses> uses;
  std::vector<Tensor> tensors;
  for (const StepGradient& gradient : step.gradients) {
    tensors.push_back(gradient.parameter);
    const bool may = gradient.rows != nullptr && takers.taker_of(gradient.parameter).index == 0;
    uses.push_back(may ? gradient.rows->uses() : RowGather::Uses());
  }
  const std::vector<int64_t> capacity = agree_on_rows(step.group, uses, tensors);
  TwoParts found;
  step.in_two_parts.clear();
  for (size_t i = 0; i < step.gradients.size(); ++i) {
    StepGradient& gradient = step.gradients[i];
    if (capacity[i] == 0) {
      gradient.home->set_parts(nullptr);
      gradient.rows.reset();
      continue;
    }
    const DType wire = travels_as(gradient.parameter.dtype(), step.options);
    gradient.rows->travel_in_parts(uses[i], capacity[i], wire, step.group.world_size());
    step.in_two_parts.push_back(i);
    found.first_part_at.push_back(uses[i].position);
    absl::StrAppend(&found.text, "in two parts: ", gradient.name, ", ", capacity[i], " rows\n");
  }
  return found;
}

// Returns the indices of all parameters, in the order in which rank 0 has seen their gradients. A collective.
std::vector<int64_t> agree_on_order(const StepState& step, const TwoParts& parts) {
  std::vector<int64_t> order;
  for (size_t k = 0; k <= step.order.size(); ++k) {
    for (size_t p = 0; p < step.in_two_parts.size(); ++p)
      if (parts.first_part_at[p] == k) order.push_back(static_cast<int64_t>(step.in_two_parts[p]));
    if (k < step.order.size() && step.gradients[step.order[k]].rows == nullptr)
      order.push_back(static_cast<int64_t>(step.order[k]));
  }
  for (size_t i = 0; i < step.gradients.size(); ++i)
    if (!step.gradients[i].arrived) order.push_back(static_cast<int64_t>(i));
  const Tensor agreed = Tensor::from(order, {static_cast<int64_t>(order.size())}, kCPU);
  step.group.broadcast(agreed, 0, "order of the gradients").wait();
  return agreed.to_vector<int64_t>();
}

}  // namespace

void compare_plans(ProcessGroup& group, const std::string& text) {
  io::Checksum sum;
  sum.update(text);
  const std::string mine = absl::StrCat(sum.digest(), " ", text.size());
  const std::vector<std::string> hashes = gather_texts(group, mine, 64, "hash of the plan");
  if (!first_difference(hashes)) return;
  size_t longest = 0;
  for (const std::string& hash : hashes) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(hash, ' ');
    longest = std::max(longest, static_cast<size_t>(std::stoull(parts.second)));
  }
  const std::optional<TextDifference> found = first_difference(
      gather_texts(group, text, static_cast<int64_t>(longest), "plan"));
  invariant(found.has_value(), "plans with different hashes are equal");
  throw MismatchError(absl::StrCat(kDdp, ": rank ", found->rank, " has another plan than rank 0; line ",
                                   found->line + 1, " is ", found->there, " there, and ", found->first,
                                   " on rank 0. Every rank must make the same model, frozen in the same places"));
}

BucketPlan agree_on_plan(const nn::ModuleBase& model, StepState& step, const ShardTakers& takers) {
  const TwoParts in_two_parts = agree_on_parts(step, takers);
  std::vector<optim::Seam> parts;
  bool apart = true;
  for (const int64_t at : agree_on_order(step, in_two_parts)) {
    const StepGradient& gradient = step.gradients.at(static_cast<size_t>(at));
    const bool has_rows = gradient.rows != nullptr;
    if (apart || parts.back().path != gradient.block || has_rows) parts.push_back({gradient.block, {}, true});
    parts.back().parameters.push_back(gradient.parameter);
    apart = has_rows;  // the bucket of the first part need not wait for the gradient of another parameter
  }
  for (optim::Seam& part : parts) {  // see Note [Bucket order]
    const bool is_block = !part.path.empty();
    int64_t bytes = 0;
    for (const Tensor& p : part.parameters) bytes += p.nbytes();
    if (!is_block && bytes > step.options.max_bytes) continue;
    std::sort(part.parameters.begin(), part.parameters.end(), [&](const Tensor& a, const Tensor& b) {
      const size_t x = step.position_of(a), y = step.position_of(b);
      return is_block ? x > y : x < y;
    });
  }
  BucketPlan plan = plan_buckets(model, parts, step.options, [&](const Tensor& p) { return takers.taker_of(p); });
  compare_plans(step.group, absl::StrCat(plan.text, in_two_parts.text, takers.describe()));
  return plan;
}

}  // namespace rondo::dist
