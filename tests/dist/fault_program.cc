// A training job one of whose ranks fails in a way of the caller's choice, at a step of its choice, in its first
// attempt. For faults.sh.
//   dist_faults train DEVICE FOLDER HOW [RANK=1] [STEP=6]
//     DEVICE: cpu, or cuda: one for each rank. FOLDER gets checkpoints; a job goes on from those that are there.
//   dist_faults check FOLDER    are all of its files whole?
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/trainer_replicas.h"
#include "rondo/dist/groups/placement.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace {

using namespace rondo;

constexpr int64_t kVocab = 32, kLength = 8, kSteps = 12;

class Rows : public data::Dataset {
 public:
  int64_t size() const override { return 96; }
  std::vector<Tensor> get(int64_t index) const override {
    std::vector<int64_t> ids;
    for (int64_t t = 0; t <= kLength; ++t)
      ids.push_back(philox(1, static_cast<uint64_t>(index), static_cast<uint64_t>(t))[0] % kVocab);
    const std::span<const int64_t> all(ids);
    return {Tensor::from(all.first(kLength), {kLength}), Tensor::from(all.last(kLength), {kLength})};
  }
};

struct Mlp : nn::Module<Mlp> {
  explicit Mlp(int64_t width) : width(width) {}
  const int64_t width;
  nn::Linear up = child("up", width, 2 * width);
  nn::Linear down = child("down", 2 * width, width);
  std::function<void()> in_forward = [] {};
  Tensor forward(const Tensor& x) {
    const Tensor inner = ops::gelu(up(x));
    in_forward();
    return x + down(inner);
  }
};

struct Net : nn::Module<Net> {
  Net(int64_t width, bool swapped) : width(width), swapped(swapped) {}
  const int64_t width;
  const bool swapped;
  nn::Embedding wte = child("wte", kVocab, width);
  Mlp first = child(swapped ? "second" : "first", width), second = child(swapped ? "first" : "second", width);
  nn::Linear head = child("head", width, kVocab);
  Tensor forward(const Tensor& ids) { return head(second(first(wte(ids)))); }
  Tensor loss(const data::Batch& batch) {
    return ops::cross_entropy(ops::reshape((*this)(batch[0]), {-1, kVocab}), ops::reshape(batch[1], {-1}));
  }
};

// What goes wrong, and whether it does so in this process, now.
struct Fault {
  std::string how;
  bool is_mine = false;  // of this rank and attempt
  int64_t step = 0;
  bool is(const char* name) const { return is_mine && how == name; }
};

[[noreturn]] void die() {
  ::raise(SIGKILL);
  std::abort();
}

// Kills the process some time after the gradients are averaged: while the optimizer runs, or just behind it.
class Replicas : public dist::TrainerReplicas {
 public:
  // The check of all parameters waits for a device in every step, which hides what comes late.
  Replicas(dist::DistributedDataParallel& ddp, std::function<bool()> kills)
      : TrainerReplicas(ddp, {.check_parameters = ddp.group().device() == std::nullopt}), kills_(std::move(kills)) {}
  void average_gradients(bool ran_backward) override {
    TrainerReplicas::average_gradients(ran_backward);
    if (!kills_()) return;
    killer_ = std::thread([] {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      die();
    });
  }
  void end_step() override {
    if (killer_.joinable()) killer_.join();
    TrainerReplicas::end_step();
  }

 private:
  const std::function<bool()> kills_;
  std::thread killer_;
};

struct Reporter : optim::Callback {
  bool goes_on = false;
  void on_save(const optim::Progress& now, const std::string&) override {
    std::printf("saved step %lld\n", static_cast<long long>(now.step));
    std::fflush(stdout);
  }
  bool on_save_error(const optim::Progress& now, const FileError& error) override {
    std::printf("step %lld: no checkpoint: %s\n", static_cast<long long>(now.step), error.what());
    return goes_on;
  }
};

void disagree(const Fault& fault, Net& net) {
  if (fault.is("other_dtype")) net.to(kF64);
  if (fault.is("other_trainable")) net.second.requires_grad_(false);
}

void misbehave(const Fault& fault, dist::ProcessGroup& group) {
  if (fault.is("kill_forward")) die();
  if (fault.is("stop")) ::raise(SIGSTOP);
  if (fault.is("throw")) throw std::runtime_error("the data are gone");
  if (fault.is("exit")) std::_Exit(0);
  if (fault.how.starts_with("full_disk")) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit most{1 << 16, 1 << 16};
    ::setrlimit(RLIMIT_FSIZE, &most);
  }
  if (fault.is("other_collective")) group.barrier("something else").wait();
  if (fault.is("other_device_collective"))
    group.all_reduce(Tensor::ones({8}, {kF32, *group.device()}), dist::ReduceOp::kSum, "something else").wait();
  if (fault.is("late")) std::this_thread::sleep_for(std::chrono::seconds(300));
}

