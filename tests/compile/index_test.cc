// Integers, masks and gathers in compiled blocks: how many kernels and library calls they take, and that wrong code of
// them, planted by rules, is seen.
#include <functional>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using compile::LoopKernel;

struct Block : nn::Module<Block> {
  std::function<Tensor(const Tensor&, const Tensor&)> fn;
  explicit Block(std::function<Tensor(const Tensor&, const Tensor&)> fn) : fn(std::move(fn)) {}
  Tensor forward(const Tensor& x, const Tensor& index) { return fn(x, index); }
};

class IndexBlocks : public test::BlockTest {
 protected:
  struct Counts {
    int kernels, library_calls;
  };
  // The block's results in exact mode are eager's bits.
  static Counts check(const std::function<Tensor(const Tensor&, const Tensor&)>& fn, const Tensor& x,
                      const Tensor& index) {
    Block eager(fn), compiled(fn);
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
    const NoGrad off;
    manual_seed(4);
    const Tensor expected = eager(x, index);
    manual_seed(4);
    EXPECT_TRUE(test::same_bits(compiled(x, index), expected));
    const compile::RegionReport report = regions.report()[0];
    EXPECT_EQ(report.eager_runs, 0);
    EXPECT_EQ(report.graph_breaks, 0);
    return {report.kernels, report.library_calls};
  }
};

Tensor integers(const Dims& sizes, DType dtype = kI64) {
  manual_seed(3);
  return Tensor::randint(-2'000'000'000, 2'000'000'000, sizes).to(dtype);
}

// Hashes wrap around, masks count, floats become integers: one kernel, no library call.
TEST_F(IndexBlocks, IntegersAndMasksAreOneKernel) {
  const Tensor x = Tensor::randn({33, 70}) * 1e12;
  for (const DType dtype : {kI64, kI32, kU8}) {
    const Counts counts = check(
        [](const Tensor& x, const Tensor& i) {
          const Tensor hash = ops::maximum(i * 1103515245 + 12345, -i);
          const Tensor mask = ops::less(hash, i).to(kU8) + ops::isfinite(i).to(kU8);
          return ops::where(ops::equal(mask, 2), x.to(i.dtype()), ops::abs(hash)).to(kF32) * 0.5 + mask.to(kF32);
        },
        x, integers({33, 70}, dtype));
    EXPECT_EQ(counts.kernels, 1) << name_of(dtype);
    EXPECT_EQ(counts.library_calls, 0) << name_of(dtype);
  }
}

// A lookup joins what reads it, and the check of its indices joins both.
TEST_F(IndexBlocks, LookupsFuseWithTheirNeighbours) {
  manual_seed(4);
  const Tensor x = Tensor::randn({50, 24}), index = Tensor::randint(0, 24, {8, 9});
  const auto one_kernel = [&](const std::function<Tensor(const Tensor&, const Tensor&)>& fn) {
    const Counts counts = check(fn, x, index);
    EXPECT_EQ(counts.kernels, 1);
    EXPECT_EQ(counts.library_calls, 0);
  };
  one_kernel([](const Tensor& x, const Tensor& i) { return ops::gelu(ops::embedding(x, i) * 2.0 + 1.0); });
  one_kernel([](const Tensor& x, const Tensor& i) { return ops::index_select(x, 0, i.flatten()) * 2.0 - 1.0; });
  one_kernel([](const Tensor& x, const Tensor& i) { return ops::tanh(ops::gather(x, 0, i)) + 1.0; });
  one_kernel([](const Tensor& x, const Tensor& i) { return ops::tanh(ops::gather(x, 1, i)) + 1.0; });
  // Sums of what was looked up: of embeddings, over a row.
  one_kernel([](const Tensor& x, const Tensor& i) { return ops::sum(ops::embedding(x, i), -1); });
  // One check for two lookups of one index, and one kernel.
  one_kernel([](const Tensor& x, const Tensor& i) { return ops::embedding(x, i) * ops::tanh(ops::embedding(x, i)); });
  // Rows of a transposed table, and a result that is transposed back: what reads that is a kernel of its own.
  check([](const Tensor& x, const Tensor& i) { return ops::index_select(x, 1, i.flatten()) * 2.0 - 1.0; }, x, index);
}

