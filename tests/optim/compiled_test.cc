// Compiled steps against eager ones: equal to the bit, for every optimizer, dtype, state format and what joins the
// pass.
#include "rondo/optim/compile.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "rondo/compile/codegen/interpret.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adagrad.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/formula_code.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/rmsprop.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/optim/optimizer_cases.h"

namespace rondo::optim {
namespace {

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = [] {
    std::map<std::string, Make> list = {
        {"sgd", make<SGD>(SGDOptions{.lr = 0.1, .weight_decay = 0.1})},
        {"sgd_nesterov", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true})},
        {"adam", make<Adam>(AdamOptions{.lr = 0.01, .weight_decay = 0.1})},
        {"adam_amsgrad", make<Adam>(AdamOptions{.lr = 0.01, .amsgrad = true, .maximize = true})},
        {"adamw", make<AdamW>(AdamWOptions{.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1})},
        {"rmsprop", make<RMSprop>(RMSpropOptions{.weight_decay = 0.1})},
        {"rmsprop_both", make<RMSprop>(RMSpropOptions{.momentum = 0.9, .centered = true})},
        {"adagrad", make<Adagrad>(AdagradOptions{.lr_decay = 0.1, .initial_accumulator_value = 0.1})},
        {"adafactor", make<Adafactor>(AdafactorOptions{.lr = 0.1, .weight_decay = 0.1})},
        {"lamb", make<LAMB>(LAMBOptions{.lr = 0.01, .weight_decay = 0.1})},
        {"muon", make<Muon>(MuonOptions{.lr = 0.02})},
    };
    for (const OptimizerCase& c : optimizer_cases())
      if (c.paper != nullptr) list.emplace(c.name, c.make);
    return list;
  }();
  return all;
}

// Normal random numbers, drawn once.
Tensor random(const Dims& sizes, uint64_t seed) {
  static const Tensor pool = [] {
    Generator generator(7);
    return Tensor::randn({20000}, {}, &generator);
  }();
  const auto begin = static_cast<int64_t>(seed * 977 % 5000);
  return pool.slice(0, {begin, begin + sizes.numel()}).clone().view(sizes);
}

// Matrices for Muon only; for the others vectors of odd lengths, an empty one, and a batch of matrices.
std::vector<Tensor> parameters(bool matrices, DType dtype) {
  std::vector<Tensor> list;
  for (const Dims& sizes : matrices ? std::vector<Dims>{{5, 3}, {64, 80}, {100, 70}}
                                    : std::vector<Dims>{{1}, {0}, {1000}, {70, 130}, {3, 40, 37}, {4099}, {17}})
    list.push_back(random(sizes, 3).to(dtype).clone().requires_grad_());
  return list;
}
void set_grads(std::vector<Tensor>& params, uint64_t seed, double scale = 1) {
  for (Tensor& p : params) p.set_grad((random(p.sizes(), seed) * scale).to(p.dtype()));
}

bool same(const Tensor& a, const Tensor& b) { return test::bytes_of(a) == test::bytes_of(b); }

struct Trained {
  std::vector<Tensor> params;
  std::unique_ptr<Optimizer> optimizer;
};
void expect_same(const Trained& a, const Trained& b, const std::string& what) {
  for (size_t i = 0; i < a.params.size(); ++i) {
    EXPECT_TRUE(same(a.params[i], b.params[i])) << what << ": parameter " << i;
    if (!a.params[i].grad().defined()) continue;
    EXPECT_TRUE(same(a.params[i].grad(), b.params[i].grad())) << what << ": gradient " << i;
  }
  const nn::StateDict x = a.optimizer->state_dict(), y = b.optimizer->state_dict();
  ASSERT_EQ(x.size(), y.size());
  for (const auto& [name, tensor] : x) EXPECT_TRUE(same(tensor, y.at(name))) << what << ": " << name;
  const std::vector<Tensor> copies = a.optimizer->copies(), others = b.optimizer->copies();
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    EXPECT_TRUE(same(copies[i], others[i])) << what << ": copy " << i;
  }
}

class CompiledStep : public testing::TestWithParam<std::string> {};

