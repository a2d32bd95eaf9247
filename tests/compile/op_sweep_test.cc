// Every op of the table through a compiled region against eager execution, in every bit (and in default mode within a
// stated tolerance): alone, on strided inputs, and between elementwise ops that it may fuse with; forward and backward.
// Samples: tests/op_samples.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::dense_copy;
using test::layouts_of;
using test::OpSample;
using test::OpSpec;
using test::Role;
using test::same_bits;

enum class Setting { kAlone, kFused };

// One call of an op as a module. The inputs are those of `inputs`; forward's own argument is the first.
struct OneOp : nn::Module<OneOp> {
  OneOp(const OpDef& op, const OpSample& sample, Setting setting) : op(op), sample(sample), setting(setting) {}
  const OpDef& op;
  const OpSample& sample;
  Setting setting;
  std::vector<Tensor> inputs;

  std::vector<Tensor> forward(const Tensor&) {
    std::vector<Tensor> operands = inputs;
    for (size_t i = 0; i < operands.size() && setting == Setting::kFused; ++i) {
      if (sample.role(i) != Role::kReal) continue;
      if (is_floating(operands[i].dtype())) operands[i] = operands[i] * 0.75 + 0.125;
      else if (operands[i].dtype() == kBool) operands[i] = operands[i] != true;
      else operands[i] = ops::maximum(operands[i] * 3 - 1, operands[i]);
    }
    std::vector<Tensor> outputs(static_cast<size_t>(sample.n_outputs));
    std::vector<TensorArg> args;
    for (const Tensor& operand : operands) args.emplace_back(operand);
    call(op, args, sample.attrs, outputs);
    for (Tensor& out : outputs) {
      if (setting != Setting::kFused) break;
      if (is_floating(out.dtype())) out = out * out + 0.5;
      else if (out.dtype() == kBool) out = ops::where(out, 1.5, 0.5);
      else out = ops::where(out > 1, out * out, -out);
    }
    return outputs;
  }
};

struct Results {
  std::vector<Tensor> outputs, grads;
};

Results run(OneOp& module, const OpSpec& spec, const std::vector<Tensor>& inputs) {
  module.inputs = inputs;
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor& input = module.inputs[i];
    if (!input.defined() || !is_floating(input.dtype()) || spec.is_constant(i)) continue;
    input = input.detach();
    if (module.op.grad != nullptr) leaves.push_back(input.requires_grad_());
  }
  Results results;
  results.outputs = module(module.inputs[0]);
  std::vector<Tensor> roots, seeds;
  for (size_t i = 0; i < results.outputs.size(); ++i) {
    const Tensor& out = results.outputs[i];
    if (!spec.is_differentiable(i) || !out.requires_grad()) continue;
    roots.push_back(out);
    seeds.push_back(test::uniform(out.sizes(), -1, 1, i).to(out.dtype()));
  }
  if (!roots.empty()) autograd::backward(roots, seeds, false, false, std::source_location::current());
  for (const Tensor& leaf : leaves) results.grads.push_back(leaf.grad());
  return results;
}

// Of the largest element, or of 0.01 where terms of order one have cancelled. Default mode saves roundings, each half a
// unit in the last place of something that may cancel; in the 16-bit types one that falls to the other side is a whole
// unit of the result, and then of what is computed from it.
double default_tolerance(DType dtype) {
  switch (dtype) {
    case kF64: return 1e-13;
    case kF16: return 4e-3;
    case kBF16: return 3e-2;
    default: return 1e-5;
  }
}

testing::AssertionResult is_close(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !is_floating(a.dtype())) return same_bits(a, b);
  if (!b.defined() || !(a.sizes() == b.sizes()) || a.dtype() != b.dtype())
    return testing::AssertionFailure() << "another kind of tensor";
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 0.01;
  for (double v : y)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!(std::abs(x[i] - y[i]) <= default_tolerance(a.dtype()) * largest))
      return testing::AssertionFailure() << "element " << i << ": " << x[i] << " and " << y[i] << ", the largest being "
                                         << largest;
  }
  return testing::AssertionSuccess();
}

