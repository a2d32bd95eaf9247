// Models of several blocks: two classes, tied weights, threads, regions in regions. Compiled against eager, in every
// bit, with freed memory poisoned.
#include <gtest/gtest.h>

#include <thread>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/small_modules.h"

namespace rondo {
namespace {

using test::same_bits;
using Tensors = std::vector<Tensor>;

class RegionBlocks : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
};

struct Pair : nn::Module<Pair> {
  explicit Pair(int64_t width) : width(width) {}
  int64_t width;
  nn::Linear first = child("first", width, width);
  nn::Linear second = child("second", width, width);
  Tensor forward(const Tensor& x) { return x + second(ops::relu(first(x))); }
};
struct Mixed : nn::Module<Mixed> {
  nn::ModuleList<Pair> pairs = child("pairs", 3, 8);
  nn::ModuleList<test::Gate> gates = child("gates", 3, 8);
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (int64_t i = 0; i < 3; ++i) y = gates[i](pairs[i](y));
    return y;
  }
};

Tensors gradients(nn::ModuleBase& model) {
  Tensors grads;
  for (const Tensor& p : model.parameters()) grads.push_back(p.grad());
  return grads;
}
void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

TEST_F(RegionBlocks, TwoBlockClassesInOneModel) {
  auto run = [](bool compiled) {
    manual_seed(9);
    Mixed model;
    if (compiled) {
      auto regions = compile::compile_regions(model, {.exact = true});
      const Tensor y = model(Tensor::randn({5, 8}).requires_grad_() * 1.0);  // as the input of every other block
      ops::sum(y * y).backward();
      EXPECT_EQ(regions.report().size(), 2u);
      for (const auto& r : regions.report()) EXPECT_EQ(r.entries, 1) << regions.summary();
      return gradients(model);
    }
    const Tensor y = model(Tensor::randn({5, 8}));
    ops::sum(y * y).backward();
    return gradients(model);
  };
  expect_same(run(false), run(true));
}

TEST_F(RegionBlocks, TiedWeights) {
  auto run = [](bool compiled) {
    manual_seed(9);
    Mixed model;
    model.pairs[0].second.weight = model.pairs[0].first.weight;  // inside one block
    model.pairs[2].first.weight = model.pairs[1].first.weight;   // over two
    if (compiled) compile::compile_regions(model, {.exact = true});
    Tensors all;
    for (int step = 0; step < 2; ++step) {
      const Tensor y = model(Tensor::randn({5, 8}));
      ops::sum(y * y).backward();
      for (const Tensor& g : gradients(model)) all.push_back(g.clone());
    }
    return all;
  };
  expect_same(run(false), run(true));
}

TEST_F(RegionBlocks, TwoThreads) {
  auto run = [](bool compiled) {
    manual_seed(9);
    Mixed a, b;
    const Tensor x = Tensor::randn({5, 8});
    if (compiled) {
      compile::compile_regions(a, {.exact = true});
      compile::compile_regions(b, {.exact = true});
    }
    auto train = [&](Mixed& model) {
      for (int i = 0; i < 5; ++i) {
        const Tensor y = model(x * static_cast<double>(i));
        ops::sum(y * y).backward();
      }
    };
    std::thread first([&] { train(a); }), second([&] { train(b); });
    first.join();
    second.join();
    Tensors all = gradients(a);
    for (const Tensor& g : gradients(b)) all.push_back(g);
    return all;
  };
  expect_same(run(false), run(true));
}

// The encoder's output goes into every block, several times in each: its gradient is summed in the order of the tape.
struct Cross : nn::Module<Cross> {
  explicit Cross(int64_t width) : width(width) {}
  int64_t width;
  nn::Linear q = child("q", width, width);
  nn::Linear k = child("k", width, width);
  nn::Linear v = child("v", width, width);
  Tensor forward(const Tensor& x, const Tensor& memory) {
    return x + ops::matmul(ops::softmax(ops::matmul(q(x), k(memory).t())), v(memory)) * ops::mean(memory);
  }
};
struct Decoder : nn::Module<Decoder> {
  nn::ModuleList<Cross> blocks = child("blocks", 3, 8);
  Tensor forward(const Tensor& x, const Tensor& memory) {
    Tensor y = x + memory.slice(0, {0, 5});
    for (Cross& block : blocks) y = block(y, memory) * ops::mean(memory * memory);
    return y;
  }
};

TEST_F(RegionBlocks, AnInputOfEveryBlock) {
  auto run = [](bool compiled) {
    manual_seed(9);
    Decoder model;
    if (compiled) compile::compile_regions(model, {.exact = true});
    const Tensor memory = Tensor::randn({7, 8}).requires_grad_(), x = Tensor::randn({5, 8}).requires_grad_();
    for (int i = 0; i < 2; ++i) {
      const Tensor y = model(x, memory * 1.5);
      ops::sum(y * y).backward();
    }
    Tensors all = gradients(model);
    all.push_back(memory.grad());
    all.push_back(x.grad());
    return all;
  };
  expect_same(run(false), run(true));
}

// One region, shared by the blocks of two threads.
TEST_F(RegionBlocks, OneRegionFromTwoThreads) {
  auto run = [](bool compiled) {
    manual_seed(9);
    Mixed model;
    const Tensor x = Tensor::randn({5, 8});
    if (compiled) compile::compile_regions(model, {.exact = true});
    auto train = [&](int64_t i) {
      for (int64_t step = 0; step < 5; ++step) {
        const Tensor y = model.pairs[i](x.slice(0, {0, 1 + step}));
        ops::sum(y * y).backward();
      }
    };
    std::thread first([&] { train(0); }), second([&] { train(1); });
    first.join();
    second.join();
    return gradients(model);
  };
  expect_same(run(false), run(true));
}

TEST_F(RegionBlocks, ARegionInARegion) {
  auto run = [](bool compiled) {
    manual_seed(9);
    Mixed model;
    if (compiled) {
      compile::compile_regions(model, {.exact = true});
      compile::compile_module(model, {.exact = true});
    }
    const Tensor y = model(Tensor::randn({5, 8}));
    ops::sum(y * y).backward();
    return gradients(model);
  };
  expect_same(run(false), run(true));
}

}  // namespace
}  // namespace rondo
