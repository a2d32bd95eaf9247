// TrainerReplicas: optim::Trainer over several processes.
//
//   const auto group = dist::ProcessGroup::connect(dist::Environment::from_process());   // under rondorun
//   dist::DistributedDataParallel ddp(model, group);
//   dist::TrainerReplicas replicas(ddp);
//   optim::Trainer trainer(model, optimizer, loss, train_data, {.output_dir = "run", .replicas = &replicas});
//
// Every process makes the same objects on the same data. See trainer.h for what they share.
// To divide the optimizer's states among the processes (sharded_optimizer.h):
//
//   dist::ShardedOptimizer shards(ddp, optimizer);
//   dist::TrainerReplicas replicas(ddp, {.shards = &shards});
//
// Ownership: keeps references to `ddp` and to the shards. Thread safety: the thread that trains.
#pragma once

#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/optim/trainer/replicas.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

struct TrainerReplicasOptions {
  // After every step, throws MismatchError unless all processes have the same parameters, bit for bit. Reads all
  // parameters.
  bool check_parameters = false;
  // True if layers of the model call collectives. Then a process without a batch runs the model on an empty batch
  // (replicas.h). Synchronised BatchNorms are detected; set this for layers of your own that call collectives.
  bool layers_wait = false;
  // The Trainer's optimizer, if its states are in shards. Checkpoints hold the states of whole parameters.
  ShardedOptimizer* shards = nullptr;
};

class TrainerReplicas : public optim::Replicas {
 public:
  explicit TrainerReplicas(DistributedDataParallel& ddp, TrainerReplicasOptions options = {})
      : ddp_(ddp), options_(options) {}
  int rank() const override { return ddp_.group().rank(); }
  int size() const override { return ddp_.group().world_size(); }
  std::vector<double> sum(const std::vector<double>& values, std::string_view name) override;
  std::function<double()> begin_sum(std::vector<std::pair<double, Tensor>> terms, std::string_view name) override;
  void require_equal(const std::vector<std::string>& lines, std::string_view name) override;
  void backward(const Tensor& loss, bool is_last) override;
  void average_gradients(bool ran_backward) override;
  bool layers_wait() const override;
  bool share_states_of(const optim::Optimizer& optimizer) const override;
  nn::StateDict optimizer_state(const optim::Optimizer& optimizer) override;
  void load_optimizer_state(optim::Optimizer& optimizer, const nn::StateDict& state) override;
  void end_step() override;

 private:
  DistributedDataParallel& ddp_;
  const TrainerReplicasOptions options_;
};

}  // namespace rondo::dist
#pragma GCC visibility pop
