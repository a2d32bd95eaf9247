// examples/run_control.h: the handler of Ctrl-C.
#include "rondo/examples/run_control.h"

#include <gtest/gtest.h>

#include <csignal>

#include "rondo/modules/layers.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/data/function_batches.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::examples {
namespace {

// Library products may run with the stack pointer in their own memory, so the handler needs a stack of its own.
TEST(CancelOnSignals, TheHandlerHasAStackOfItsOwn) {
  nn::Linear model(2, 1);
  optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  data::FunctionBatches batches(4, [](data::BatchSource::Position) { return data::Batch{Tensor::ones({1, 2})}; });
  optim::Trainer trainer(model, optimizer, [&](const data::Batch& b) { return ops::sum(model(b[0])); }, batches,
                         {.max_steps = 3});
  const auto flags = [] {
    struct sigaction now = {};
    sigaction(SIGTERM, nullptr, &now);
    return now.sa_flags;
  };
  stack_t before = {}, during = {}, after = {};
  sigaltstack(nullptr, &before);
  {
    const CancelOnSignals signals(trainer);
    EXPECT_NE(flags() & SA_ONSTACK, 0);
    sigaltstack(nullptr, &during);
    EXPECT_EQ(during.ss_flags & SS_DISABLE, 0);
    EXPECT_GE(during.ss_size, size_t{1} << 16);
    std::raise(SIGTERM);
    EXPECT_EQ(trainer.train().reason, optim::StopReason::kCancelled);
  }
  sigaltstack(nullptr, &after);
  EXPECT_EQ(after.ss_sp, before.ss_sp);
  EXPECT_EQ(after.ss_flags, before.ss_flags);
  EXPECT_EQ(flags() & SA_ONSTACK, 0);
  EXPECT_EQ(trainer.train().reason, optim::StopReason::kFinished);
}

}  // namespace
}  // namespace rondo::examples