void compare(const OpDef& op, const OpSpec& spec, const OpSample& sample, Setting setting,
             const std::vector<Tensor>& inputs, bool exact = true) {
  const auto equal = [&](const Tensor& a, const Tensor& b) { return exact ? same_bits(a, b) : is_close(a, b); };
  OneOp module(op, sample, setting);
  const Results eager = run(module, spec, inputs);
  compile::compile_module(module, {.exact = exact});
  const test::MustRunCompiled here;
  const Results compiled = run(module, spec, inputs);
  ASSERT_EQ(eager.outputs.size(), compiled.outputs.size());
  for (size_t i = 0; i < eager.outputs.size(); ++i) {
    EXPECT_TRUE(equal(compiled.outputs[i], eager.outputs[i])) << "output " << i;
    EXPECT_EQ(to_string(compiled.outputs[i].strides()), to_string(eager.outputs[i].strides())) << "output " << i;
    EXPECT_EQ(compiled.outputs[i].requires_grad(), eager.outputs[i].requires_grad()) << "output " << i;
  }
  ASSERT_EQ(eager.grads.size(), compiled.grads.size());
  for (size_t i = 0; i < eager.grads.size(); ++i)
    EXPECT_TRUE(equal(compiled.grads[i], eager.grads[i])) << "gradient " << i;
}

class CompiledOpSweep : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }

  template <class F> void for_each_sample(F&& fn) {
    for (const OpDef* op : all_ops()) {
      // What exists only in place is never part of a recording.
      const OpSpec* spec = test::find_spec(op->name);
      if (spec == nullptr || op->overwrites >= 0 || !test::is_swept(*op)) continue;
      for (const OpSample& sample : test::samples_of(*spec)) {
        SCOPED_TRACE(std::string(op->name) + ": " + sample.label);
        try {
          fn(*op, *spec, sample);
        } catch (const std::exception& e) {
          ADD_FAILURE() << e.what();
        }
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_F(CompiledOpSweep, Alone) {
  for_each_sample([](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    compare(op, spec, sample, Setting::kAlone, sample.inputs_as(kF32));
  });
}

TEST_F(CompiledOpSweep, BetweenElementwiseOpsInF32AndBF16) {
  for_each_sample([](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    for (DType dtype : {kF32, kBF16}) {
      SCOPED_TRACE(name_of(dtype));
      compare(op, spec, sample, Setting::kFused, sample.inputs_as(dtype));
    }
  });
}

TEST_F(CompiledOpSweep, BetweenElementwiseOpsInF64AndF16) {
  for_each_sample([](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    for (DType dtype : {kF64, kF16}) {
      SCOPED_TRACE(name_of(dtype));
      compare(op, spec, sample, Setting::kFused, sample.inputs_as(dtype));
    }
  });
}

TEST_F(CompiledOpSweep, DefaultModeBetweenElementwiseOps) {
  for_each_sample([](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    for (DType dtype : {kF32, kBF16, kF16, kF64}) {
      SCOPED_TRACE(name_of(dtype));
      compare(op, spec, sample, Setting::kFused, sample.inputs_as(dtype), /*exact=*/false);
    }
  });
}

TEST_F(CompiledOpSweep, IntegersAndBool) {
  for_each_sample([](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    for (DType dtype : {kI64, kI32, kU8, kBool}) {
      if (dtype == kBool ? !spec.takes_bool : !spec.takes_integers) continue;
      SCOPED_TRACE(name_of(dtype));
      compare(op, spec, sample, Setting::kAlone, sample.inputs_as(dtype));
      compare(op, spec, sample, Setting::kFused, sample.inputs_as(dtype));
    }
  });
}

// Every layout of each operand, in one dtype.
TEST_F(CompiledOpSweep, StridedInputs) {
  for_each_sample([](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    const std::vector<Tensor> dense = sample.inputs_as(kF32);
    for (size_t kind = 0; kind < 9; ++kind) {
      std::vector<Tensor> strided = dense;
      std::string name;
      for (size_t i = 0; i < dense.size(); ++i) {
        if (!dense[i].defined() || sample.role(i) == Role::kCompute) continue;
        const auto layouts = layouts_of(dense[i]);
        if (kind >= layouts.size()) continue;
        strided[i] = layouts[kind].tensor;
        name = layouts[kind].name;
      }
      if (name.empty()) continue;
      SCOPED_TRACE(name);
      try {
        compare(op, spec, sample, Setting::kAlone, strided);
      } catch (const Error& e) {
        EXPECT_TRUE(op.name == std::string_view("view") || op.name == std::string_view("strided_view") ||
                    op.name == std::string_view("window_copy"))
            << op.name << ": " << e.what();
      }
    }
  });
}

}  // namespace
}  // namespace rondo