// The columns of a reduction over two dimensions are no single stride of a permuted table: that is a kernel of its own.
TEST_F(IndexBlocks, APermutedTableUnderAReduction) {
  manual_seed(4);
  const Tensor x = Tensor::randn({13, 3, 6}).transpose(1, 2), index = Tensor::randint(0, 13, {13, 6, 3});
  const Counts counts = check(
      [](const Tensor& x, const Tensor& i) {
        return ops::min(ops::gather(x, 0, i), {1, 2});
      },
      x, index);
  EXPECT_EQ(counts.kernels, 2);
}

// A table that the block computes is a kernel of its own.
TEST_F(IndexBlocks, ATableIsCompleteBeforeItIsRead) {
  const Tensor x = Tensor::randn({24, 24}), index = Tensor::randint(0, 24, {24, 24});
  const Counts counts = check(
      [](const Tensor& x, const Tensor& i) { return ops::gather(ops::exp(x), 0, i) + ops::exp(x); }, x, index);
  EXPECT_EQ(counts.kernels, 2);
  EXPECT_EQ(counts.library_calls, 0);
}

// Messages along edges, added up in their targets: the edges are sorted, and one kernel makes and adds up the messages.
TEST_F(IndexBlocks, MessagePassing) {
  manual_seed(5);
  const Tensor x = Tensor::randn({40, 16}), edges = Tensor::randint(0, 40, {2, 300});
  const Counts counts = check(
      [](const Tensor& x, const Tensor& edges) {
        const Tensor messages = ops::relu(ops::index_select(x, 0, edges.select(0, 0)) * 0.5);
        return ops::index_add(x, 0, edges.select(0, 1), messages);
      },
      x, edges);
  EXPECT_EQ(counts.kernels, 1);
  EXPECT_EQ(counts.library_calls, 1);  // the sort
}

// Forward and backward have eager's bits, whatever is between the lookup and the sums, and what else reads it.
TEST_F(IndexBlocks, MessagesAndTheirGradients) {
  manual_seed(5);
  const Tensor edges = Tensor::randint(0, 40, {2, 300}), strength = Tensor::randn({300, 1}),
               rows = Tensor::randn({300, 16});
  using Messages = std::function<Tensor(const Tensor&, const Tensor&)>;
  const auto to = [](const Tensor& edges) { return edges.select(0, 1); };
  const auto sent = [](const Tensor& x, const Tensor& edges) { return ops::index_select(x, 0, edges.select(0, 0)); };
  const Messages bodies[] = {
      [&](const Tensor& x, const Tensor& e) {
        return ops::index_add(Tensor::zeros({40, 16}), 0, to(e), sent(x, e) * strength);
      },
      [&](const Tensor& x, const Tensor& e) {
        const Tensor both = ops::gelu(sent(x, e) + ops::index_select(x, 0, to(e)) * rows);
        return ops::tanh(ops::index_add(x * 2.0, 0, to(e), both));
      },
      [&](const Tensor& x, const Tensor& e) {  // the messages are read again
        const Tensor made = ops::exp(sent(x, e) * 0.1);
        return ops::index_add(x, 0, to(e), made) * ops::sum(made);
      },
      [&](const Tensor& x, const Tensor& e) {  // two sums in one order
        const Tensor made = sent(x, e);
        const Tensor sums = ops::index_add(Tensor::zeros({40, 16}), 0, to(e), ops::abs(made) * strength);
        return sums / (ops::index_add(Tensor::full({40, 16}, 1.0), 0, to(e), ops::square(made)) + 1.0);
      },
      [&](const Tensor& x, const Tensor& e) {  // along another dimension, and elements of their own
        const Tensor at = ops::expand(ops::reshape(to(e).slice(0, {0, 16}), {16, 1}), {16, 16});
        return ops::scatter_add(x.t() * 2.0, 1, at, ops::exp(x.slice(0, {0, 16}))).t();
      },
      [&](const Tensor& x, const Tensor& e) {  // the place of a row counts
        const Tensor noise = ops::dropout(sent(x, e), 0.5), number = ops::unsqueeze(Tensor::arange(300, {kF32}), 1);
        return ops::index_add(x, 0, to(e), noise * number);
      }};
  for (const Messages& body : bodies)
    for (const DType dtype : {kF32, kF64, kBF16}) {
      SCOPED_TRACE(testing::Message() << "body " << &body - bodies << ", " << name_of(dtype));
      manual_seed(7);
      const Tensor start = Tensor::randn({40, 16}).to(dtype);
      Tensor results[2], grads[2];
      for (const bool compiled : {false, true}) {
        Block block([&](const Tensor& x, const Tensor& e) { return body(x, e).to(kF64); });
        std::optional<compile::Regions> regions;
        if (compiled) regions.emplace(compile::compile_module(block, {.exact = true}));
        Tensor x = start.clone().requires_grad_();
        manual_seed(8);
        results[compiled] = block(x, edges);
        (results[compiled] * results[compiled]).sum().backward();
        grads[compiled] = x.grad();
        if (!compiled) continue;
        EXPECT_EQ(regions->report()[0].eager_runs, 0);
        EXPECT_EQ(regions->report()[0].graph_breaks, 0);
      }
      EXPECT_TRUE(test::same_bits(results[0], results[1]));
      EXPECT_TRUE(test::same_bits(grads[0], grads[1]));
    }
}

