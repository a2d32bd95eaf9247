// The numbers that a checkpoint draws the second time: the numbers of the first, from whatever generator.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;
using Tensors = std::vector<Tensor>;
using Fn = std::function<Tensors(std::span<const Tensor>)>;

// y of fn on ones, and the gradient of its sum. Where fn is linear, that is y itself: a mask drawn anew would differ.
void expect_replayed(
    const Fn& fn, const std::function<void()>& between = [] {}) {
  Tensor x = Tensor::ones({4, 64}).requires_grad_();
  const Tensor in[] = {x};
  const Tensor y = autograd::checkpoint(fn, in)[0];
  between();
  ops::sum(y).backward();
  EXPECT_TRUE(same_bits(y.detach(), x.grad()));
}

TEST(CheckpointRandom, AGivenGenerator) {
  Generator generator(7);
  expect_replayed([&](std::span<const Tensor> in) { return Tensors{ops::dropout(in[0], 0.5, &generator)}; });
  EXPECT_EQ(generator.offset(), 1u) << "backward leaves the generator as it was";
}

TEST(CheckpointRandom, TwoGeneratorsAndTheDefaultOne) {
  manual_seed(3);
  Generator a(7), b(8);
  a.next_offset();
  expect_replayed(
      [&](std::span<const Tensor> in) {
        Tensor t = ops::dropout(in[0], 0.3, &a);
        t = ops::dropout(t, 0.3, &b);
        t = ops::dropout(t, 0.3);
        return Tensors{ops::dropout(t, 0.3, &a)};
      },
      [&] {
        a.set_state(100, 5);
        b.next_offset();
        manual_seed(99);
      });
  EXPECT_EQ(a.seed(), 100u);
  EXPECT_EQ(a.offset(), 5u);
  EXPECT_EQ(b.offset(), 2u);
  EXPECT_EQ(default_generator().seed(), 99u);
  EXPECT_EQ(default_generator().offset(), 0u);
}

TEST(CheckpointRandom, FnMaySeedItsGenerator) {
  Generator generator(7);
  expect_replayed(
      [&](std::span<const Tensor> in) {
        const Tensor t = ops::dropout(in[0], 0.3, &generator);
        generator.set_state(11, generator.offset() + 4);
        return Tensors{ops::dropout(t, 0.3, &generator)};
      },
      [&] { generator.set_state(1, 1); });
  EXPECT_EQ(generator.seed(), 1u);
  EXPECT_EQ(generator.offset(), 1u);
}

TEST(CheckpointRandom, AGeneratorOfFnsOwn) {
  for (int run = 0; run < 2; ++run)
    expect_replayed([&](std::span<const Tensor> in) {
      Generator first(1);
      Tensor t = ops::dropout(in[0], 0.3, &first);
      {
        Generator second(2), copy = second;
        t = ops::dropout(ops::dropout(t, 0.3, &second), 0.3, &copy);
      }
      const auto third = std::make_unique<Generator>(3);
      return Tensors{ops::dropout(t, 0.3, third.get())};
    });
}

TEST(CheckpointRandom, Nested) {
  Generator generator(7);
  const Fn inner = [&](std::span<const Tensor> in) {
    return Tensors{ops::dropout(ops::dropout(in[0], 0.3, &generator), 0.3)};
  };
  expect_replayed(
      [&](std::span<const Tensor> in) {
        const Tensor once[] = {ops::dropout(in[0], 0.3, &generator)};
        const Tensors twice = autograd::checkpoint(inner, once);
        const Tensor last[] = {ops::dropout(twice[0], 0.3, &generator)};
        return autograd::checkpoint(inner, last);
      },
      [&] { generator.set_state(1, 1); });
  EXPECT_EQ(generator.offset(), 1u);
}

TEST(CheckpointRandom, TheSecondRunThrows) {
  Generator generator(7);
  int runs = 0;
  Tensor x = Tensor::ones({8}).requires_grad_();
  const Tensor in[] = {x};
  const Tensor y = autograd::checkpoint(
      [&](std::span<const Tensor> t) {
        const Tensor dropped = ops::dropout(t[0], 0.5, &generator);
        if (++runs == 2) throw Error("again");
        return Tensors{dropped};
      },
      in)[0];
  EXPECT_THROW(ops::sum(y).backward(), Error);
  EXPECT_EQ(generator.offset(), 1u);
}

TEST(CheckpointRandom, ASecondBackwardDrawsTheSame) {
  Generator generator(7);
  Tensor x = Tensor::ones({64}).requires_grad_();
  const Tensor in[] = {x};
  const Tensor y = autograd::checkpoint(
      [&](std::span<const Tensor> t) { return Tensors{ops::dropout(t[0], 0.5, &generator)}; }, in)[0];
  for (int i = 0; i < 2; ++i) {
    ops::sum(y).backward({}, true);
    EXPECT_TRUE(same_bits(y.detach(), x.grad())) << i;
    x.zero_grad();
    generator.next_offset();
  }
  EXPECT_EQ(generator.offset(), 3u);
}

// The default generator is one per thread; backward may run on another.
TEST(CheckpointRandom, BackwardOnAnotherThread) {
  manual_seed(21);
  Generator generator(7);
  Tensor x = Tensor::ones({256}).requires_grad_();
  const Tensor in[] = {x};
  const Tensor y = autograd::checkpoint(
      [&](std::span<const Tensor> t) { return Tensors{ops::dropout(ops::dropout(t[0], 0.3), 0.3, &generator)}; },
      in)[0];
  std::thread([&] {
    default_generator().set_state(5, 17);
    ops::sum(y).backward();
    EXPECT_EQ(default_generator().offset(), 17u);
  }).join();
  EXPECT_TRUE(same_bits(y.detach(), x.grad()));
  EXPECT_EQ(default_generator().offset(), 1u);
}

TEST(CheckpointRandom, BackwardOnAThreadThatNeverDrew) {
  manual_seed(21);
  Tensor x = Tensor::ones({256}).requires_grad_();
  const Tensor in[] = {x};
  const Tensor y = autograd::checkpoint([](std::span<const Tensor> t) { return Tensors{ops::dropout(t[0], 0.3)}; },
                                        in)[0];
  std::thread([&] { ops::sum(y).backward(); }).join();
  EXPECT_TRUE(same_bits(y.detach(), x.grad()));
}

TEST(CheckpointRandom, ThreadsDoNotMix) {
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed)
    threads.emplace_back([seed] {
      Generator generator(seed);
      for (int i = 0; i < 20; ++i)
        expect_replayed([&](std::span<const Tensor> in) {
          return Tensors{ops::dropout(ops::dropout(in[0], 0.3, &generator), 0.2)};
        });
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(CheckpointRandom, ACopyIsAnotherGenerator) {
  Generator generator(7);
  generator.next_offset();
  Generator copy = generator;
  EXPECT_EQ(copy.seed(), 7u);
  EXPECT_EQ(copy.offset(), 1u);
  copy.next_offset();
  EXPECT_EQ(generator.offset(), 1u);
  generator = copy;
  EXPECT_EQ(generator.offset(), 2u);
}

}  // namespace
}  // namespace rondo
