// Every op of the table, in every dtype, layout and odd shape, against itself on dense copies, its decomposition, its
// f64 run, finite differences and another number of threads. Samples: tests/op_samples.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

// Views, and a copy of one, that cannot show memory of every layout.
bool refuses_layouts(const OpDef& op) {
  return op.name == std::string_view("view") || op.name == std::string_view("strided_view") ||
         op.name == std::string_view("window_copy");
}

using test::apply_op;

using test::dense_copy;
using test::find_spec;
using test::layouts_of;
using test::OpSample;
using test::OpSpec;
using test::Role;
using test::same_bits;
using test::samples_of;

constexpr DType kFloats[] = {kF64, kF32, kBF16, kF16};

// Distance between neighbours of 1.
double unit_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 0x1p-23;
    case DType::kBF16: return 0x1p-7;
    case DType::kF16: return 0x1p-10;
    default: return 0x1p-52;
  }
}

// Within `units` last places of the largest element; sums of partly cancelling terms round at the size of the terms,
// which is 1 or more here.
::testing::AssertionResult close(const Tensor& got, const Tensor& reference, double units) {
  const std::vector<double> a = got.to_vector<double>(), b = reference.to_vector<double>();
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  double largest = 1;
  for (double v : b) largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0);
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i]) ? std::abs(a[i] - b[i]) <= units * unit_of(got.dtype()) * largest
                            : (std::isnan(b[i]) ? std::isnan(a[i]) : a[i] == b[i]))
      continue;
    return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << ", not " << b[i] << "; off by "
                                         << (a[i] - b[i]) / (unit_of(got.dtype()) * largest) << " of " << units
                                         << " units";
  }
  return ::testing::AssertionSuccess();
}

// Note [Long sums]. One chain of n additions in f32 has an error that grows with sqrt(n), in units of the largest
// result. Each addition rounds its sum s by up to half of a last place, 0.21 u |s| on average (u = 2^-23, root mean
// square). The terms are independent with mean 0 and deviation d, so |s| after k of them is d sqrt(k) and the error of
// the whole is 0.21 u d n / sqrt(2). The largest of some thousand results is 3.6 d sqrt(n). So the error is 0.041
// sqrt(n) units of the largest. Its tail is longer than a normal distribution's, since where s is large all errors are.
// In a simulation (n = 1024 and 4608, 115,000 sums each) the mean was 0.041 sqrt(n), and the worst 0.49 and 0.44
// sqrt(n). With oneDNN 3.7 the gradient of the input of "many outputs, bands", 4608 products, is 17.1 units off, which
// is 0.25 sqrt(n).
double with_long_sums(double units, const OpSample& sample, DType dtype) {
  return dtype == kF32 ? std::max(units, 0.5 * std::sqrt(static_cast<double>(sample.terms))) : units;
}

// A library may sum in another order for another layout; everything else promises the same bits.
::testing::AssertionResult same_for_layouts(const OpDef& op, const OpSpec& spec, const Tensor& a, const Tensor& b) {
  return op.kind == OpKind::kContraction ? close(a, b, spec.tolerance) : same_bits(a, b);
}

// RONDO_TEST_SAMPLES=1:6 leaves every sixth sample, from the second on: processes that run side by side share them.
bool is_ours(int64_t sample) {
  long long share = 0, shares = 1;
  if (const char* text = std::getenv("RONDO_TEST_SAMPLES")) std::sscanf(text, "%lld:%lld", &share, &shares);
  return sample % shares == share;
}

