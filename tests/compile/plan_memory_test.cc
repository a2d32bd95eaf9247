// Where plans put their values: no launch writes over what another one still reads.
#include "rondo/compile/plan/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/plan/make_plan.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"

namespace rondo::compile {
namespace {

// Goes through a plan and notes, for each byte of its memory, which value was written there last.
class Shadow {
 public:
  explicit Shadow(const Plan& plan)
      : plan_(plan), graph_(plan.graph), owners_(plan.n_slots()), memory_of_(owners_.size()) {
    for (size_t slot = 0; slot < memory_of_.size(); ++slot) memory_of_[slot] = slot;
    for (size_t i = 0; i < plan.fresh.size(); ++i)
      if (plan.fresh[i].donor >= 0)
        memory_of_[graph_.inputs.size() + plan.copies.size() + i] = static_cast<size_t>(plan.fresh[i].donor);
    for (size_t i = 0; i < graph_.inputs.size(); ++i)
      write({static_cast<int32_t>(i), 0}, elements_of(graph_.value(graph_.inputs[i])),
            graph_.value(graph_.inputs[i]).dtype, graph_.inputs[i]);
    for (size_t v = 0; v < plan.placements.size(); ++v)
      if (plan.placements[v].kind == Plan::Placement::kCopy) {
        const auto slot = static_cast<int32_t>(graph_.inputs.size()) + static_cast<int32_t>(plan.placements[v].index);
        write({slot, 0}, elements_of(graph_.values[v]), graph_.values[v].dtype, static_cast<int32_t>(v));
      }
  }

  // The first fault, or "".
  std::string run() {
    for (size_t i = 0; i < plan_.launches.size();) {
      size_t end = i + 1;  // combines that follow each other run as one
      if (plan_.launches[i].kind == Launch::Kind::kCombine)
        while (end < plan_.launches.size() && plan_.launches[end].kind == Launch::Kind::kCombine) ++end;
      std::vector<Use> uses;
      for (size_t l = i; l < end; ++l) add_uses(plan_.launches[l], uses);
      check(uses, absl::StrCat("launch ", i));
      i = end;
    }
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const Value& value = graph_.value(graph_.outputs[i]);
      check({{plan_.outputs[i], elements_of(value), value.dtype, value.root, false}}, absl::StrCat("result ", i));
    }
    return wrong_;
  }

 private:
  // The accesses of a launch to one operand. `elements`: in the order in which the launch goes through them.
  struct Use {
    Address address;
    std::vector<int64_t> elements;
    DType dtype;
    int32_t owner;
    bool writes;
    bool in_order = false;  // each element is read before the one at the same position is written
  };

