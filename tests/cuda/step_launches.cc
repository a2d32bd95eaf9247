#include "rondo/tests/cuda/step_launches.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/compile/compile.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/cuda/fused_attention.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/zipf_tokens.h"

namespace rondo::test {
namespace {

using fake_cuda::Enqueued;
using fake_cuda::KernelBytes;

// As examples/train_gpt: matrices and embeddings decay.
optim::AdamW optimizer_of(const nn::GPT2& model) {
  optim::ParamGroup<optim::AdamWOptions> decayed, plain;
  for (const Tensor& p : model.parameters()) (p.rank() >= 2 ? decayed : plain).params.push_back(p);
  decayed.options = {.weight_decay = 0.1};
  plain.options = {.weight_decay = 0};
  return optim::AdamW({decayed, plain});
}

Tensor loss_of(nn::GPT2& model, const Tensor& tokens, DType dtype) {
  const amp::Autocast lower(dtype == kBF16 ? std::optional(kBF16) : std::nullopt);
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

std::vector<int64_t> step_tokens(const StepOptions& options, int step) {
  return zipf_tokens(options.batch * options.model.block_size, options.model.vocab_size, static_cast<uint64_t>(step));
}

void train_steps(const StepOptions& options, Device device, int steps, const std::function<void()>& before_step) {
  const DeviceScope scope(device);
  nn::GPT2 model(options.model, 1);
  optim::AdamW optimizer = optimizer_of(model);
  const compile::Regions regions = compile::compile_regions(model);
  optim::compile(optimizer);
  for (int step = 0; step < steps; ++step) {
    before_step();
    const Tensor tokens = Tensor::from(step_tokens(options, step), {options.batch, model.config.block_size}, device);
    const Tensor loss = loss_of(model, tokens, options.dtype);
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

namespace {

using Counts = std::map<std::string, KernelBytes>;

// f of the four counts of each kernel.
template <class Function> Counts combined(const Counts& names, Function f) {
  Counts result;
  for (const auto& [name, unused] : names) {
    KernelBytes& r = result[name];
    for (const auto count : {&KernelBytes::launches, &KernelBytes::moved, &KernelBytes::touched, &KernelBytes::ideal})
      r.*count = f(name, count);
  }
  return result;
}
int64_t count_of(const Counts& counts, const std::string& name, int64_t KernelBytes::*count) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second.*count;
}

Counts count_step(const StepOptions& options) {
  FakeCuda cuda;
  const DeviceScope scope(cuda.device());
  nn::GPT2 model(options.model, 1);
  const compile::Regions regions = compile::compile_regions(model);
  for (int step = 0; step < 2; ++step) {  // the first one compiles
    synchronize(cuda.device());
    if (step == 1) cuda->count_bytes();
    // Tokens that differ: each reads and writes rows of its own.
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < options.batch * options.model.block_size; ++i)
      tokens.push_back(i * 7 % options.model.vocab_size);
    loss_of(model, Tensor::from(tokens, {options.batch, options.model.block_size}, cuda.device()), options.dtype)
        .backward();
    for (Tensor p : model.parameters()) p.set_grad(Tensor());
  }
  synchronize(cuda.device());
  return cuda->take_kernel_bytes();
}

// The classifier's kernels alone, behind products that cost little.
Counts count_head(const StepOptions& options, int64_t rows) {
  FakeCuda cuda;
  const DeviceScope scope(cuda.device());
  const Tensor x = Tensor::randn({rows, 8}).requires_grad_(),
               weight = Tensor::randn({options.model.vocab_size, 8}).requires_grad_(),
               target = Tensor::randint(0, options.model.vocab_size, {rows});
  synchronize(cuda.device());
  cuda->count_bytes();
  {
    const amp::Autocast lower(options.dtype == kBF16 ? std::optional(kBF16) : std::nullopt);
    ops::linear_cross_entropy(x, weight, Tensor(), target).backward();
  }
  synchronize(cuda.device());
  return cuda->take_kernel_bytes();
}

bool is_attention(const std::string& name) { return name.starts_with("rondo_attention"); }

StepBytes sums_of(const StepOptions& options, Counts kernels) {
  StepBytes result{.options = options, .kernels = std::move(kernels)};
  for (const auto& [name, bytes] : result.kernels) {
    result.moved += is_attention(name) ? bytes.touched : bytes.moved;
    result.requested += bytes.moved;
    result.ideal += bytes.ideal;
  }
  return result;
}

constexpr const char* kHeadRows = "rondo_head_rows";

// The operands of attention: rows of q, k, v, the output and their gradients, tile by tile.
void set_attention_requests(const StepOptions& options, Counts& kernels) {
  const nn::GPT2Config& model = options.model;
  const int64_t D = model.n_embd / model.n_head, T = model.block_size,
                row = D * static_cast<int64_t>(size_of(options.dtype));
  const std::optional<cuda::AttentionTile> tile = cuda::attention_tile(options.dtype, D);
  int64_t forward = 0, backward = 0;
  for (int64_t first = 0; first < T; first += tile->rows) {
    const int64_t own = std::min<int64_t>(tile->rows, T - first), before = std::min(T, first + tile->rows),
                  behind = T - first, fact = sizeof(float);  // the logsumexp
    forward += 2 * own * row + own * fact + 2 * before * row;
    backward += 4 * own * row + behind * (3 * row + fact);      // of keys: k, v, dk, dv; q, gradient, output
    backward += 4 * own * row + own * fact + 2 * before * row;  // of queries: q, gradient, output, dq; k, v
  }
  const int64_t heads = options.batch * model.n_head * model.n_layer;
  kernels.at("rondo_attention").moved = heads * forward;
  kernels.at("rondo_attention_grad").moved = heads * backward;
}

}  // namespace

StepBytes counted_step_bytes(const StepOptions& options) { return sums_of(options, count_step(options)); }

StepBytes step_bytes(const StepOptions& options) {
  // So many rows that no operand of all of them fits into the first cache, in whole chunks of column sums.
  constexpr int64_t kRows = 24, kChunk = 8;
  int64_t shorter = 1;
  while (shorter * options.batch < kRows || shorter * options.batch % kChunk != 0) ++shorter;
  const int64_t longer = 2 * shorter;
  const auto small = [&](int64_t length, int64_t layers) {
    StepOptions o = options;
    o.model.block_size = length;
    o.model.n_layer = layers;
    o.model.vocab_size = 1000;
    o.model.whole_logits = 0;  // as at the real size
    return count_step(o);
  };
  const Counts at[2][2] = {{small(shorter, 1), small(shorter, 2)}, {small(longer, 1), small(longer, 2)}};
  const int64_t T = options.model.block_size, L = options.model.n_layer;
  Counts kernels = combined(at[1][1], [&](const std::string& name, int64_t KernelBytes::*count) {
    const auto along = [&](int64_t near, int64_t far, int64_t step, int64_t steps) {
      return near + (far - near) * steps / step;
    };
    const auto at_length = [&](int layers) {
      return along(count_of(at[0][layers], name, count), count_of(at[1][layers], name, count), longer - shorter,
                   T - shorter);
    };
    return along(at_length(0), at_length(1), 1, L - 1);
  });
  set_attention_requests(options, kernels);
  const int64_t rows = options.batch * T, row = options.model.vocab_size * static_cast<int64_t>(size_of(options.dtype)),
                few_rows = std::max<int64_t>(2, (64 << 10) / row);
  const Counts few = count_head(options, few_rows), more = count_head(options, 2 * few_rows);
  kernels[kHeadRows] = combined({{kHeadRows, {}}}, [&](const std::string& name, int64_t KernelBytes::*count) {
                         const int64_t near = count_of(few, name, count), far = count_of(more, name, count);
                         return near + (far - near) * (rows - few_rows) / few_rows;
                       }).at(kHeadRows);
  return sums_of(options, std::move(kernels));
}

std::string to_markdown(const StepBytes& bytes) {
  const StepOptions& o = bytes.options;
  const auto tokens = static_cast<double>(o.batch * o.model.block_size);
  const auto row = [&](const std::string& name, int64_t launches, int64_t moved, int64_t ideal, int64_t requested) {
    return absl::StrFormat("| %s | %d | %.0f | %.0f | %.3f | %.0f |\n", name, launches,
                           static_cast<double>(moved) / tokens, static_cast<double>(ideal) / tokens,
                           static_cast<double>(moved) / static_cast<double>(std::max<int64_t>(1, ideal)),
                           static_cast<double>(requested) / tokens);
  };
  std::string text = absl::StrFormat(
      "%s, %d x %d tokens, %d layers, width %d, vocabulary of %d.\n\n| kernel | launches | bytes a token | ideal | of "
      "it | asked of the second cache |\n|---|---|---|---|---|---|\n",
      o.dtype == kBF16 ? "bf16 (mixed precision)" : std::string(name_of(o.dtype)), o.batch, o.model.block_size,
      o.model.n_layer, o.model.n_embd, o.model.vocab_size);
  for (const auto& [name, kernel] : bytes.kernels)
    absl::StrAppend(&text, row(name, kernel.launches, is_attention(name) ? kernel.touched : kernel.moved, kernel.ideal,
                               kernel.moved));
  return absl::StrCat(text, row("all", 0, bytes.moved, bytes.ideal, bytes.requested));
}

}  // namespace rondo::test
