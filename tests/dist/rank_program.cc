// A rank that fails in a way of the caller's choice, for tests of the launcher.
//   dist_rank HOW [recorded|uncaught] [device|"device checked"]
// `device`: with a CUDA device for each rank, waiting for each collective. `device checked`: the host waits for the
// comparison of sequences only.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "rondo/dist/groups/process_group.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace {

using namespace rondo;

constexpr int kSteps = 1000, kBadStep = 5;

// How rank 1 ends in the midst of a step.
void fail(const std::string& how) {
  if (how == "kill" || how == "kill in transfer") ::raise(SIGKILL);
  if (how == "stop") ::raise(SIGSTOP);
  if (how == "exit 3") ::_exit(3);
  if (how == "exit 0") std::exit(0);
  if (how == "throw") throw std::runtime_error("the data are gone");
  if (how == "late") std::this_thread::sleep_for(std::chrono::seconds(300));
}

int train_on_device(const std::string& how, bool checked) {
  const dist::Environment job = dist::Environment::from_process();
  const Device device = parse_device("cuda:" + std::to_string(job.local_rank));
  const bool silent = how == "stop" || how == "late";
  const auto group = dist::ProcessGroup::connect(
      job, {.timeout = std::chrono::milliseconds(silent ? 3'000 : 60'000), .device = device});
  Tensor gradients = Tensor::ones({1000}, {kF32, kCPU}).to(device);
  for (int step = 0; step < 3 * kBadStep; ++step) {
    const dist::Work work = group->all_reduce(gradients, dist::ReduceOp::kAverage, "gradients");
    if (group->rank() == 1 && step == kBadStep) fail(how);
    if (checked) work.wait(), group->check_sequence("", "end of step");
    else work.synchronize();
  }
  std::printf("rank %d has %g\n", group->rank(), gradients.to_vector<double>()[999]);
  return 0;
}

int train(const std::string& how) {
  // Only a rank that is silent needs the timeout to pass.
  const bool silent = how == "stop" || how == "late";
  const auto group = dist::ProcessGroup::connect(dist::Environment::from_process(),
                                                 {.timeout = std::chrono::milliseconds(silent ? 3'000 : 60'000)});
  const bool bad = group->rank() == 1;
  Tensor gradients = Tensor::ones({how == "kill in transfer" ? 1 << 20 : 1000});
  for (int step = 0; step < kSteps; ++step) {
    const dist::Work work = group->all_reduce(gradients, dist::ReduceOp::kAverage, "gradients");
    if (bad && step == kBadStep) {
      if (how == "return 0") return 0;
      fail(how);
    }
    work.wait();
  }
  return 0;
}

// Prints the losses of a small regression, in all their bits. Gradients go in messages of all sizes.
int print_losses() {
  const auto group = dist::ProcessGroup::connect(dist::Environment::from_process(),
                                                 {.timeout = std::chrono::milliseconds(60'000)});
  constexpr int64_t kWeights = 100'000;
  Generator generator(static_cast<uint64_t>(group->rank()));
  const Tensor target = Tensor::randn({kWeights}, {}, &generator);
  Tensor weights = Tensor::zeros({kWeights});
  for (int step = 0; step < 10; ++step) {
    const Tensor error = ops::sub(weights, target);
    Tensor gradient = error, loss = ops::mean(ops::mul(error, error));
    group->all_reduce(gradient, dist::ReduceOp::kAverage, "gradient").wait();
    group->all_reduce(loss, dist::ReduceOp::kAverage, "loss").wait();
    weights = ops::sub(weights, ops::mul(gradient, 0.5));
    std::printf("%d %a\n", step, loss.item());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "losses") return dist::record_errors([] { return print_losses(); });
  if (argc > 3) {
    try {
      return dist::record_errors([&] { return train_on_device(how, std::strcmp(argv[3], "device checked") == 0); });
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return 9;
    }
  }
  // Nothing catches what this throws: std::terminate, SIGABRT.
  if (argc > 2 && std::strcmp(argv[2], "recorded") != 0) return train(how);
  try {
    return dist::record_errors([&] { return train(how); });
  } catch (const std::exception&) {
    return 9;
  }
}
