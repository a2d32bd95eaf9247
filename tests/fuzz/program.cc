#include "rondo/tests/fuzz/program.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {

Dims concrete(const Dims& sizes, int64_t batch) {
  Dims result = sizes;
  for (int64_t& s : result)
    if (s < 0) s = -s * batch;
  return result;
}

Tensor look_at(const Tensor& base, Look look) {
  const int rank = base.rank();
  switch (look) {
    case Look::kAsItIs: return base;
    case Look::kAll: return rank > 0 ? base.slice(0, {}) : base.view({});
    case Look::kFlat: return base.is_contiguous() ? base.view({base.numel()}) : Tensor();
    case Look::kTransposed: return rank > 1 ? base.transpose(0, -1) : Tensor();
    case Look::kFirst: return rank > 0 && base.size(-1) > 0 ? base.select(-1, 0) : Tensor();
    case Look::kRest: return rank > 0 && base.size(-1) > 1 ? base.slice(-1, {1, base.size(-1)}) : Tensor();
    case Look::kEverySecond: return rank > 0 && base.size(-1) > 1 ? base.slice(-1, {0, base.size(-1), 2}) : Tensor();
    case Look::kExpanded: return rank > 0 && base.size(-1) > 0 ? base.slice(-1, {0, 1}).expand(base.sizes()) : Tensor();
    case Look::kDetached: return base.detach();
    case Look::kUnwatched: return no_grad([&] { return look_at(base, Look::kAll); });
  }
  return {};
}

const Leaf* Program::leaf(ValueId id) const {
  for (const Leaf& leaf : leaves)
    if (leaf.id == id) return &leaf;
  return nullptr;
}

const Step* Program::producer(ValueId id) const {
  for (const Step& step : steps)
    for (ValueId out : step.out)
      if (out == id) return &step;
  return nullptr;
}

bool Program::may_chain(ValueId from, ValueId to) const {
  const Leaf* argument = leaf(to);
  const std::optional<DType> wanted = argument == nullptr ? std::nullopt : argument->drawn_in;
  if (!wanted) return true;  // as it was made
  if (const Leaf* input = leaf(from)) return input->drawn_in.value_or(input->meta.dtype) == *wanted;
  const Step& step = *producer(from);
  for (size_t i = 0; i < step.out.size(); ++i)
    if (step.out[i] == from) return step.metas[i].dtype == *wanted;
  return false;
}

int Program::part_inside(int part, int within) const {
  while (part != within) {
    const int parent = parts[static_cast<size_t>(part) - 1].parent;
    if (parent == within) return part;
    part = parent;
  }
  return 0;
}

namespace {

std::string name(ValueId id) { return id == kNone ? "none" : absl::StrCat("%", id); }

std::string text(const Dims& sizes) {
  std::string result = "[";
  for (int i = 0; i < sizes.rank(); ++i) {
    if (i) result += ", ";
    if (sizes[i] >= 0) absl::StrAppend(&result, sizes[i]);
    else if (sizes[i] == -1) result += "B";
    else absl::StrAppend(&result, -sizes[i], "*B");
  }
  return result + "]";
}
std::string text(const Meta& meta) { return std::string(name_of(meta.dtype)) + text(meta.sizes); }

std::string text(const Leaf& leaf) {
  constexpr const char* kRoles[] = {"input", "outside tensor", "parameter", "buffer"};
  constexpr const char* kFills[] = {"", ", halves", ", positive", ", special values"};
  constexpr const char* kLayouts[] = {"", ", transposed", ", every second element", ", offset", ", expanded"};
  std::string line = absl::StrCat("  ", name(leaf.id), ": ", text(leaf.meta), " ", kRoles[static_cast<int>(leaf.role)],
                                  leaf.requires_grad ? ", requires grad" : "", leaf.computed ? ", computed" : "",
                                  kFills[static_cast<int>(leaf.fill)], kLayouts[static_cast<int>(leaf.layout)]);
  if (leaf.bound > 0) absl::StrAppend(&line, ", below ", leaf.bound);
  constexpr const char* kLookNames[kLooks] = {"is",
                                              "a view of",
                                              "the elements of",
                                              "transposed",
                                              "the first column of",
                                              "the columns behind the first of",
                                              "every second column of",
                                              "the expanded first column of",
                                              "detached",
                                              "a view without gradients of"};
  if (leaf.same_as != kNone)
    absl::StrAppend(&line, ", ", leaf.overlap < 0 ? kLookNames[static_cast<int>(leaf.look)] : "memory of", " ",
                    name(leaf.same_as));
  if (leaf.overlap > 0) absl::StrAppend(&line, " + ", leaf.overlap, " elements");
  if (leaf.same_as != kNone && leaf.calls != kEveryCall) {
    line += " in calls";
    for (size_t i = 0; i < 8; ++i)
      if (leaf.is_same_in(i)) absl::StrAppend(&line, " ", i);
  }
  return line + "\n";
}

std::string text(const Step& step) {
  std::string line = "  ";
  for (size_t i = 0; i < step.out.size(); ++i) absl::StrAppend(&line, i ? ", " : "", name(step.out[i]));
  absl::StrAppend(&line, step.out.empty() ? "" : " = ", step.kind->name, "(");
  const char* separator = "";
  for (ValueId id : step.in) absl::StrAppend(&line, std::exchange(separator, ", "), name(id));
  for (int64_t i : step.ints) absl::StrAppend(&line, std::exchange(separator, ", "), i);
  if (step.kind->has(kSizes)) absl::StrAppend(&line, std::exchange(separator, ", "), text(step.sizes));
  if (step.kind->has(kScalar)) absl::StrAppend(&line, separator, step.scalar);
  line += ")";
  for (size_t i = 0; i < step.metas.size(); ++i) absl::StrAppend(&line, i ? ", " : " -> ", text(step.metas[i]));
  if (step.when == Step::When::kOddSteps) line += "  if the step counter is odd";
  if (step.when == Step::When::kRepeated) line += "  1 + counter % 3 times";
  if (step.no_grad) line += "  under no_grad";
  if (step.autocast) line += "  under autocast(bf16)";
  if (step.part > 0) absl::StrAppend(&line, "  in part ", step.part);
  return line + "\n";
}

}  // namespace