  static std::vector<int64_t> elements_of(const Value& value) {
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < value.sizes.numel(); ++i) {
      int64_t rest = i, element = 0;
      for (int d = value.sizes.rank() - 1; d >= 0; --d) {
        element += rest % value.sizes[d] * value.strides[d];
        rest /= value.sizes[d];
      }
      elements.push_back(element);
    }
    return elements;
  }
  static std::vector<int64_t> elements_of(const LoopKernel& kernel, const Operand& operand) {
    std::vector<int64_t> elements;
    for (int64_t row = 0; row < kernel.rows; ++row) {
      int64_t first = 0;
      for (const OperandAxis& axis : operand.axes) first += row / axis.divisor % axis.size * axis.stride;
      for (int64_t column = 0; column < kernel.cols; ++column) elements.push_back(first + column * operand.col_stride);
    }
    return elements;
  }
  static std::vector<int64_t> dense(int64_t n) {
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < n; ++i) elements.push_back(i);
    return elements;
  }

  // Partial sums belong to no value.
  int32_t owner_of_partial(int32_t kernel, size_t result) const {
    return static_cast<int32_t>(graph_.values.size()) + 100 * kernel + static_cast<int32_t>(result);
  }

  void add_uses(const Launch& launch, std::vector<Use>& uses) const {
    if (!launch.runs_kernel()) {
      for (size_t i = 0; i < launch.inputs.size() + launch.outputs.size(); ++i) {
        const bool writes = i >= launch.inputs.size();
        const ValueId id = writes ? launch.outputs[i - launch.inputs.size()] : launch.inputs[i];
        if (id == kNoValue) continue;
        const Value& value = graph_.value(id);
        uses.push_back({launch.addresses[i], elements_of(value), value.dtype, value.root, writes, true});
      }
      return;
    }
    const LoweredUnit& unit = plan_.kernels[static_cast<size_t>(launch.kernel)];
    if (launch.kind == Launch::Kind::kCombine) {
      for (size_t i = 0; i < unit.column_results.size(); ++i) {
        const ColumnResult& result = unit.column_results[i];
        const Value& value = graph_.value(result.value);
        uses.push_back({launch.addresses[2 * i], dense(chunks(unit.kernel) * unit.kernel.cols), result.compute,
                        owner_of_partial(launch.kernel, i), false});
        uses.push_back({launch.addresses[2 * i + 1], dense(unit.kernel.cols), value.dtype, value.root, true});
      }
      return;
    }
    for (size_t k = 0; k < unit.operands.size(); ++k) {
      const Operand& operand = unit.kernel.operands[k];
      if (operand.is_partial) continue;
      uses.push_back({launch.addresses[k], elements_of(unit.kernel, operand), operand.dtype,
                      graph_.value(unit.operands[k]).root, operand.is_output, true});
    }
    for (size_t i = 0; i < unit.column_results.size(); ++i) {
      const ColumnResult& result = unit.column_results[i];
      uses.push_back({launch.addresses[static_cast<size_t>(result.operand)],
                      dense(chunks(unit.kernel) * unit.kernel.cols), result.compute, owner_of_partial(launch.kernel, i),
                      true});
    }
  }

  std::set<std::pair<size_t, int64_t>> bytes_of(const Use& use) const {
    std::set<std::pair<size_t, int64_t>> bytes;
    const auto size = static_cast<int64_t>(size_of(use.dtype));
    for (int64_t element : use.elements)
      for (int64_t b = 0; b < size; ++b)
        bytes.emplace(memory_of_[static_cast<size_t>(use.address.slot)], use.address.offset + element * size + b);
    return bytes;
  }
  static bool meet(const std::set<std::pair<size_t, int64_t>>& a, const std::set<std::pair<size_t, int64_t>>& b) {
    return std::any_of(a.begin(), a.end(), [&](const auto& byte) { return b.contains(byte); });
  }
  bool same_place(const Use& a, const Use& b) const {
    return memory_of_[static_cast<size_t>(a.address.slot)] == memory_of_[static_cast<size_t>(b.address.slot)] &&
           a.address.offset == b.address.offset && a.elements == b.elements && a.dtype == b.dtype;
  }

  void check(const std::vector<Use>& uses, const std::string& where) {
    std::vector<std::set<std::pair<size_t, int64_t>>> bytes;
    for (const Use& use : uses) bytes.push_back(bytes_of(use));
    for (size_t i = 0; i < uses.size(); ++i)
      for (const auto& [memory, at] : bytes[i])
        if (!uses[i].writes && owner_at(memory, at) != uses[i].owner)
          return fail(absl::StrCat(where, " reads %", uses[i].owner, " where %", owner_at(memory, at), " was written"));
    for (size_t w = 0; w < uses.size(); ++w) {
      if (!uses[w].writes) continue;
      for (size_t other = 0; other < uses.size(); ++other) {
        if (other == w || (uses[other].writes && other > w) || !meet(bytes[w], bytes[other])) continue;
        if (uses[other].writes || !uses[w].in_order || !uses[other].in_order || !same_place(uses[w], uses[other]))
          return fail(absl::StrCat(where, " writes %", uses[w].owner, " over %", uses[other].owner));
      }
    }
    for (const Use& use : uses)
      if (use.writes) write(use.address, use.elements, use.dtype, use.owner);
  }
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  int32_t owner_at(size_t memory, int64_t at) const {
    const auto i = static_cast<size_t>(at);
    return i < owners_[memory].size() ? owners_[memory][i] : -1;
  }
  void write(const Address& address, const std::vector<int64_t>& elements, DType dtype, int32_t owner) {
    std::vector<int32_t>& owners = owners_[memory_of_[static_cast<size_t>(address.slot)]];
    const auto size = static_cast<int64_t>(size_of(dtype));
    for (int64_t element : elements)
      for (int64_t b = 0; b < size; ++b) {
        const auto at = static_cast<size_t>(address.offset + element * size + b);
        if (at >= owners.size()) owners.resize(at + 1, -1);
        owners[at] = owner;
      }
  }

  const Plan& plan_;
  const Graph& graph_;
  std::vector<std::vector<int32_t>> owners_;  // by memory, of each byte
  std::vector<size_t> memory_of_;             // by slot: a buffer in donated memory is that of the input
  std::string wrong_;
};

