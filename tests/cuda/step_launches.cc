#include "rondo/tests/cuda/step_launches.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/report/stages.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/amp.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/random.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::test {
namespace {

using fake_cuda::Enqueued;

// As examples/train_gpt: matrices and embeddings decay.
optim::AdamW optimizer_of(const nn::GPT2& model) {
  optim::ParamGroup<optim::AdamWOptions> decayed, plain;
  for (const Tensor& p : model.parameters()) (p.rank() >= 2 ? decayed : plain).params.push_back(p);
  decayed.options = {.weight_decay = 0.1};
  plain.options = {.weight_decay = 0};
  return optim::AdamW({decayed, plain});
}

// The loss of a batch of token 1.
Tensor loss_of(nn::GPT2& model, const StepOptions& options, Device device) {
  const int64_t T = model.config.block_size;
  const Tensor tokens = Tensor::from(std::vector<int64_t>(static_cast<size_t>(options.batch * T), 1),
                                     {options.batch, T}, device);
  const amp::Autocast lower(options.dtype == kBF16 ? std::optional(kBF16) : std::nullopt);
  return model.loss(tokens, tokens);
}

std::vector<Enqueued> third_step(StepOptions options, int64_t layers) {
  FakeCuda cuda({.bytes = size_t{60} << 30, .executes = false});
  options.model.n_layer = layers;
  // The first ones compile, allocate and make states.
  train_steps(options, cuda.device(), 3, [&] { cuda->take_journal(); });
  return cuda->take_journal();
}

bool is_transfer(const Enqueued& work) {
  return work.kind == Enqueued::Kind::kCopy && work.name.find("host") != std::string::npos;
}

std::string name_of(const Enqueued& work) {
  switch (work.kind) {
    case Enqueued::Kind::kKernel: return work.name;
    case Enqueued::Kind::kProduct: return "product " + work.name;
    default: return absl::StrCat(work.name, " of ", work.bytes, " bytes");
  }
}

std::map<std::string, int64_t> counts(const std::vector<Enqueued>& journal) {
  std::map<std::string, int64_t> counts;
  for (const Enqueued& work : journal)
    if (!is_transfer(work)) ++counts[name_of(work)];
  return counts;
}

}  // namespace

void train_steps(const StepOptions& options, Device device, int steps, const std::function<void()>& before_step) {
  const DeviceScope scope(device);
  nn::GPT2 model(options.model, 1);
  optim::AdamW optimizer = optimizer_of(model);
  const compile::Regions regions = compile::compile_regions(model);
  optim::compile(optimizer);
  for (int step = 0; step < steps; ++step) {
    before_step();
    const Tensor loss = loss_of(model, options, device);
    loss.backward();
    loss.item();
    optimizer.step({.max_norm = 1.0});
    optimizer.zero_grad();
  }
}

StepLaunches step_launches(const StepOptions& options) {
  StepLaunches result{.options = options, .launches = {}};
  const std::vector<Enqueued> journal = third_step(options, options.model.n_layer);
  // A block is what one more of them adds.
  const std::map<std::string, int64_t> all = counts(journal),
                                       fewer = counts(third_step(options, options.model.n_layer - 1));
  std::map<std::string, bool> seen;
  for (const Enqueued& work : journal) {
    if (is_transfer(work)) {
      ++result.transfers;
      continue;
    }
    ++result.per_step;
    const std::string name = name_of(work);
    if (std::exchange(seen[name], true)) continue;
    const auto other = fewer.find(name);
    const int64_t step = all.at(name), block = step - (other == fewer.end() ? 0 : other->second);
    result.launches.push_back({name, step, block});
    result.per_block += block;
  }
  return result;
}

std::string to_markdown(const StepLaunches& launches) {
  const StepOptions& o = launches.options;
  std::string text = absl::StrFormat(
      "%s, %d x %d tokens, %d layers, width %d: %d launches a step, %d a block (forward and backward); %d copies "
      "between host and device.\n\n| launch | a step | a block |\n|---|---|---|\n",
      o.dtype == kBF16 ? "bf16 (mixed precision)" : std::string(name_of(o.dtype)), o.batch, o.model.block_size,
      o.model.n_layer, o.model.n_embd, launches.per_step, launches.per_block, launches.transfers);
  for (const LaunchCount& launch : launches.launches)
    absl::StrAppend(&text, "| ", launch.name, " | ", launch.step, " | ", launch.block, " |\n");
  return text;
}

StepBytes step_bytes(const StepOptions& options) {
  StepBytes result{.options = options, .kernels = {}};
  // What is written over an operand would be bytes that are touched once, and moved twice.
  compile::disable_stages("reuse");
  const absl::Cleanup enable = [] { compile::disable_stages(""); };
  FakeCuda cuda;
  const DeviceScope scope(cuda.device());
  nn::GPT2 model(options.model, 1);
  const compile::Regions regions = compile::compile_regions(model);
  for (int step = 0; step < 2; ++step) {  // the first one compiles
    synchronize(cuda.device());
    if (step == 1) cuda->count_bytes({"rondo_attention", "rondo_attention_grad"});
    loss_of(model, options, cuda.device()).backward();
    for (Tensor p : model.parameters()) p.set_grad(Tensor());
  }
  synchronize(cuda.device());
  result.kernels = cuda->take_kernel_bytes();
  for (const auto& [name, bytes] : result.kernels) {
    result.moved += bytes.moved;
    result.ideal += bytes.ideal;
  }
  return result;
}

std::string to_markdown(const StepBytes& bytes) {
  const StepOptions& o = bytes.options;
  const auto tokens = static_cast<double>(o.batch * o.model.block_size);
  const auto row = [&](const std::string& name, int64_t launches, int64_t moved, int64_t ideal) {
    return absl::StrFormat("| %s | %d | %.0f | %.0f | %.3f |\n", name, launches, static_cast<double>(moved) / tokens,
                           static_cast<double>(ideal) / tokens,
                           static_cast<double>(moved) / static_cast<double>(std::max<int64_t>(1, ideal)));
  };
  std::string text = absl::StrFormat(
      "%s, %d x %d tokens, %d layers, width %d, vocabulary of %d.\n\n| kernel | launches | bytes a token | ideal | of "
      "it |\n|---|---|---|---|---|\n",
      o.dtype == kBF16 ? "bf16 (mixed precision)" : std::string(name_of(o.dtype)), o.batch, o.model.block_size,
      o.model.n_layer, o.model.n_embd, o.model.vocab_size);
  for (const auto& [name, kernel] : bytes.kernels)
    absl::StrAppend(&text, row(name, kernel.launches, kernel.moved, kernel.ideal));
  return absl::StrCat(text, row("all", 0, bytes.moved, bytes.ideal));
}

}  // namespace rondo::test
