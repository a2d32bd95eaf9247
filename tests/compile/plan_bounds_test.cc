// parse_plan() on damaged plans: each is refused with its line, or all that a run of it touches is within its memory.
#include "rondo/compile/plan/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/exec/executor.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/plan/make_plan.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo::compile {
namespace {

const PlanOptions kExact{.exact = true};

Plan plan_of(const Graph& graph, PlanOptions options = kExact) {
  return make_plan(graph, target_of(default_device()), options);
}

// Kernels of rows and of elements, sums over rows, a product, a view.
Plan block_plan() {
  const Tensor x = Tensor::randn({40, 24}), w = Tensor::randn({24, 24}), b = Tensor::randn({24});
  return plan_of(record([&] {
    const Tensor h = ops::gelu(ops::layer_norm(x, b, b) * 0.5);
    const Tensor y = ops::matmul(h, w).reshape({8, 5, 24});
    return std::vector<Tensor>{ops::softmax(y * 0.5), ops::sum(h, {0}), y.select(0, 3) * 2.0};
  }));
}
// Library calls with attributes, indices and several results.
Plan library_plan() {
  const Tensor x = Tensor::randn({6, 10}), q = Tensor::randn({2, 2, 5, 8});
  const Tensor index = Tensor::from<int64_t>({0, 3, 5}, {3}), at = Tensor::zeros({4, 10}, {kI64});
  return plan_of(record([&] {
    const Tensor sorted = ops::argsort(x, 1), picked = ops::gather(x, 0, at);
    const Tensor added = ops::scatter_add(x, 0, at, picked * 2.0), best = ops::topk(x, 3, 1).values;
    const Tensor run = ops::cumsum(x, 1), rows = ops::index_select(x, 0, index);
    const Tensor both = ops::cat(std::vector<Tensor>{rows, run}, 0);
    return std::vector<Tensor>{sorted,
                               added,
                               best,
                               both,
                               ops::argmax(x, 1),
                               ops::scaled_dot_product_attention(q, q, q, {}, {.causal = true}),
                               ops::embedding(x, index)};
  }));
}
// Epilogues of a product, an input whose memory a result takes, and an arena that is kept.
Plan donating_plan() {
  const Tensor x = Tensor::randn({16, 12}), w = Tensor::randn({12, 12}), r = Tensor::randn({16, 12});
  return plan_of(
      record([&] {
        const Tensor y = ops::matmul(x, w) + r;
        return std::vector<Tensor>{ops::tanh(ops::matmul(y, w)) * 3.0, ops::exp(r)};
      }),
      {.exact = true, .mode = Mode::kReduceOverhead, .epilogues = Epilogues::kAlways, .donated = {true, false, true}});
}
Plan copying_plan() {
  Target target = target_of(default_device());
  target.capabilities.copies = true;
  const Tensor x = Tensor::randn({6, 50});
  return make_plan(record([&] { return std::vector<Tensor>{x.clone(), x.t().clone()}; }), target, kExact);
}
std::vector<std::string> plans() {
  return {to_string(block_plan()), to_string(library_plan()), to_string(donating_plan()), to_string(copying_plan())};
}

// ---- The memory that a plan touches, counted element by element

constexpr int64_t kSmall = 1 << 20;

struct Range {
  int64_t begin = INT64_MAX, end = INT64_MIN;  // bytes from an address
  void add(int64_t element, DType dtype) {
    const auto size = static_cast<int64_t>(size_of(dtype));
    begin = std::min(begin, element * size);
    end = std::max(end, (element + 1) * size);
  }
};
// Every element of the value.
Range range_of(const Value& value, DType dtype) {
  Range range;
  for (int64_t i = 0; i < value.sizes.numel(); ++i) {
    int64_t rest = i, element = 0;
    for (int d = value.sizes.rank() - 1; d >= 0; --d) {
      element += rest % value.sizes[d] * value.strides[d];
      rest /= value.sizes[d];
    }
    range.add(element, dtype);
  }
  return range;
}
// Every row, at its first and last column.
Range range_of(const LoopKernel& kernel, const Operand& operand) {
  Range range;
  for (int64_t row = 0; row < kernel.rows; ++row) {
    int64_t element = 0;
    for (const OperandAxis& axis : operand.axes) element += row / axis.divisor % axis.size * axis.stride;
    if (operand.is_partial) element = row / kernel.chunk_rows * kernel.cols;
    range.add(element, operand.dtype);
    range.add(element + (kernel.cols - 1) * operand.col_stride, operand.dtype);
  }
  return range;
}

// The access that lies outside, or "".
std::string outside(const Plan& plan) {
  const Graph& graph = plan.graph;
  const auto bytes_of = [&](int32_t slot) -> int64_t {
    auto i = static_cast<size_t>(slot);
    if (i < graph.inputs.size())
      return std::max<int64_t>(0, range_of(graph.value(graph.inputs[i]), graph.value(graph.inputs[i]).dtype).end);
    i -= graph.inputs.size();
    if (i < plan.copies.size()) {
      const Value& of = graph.value(graph.inputs[static_cast<size_t>(plan.copies[i].input)]);
      return of.sizes.numel() * static_cast<int64_t>(size_of(plan.copies[i].dtype));
    }
    i -= plan.copies.size();
    return i < plan.fresh.size() ? plan.fresh[i].bytes : plan.arena_bytes;
  };
  std::string found;
  const auto check = [&](const Address& address, const Range& range, const std::string& what) {
    if (range.begin >= range.end) return;
    if (address.slot < 0 || address.slot > plan.arena_slot() || address.offset + range.begin < 0 ||
        address.offset + range.end > bytes_of(address.slot))
      found = absl::StrCat(what, " at ", address.slot, "+", address.offset);
  };
  for (const Launch& launch : plan.launches) {
    if (launch.kind == Launch::Kind::kTable) continue;
    if (!launch.runs_kernel()) {
      std::vector<ValueId> ids(launch.inputs.begin(), launch.inputs.end());
      ids.insert(ids.end(), launch.outputs.begin(), launch.outputs.end());
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] != kNoValue)
          check(launch.addresses[i], range_of(graph.value(ids[i]), graph.value(ids[i]).dtype),
                absl::StrCat("%", ids[i]));
      continue;
    }
    const LoweredUnit& unit = plan.kernels[static_cast<size_t>(launch.kernel)];
    if (launch.kind == Launch::Kind::kKernel) {
      for (const Instr& instr : unit.kernel.instrs)
        if (instr.op == LoopOp::kLoad || instr.op == LoopOp::kStore || instr.op == LoopOp::kColumnSum)
          check(launch.addresses[static_cast<size_t>(instr.index)],
                range_of(unit.kernel, unit.kernel.operands[static_cast<size_t>(instr.index)]),
                absl::StrCat("@", instr.index));
      for (const Launch::Check& c : launch.checks) {
        const Value& indices = graph.value(graph.node(c.node).inputs[0]);
        check(launch.addresses[static_cast<size_t>(c.operand)], range_of(indices, indices.dtype), "indices");
      }
      continue;
    }
    for (size_t i = 0; i < unit.column_results.size(); ++i) {
      const ColumnResult& result = unit.column_results[i];
      Range sums, out;
      sums.add(0, result.compute);
      sums.add(chunks(unit.kernel) * unit.kernel.cols - 1, result.compute);
      out.add(0, graph.value(result.value).dtype);
      out.add(unit.kernel.cols - 1, graph.value(result.value).dtype);
      check(launch.addresses[2 * i], sums, "partial sums");
      check(launch.addresses[2 * i + 1], out, "a sum");
    }
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    check(plan.outputs[i], range_of(graph.value(graph.outputs[i]), graph.value(graph.outputs[i]).dtype), "a result");
  return found;
}
// True if all of that is few elements.
bool is_small(const Plan& plan) {
  for (const Value& value : plan.graph.values)
    if (value.sizes.numel() > kSmall) return false;
  for (const LoweredUnit& unit : plan.kernels)
    if (unit.kernel.rows > kSmall || unit.kernel.cols > kSmall / unit.kernel.rows) return false;
  for (const Plan::FreshBuffer& buffer : plan.fresh)
    if (buffer.bytes > 8 * kSmall) return false;
  return plan.arena_bytes <= 8 * kSmall;
}