std::string to_string(const Program& program) {
  std::string result = absl::StrCat("program ", program.seed, ", batch sizes B:");
  for (int64_t b : program.batches) absl::StrAppend(&result, " ", b);
  if (program.calls > 1)
    absl::StrAppend(&result, "; ", program.calls, program.chained ? " chained" : "", " calls a step");
  if (program.optimise) result += "; optimiser steps";
  if (program.flip_training) result += "; train and eval";
  if (program.freeze) result += "; a parameter is frozen now and then";
  if (program.few_gradients) result += "; not every output has a gradient";
  if (program.accumulate) result += "; gradients of two steps add up";
  if (program.inference) result += "; every second step without gradients";
  if (program.autocast) result += "; autocast(bf16) but for the second step";
  if (program.flip_leaves) result += "; computed inputs are leaves now and then";
  if (program.overwrite) result += "; computed inputs are overwritten before backward";
  constexpr const char* kOverwritten[] = {"", "; results are overwritten before backward, without gradients",
                                          "; results are overwritten before backward",
                                          "; parts of results are overwritten before backward, without gradients",
                                          "; parts of results are overwritten before backward"};
  result += kOverwritten[static_cast<int>(program.overwrite_results)];
  if (program.anneal) result += program.wild ? "; scalars are annealed, and wild" : "; scalars are annealed";
  if (program.threads) result += "; thread counts change";
  if (program.watch) result += "; outputs are watched";
  constexpr const char* kBackward[] = {"", "; backward after every call", "; backward twice",
                                       "; gradients of gradients"};
  result += kBackward[static_cast<int>(program.backward)];
  if (program.layers > 1) absl::StrAppend(&result, "; ", program.layers, program.tie_layers ? " tied" : "", " layers");
  constexpr const char* kCompiled[] = {"", "; blocks are compiled", "; model and blocks are compiled",
                                       "; only parts are compiled"};
  result += kCompiled[static_cast<int>(program.compiled)];
  if (program.as_function) result += "; a function of its arguments";
  constexpr const char* kCapture[] = {"", "; replayed", "; verified"};
  result += kCapture[static_cast<int>(program.options.capture)];
  constexpr const char* kModes[] = {"", "; reduced overhead", "; tuned"};
  result += kModes[static_cast<int>(program.options.mode)];
  constexpr const char* kRecompute[] = {"", "; recompute none", "; recompute full", "; recompute budget "};
  result += kRecompute[static_cast<int>(program.options.recompute)];
  if (program.options.recompute == compile::Recompute::kBudget)
    absl::StrAppend(&result, program.options.recompute_budget);
  if (program.options.shapes == compile::Shapes::kStatic) result += "; static shapes";
  if (program.options.shapes == compile::Shapes::kDynamic) result += "; dynamic shapes";
  if (program.options.max_entries < 256) absl::StrAppend(&result, "; ", program.options.max_entries, " entries");
  for (size_t i = 0; i < program.parts.size(); ++i) {
    const Part& part = program.parts[i];
    absl::StrAppend(&result, "; part ", i + 1, part.compiled ? "" : " (eager)");
    if (part.parent > 0) absl::StrAppend(&result, " in part ", part.parent);
  }
  result += "\n";
  for (const Leaf& leaf : program.leaves) result += text(leaf);
  for (const Step& step : program.steps) result += text(step);
  result += "  return";
  for (ValueId id : program.outputs) absl::StrAppend(&result, " ", name(id));
  return result + "\n";
}

void drop_unused(Program& program) {
  std::set<ValueId> used(program.outputs.begin(), program.outputs.end());
  std::vector<Step> kept;
  for (size_t i = program.steps.size(); i-- > 0;) {
    const Step& step = program.steps[i];
    bool needed = step.kind->has(kEffect);
    for (ValueId id : step.out) needed = needed || used.contains(id);
    if (!needed) continue;
    used.insert(step.in.begin(), step.in.end());
    kept.insert(kept.begin(), step);
  }
  program.steps = std::move(kept);
  for (size_t i = program.leaves.size(); i-- > 0;)
    if (used.contains(program.leaves[i].id) && program.leaves[i].same_as != kNone)
      used.insert(program.leaves[i].same_as);
  std::erase_if(program.leaves, [&](const Leaf& leaf) { return !used.contains(leaf.id); });
}

bool batch_is_in_arguments(const Program& program) {
  const auto has_batch = [](const Dims& sizes) {
    return std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; });
  };
  return std::none_of(program.steps.begin(), program.steps.end(),
                      [&](const Step& step) { return has_batch(step.sizes); }) ||
         std::any_of(program.leaves.begin(), program.leaves.end(),
                     [&](const Leaf& leaf) { return leaf.role == Leaf::Role::kInput && has_batch(leaf.meta.sizes); });
}

}  // namespace rondo::fuzz