// What a later row picks is fetched ahead, but a draw belongs to its own row.
TEST_F(IndexBlocks, MessagesBesideADraw) {
  const Counts counts = check(
      [](const Tensor& x, const Tensor& index) {
        const Tensor sums = ops::scatter_add(Tensor::zeros({6}), 0, index, ops::softplus(x));
        return ops::sum(x * ops::bernoulli(x * 0.0 + 0.5)) + sums;
      },
      Tensor::rand({9}), Tensor::from(std::vector<int64_t>{5, 0, 3, 3, 1, 5, 0, 0, 2}, {9}));
  EXPECT_GT(counts.kernels, 0);
}

// As in eager execution, by the op that names a place that is not there.
TEST_F(IndexBlocks, MessagesToNowhere) {
  const Tensor x = Tensor::randn({40, 16});
  const auto error = [&](bool compiled, int64_t row, int64_t index) {
    Block block([](const Tensor& x, const Tensor& e) {
      return ops::index_add(x, 0, e.select(0, 1), ops::index_select(x, 0, e.select(0, 0)) * 2.0);
    });
    std::optional<compile::Regions> regions;
    if (compiled) regions.emplace(compile::compile_module(block, {.exact = true}));
    Tensor edges = Tensor::zeros({2, 30}, kI64);
    edges.select(0, row).select(0, 7).fill_(index);
    const NoGrad off;
    return test::error_of([&] { block(x, edges); });
  };
  for (const int64_t row : {0, 1})
    for (const int64_t index : {40, -1}) {
      EXPECT_NE(error(false, row, index), "");
      EXPECT_EQ(error(true, row, index), error(false, row, index));
    }
}

// A lookup of a size that changes is compiled for all sizes at the second one.
TEST_F(IndexBlocks, ATableOfAnySize) {
  Block eager([](const Tensor&x, const Tensor&i) { return ops::embedding(x, i) * 2.0; }), compiled(eager.fn);
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  const NoGrad off;
  for (const int64_t rows : {20, 37, 51, 64, 5}) {
    const Tensor x = Tensor::randn({rows, 33}), index = Tensor::randint(0, rows, {rows + 3});
    EXPECT_TRUE(test::same_bits(compiled(x, index), eager(x, index)));
  }
  EXPECT_LE(regions.report()[0].compilations, 2);
}

