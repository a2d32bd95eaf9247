#include "rondo/dist/ddp/trainer_replicas.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/groups/agreement.h"
#include "rondo/dist/groups/scalar_reduction.h"
#include "rondo/modules/layers/channel_norm.h"

namespace rondo::dist {

std::vector<double> TrainerReplicas::sum(const std::vector<double>& values, std::string_view name) {
  const Tensor sums = Tensor::from(values, {static_cast<int64_t>(values.size())}, kCPU);
  ddp_.group().all_reduce(sums, ReduceOp::kSum, name).wait();
  return sums.to_vector<double>();
}

std::function<double()> TrainerReplicas::begin_sum(std::vector<std::pair<double, Tensor>> terms,
                                                   std::string_view name) {
  std::vector<ScalarReduction::Term> weighted;
  for (auto& [weight, value] : terms) weighted.push_back({std::move(value), weight});
  auto sum = std::make_shared<ScalarReduction>(ddp_.group(), ReduceOp::kSum, std::move(weighted), name);
  return [sum] { return sum->value(); };
}

void TrainerReplicas::require_equal(const std::vector<std::string>& lines, std::string_view name) {
  constexpr int64_t kMostBytes = 1 << 16;
  const std::vector<std::string> texts = gather_texts(ddp_.group(), absl::StrJoin(lines, "\n"), kMostBytes, name);
  if (const std::optional<TextDifference> found = first_difference(texts))
    throw MismatchError(absl::StrCat(std::string(name), ": rank ", found->rank,
                                     " begins with another run than rank 0: ", found->there, " there, ", found->first,
                                     " on rank 0. Do all ranks read the same files, with the same options?"));
}

void TrainerReplicas::backward(const Tensor& loss, bool is_last) {
  std::optional<DistributedDataParallel::NoSync> local;
  if (!is_last) local.emplace(ddp_);
  loss.backward();
}

void TrainerReplicas::average_gradients(bool ran_backward) {
  if (ran_backward) ddp_.finish();
  else ddp_.finish_with_zeros();
}

bool TrainerReplicas::layers_wait() const {
  bool waits = options_.layers_wait;
  ddp_.module().apply([&](nn::ModuleBase& module) {
    if (const auto* const of_rows = dynamic_cast<nn::BatchNorm1d*>(&module)) waits |= of_rows->is_synchronised();
    if (const auto* const of_images = dynamic_cast<nn::BatchNorm2d*>(&module)) waits |= of_images->is_synchronised();
  });
  return waits;
}

bool TrainerReplicas::share_states_of(const optim::Optimizer& optimizer) const {
  return options_.shards != nullptr && &options_.shards->optimizer() == &optimizer;
}

nn::StateDict TrainerReplicas::optimizer_state(const optim::Optimizer& optimizer) {
  return share_states_of(optimizer) ? options_.shards->state_dict(/*only_on=*/0) : optimizer.state_dict();
}

void TrainerReplicas::load_optimizer_state(optim::Optimizer& optimizer, const nn::StateDict& state) {
  if (share_states_of(optimizer)) options_.shards->load_state_dict(state);
  else optimizer.load_state_dict(state);
}

void TrainerReplicas::end_step() {
  if (options_.check_parameters) ddp_.check_parameters();
}

}  // namespace rondo::dist
