// What sharded optimizer states save and cost, beside DistributedDataParallel with whole states.
//   rondorun --nproc-per-node 4 bench_sharded    (--n_layer=4 --n_embd=256 --rounds=11 --steps=4)
// Both jobs are in the same processes and train on the same batches, a round of steps each in turn. CPU seconds are
// those of all ranks together: they include what a rank spins while it waits.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/tests/bench/options.h"

namespace rondo {
namespace {

double seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int64_t bytes_of(Purpose purpose) { return memory::stats(kCPU).by_purpose[static_cast<int>(purpose)]; }

struct Job {
  Job(const std::shared_ptr<dist::ProcessGroup>& group, const nn::GPT2Config& config, bool sharded)
      : model(config, 1), ddp(model, group), optimizer(model.parameters(), {.lr = 1e-4, .weight_decay = 0.1}) {
    if (compile::jit_available()) compile::compile_regions(model), optim::compile(optimizer);
    if (sharded) shards = std::make_unique<dist::ShardedOptimizer>(ddp, optimizer);
  }
  double step(int64_t number, int64_t rows) {
    const int64_t n = rows * model.config.block_size, first = ddp.group().rank() * n;
    std::vector<int64_t> tokens;
    for (int64_t i = first; i < first + n; ++i)
      tokens.push_back((i * i + 7 * i + 13 * number) % model.config.vocab_size);
    const Tensor batch = Tensor::from(tokens, {rows, model.config.block_size});
    const Tensor loss = model.loss(batch, batch);
    loss.backward();
    ddp.finish();
    optimizer.step({.max_norm = 1.0});
    optimizer.zero_grad();
    return loss.item();
  }
  nn::GPT2 model;
  dist::DistributedDataParallel ddp;
  optim::AdamW optimizer;
  std::unique_ptr<dist::ShardedOptimizer> shards;
};

struct Figures {
  std::vector<double> cpu, wall;  // of each round
  std::vector<double> losses;     // means over the ranks
  int64_t states = 0, gradients = 0;
};

double sum_over_ranks(dist::ProcessGroup& group, double value) {
  const Tensor sum = Tensor::scalar<double>(value);
  group.all_reduce(sum, dist::ReduceOp::kSum, "figure").wait();
  return sum.item();
}

void run_round(dist::ProcessGroup& group, Job& job, Figures& figures, int64_t first, int64_t steps, int64_t rows) {
  group.barrier("round").wait();
  const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
  std::vector<double> losses;
  for (int64_t k = 0; k < steps; ++k) losses.push_back(job.step(first + k, rows));
  if (job.shards) job.shards->wait();  // the last step's parameters, which a forward would wait for
  group.barrier("end of the round").wait();
  figures.wall.push_back((seconds(CLOCK_MONOTONIC) - wall) / static_cast<double>(steps));
  const double used = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  figures.cpu.push_back(sum_over_ranks(group, used) / static_cast<double>(steps));
  for (const double loss : losses) figures.losses.push_back(sum_over_ranks(group, loss) / group.world_size());
}

void run(const bench::Options& options) {
  const auto group = dist::ProcessGroup::connect(dist::Environment::from_process());
  const nn::GPT2Config config{.vocab_size = options.integer("vocab_size", 512),
                              .block_size = options.integer("block_size", 128),
                              .n_layer = options.integer("n_layer", 4),
                              .n_head = options.integer("n_head", 4),
                              .n_embd = options.integer("n_embd", 256)};
  const int64_t rows = options.integer("batch_size", 2), rounds = options.integer("rounds", 11),
                steps = options.integer("steps", 4);
  std::unique_ptr<Job> jobs[2];
  Figures figures[2];
  for (int k = 0; k < 2; ++k) {
    const int64_t states = bytes_of(Purpose::kStates), gradients = bytes_of(Purpose::kGradients);
    jobs[k] = std::make_unique<Job>(group, config, k == 1);
    Figures warm_up;
    run_round(*group, *jobs[k], warm_up, 0, 2, rows);
    figures[k].states = bytes_of(Purpose::kStates) - states;
    figures[k].gradients = bytes_of(Purpose::kGradients) - gradients;
  }
  for (int64_t round = 0; round < rounds; ++round)
    for (const int k : {0, 1}) {
      const int first = static_cast<int>(round % 2) ^ k;  // in turn, too
      run_round(*group, *jobs[first], figures[first], 2 + round * steps, steps, rows);
    }
  double difference = 0;
  for (size_t i = 0; i < figures[0].losses.size(); ++i)
    difference = std::max(difference, std::abs(figures[1].losses[i] / figures[0].losses[i] - 1));
  std::vector<double> cpu_ratios, wall_ratios;
  for (size_t r = 0; r < figures[0].cpu.size(); ++r) {
    cpu_ratios.push_back(figures[1].cpu[r] / figures[0].cpu[r]);
    wall_ratios.push_back(figures[1].wall[r] / figures[0].wall[r]);
  }
  // The rank with the most.
  const Tensor mine = Tensor::from<int64_t>({figures[1].states}, {1}, kCPU);
  Tensor all = Tensor::zeros({group->world_size(), 1}, {kI64, kCPU});
  group->all_gather(all, mine, "states").wait();
  const auto most_states = static_cast<double>(all.max().item<int64_t>());
  if (group->rank() != 0) return;
  std::printf("%d ranks, %lld parameters, %lld rounds of %lld steps each\n", group->world_size(),
              static_cast<long long>(jobs[0]->model.num_parameters()), static_cast<long long>(rounds),
              static_cast<long long>(steps));
  std::printf("                     whole states   shards    ratio\n");
  std::printf("states, MB           %10.2f   %10.2f   %6.3f\n", 1e-6 * static_cast<double>(figures[0].states),
              1e-6 * most_states, most_states / static_cast<double>(figures[0].states));
  std::printf("gradients, MB        %10.2f   %10.2f   %6.3f\n", 1e-6 * static_cast<double>(figures[0].gradients),
              1e-6 * static_cast<double>(figures[1].gradients),
              static_cast<double>(figures[1].gradients) / static_cast<double>(figures[0].gradients));
  std::printf("CPU ms a step        %10.1f   %10.1f   %6.3f (median of the rounds' ratios)\n",
              1e3 * median(figures[0].cpu), 1e3 * median(figures[1].cpu), median(cpu_ratios));
  std::printf("wall ms a step       %10.1f   %10.1f   %6.3f\n", 1e3 * median(figures[0].wall),
              1e3 * median(figures[1].wall), median(wall_ratios));
  std::printf("largest relative difference of %zu losses: %.2g\n", figures[0].losses.size(), difference);
}

}  // namespace
}  // namespace rondo

int main(int argc, char** argv) {
  try {
    rondo::run(rondo::bench::Options(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_sharded: %s\n", error.what());
    return 1;
  }
}
