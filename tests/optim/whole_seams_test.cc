// Seams inside of a region: a model that is compiled as a whole, and updated while its backward runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/memory.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo::optim {
namespace {

class WholeSeams : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

enum class Updates : uint8_t { kAtSeams, kAfterBackward };

int64_t peak(bool whole, Updates when, compile::Mode mode = compile::Mode::kDefault) {
  nn::GPT2 model({.vocab_size = 65, .block_size = 64, .n_layer = 6, .n_head = 2, .n_embd = 64}, 1);
  model.to(default_device());
  if (whole) compile::compile_module(model, {.mode = mode});
  else compile::compile_regions(model, {.mode = mode});
  AdamW optimizer(model.parameters());
  compile(optimizer);
  std::optional<UpdateAtSeams> updates;
  if (when == Updates::kAtSeams) updates.emplace(model, optimizer);
  const Tensor tokens = Tensor::from(std::vector<int64_t>(128, 1), {2, 64}).to(default_device());
  const auto step = [&] {
    model.loss(tokens, tokens).backward();
    if (updates) updates->finish();
    else optimizer.step(), model.zero_grad();
  };
  for (int i = 0; i < 3; ++i) step();
  const memory::Recording recording;
  step();
  const memory::Report r = recording.report();
  std::printf("%s\n", memory::to_string(r).c_str());
  return r.in_use();
}

TEST_F(WholeSeams, PeakMemory) {
  for (const auto mode : {compile::Mode::kDefault, compile::Mode::kReduceOverhead})
    for (const bool whole : {false, true})
      for (const Updates when : {Updates::kAfterBackward, Updates::kAtSeams})
        std::printf("%s %s: %lld\n", whole ? "whole" : "regions", when == Updates::kAtSeams ? "seams" : "after",
                    static_cast<long long>(peak(whole, when, mode)));
}

}  // namespace
}  // namespace rondo::optim
