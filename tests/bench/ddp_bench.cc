// What DistributedDataParallel adds to a training step, and the step of a whole job beside PyTorch's.
//   rondorun --nproc-per-node 2 --no-prefix bench_ddp    (--n_layer=6 --n_embd=384 --rounds=11 --steps=2 --dtype=bf16)
// Each rank trains two models in turn, a round of steps each: one under DistributedDataParallel, one by itself. What
// DDP adds is the difference within a round: the CPU seconds of all ranks, which include what a rank spins while it
// waits for another, and the time of the slowest rank. Rank 0 prints one line of JSON.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/tests/bench/options.h"

namespace rondo {
namespace {

double seconds_of(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Job {
  Job(const nn::GPT2Config& config, const std::shared_ptr<dist::ProcessGroup>& group, bool bf16)
      : model(config, 1), optimizer(model.parameters(), {.lr = 1e-4, .weight_decay = 0.1}), bf16(bf16) {
    if (group) ddp.emplace(model, group);
    compile::compile_regions(model);
    optim::compile(optimizer);
  }
  void step(const Tensor& x, const Tensor& y) {
    Tensor loss;
    {
      const amp::Autocast scope(bf16 ? std::optional(kBF16) : std::nullopt);
      loss = model.loss(x, y);
    }
    loss.backward();
    if (ddp) ddp->finish();
    optimizer.step({.max_norm = 1.0});
    optimizer.zero_grad();
  }
  nn::GPT2 model;
  std::optional<dist::DistributedDataParallel> ddp;
  optim::AdamW optimizer;
  const bool bf16;
};

struct Round {
  double cpu, wall;  // seconds a step: of all ranks together, of the slowest rank
};

Round measure(dist::ProcessGroup& group, Job& job, int64_t steps, const Tensor& x, const Tensor& y) {
  group.barrier("round").wait();
  const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID), wall = seconds_of(CLOCK_MONOTONIC);
  for (int64_t k = 0; k < steps; ++k) job.step(x, y);
  const double used[] = {seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu, seconds_of(CLOCK_MONOTONIC) - wall};
  const Tensor mine = Tensor::from<double>({used[0], used[1]}, {2}, kCPU);
  Tensor all = Tensor::zeros({group.world_size(), 2}, {kF64, kCPU});
  group.all_gather(all, mine, "times of a round").wait();
  Round round{0, 0};
  for (int r = 0; r < group.world_size(); ++r) {
    round.cpu += all[r][0].item() / static_cast<double>(steps);
    round.wall = std::max(round.wall, all[r][1].item() / static_cast<double>(steps));
  }
  return round;
}

void run(const bench::Options& options) {
  set_num_threads(static_cast<int>(options.integer("threads", 1)));
  const auto group = dist::ProcessGroup::connect(dist::Environment::from_process());
  const nn::GPT2Config config{.vocab_size = options.integer("vocab_size", 65),
                              .block_size = options.integer("block_size", 256),
                              .n_layer = options.integer("n_layer", 6),
                              .n_head = options.integer("n_head", 6),
                              .n_embd = options.integer("n_embd", 384)};
  const int64_t rows = options.integer("batch_size", 4), rounds = options.integer("rounds", 11),
                steps = options.integer("steps", 2);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < rows * config.block_size; ++i)
    tokens.push_back((i * i + 7 * i + group->rank()) % config.vocab_size);
  const Tensor x = Tensor::from(tokens, {rows, config.block_size});
  const bool bf16 = options.text("dtype", "f32") == "bf16";
  Job alone(config, nullptr, bf16), together(config, group, bf16);
  for (Job* job : {&alone, &together}) measure(*group, *job, 3, x, x);
  std::vector<double> cpu, wall, cpu_ratio, wall_ratio;
  for (int64_t r = 0; r < rounds; ++r) {
    Round by[2];  // alone, together; in turn
    for (const int64_t k : {r % 2, 1 - r % 2}) by[k] = measure(*group, k == 0 ? alone : together, steps, x, x);
    cpu.push_back(by[1].cpu);
    wall.push_back(by[1].wall);
    cpu_ratio.push_back(by[1].cpu / by[0].cpu);
    wall_ratio.push_back(by[1].wall / by[0].wall);
  }
  if (group->rank() != 0) return;
  const nlohmann::json report = {{"ranks", group->world_size()},         {"rounds", rounds},
                                 {"step_ms", 1e3 * median(wall)},        {"cpu_ms_of_all_ranks", 1e3 * median(cpu)},
                                 {"cpu_over_alone", median(cpu_ratio)},  {"cpu_over_alone_all", cpu_ratio},
                                 {"step_over_alone", median(wall_ratio)}};
  std::printf("%s\n", report.dump().c_str());
}

}  // namespace
}  // namespace rondo

int main(int argc, char** argv) {
  try {
    rondo::run(rondo::bench::Options(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_ddp: %s\n", error.what());
    return 1;
  }
}