// ---- Damage

std::string damaged(const std::string& text, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  std::string& line = lines[below(lines.size())];
  const auto integers = [](const std::string& of) {
    std::vector<std::pair<size_t, size_t>> found;
    for (size_t i = 0; i < of.size(); ++i) {
      if (of[i] < '0' || of[i] > '9' || (i > 0 && (std::isalnum(of[i - 1]) != 0 || of[i - 1] == '.'))) continue;
      size_t end = i;
      while (end < of.size() && of[end] >= '0' && of[end] <= '9') ++end;
      found.emplace_back(i, end - i);
      i = end;
    }
    return found;
  };
  switch (below(12)) {
    case 0: line.clear(); break;
    case 1: line = lines[below(lines.size())]; break;
    case 2: std::swap(line, lines[below(lines.size())]); break;
    case 3:
      if (!line.empty()) line.erase(below(line.size()), 1);
      break;
    case 4: line.insert(below(line.size() + 1), 1, " %@+:[]{}0123456789abc-"[below(23)]); break;
    case 5: {  // a word of another line
      std::vector<std::string> mine = absl::StrSplit(line, ' '),
                               other = absl::StrSplit(lines[below(lines.size())], ' ');
      mine[below(mine.size())] = other[below(other.size())];
      line.clear();
      for (const std::string& word : mine) absl::StrAppend(&line, line.empty() ? "" : " ", word);
      break;
    }
    default: {  // a number
      const auto found = integers(line);
      if (found.empty()) break;
      const auto [at, length] = found[below(found.size())];
      const int64_t n = length > 17 ? 0 : std::stoll(line.substr(at, length));
      const int64_t others[] = {0,
                                1,
                                -1,
                                n + 1,
                                n - 1,
                                n * 2,
                                n * 37,
                                n + 64,
                                1 << 20,
                                int64_t{1} << below(62),
                                static_cast<int64_t>(random() >> 1),
                                static_cast<int64_t>(below(100))};
      line.replace(at, length, std::to_string(others[below(std::size(others))]));
    }
  }
  std::string result;
  for (const std::string& l : lines) absl::StrAppend(&result, l, "\n");
  return result;
}