// ---- Planted

void use_floats(LoopKernel& kernel) {  // products of integers no longer wrap around
  for (compile::Stage& stage : kernel.stages)
    for (size_t at = 0; at < stage.column.size(); ++at) {
      const auto id = stage.column[at];
      const compile::Instr product = kernel.instrs[static_cast<size_t>(id)];
      if (product.op != LoopOp::kMul || !compile::is_integer(product.type)) continue;
      const auto add = [&](compile::Instr instr) {
        kernel.instrs.push_back(instr);
        const auto made = static_cast<int32_t>(kernel.instrs.size()) - 1;
        stage.column.insert(stage.column.begin() + static_cast<int64_t>(at++), made);
        return made;
      };
      const int32_t a = add({.op = LoopOp::kCast, .type = kF64, .a = product.a}),
                    b = add({.op = LoopOp::kCast, .type = kF64, .a = product.b}),
                    real = add({.op = LoopOp::kMul, .type = kF64, .a = a, .b = b});
      kernel.instrs[static_cast<size_t>(id)] = {.op = LoopOp::kCast, .type = product.type, .a = real};
    }
}
void take_magnitudes_as_negatives(LoopKernel& kernel) {
  for (compile::Instr& i : kernel.instrs)
    if (i.op == LoopOp::kAbs && compile::is_integer(i.type)) i.op = LoopOp::kNeg;
}
void compare_the_other_way(LoopKernel& kernel) {
  for (compile::Instr& i : kernel.instrs)
    if (i.op == LoopOp::kLt && compile::is_integer(kernel.instrs[static_cast<size_t>(i.a)].type)) i.op = LoopOp::kLe;
}
void lose_the_last_row(LoopKernel& kernel) {
  for (compile::Operand& operand : kernel.operands)
    if (is_picked(operand) && !operand.is_check && operand.axes[0].size > 1) --operand.axes[0].size;
}
void step_too_far(LoopKernel& kernel) {
  for (compile::Operand& operand : kernel.operands)
    if (is_picked(operand) && !operand.is_check && operand.axes[0].size > 2) {
      --operand.axes[0].size;
      ++operand.axes[0].stride;
    }
}

TEST_F(IndexBlocks, PlantedBugsAreSeen) {
  manual_seed(6);
  const Tensor x = Tensor::randn({6, 40}), index = Tensor::randint(0, 6, {30}), numbers = integers({6, 40});
  const auto arithmetic = [](const Tensor&, const Tensor& i) {
    return ops::where(ops::less(i, i * i * 7), ops::abs(i) - 1, ops::less(i, i.clone()).to(kI64));
  };
  const auto lookup = [](const Tensor& x, const Tensor& i) { return ops::embedding(x, i) * 2.0; };
  const auto differs = [&](void (*bug)(LoopKernel&), const std::function<Tensor(const Tensor&, const Tensor&)>& fn,
                           const Tensor& i) {
    Block eager(fn), compiled(fn);
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
    const NoGrad off;
    compile::miscompile_for_tests = bug;
    const Tensor found = compiled(x, i);
    compile::miscompile_for_tests = nullptr;
    EXPECT_EQ(regions.report()[0].eager_runs, 0);
    return !static_cast<bool>(test::same_bits(found, eager(x, i)));
  };
  EXPECT_FALSE(differs(nullptr, arithmetic, numbers));
  EXPECT_FALSE(differs(nullptr, lookup, index));
  EXPECT_TRUE(differs(&use_floats, arithmetic, numbers));
  EXPECT_TRUE(differs(&take_magnitudes_as_negatives, arithmetic, numbers));
  EXPECT_TRUE(differs(&compare_the_other_way, arithmetic, numbers));
  EXPECT_TRUE(differs(&lose_the_last_row, lookup, index));
  EXPECT_TRUE(differs(&step_too_far, lookup, index));
}

}  // namespace
}  // namespace rondo
