// Writes in place inside a region, to memory that several tensors show: what each of them sees, and whose history
// changes.
#include <gtest/gtest.h>

#include "rondo/modules/module.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;

using WritesToSharedMemory = BlockTest;

// A second handle is no view of the first. It was read before the write, so the write is a break, and not a guess.
TEST_F(WritesToSharedMemory, AfterAReadThroughASecondHandle) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor before = x + b.state.kept[1];
    b.state.kept[0].mul_(2.0);
    return Tensors{before, x * b.state.kept[1]};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor whole = Tensor::randn({4, 6});
    b.state.kept = {whole, whole.detach()};
    Tensors all = one_step(b);
    all.push_back(whole);
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 1);
  EXPECT_NE(report.last_break.find("neither is known to lie in the other"), std::string::npos) << report.last_break;
}

// The base of a view that escapes is the tensor it was made of, and not another one of the same shape.
TEST_F(WritesToSharedMemory, TheBaseOfAViewThatEscapes) {
  const auto body = [](Block& b, const Tensor& x) {
    b.state.kept[0].mul_(0.5);
    const Tensor first = b.state.kept[1] * 2.0;
    return Tensors{b.state.kept[2].slice(0, {0, 3}), x * first};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor whole = Tensor::randn({4, 6});
    for (const int64_t offset : {0, 6, 12})
      b.state.kept.push_back(offset == 0 ? whole : Tensor::from_storage(whole.storage(), offset, {6}, {1}, kF32));
    Tensor part = b(input())[0];
    part.mul_(b.bias.slice(0, {0, 3}));
    return Tensors{Tensor::scalar<int64_t>(b.state.kept[1].requires_grad()),
                   Tensor::scalar<int64_t>(b.state.kept[2].requires_grad()), whole};
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

// Views of what gets a history: those made under no_grad() cannot be read any more, others can.
TEST_F(WritesToSharedMemory, ViewsOfWhatGetsAHistory) {
  for (const bool inside : {false, true})
    for (const bool readable : {false, true}) {
      const auto message = [&](bool compiled) {
        manual_seed(3);
        Block block([&](Block& b, const Tensor& x) {
          const Tensor y = x.detach() * 2.0;
          Tensor row = y[1];
          if (!readable) no_grad([&] { row = y[1]; });
          Tensor(y).mul_(b.bias);
          return Tensors{inside ? row * 3.0 : row, y};
        });
        std::optional<compile::Regions> regions;
        if (compiled) regions.emplace(compile::compile_module(block, {.exact = true}));
        const std::string error = error_of([&] {
          const Tensors out = block(input());
          ops::sum(out[0] * 2.0).backward();
        });
        return error.substr(0, error.find('\n'));
      };
      const std::string eager = message(false);
      EXPECT_EQ(eager.empty(), readable) << eager;
      EXPECT_EQ(message(true), eager);
    }
}

// A tensor from outside that gets a history, while somebody else holds a view or a second handle of it.
TEST_F(WritesToSharedMemory, AHistoryForATensorWithOtherHandles) {
  for (const bool is_view : {false, true}) {
    const auto body = [](Block& b, const Tensor& x) {
      b.state.kept[0].mul_(b.bias);
      return Tensors{x * b.state.kept[0]};
    };
    expect_as_eager(body, [&](Block& b) {
      const Tensor whole = Tensor::randn({4, 6});
      b.state.kept = {whole, is_view ? whole[1] : whole.detach()};
      const Tensor x = input(), y = b(x)[0], other = b.state.kept[1] * 2.0;
      (ops::sum(y) + ops::sum(other)).backward();
      return Tensors{y, other, Tensor::scalar<int64_t>(other.requires_grad()), x.grad(), whole.detach()};
    });
    EXPECT_EQ(report.graph_breaks, 1) << report.last_break;
  }
}

}  // namespace
}  // namespace rondo