// Kernels' text, which says what code a plan needs.
std::string kernels_text(const std::string& text) {
  const size_t begin = text.find("\nkernel "), end = text.find("\nlaunch ");
  return begin < end && end != text.npos ? text.substr(begin, end - begin) : "";
}

// Runs it on inputs of ones, with memory of exactly their reach.
void run(const Plan& plan) {
  const Device here = default_device();
  std::vector<Tensor> inputs;
  for (ValueId id : plan.graph.inputs) {
    const Value& value = plan.graph.value(id);
    const int64_t bytes = std::max<int64_t>(0, range_of(value, value.dtype).end);
    const Tensor memory = Tensor::zeros({bytes / static_cast<int64_t>(size_of(value.dtype))}, {value.dtype, here});
    inputs.push_back(Tensor::over(memory.storage(), 0, value.sizes, value.strides, value.dtype));
  }
  try {
    const Code code(plan, find_or_compile(kernels_of(plan), Sizes::kConstant, {}, {}, target_of(here)).kernels, here);
    const Floats bound = floats_for(plan, plan.graph);
    Executor(plan, code, bound).run(inputs, false);
    synchronize(here);
  } catch (const std::exception&) {  // an op or the compiler refuses it
    try {
      synchronize(here);
    } catch (const std::exception&) {
    }
  }
}

