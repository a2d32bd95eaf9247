// The work that one training step of GPT-2 124M enqueues on a CUDA device, at its real sizes: counted on the fake
// driver, which runs none of it (Options::executes).
//
//   std::puts(test::to_markdown(test::step_launches({.dtype = kBF16})).c_str());
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/device/device.h"
#include "rondo/tests/fake_cuda/control.h"

namespace rondo::test {

struct StepOptions {
  DType dtype = kF32;  // kBF16: mixed precision, as examples/train_gpt
  int64_t batch = 4;   // sequences of the block size
  nn::GPT2Config model = {.vocab_size = 50257, .block_size = 1024, .n_layer = 12, .n_head = 12, .n_embd = 768};
};

// The tokens of a step: each step has other ones (zipf_tokens.h).
std::vector<int64_t> step_tokens(const StepOptions& options, int step);

// Trains a new model for some steps on a device: forward, backward, clipping and AdamW, compiled. `before_step` is
// called at the start of each.
void train_steps(const StepOptions& options, Device device, int steps, const std::function<void()>& before_step);

// Launches of one name: kernels, products, fills and copies on the device.
struct LaunchCount {
  std::string name;
  int64_t step = 0, block = 0;  // block: of one block, forward and backward
};
struct StepLaunches {
  StepOptions options;
  std::vector<LaunchCount> launches;  // in the order of their first one in the step
  int64_t per_step = 0, per_block = 0;
  int64_t transfers = 0;  // copies between host and device, which are no launches: tokens, tables, the loss
};

// A step after the first ones: forward, backward, clipping and AdamW, compiled. The fake is reset: no FakeCuda may
// live.
StepLaunches step_launches(const StepOptions& options);
std::string to_markdown(const StepLaunches& launches);

// The bytes that the kernels of a step move (fake_cuda::KernelBytes), forward and backward, at the options' real sizes.
// Products are left out; the optimizer's bytes are a test of their own (tests/optim/cuda_kernels_test.cc).
//
// Kernels of 124M parameters do not run here. Their bytes grow with the sequence length T by the same amount for each
// token, and with the layers likewise; so they are counted at two T and two depths, with the model's real width, heads
// and batch, and extended along both. The classifier's kernels are counted for a few rows of the real vocabulary.
// step_launches_test.cc compares such a prediction with a count.
//
// Attention asks for keys and values once for each tile of queries. They are small enough for the second cache (12 MB
// of a layer of GPT-2 124M at 4 x 1024 in bf16; it holds 40 MB or more), so its `moved` are the bytes that it touches,
// as a first reader brings them in; `requested` has what its multiprocessors ask the second cache for. Other kernels
// get no such allowance: what they ask for, they move.
struct StepBytes {
  StepOptions options;
  std::map<std::string, fake_cuda::KernelBytes> kernels;  // by name
  int64_t moved = 0, ideal = 0, requested = 0;
};
StepBytes step_bytes(const StepOptions& options);
// The same, run as it is: for models that are small enough.
StepBytes counted_step_bytes(const StepOptions& options);
std::string to_markdown(const StepBytes& bytes);

}  // namespace rondo::test