TEST_P(CompiledStep, EqualsEagerToTheBit) {
  for (DType dtype : {kF32, kBF16, kF16, kF64}) {
    for (StateFormat format : {StateFormat::kFull, StateFormat::kBF16, StateFormat::k8Bit}) {
      if (dtype == kF64 && format != StateFormat::kFull) continue;
      for (bool joined : {false, true}) {
        std::vector<Trained> runs(2);
        for (size_t r = 0; r < 2; ++r) {
          set_num_threads(r == 0 ? 1 : 2);
          runs[r].params = parameters(GetParam() == "muon", dtype);
          runs[r].optimizer = cases().at(GetParam())(runs[r].params, format);
          Optimizer& optimizer = *runs[r].optimizer;
          if (r == 1) compile(optimizer);
          if (joined) optimizer.track_average({.decay = 0.9});
          if (joined) optimizer.keep_copies(kBF16);
          for (uint64_t step = 0; step < 4; ++step) {
            set_grads(runs[r].params, step, joined ? 8.0 : 1.0);
            if (joined) optimizer.step({.grad_scale = 8, .max_norm = 3, .zero_grad = true});
            else optimizer.step();
          }
          EXPECT_EQ(optimizer.kernels().late, 0);
          // Where no host code runs, eager steps are kernels, too.
          const bool generated = !runs_host_code(runs[r].params.front().device());
          EXPECT_EQ(optimizer.kernels().kernels > 0, r == 1 || generated);
        }
        set_num_threads(2);
        expect_same(runs[0], runs[1],
                    GetParam() + " " + std::string(name_of(dtype)) + " format " +
                        std::to_string(static_cast<int>(format)) + (joined ? " joined" : ""));
      }
    }
  }
}

// One infinite gradient, added by the second of two micro-batches: the run goes on as if the step had never been.
TEST_P(CompiledStep, ANonFiniteGradientChangesNothing) {
  for (DType dtype : {kF32, kF16}) {
    for (bool compiled : {false, true}) {
      std::vector<Trained> runs(2);
      for (size_t r = 0; r < 2; ++r) {
        runs[r].params = parameters(GetParam() == "muon", dtype);
        runs[r].optimizer = cases().at(GetParam())(runs[r].params, StateFormat::kFull);
        Optimizer& optimizer = *runs[r].optimizer;
        optimizer.track_average({.decay = 0.9});
        optimizer.keep_copies(kBF16);
        if (compiled) compile(optimizer);
        amp::GradScaler scaler({.init_scale = 4, .growth_interval = 1000});
        for (uint64_t step = 0; step < 4; ++step) {
          if (r == 1 && step > 0) {
            set_grads(runs[r].params, 9);
            Tensor bad = Tensor::zeros(runs[r].params.back().sizes(), {dtype});
            bad.view({-1})[step].fill_(step == 2 ? std::numeric_limits<double>::quiet_NaN()
                                                 : -std::numeric_limits<double>::infinity());
            Tensor grad = runs[r].params.back().grad();
            grad.add_(bad);
            const StepReport report = step == 3 ? scaler.step(optimizer) : optimizer.step({.max_norm = 1});
            EXPECT_TRUE(report.skipped());
            EXPECT_EQ(optimizer.skipped_steps(), static_cast<int64_t>(step));
          }
          set_grads(runs[r].params, step);
          EXPECT_FALSE(optimizer.step({.check_finite = true}).skipped());
        }
      }
      expect_same(runs[0], runs[1],
                  GetParam() + " " + std::string(name_of(dtype)) + (compiled ? " compiled" : " eager"));
    }
  }
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : cases()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Optimizers, CompiledStep, testing::ValuesIn(case_names()),
                         [](const auto& i) { return i.param; });