TEST(PlanBounds, WhatIsTouchedOutsideOfASlotIsRefused) {
  const auto fails = [](const std::function<void(Plan&)>& change, const std::string& what) {
    Plan plan = block_plan();
    EXPECT_EQ(outside(parse_plan(to_string(plan))), "");
    change(plan);
    const std::string error = test::error_of([&] { parse_plan(to_string(plan)); });
    EXPECT_EQ(error.find("line "), 0u) << error;
    EXPECT_NE(error.find(what), error.npos) << error << "\n" << to_string(plan);
  };
  fails([](Plan& p) { p.arena_bytes = 64; }, ", which has 64");
  for (size_t i = 0; i < block_plan().fresh.size(); ++i) fails([i](Plan& p) { p.fresh[i].bytes = 64; }, "which has 64");
  fails([](Plan& p) { p.launches[0].addresses[0].offset = 900000; }, " of slot 0, which has 3840");
  fails([](Plan& p) { p.launches[0].addresses[0].offset = 2; }, "within an element");
  fails([](Plan& p) { p.launches[0].addresses[0] = {}; }, "has no address");
  fails([](Plan& p) { p.launches[0].addresses[0].slot = 77; }, "there is no slot 77");
  fails([](Plan& p) { p.kernels[0].kernel.rows = 4000; }, " of slot ");
  fails([](Plan& p) { p.kernels[0].kernel.operands[0].axes[0].stride = 2400; }, " of slot ");
  fails([](Plan& p) { p.kernels[0].kernel.operands[0].axes[0].stride = -24; }, " of slot ");
  for (size_t i = 0; i < block_plan().outputs.size(); ++i)
    fails([i](Plan& p) { p.outputs[i].offset += 8; }, "the result ");
  fails([](Plan& p) { p.outputs[0].slot = p.arena_slot(); }, "lies in the arena");
  // The partial sums of a sum over rows, and the sum.
  for (size_t i : {0, 1})
    fails(
        [i](Plan& p) {
          for (Launch& launch : p.launches)
            if (launch.kind == Launch::Kind::kCombine) launch.addresses[i].offset += p.arena_bytes + 64;
        },
        i == 0 ? "partial sums touches" : " of slot ");
  // A product's operands.
  for (size_t i : {0, 1, 2})
    fails(
        [i](Plan& p) {
          for (Launch& launch : p.launches)
            if (launch.kind == Launch::Kind::kLibraryCall) launch.addresses[i].offset += 4096;
        },
        " of slot ");
  fails(
      [](Plan& p) {
        for (Launch& launch : p.launches)
          if (launch.kind == Launch::Kind::kLibraryCall) std::swap(launch.inputs[0], launch.inputs[1]);
      },
      "are not those of matmul");
  // A view far behind its root.
  fails(
      [](Plan& p) {
        for (Value& value : p.graph.values)
          if (value.offset != 0) value.offset = 99999;
      },
      "which it is a view of");
}

// Each chunk of rows writes its own part of a reduction over rows.
TEST(PlanBounds, PartialResultsStayWithinTheirSlot) {
  const Tensor x = Tensor::randn({4000, 24});
  const std::function<Tensor()> reductions[] = {
      [&] { return ops::sum(x * x, {0}); }, [&] { return ops::max(x * x, {0}); }, [&] { return ops::min(x * x, {0}); }};
  for (const auto& reduction : reductions) {
    Plan plan = plan_of(record([&] { return std::vector<Tensor>{reduction()}; }));
    EXPECT_FALSE(find_out_of_bounds(plan).has_value());
    int partial = 0;
    for (Launch& launch : plan.launches) {
      if (launch.kind != Launch::Kind::kKernel) continue;
      const std::vector<Operand>& operands = plan.kernel_of(launch).kernel.operands;
      for (size_t i = 0; i < operands.size(); ++i)
        if (operands[i].is_partial) launch.addresses[i].offset += plan.arena_bytes, ++partial;
    }
    EXPECT_EQ(partial, 1) << to_string(plan);
    const std::optional<OutOfBounds> found = find_out_of_bounds(plan);
    ASSERT_TRUE(found.has_value()) << to_string(plan);
    EXPECT_EQ(found->what.find("operand @"), 0u) << found->what;
  }
}