// fn(op, spec, sample) for every op and sample.
template <class F> void for_each_sample(bool large, F&& fn) {
  int64_t number = 0;
  for (const OpDef* op : all_ops()) {
    const OpSpec* spec = find_spec(op->name);
    if (spec == nullptr || !test::is_swept(*op)) continue;
    const std::vector<OpSample> samples = samples_of(*spec, large);
    // What an op makes for itself belongs on its operands' device, not on the default one.
    const DeviceScope elsewhere(kCPU);
    for (const OpSample& sample : samples) {
      if (!is_ours(number++)) continue;
      SCOPED_TRACE(std::string(op->name) + ": " + sample.label);
      try {
        fn(*op, *spec, sample);
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}
std::vector<DType> dtypes_of(const OpSpec& spec) {
  std::vector<DType> dtypes;
  for (DType t : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    if (is_floating(t) || (t == kBool ? spec.takes_bool : spec.takes_integers)) dtypes.push_back(t);
  return dtypes;
}
std::vector<Tensor> run(const OpDef& op, const OpSample& sample, std::span<const Tensor> inputs) {
  return no_grad([&] { return apply_op(op, inputs, sample.attrs, sample.n_outputs); });
}

TEST(OpSweep, EveryOpHasSamplesAndEverySampleAnOp) {
  for (const OpDef* op : all_ops())
    EXPECT_NE(find_spec(op->name), nullptr) << "op '" << op->name << "' has no line in tests/op_samples.cc";
  for (const OpSpec& spec : test::op_specs()) {
    EXPECT_NE(find_op(spec.name), nullptr) << "tests/op_samples.cc: there is no op '" << spec.name << "'";
    EXPECT_FALSE(samples_of(spec).empty()) << spec.name;
  }
}

// The samples' lines say which dtypes an op takes, and so in which it is swept, here, compiled and on CUDA: an op that
// comes to take one must say so, or it would be tested in none of them.
TEST(OpSweep, SamplesSayWhichDtypesAnOpTakes) {
  for (const OpDef* op : all_ops()) {
    const OpSpec* spec = find_spec(op->name);
    if (spec == nullptr) continue;
    const std::vector<OpSample> samples = samples_of(*spec);
    const DeviceScope elsewhere(kCPU);
    for (DType dtype : {kI64, kI32, kU8, kBool}) {
      SCOPED_TRACE(std::string(op->name) + " of " + std::string(name_of(dtype)));
      const auto takes = [&](const OpSample& sample) {
        const std::vector<Tensor> inputs = sample.inputs_as(dtype);
        std::vector<const Tensor*> pointers;
        for (const Tensor& input : inputs) pointers.push_back(&input);
        try {
          InferContext infer(*op, pointers, sample.attrs, {});
          op->infer(infer);
          return true;
        } catch (const Error&) {
          return false;
        }
      };
      const bool says = dtype == kBool ? spec->takes_bool : spec->takes_integers;
      EXPECT_EQ(std::any_of(samples.begin(), samples.end(), takes), says);
    }
  }
}

// An op that says it takes a dtype does, and gives what infer says.
TEST(OpSweep, OutputsAreAsInferred) {
  for_each_sample(false, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    for (DType dtype : dtypes_of(spec)) {
      SCOPED_TRACE(name_of(dtype));
      const std::vector<Tensor> inputs = sample.inputs_as(dtype);
      for (const Tensor& out : run(op, sample, inputs)) {
        ASSERT_TRUE(out.defined());
        EXPECT_TRUE(out.numel() == 0 || out.address() != nullptr);
      }
      const std::vector<Tensor> again = sample.inputs_as(dtype);
      for (size_t i = 0; i < inputs.size(); ++i)
        EXPECT_TRUE(same_bits(inputs[i], again[i])) << "input " << i << " was written to";
    }
  });
}

TEST(OpSweep, StridedInputsGiveTheBitsOfDenseOnes) {
  for_each_sample(false, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    for (DType dtype : dtypes_of(spec)) {
      const std::vector<Tensor> dense = sample.inputs_as(dtype);
      // Each operand alone, then all in the same kind of layout.
      for (size_t which = 0; which <= dense.size(); ++which) {
        for (size_t kind = 0; kind < 9; ++kind) {
          std::vector<Tensor> strided = dense;
          bool any = false;
          std::string name;
          for (size_t i = 0; i < dense.size(); ++i) {
            if (!dense[i].defined() || sample.role(i) == Role::kCompute || (which < dense.size() && which != i))
              continue;
            const auto layouts = layouts_of(dense[i]);
            if (kind >= layouts.size()) continue;
            strided[i] = layouts[kind].tensor;
            name = layouts[kind].name;
            any = true;
          }
          if (!any) continue;
          SCOPED_TRACE(std::string(name_of(dtype)) + ", " +
                       (which < dense.size() ? "operand " + std::to_string(which) : "all") + " " + name);
          std::vector<Tensor> copies;
          for (const Tensor& t : strided) copies.push_back(t.defined() ? dense_copy(t) : t);
          std::vector<Tensor> got;
          try {
            got = run(op, sample, strided);
          } catch (const Error& e) {
            // Not every layout can be viewed otherwise.
            ASSERT_TRUE(refuses_layouts(op)) << e.what();
            continue;
          } catch (const std::exception& e) {
            ADD_FAILURE() << e.what();
            continue;
          }
          const std::vector<Tensor> expected = run(op, sample, copies);
          for (size_t i = 0; i < got.size(); ++i)
            ASSERT_TRUE(same_for_layouts(op, spec, got[i], expected[i])) << "output " << i;
        }
      }
    }
  });
}

TEST(OpSweep, KernelEqualsDecomposition) {
  for_each_sample(false, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    if (op.decompose == nullptr || entry_of(op, kCPU).kernel == nullptr) return;
    for (DType dtype : kFloats) {
      SCOPED_TRACE(name_of(dtype));
      const std::vector<Tensor> inputs = sample.inputs_as(dtype), kernel = run(op, sample, inputs);
      std::vector<Tensor> parts(kernel.size());
      no_grad([&] { op.decompose(inputs, sample.attrs, parts); });
      for (size_t i = 0; i < kernel.size(); ++i) {
        if (spec.decomposes_exactly) {
          EXPECT_TRUE(same_bits(kernel[i], parts[i])) << "output " << i;
          continue;
        }
        ASSERT_EQ(kernel[i].dtype(), parts[i].dtype());
        // Parts round each step to a 16-bit dtype.
        EXPECT_TRUE(close(kernel[i], parts[i], with_long_sums(16, sample, dtype))) << "output " << i;
      }
    }
  });
}

TEST(OpSweep, LowerPrecisionFollowsF64) {
  for_each_sample(false, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    for (DType dtype : {kF32, kBF16, kF16}) {
      SCOPED_TRACE(name_of(dtype));
      // The f64 run reads the rounded inputs: only the op's own error counts.
      const std::vector<Tensor> inputs = sample.inputs_as(dtype);
      std::vector<Tensor> wide;
      for (const Tensor& t : inputs) wide.push_back(t.defined() && is_floating(t.dtype()) ? t.to(kF64) : t);
      const std::vector<Tensor> got = run(op, sample, inputs), reference = run(op, sample, wide);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(close(got[i], reference[i], with_long_sums(spec.tolerance, sample, dtype))) << "output " << i;
    }
  });
}