// All inputs are given away, on targets that add up partial sums at once and together.
template <class Body> void expect_no_overwriting(Body body) {
  const Graph graph = record(body);
  for (const bool gathers_sums : {false, true})
    for (const bool donated : {false, true}) {
      Target target = target_of(default_device());
      target.capabilities.gathers_sums = gathers_sums;
      const Plan plan = make_plan(graph, target,
                                  {.exact = true, .donated = std::vector<bool>(graph.inputs.size(), donated)});
      EXPECT_EQ(Shadow(plan).run(), "") << gathers_sums << donated << "\n" << to_string(plan);
    }
}

using Tensors = std::vector<Tensor>;

TEST(PlanMemory, ABlock) {
  const Tensor x = Tensor::randn({20, 12}), w = Tensor::randn({12, 12}), b = Tensor::randn({12});
  expect_no_overwriting([&] {
    const Tensor h = ops::gelu(ops::layer_norm(x, b, b) * 0.5);
    const Tensor y = ops::matmul(h, w).reshape({4, 5, 12});
    return Tensors{ops::softmax(y * 0.5), ops::sum(h, {0}), ops::matmul(y.select(0, 3) * 2.0, w)};
  });
}

// Partial sums are there until the launch that adds them up has done so, and those of two results lie side by side.
TEST(PlanMemory, PartialSums) {
  for (const DType dtype : {kF32, kF64}) {
    const Tensor x = Tensor::randn({40, 24}).to(dtype), y = Tensor::randn({30, 24}).to(dtype);
    expect_no_overwriting([&] {
      const Tensor e = ops::exp(x), a = ops::sum(e, {0}), b = ops::sum(e * e, {0}), c = ops::sum(ops::exp(y), {0});
      return Tensors{a * b + c};
    });
  }
}

// A result takes the memory of an input only if it goes through the same elements.
TEST(PlanMemory, InputsThatAreNotDense) {
  const Tensor gaps = Tensor::randn({8, 12}).slice(1, {0, 6}), steps = Tensor::randn({12}).slice(0, {0, 12, 2});
  const Tensor permuted = Tensor::randn({3, 3, 4}).permute({1, 0, 2}), dense = Tensor::randn({8, 6});
  for (const Tensor& x : {gaps, steps, permuted, dense}) expect_no_overwriting([&] { return Tensors{ops::exp(x)}; });
  const Plan plan = make_plan(record([&] { return Tensors{ops::exp(dense)}; }), target_of(default_device()),
                              {.exact = true, .donated = {true}});
  EXPECT_EQ(plan.fresh[0].donor, 0);
}

TEST(PlanMemory, AnInputThatIsReturned) {
  const Tensor x = Tensor::randn({8, 6});
  expect_no_overwriting([&] { return Tensors{x, ops::exp(x)}; });
}

// Memory that was an input's goes from one transient to the next, and never to two.
TEST(PlanMemory, DonatedMemoryIsHandedOnOnce) {
  const Tensor x = Tensor::randn({12, 12}), w = Tensor::randn({12, 12});
  expect_no_overwriting([&] {
    const Tensor t = ops::exp(x), y = ops::matmul(t, w), a = ops::tanh(t + y), b = ops::sigmoid(t - y);
    return Tensors{ops::matmul(a, w) * 2.0 + ops::matmul(b, w)};
  });
  expect_no_overwriting([&] {
    // Nothing else that the kernel reads has as many elements.
    const Tensor t = ops::exp(x), s = ops::matmul(t, w).slice(0, {0, 1}), a = ops::tanh(t + s), b = ops::sigmoid(t - s);
    return Tensors{ops::matmul(a, w) * 2.0 + ops::matmul(b, w)};
  });
}

// A view has no memory of its own: what only views inside of a kernel read is not stored.
TEST(PlanMemory, WhatAViewInsideOfAKernelReadsIsNotStored) {
  const Tensor x = Tensor::randn({4, 6});
  const Plan plan = make_plan(record([&] {
                                return Tensors{ops::exp(x).reshape({2, 2, 6}) * 2.0};
                              }),
                              target_of(default_device()), {.exact = true});
  ASSERT_EQ(plan.kernels.size(), 1u);
  EXPECT_EQ(plan.kernels[0].operands.size(), 2u);
  EXPECT_EQ(plan.arena_bytes, 0);
}

}  // namespace
}  // namespace rondo::compile