TEST(PlanBounds, PlacesOutsideOfThePlanAreRefused) {
  using Placement = Plan::Placement;
  const Plan plan = donating_plan();
  const std::pair<Placement::Kind, int64_t> ends[] = {{Placement::kInput, std::ssize(plan.graph.inputs)},
                                                      {Placement::kOutput, std::ssize(plan.fresh)},
                                                      {Placement::kArena, plan.arena_bytes},
                                                      {Placement::kShared, std::ssize(plan.graph.values)}};
  for (const auto& [kind, end] : ends) {
    Plan bad = plan;
    bad.placements[0] = {kind, end};
    const std::optional<OutOfBounds> found = find_out_of_bounds(bad);
    ASSERT_TRUE(found.has_value()) << static_cast<int>(kind);
    EXPECT_EQ(found->what, "the place of %0 is outside of the plan");
  }
}

TEST(PlanBounds, AResultTakesNoSmallerInput) {
  Plan plan = donating_plan();
  EXPECT_FALSE(find_out_of_bounds(plan).has_value());
  plan.fresh[0].donor = 0;
  plan.fresh[0].bytes = 1 << 20;
  const std::optional<OutOfBounds> found = find_out_of_bounds(plan);
  ASSERT_TRUE(found.has_value());
  EXPECT_NE(found->what.find("cannot take the memory of input 0"), std::string::npos) << found->what;
}

// An operand that repeats reaches as far as it goes once.
TEST(PlanBounds, AnOperandThatRepeatsStaysWithinItsSlot) {
  const Tensor x = Tensor::randn({8, 5, 24}), b = Tensor::randn({5, 24});
  const Plan plan = plan_of(record([&] { return std::vector<Tensor>{ops::softmax(x + b)}; }));
  bool repeats = false;
  for (const LoweredUnit& unit : plan.kernels)
    for (const Operand& operand : unit.kernel.operands)
      for (const OperandAxis& axis : operand.axes) repeats = repeats || wraps(unit.kernel, axis);
  EXPECT_TRUE(repeats) << to_string(plan);
  EXPECT_FALSE(find_out_of_bounds(plan).has_value());
}

TEST(PlanBounds, DamagedPlansAreRefusedOrStayWithinTheirMemory) {
  int refused = 0, accepted = 0;
  for (const std::string& text : plans()) {
    ASSERT_EQ(outside(parse_plan(text)), "") << text;
    for (uint64_t seed = 0; seed < 2500; ++seed) {
      std::mt19937_64 random(seed);
      std::string bad = text;
      for (uint64_t n = 0; n <= random() % 3; ++n) bad = damaged(bad, random);
      try {
        const Plan plan = parse_plan(bad);
        ++accepted;
        if (is_small(plan)) {
          ASSERT_EQ(outside(plan), "") << "seed " << seed << "\n" << bad;
        }
        ASSERT_EQ(to_string(parse_plan(to_string(plan))), to_string(plan)) << "seed " << seed;
      } catch (const Error& e) {
        ++refused;
        ASSERT_EQ(std::string(e.what()).find("line "), 0u) << "seed " << seed << ": " << e.what() << "\n" << bad;
      }
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 2000);
}

// Guard zones of the fake device, and AddressSanitizer, see what library calls do with plans that were accepted.
TEST(PlanBounds, DamagedPlansThatAreAcceptedRun) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  int ran = 0;
  for (const std::string& text : plans()) {
    for (uint64_t seed = 0; seed < 800; ++seed) {
      std::mt19937_64 random(seed + 10'000);
      const std::string bad = damaged(text, random);
      if (kernels_text(bad) != kernels_text(text)) continue;  // other code
      try {
        const Plan plan = parse_plan(bad);
        if (is_small(plan)) run(plan), ++ran;
      } catch (const Error&) {
      }
    }
  }
  EXPECT_GT(ran, 100);
}

}  // namespace
}  // namespace rondo::compile