TEST(OpSweep, IntegersFollowF64) {
  for_each_sample(false, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    if (!spec.takes_integers || sample.attrs.floats.size() != 0) return;
    bool follows = false;  // an op whose operands are all given as they are would be compared with itself
    for (size_t i = 0; i < sample.inputs.size(); ++i) follows = follows || sample.role(i) == Role::kReal;
    if (!follows) return;
    for (DType dtype : {kI64, kI32, kU8}) {
      SCOPED_TRACE(name_of(dtype));
      const std::vector<Tensor> inputs = sample.inputs_as(dtype);
      std::vector<Tensor> wide;
      for (size_t i = 0; i < inputs.size(); ++i)
        wide.push_back(sample.role(i) == Role::kReal ? inputs[i].to(kF64) : inputs[i]);
      const std::vector<Tensor> got = run(op, sample, inputs), reference = run(op, sample, wide);
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::string_view(op.name) == "max" && got[i].numel() > 0 && sample.inputs[0].numel() == 0) continue;
        const std::vector<int64_t> a = got[i].to_vector<int64_t>();
        const std::vector<double> b = reference[i].to_vector<double>();
        for (size_t k = 0; k < a.size(); ++k) {
          const int64_t exact = static_cast<int64_t>(b[k]);  // division truncates
          EXPECT_EQ(a[k], got[i].dtype() == kU8 ? static_cast<int64_t>(static_cast<uint8_t>(exact)) : exact)
              << "element " << k;
        }
      }
    }
  });
}