// The interpreter of loop kernels agrees, too: states of 8 bits need stores that nothing else has.
TEST(Compiled, TheInterpreterAgrees) {
  const Body body = body_of<AdamFormula<false>>("adam");
  const std::vector<ArraySpec> arrays = {
      {}, {}, {.format = Format::kSigned8}, {.format = Format::kUnsigned8}, {.role = Role::kCopy, .dtype = kBF16}};
  constexpr int64_t kN = 3 * kBlock8;
  struct Memory {
    std::vector<float> param, grad;
    std::vector<uint8_t> codes[2];
    std::vector<float> scales[2];
    std::vector<uint16_t> copy;
    std::vector<void*> operands() {
      return {param.data(), grad.data(),      codes[0].data(), codes[1].data(),
              copy.data(),  scales[0].data(), scales[1].data()};
    }
    bool operator==(const Memory&) const = default;
  };
  Generator generator(3);
  Memory start{Tensor::randn({kN}, {}, &generator).to_vector<float>(),
               Tensor::randn({kN}, {}, &generator).to_vector<float>(),
               {},
               {},
               std::vector<uint16_t>(kN)};
  for (int k = 0; k < 2; ++k) {
    for (int64_t i = 0; i < kN; ++i) start.codes[k].push_back(static_cast<uint8_t>(i * 7 % (k == 0 ? 241 : 240)));
    start.scales[k] = {1.0f, 0.5f, 0.0f};
  }
  const double scalars[] = {0.5, 0, 1, 0.1, 0.9, 0.1, 0.95, 0.05, 0.01, 1.1, 1e-8};
  std::vector<Memory> after(3, start);
  for (int how = 0; how < 3; ++how) {
    Foreach pass(body, arrays);
    if (how == 1) pass.compile();
    std::vector<void*> operands = after[static_cast<size_t>(how)].operands();
    if (how == 2) {
      compile::LoopKernel kernel = pass.kernel();
      kernel.rows = 3;
      for (compile::Operand& operand : kernel.operands)
        for (compile::OperandAxis& axis : operand.axes) axis.size = 3;
      compile::interpret(kernel, operands.data(), scalars, 0, 3);
      continue;
    }
    ForeachTable table;
    std::span<void*> to = table.add(pass.item(kN, pass.row_width(), scalars), pass.n_operands());
    std::copy(operands.begin(), operands.end(), to.begin());
    if (how == 1) pass.run_compiled(table, {});
    else pass.run_eager(table);
  }
  EXPECT_NE(after[0].param, start.param);
  EXPECT_TRUE(after[0] == after[1]);
  EXPECT_TRUE(after[0] == after[2]);
}

// Bytes that a pass moves for each element: every array once in each direction.
int64_t bytes_moved(const Foreach& pass) {
  const compile::LoopKernel& kernel = pass.kernel();
  std::set<std::pair<bool, int32_t>> accesses;
  for (const compile::Instr& i : kernel.instrs)
    if (i.op == LoopOp::kLoad || i.op == LoopOp::kStore) accesses.insert({i.op == LoopOp::kStore, i.index});
  int64_t bytes = 0;
  for (const auto& [store, operand] : accesses)
    bytes += static_cast<int64_t>(size_of(kernel.operands[static_cast<size_t>(operand)].dtype));
  return bytes;
}

TEST(Compiled, AdamWMovesEachValueOnce) {
  const Body body = body_of<AdamFormula<false>>("adam");
  EXPECT_EQ(bytes_moved(Foreach(body, {{}, {}, {}, {}})), 28);  // reads all four arrays, writes three
  EXPECT_EQ(bytes_moved(Foreach(body, {{}, {}, {}, {}, {.role = Role::kCopy, .dtype = kBF16}})), 30);
  EXPECT_EQ(bytes_moved(Foreach(body, {{}, {.zero = true}, {}, {}})), 32);
}

TEST(Compiled, OneKernelForAnyNumberOfTensors) {
  compile::forget_unused_kernels();
  for (size_t n : {1u, 10u, 3000u}) {
    std::vector<Tensor> params;
    for (size_t i = 0; i < n; ++i) params.push_back(Tensor::ones({static_cast<int64_t>(1 + i % 70)}).requires_grad_());
    set_grads(params, 1);
    AdamW optimizer(params);
    compile(optimizer);
    optimizer.step();
    EXPECT_EQ(optimizer.kernels().kernels, 1);
    EXPECT_LE(optimizer.kernels().compilations, n == 1 ? 1 : 0);  // 0 if the disk cache had it
  }
}

TEST(Compiled, StancesAreKept) {
  Tensor p = Tensor::ones({4}).requires_grad_();
  p.set_grad(Tensor::ones({4}));
  SGD optimizer({p}, {.lr = 0.5});
  compile(optimizer);
  optimizer.step();
  compile::set_stance(compile::Stance::kFailOnRecompile);
  optimizer.step();
  const std::string error = test::error_of([&] { optimizer.step({.zero_grad = true}); });
  compile::set_stance(compile::Stance::kDefault);
  EXPECT_NE(error.find("SGD: a step needs a new kernel"), std::string::npos) << error;
  EXPECT_EQ(p.to_vector<float>(), std::vector<float>(4, 0.0f));
  optimizer.step({.zero_grad = true});
  EXPECT_EQ(optimizer.kernels().kernels, 2);
  EXPECT_EQ(p.to_vector<float>(), std::vector<float>(4, -0.5f));
  EXPECT_EQ(p.grad().to_vector<float>(), std::vector<float>(4, 0.0f));
}

}  // namespace
}  // namespace rondo::optim