// The fake of NCCL spoils a collective of about the fault's step: a process issues 12 before its first step, and 15 in
// each. REQUIRES: nothing has asked for a device yet.
void spoil_collective(const Fault& fault, int rank) {
  const std::string at = absl::StrCat("@", rank, ",", 12 + 15 * fault.step + 4);
  std::string text;
  if (fault.is("nccl_kill")) text = "die" + at;
  if (fault.is("nccl_stall")) text = "stall" + at;
  if (fault.is("nccl_late")) text = "late" + at + ",700";
  if (fault.is("nccl_error")) text = "error" + at + ",2";
  if (!text.empty()) ::setenv("RONDO_FAKE_NCCL", text.c_str(), 1);
}

int train(const std::string& kind, const std::string& folder, Fault fault, int bad_rank) {
  const dist::Environment job = dist::Environment::from_process();
  fault.is_mine = job.rank == bad_rank && job.restart_count == 0;
  spoil_collective(fault, job.rank);
  const Device device = dist::device_of_rank(kind, job);
  const bool silent = fault.how == "stop" || fault.how == "late" || fault.how == "nccl_stall";
  const auto group = dist::ProcessGroup::connect(
      job, {.timeout = std::chrono::milliseconds(silent ? 3'000 : 60'000), .device = device});
  manual_seed(7);
  // A fake device runs kernels a thread at a time.
  const int64_t width = device == kCPU ? 256 : 32;
  Net net(fault.is("other_model") ? width + 8 : width, /*swapped=*/fault.is("other_order"));
  disagree(fault, net);
  net.to(device);
  dist::DistributedDataParallel ddp(net, group, {.min_bytes = 1, .max_bytes = 4 * width * width});
  std::optional<optim::Trainer> trainer;
  const auto now = [&] { return net.is_training() && trainer->progress().step == fault.step; };
  Replicas replicas(ddp, [&] { return fault.is("kill_optimizer") && now(); });
  optim::AdamW optimizer(net.parameters(), {.lr = 1e-3});
  data::DataLoader batches(std::make_shared<Rows>(), {.batch_size = 2, .shuffle = true, .seed = 3, .num_workers = 1});
  trainer.emplace(
      net, optimizer,
      [&](const data::Batch& batch) {
        const Tensor loss = net.loss(batch);
        return fault.is("nan") && now() ? loss * std::numeric_limits<double>::infinity() : loss;
      },
      batches,
      optim::TrainerOptions{.max_steps = kSteps, .output_dir = folder, .save_steps = 2, .replicas = &replicas});
  net.first.in_forward = [&] {
    if (fault.is_mine && now()) misbehave(fault, *group);
  };
  // The gradients above are on their way to the other ranks when this one is final.
  autograd::on_accumulated(net.first.down.weight, [&] {
    if (fault.is("kill_collective") && now()) die();
  });
  Reporter reporter;
  reporter.goes_on = fault.how == "full_disk_goes_on";
  trainer->add_callback(reporter);
  trainer->resume_from_checkpoint();
  const optim::TrainResult result = trainer->train();
  std::printf("done: %lld steps, %lld skipped, loss %a, parameters %llx\n", static_cast<long long>(result.last.step),
              static_cast<long long>(result.last.skipped_steps), result.last.loss,
              static_cast<unsigned long long>(ddp.check_parameters()));
  return 0;
}

// Every checkpoint can be loaded, and nothing else is there but temporary files of writers that were killed.
int check(const std::string& folder) {
  int64_t newest = 0, count = 0;
  for (const std::string& path : io::list_checkpoints(folder)) {
    newest = std::max(newest, io::load_checkpoint(path).step);
    ++count;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("ckpt-") && !name.starts_with(".tmp-") && name != ".lock" && name != "run.lock")
      throw Error("what is " + name + "?");
  }
  std::printf("%lld whole checkpoints, the newest of step %lld\n", static_cast<long long>(count),
              static_cast<long long>(newest));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.size() == 2 && args[0] == "check") return check(args[1]);
    if (args.size() < 4 || args[0] != "train")
      throw Error("dist_faults train DEVICE FOLDER HOW [RANK] [STEP], or check FOLDER");
    const int bad_rank = args.size() > 4 ? std::stoi(args[4]) : 1, step = args.size() > 5 ? std::stoi(args[5]) : 6;
    return dist::record_errors([&] { return train(args[1], args[2], {.how = args[3], .step = step}, bad_rank); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dist_faults: %s\n", e.what());
    return 9;
  }
}