// d<r, outputs>/dx along random directions, against central differences.
TEST(OpSweep, GradientsFollowFiniteDifferences) {
  for_each_sample(false, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    if (op.grad == nullptr && op.decompose == nullptr) return;
    const std::vector<Tensor> inputs = sample.inputs_as(kF64);
    std::vector<Tensor> weights;
    auto loss_of = [&](std::span<const Tensor> outputs) {
      Tensor loss;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!spec.is_differentiable(i) || !is_floating(outputs[i].dtype())) continue;
        if (weights.size() <= i) weights.resize(i + 1);
        if (!weights[i].defined()) weights[i] = test::uniform(outputs[i].sizes(), -1, 1, 100 + i);
        const Tensor part = ops::sum(outputs[i].to(kF64) * weights[i]);
        loss = loss.defined() ? loss + part : part;
      }
      return loss;
    };
    std::vector<Tensor> leaves = inputs;
    std::vector<size_t> varied;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !is_floating(inputs[i].dtype()) || sample.role(i) == Role::kFixed ||
          spec.is_constant(i))
        continue;
      leaves[i] = dense_copy(inputs[i]);
      leaves[i].requires_grad_();
      varied.push_back(i);
    }
    const Tensor loss = loss_of(apply_op(op, leaves, sample.attrs, sample.n_outputs));
    // Whole numbers, counts and comparisons have none.
    if (!loss.defined() || !loss.requires_grad()) {
      EXPECT_TRUE(!loss.defined() || op.grad == nullptr || varied.empty() || std::string_view(op.name) == "cast")
          << "no gradient";
      return;
    }
    // Truncation has no derivative.
    if (std::string_view(op.name) == "cast" && static_cast<DType>(sample.attrs.ints[0]) != kF64) return;
    loss.backward();
    constexpr double kStep = 1e-5;
    for (size_t i : varied) {
      const Tensor& grad = leaves[i].grad();
      if (!grad.defined()) {
        ADD_FAILURE() << "no gradient reached operand " << i;
        continue;
      }
      ASSERT_EQ(to_string(grad.sizes()), to_string(inputs[i].sizes()));
      ASSERT_EQ(grad.dtype(), kF64);
      for (uint64_t k = 0; k < 2; ++k) {
        const Tensor direction = test::uniform(inputs[i].sizes(), -1, 1, 7 + k);
        const double analytic = ops::sum(grad * direction).item();
        auto at = [&](double step) {
          std::vector<Tensor> moved = inputs;
          moved[i] = inputs[i] + direction * step;
          return no_grad([&] { return loss_of(apply_op(op, moved, sample.attrs, sample.n_outputs)).item(); });
        };
        const double numeric = (at(kStep) - at(-kStep)) / (2 * kStep);
        EXPECT_NEAR(analytic, numeric, 1e-6 * (1 + std::abs(numeric))) << "operand " << i;
      }
    }
  });
}

// The gradient's bits do not depend on the layout of what arrives and what was saved.
TEST(OpSweep, GradientsOfStridedInputs) {
  for_each_sample(false, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
    if (op.grad == nullptr) return;
    for (DType dtype : {kF32, kBF16}) {
      const std::vector<Tensor> dense = sample.inputs_as(dtype);
      auto grads_of = [&](std::vector<Tensor> inputs, bool odd_grad) {
        for (size_t i = 0; i < inputs.size(); ++i)
          if (inputs[i].defined() && is_floating(inputs[i].dtype()) && !spec.is_constant(i)) {
            inputs[i] = inputs[i].detach();
            inputs[i].requires_grad_();
          }
        const std::vector<Tensor> outputs = apply_op(op, inputs, sample.attrs, sample.n_outputs);
        std::vector<Tensor> roots, seeds, leaves;
        for (size_t i = 0; i < outputs.size(); ++i) {
          if (!spec.is_differentiable(i) || !outputs[i].requires_grad()) continue;
          const Tensor seed = dense_copy(test::uniform(outputs[i].sizes(), -1, 1, i).to(outputs[i].dtype()));
          roots.push_back(outputs[i]);
          seeds.push_back(odd_grad ? layouts_of(seed).back().name.starts_with("expanded")
                                         ? layouts_of(seed)[0].tensor
                                         : layouts_of(seed).back().tensor
                                   : seed);
        }
        for (const Tensor& t : inputs)
          if (t.defined() && t.requires_grad()) leaves.push_back(t);
        return roots.empty() ? std::vector<Tensor>() : autograd::grad(roots, leaves, seeds, false, false, true);
      };
      const std::vector<Tensor> expected = grads_of(dense, false);
      for (size_t kind = 0; kind < 6; ++kind) {
        std::vector<Tensor> strided = dense;
        for (size_t i = 0; i < dense.size(); ++i) {
          if (!dense[i].defined() || sample.role(i) == Role::kCompute) continue;
          const auto layouts = layouts_of(dense[i]);
          if (kind < layouts.size() && !layouts[kind].name.starts_with("expanded")) strided[i] = layouts[kind].tensor;
        }
        std::vector<Tensor> got;
        try {
          got = grads_of(strided, true);
        } catch (const Error& e) {
          ASSERT_TRUE(refuses_layouts(op)) << e.what();
          continue;
        }
        ASSERT_EQ(got.size(), expected.size());
        // What is broadcast to images that are channels last gets its sum in their order (Note [Channels last
        // results]).
        const bool images = op.kind == OpKind::kElementwise &&
                            std::any_of(strided.begin(), strided.end(),
                                        [](const Tensor& t) { return t.defined() && lies_channels_last(t); });
        int64_t largest = 0;
        for (const Tensor& t : got) largest = std::max(largest, t.numel());
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_TRUE(images && got[i].numel() < largest ? close(got[i], expected[i], spec.tolerance)
                                                         : same_for_layouts(op, spec, got[i], expected[i]))
              << name_of(dtype) << " layout " << kind << ", gradient " << i;
      }
    }
  });
}

TEST(OpSweep, OneThreadEqualsSeveral) {
  const int before = num_threads();
  {
    for_each_sample(true, [](const OpDef& op, const OpSpec& spec, const OpSample& sample) {
      for (DType dtype : {kF32, kBF16}) {
        SCOPED_TRACE(name_of(dtype));
        const std::vector<Tensor> inputs = sample.inputs_as(dtype);
        auto all = [&](int threads) {
          set_num_threads(threads);
          std::vector<Tensor> leaves = inputs;
          for (size_t i = 0; i < leaves.size(); ++i)
            if (leaves[i].defined() && is_floating(leaves[i].dtype()) && op.grad != nullptr && !spec.is_constant(i)) {
              leaves[i] = leaves[i].detach();
              leaves[i].requires_grad_();
            }
          std::vector<Tensor> results = apply_op(op, leaves, sample.attrs, sample.n_outputs);
          std::vector<Tensor> roots, seeds;
          for (size_t i = 0; i < results.size(); ++i)
            if (spec.is_differentiable(i) && results[i].requires_grad()) {
              roots.push_back(results[i]);
              seeds.push_back(test::uniform(results[i].sizes(), -1, 1, i).to(results[i].dtype()));
            }
          if (!roots.empty()) autograd::backward(roots, seeds, false, false, std::source_location::current());
          for (const Tensor& leaf : leaves) results.push_back(leaf.defined() ? leaf.grad() : Tensor());
          return results;
        };
        const std::vector<Tensor> one = all(1);
        const std::vector<Tensor> two = all(2);
        for (size_t i = 0; i < one.size(); ++i) ASSERT_TRUE(same_bits(one[i], two[i])) << "result " << i;
      }
    });
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace rondo
