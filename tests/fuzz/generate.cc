#include "rondo/tests/fuzz/generate.h"

#include <algorithm>
#include <cmath>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/fuzz/differential.h"
#include "rondo/tests/fuzz/model.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

class Generator : public Draft {
 public:
  Generator(uint64_t seed, Random& random, const GenerateOptions& options) : Draft(random), options_(options) {
    program_.seed = seed;
    large_ = random.chance(options.large);
    program_.batches = {large_ ? random.pick<int64_t>({211, 521}) : random.pick<int64_t>({5, 7, 13})};
    machine_.batch = program_.batches[0];
    machine_.counter = -1;  // no step throws on purpose
    special_values_ = random.chance(0.1);
    main_dtype_ = random.pick<DType>({kF32, kF32, kF32, kF64, kBF16, kF16});
    const bool effects = random.chance(options.effects);
    for (const StepKind* kind : all_steps())
      if (effects || !kind->has(kEffect)) kinds_.insert(kinds_.end(), static_cast<size_t>(kind->weight), kind);
  }

  Program run() {
    manual_seed(program_.seed);
    for (int64_t n = random.between(1, 3); n > 0; --n) add_input();
    const int64_t steps = random.between(3, options_.max_steps);
    for (int tries = 0; tries < 400 && static_cast<int64_t>(program_.steps.size()) < steps; ++tries) add_step();
    choose_outputs();
    choose_use();
    drop_unused(program_);
    choose_parts();
    choose_capture();
    repair();
    program_.anneal = random.chance(0.25);
    program_.wild = program_.anneal && random.chance(0.2);
    return std::move(program_);
  }

  // ---- Draft
  const Tensor& tensor(ValueId id) const override { return machine_.value(id); }

  ValueId value(const std::function<bool(const Tensor&)>& fits) override {
    std::vector<ValueId> all;
    for (ValueId id : values_)
      if (fits(machine_.value(id))) all.push_back(id);
    if (all.empty()) return kNone;
    // The better half of two draws: late values more often, so that chains grow.
    const size_t i = static_cast<size_t>(random.below(static_cast<int64_t>(all.size())));
    const size_t k = static_cast<size_t>(random.below(static_cast<int64_t>(all.size())));
    return all[std::max(i, k)];
  }

  ValueId leaf(DType dtype, const Dims& sizes, bool weight) override {
    if (random.chance(0.5)) {
      const ValueId same = value([&](const Tensor& t) { return t.dtype() == dtype && coded(t.sizes()) == sizes; });
      if (same != kNone) return same;
    }
    bool constant = true;  // a parameter cannot follow the batch size
    for (int64_t s : sizes) constant = constant && s >= 0;
    Leaf leaf;
    leaf.meta = {dtype, sizes};
    leaf.role = weight && constant && random.chance(0.8) ? Leaf::Role::kParameter : Leaf::Role::kInput;
    return add_leaf(leaf);
  }

  ValueId state(DType dtype, const Dims& sizes) override {
    if (random.chance(0.4))
      for (const Leaf& leaf : program_.leaves)
        if (leaf.role == Leaf::Role::kBuffer && leaf.meta.dtype == dtype && leaf.meta.sizes == sizes) return leaf.id;
    Leaf leaf;
    leaf.meta = {dtype, sizes};
    leaf.role = Leaf::Role::kBuffer;
    if (!is_floating(dtype)) leaf.bound = dtype == kBool ? 2 : 5;
    return add_leaf(leaf);
  }

  ValueId indices(const Dims& sizes, int64_t bound) override {
    Leaf leaf;
    leaf.meta = {kI64, sizes};
    leaf.bound = bound;
    return add_leaf(leaf);
  }

  Dims coded(const Dims& sizes) const override {
    Dims result = sizes;
    for (int64_t& s : result)
      if (s > 0 && s % machine_.batch == 0) s = -(s / machine_.batch);
    return result;
  }

 private:
  int64_t some_size() {
    if (large_ && random.chance(0.3)) return random.pick<int64_t>({17, 48, 64, 71});
    return random.pick<int64_t>({1, 1, 2, 2, 3, 3, 4, 4, 6, 8, 8, 9, 16, 17, 34, random.chance(0.15) ? 0 : 2});
  }

  void add_input() {
    Leaf leaf;
    leaf.meta.dtype = random.chance(0.75) ? main_dtype_ : random.pick<DType>({kF32, kF64, kBF16, kF16});
    const bool leading = random.chance(0.8);
    if (leading) leaf.meta.sizes.push_back(-1);
    for (int64_t rank = random.pick<int64_t>({0, 1, 1, 1, 2, 2, 3}); rank > 0; --rank)
      leaf.meta.sizes.push_back(some_size());
    if (!leading && random.chance(0.25)) leaf.role = random.chance(0.5) ? Leaf::Role::kParameter : Leaf::Role::kBuffer;
    if (leaf.role == Leaf::Role::kInput && random.chance(0.1)) leaf.role = Leaf::Role::kOutside;
    const ValueId id = add_leaf(leaf);
    if (!random.chance(0.25)) return;
    for (int64_t n = random.between(1, 2); n > 0; --n) add_leaf_as(second_name(*program_.leaf(id)));
  }

  // The same memory under a second name, in some of the calls or in all.
  Leaf second_name(const Leaf& leaf) {
    Leaf again = leaf;
    again.same_as = leaf.id;
    again.layout = Layout::kDense;
    if (leaf.role == Leaf::Role::kParameter) return again;
    if (leaf.role == Leaf::Role::kInput && random.chance(0.4)) again.calls = static_cast<unsigned>(random.below(256));
    const bool dense = leaf.layout == Layout::kDense && !leaf.computed && leaf.role != Leaf::Role::kBuffer;
    if (dense && random.chance(0.3)) {
      again.overlap = random.below(3);
      return again;
    }
    if (random.chance(0.4)) return again;
    const auto look = static_cast<Look>(random.below(kLooks));
    const Tensor shown = look_at(machine_.value(leaf.id), look);
    if (!shown.defined()) return again;
    again.look = look;
    again.meta.sizes = coded(shown.sizes());
    return again;
  }

  ValueId add_leaf(Leaf leaf) {
    const bool floats = leaf.bound == 0 && is_floating(leaf.meta.dtype);
    if (floats) {
      leaf.requires_grad = leaf.role != Leaf::Role::kBuffer && random.chance(0.75);
      leaf.fill = special_values_ && random.chance(0.5) ? Fill::kSpecial
                  : random.chance(0.15)                 ? Fill::kHalves
                  : random.chance(0.1)                  ? Fill::kPositive
                                                        : Fill::kNormal;
    }
    if (leaf.role == Leaf::Role::kInput) {
      leaf.computed = floats && random.chance(0.4);
      if (random.chance(0.2)) leaf.layout = static_cast<Layout>(random.between(1, 4));
      // A gradient cannot be added into memory that overlaps itself, nor can anybody write there.
      if (leaf.layout == Layout::kExpanded) leaf.requires_grad = false;
    }
    return add_leaf_as(leaf);
  }

  ValueId add_leaf_as(Leaf leaf) {
    leaf.id = next_value_++;
    Tensor tensor = leaf.same_as == kNone ? make_leaf(program_, leaf, machine_.batch, 0) : Tensor();
    if (leaf.same_as != kNone) {
      const Tensor& base = machine_.value(leaf.same_as);
      tensor = look_at(base, leaf.overlap < 0 ? leaf.look : Look::kAll);
    } else {
      if (leaf.requires_grad) tensor.requires_grad_();
      if (leaf.computed) tensor = tensor * 1.25;
    }
    program_.leaves.push_back(leaf);
    machine_.bind(leaf.id, tensor);
    values_.push_back(leaf.id);
    return leaf.id;
  }

  void add_step() {
    Step step;
    step.kind = random.pick(kinds_);
    // A rejected step takes the leaves made for it along.
    const size_t leaves = program_.leaves.size(), values = values_.size();
    if (try_step(step)) {
      program_.steps.push_back(std::move(step));
      return;
    }
    program_.leaves.resize(leaves);
    values_.resize(values);
  }

  bool try_step(Step& step) {
    if (!step.kind->pick(*this, step)) return false;
    step.no_grad = random.chance(0.04);
    step.autocast = random.chance(0.03);
    if (step.kind->has(kInPlace)) step.no_grad = step.no_grad || random.chance(0.1);
    std::vector<Tensor> results;
    try {
      results = machine_.call(step);
    } catch (const Error&) {
      return false;
    }
    for (const Tensor& result : results) {
      if (result.numel() > (large_ ? 1 << 18 : 1 << 13) || result.rank() > 6) return false;
      if (!is_moderate(result) && !random.chance(special_values_ ? 0.8 : 0.05)) return false;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      step.out.push_back(next_value_++);
      step.metas.push_back({results[i].dtype(), coded(results[i].sizes())});
      machine_.bind(step.out[i], results[i]);
      values_.push_back(step.out[i]);
    }
    if (random.chance(0.12)) choose_when(step, results);
    return true;
  }

  // Control flow needs a result that can stand in for the operand.
  void choose_when(Step& step, const std::vector<Tensor>& results) {
    if (step.in.empty() || step.in[0] == kNone || results.size() > 1) return;
    const Tensor& x = machine_.value(step.in[0]);
    if (!results.empty() && (!(x.sizes() == results[0].sizes()) || x.dtype() != results[0].dtype())) return;
    step.when = random.chance(0.5) ? Step::When::kOddSteps : Step::When::kRepeated;
  }

  // Numbers that say something: not all of them NaN, infinite or huge.
  static bool is_moderate(const Tensor& t) {
    if (!is_floating(t.dtype())) return true;
    for (double v : t.to_vector<double>())
      if (!(std::abs(v) < 1e4)) return false;
    return true;
  }

  void choose_outputs() {
    std::vector<ValueId> made;
    for (const Step& step : program_.steps) made.insert(made.end(), step.out.begin(), step.out.end());
    if (made.empty()) made.push_back(values_[0]);
    if (random.chance(0.3)) return return_family(machine_.value(random.pick(made)));
    program_.outputs = {made.back()};
    for (int64_t n = random.between(0, 3); n > 0; --n)
      program_.outputs.push_back(random.chance(0.9) ? random.pick(made) : random.pick(values_));
  }

  // A tensor with its views, and what else lies in its memory.
  void return_family(const Tensor& member) {
    program_.outputs.clear();
    for (ValueId id : values_)
      if (machine_.value(id).storage() == member.storage()) program_.outputs.push_back(id);
    while (program_.outputs.size() > 4)
      program_.outputs.erase(program_.outputs.begin() +
                             static_cast<std::ptrdiff_t>(random.below(static_cast<int64_t>(program_.outputs.size()))));
  }

  void choose_use() {
    for (int64_t n = random.between(0, 4); n > 0; --n)
      program_.batches.push_back(random.chance(0.6) ? program_.batches[0]
                                 : large_           ? random.pick<int64_t>({64, 300})
                                                    : random.pick<int64_t>({1, 2, 3, 11, 19, 64, 0}));
    program_.calls = random.chance(0.25) ? static_cast<int>(random.between(2, 3)) : 1;
    program_.chained = random.chance(0.5);
    program_.optimise = random.chance(0.3);
    program_.flip_training = random.chance(0.2);
    program_.freeze = random.chance(0.1);
    program_.few_gradients = random.chance(0.2);
    using enum compile::Recompute;
    program_.options.recompute = random.pick<compile::Recompute>({kAuto, kAuto, kNone, kFull, kBudget});
    if (program_.options.recompute == kBudget)
      program_.options.recompute_budget = random.pick<int64_t>({0, 100, 2000, 50000});
    using enum compile::Shapes;
    program_.options.shapes = random.pick<compile::Shapes>({kAutomatic, kAutomatic, kAutomatic, kStatic, kDynamic});
    if (random.chance(0.1)) program_.options.max_entries = 1;
    program_.options.recompile_limit = 128;  // pieces, gradients that arrive and sizes multiply
    program_.accumulate = random.chance(0.15);
    program_.inference = random.chance(0.15);
    program_.autocast = random.chance(0.08);
    program_.watch = random.chance(0.12);
    program_.flip_leaves = random.chance(0.15);
    program_.overwrite = random.chance(0.12);
    using enum Program::OverwriteResults;
    if (random.chance(0.15))
      program_.overwrite_results = random.pick<Program::OverwriteResults>(
          {kNoGrad, kWithGrad, kPartNoGrad, kPartWithGrad});
    program_.threads = random.chance(0.15);
    using enum Program::Backward;
    program_.backward = random.pick<Program::Backward>({kOnce, kOnce, kOnce, kOnce, kEveryCall, kTwice, kCreateGraph});
    if (random.chance(0.25)) program_.layers = static_cast<int>(random.between(2, 3));
    program_.tie_layers = random.chance(0.4);
    using enum Program::Compiled;
    program_.compiled = random.pick<Program::Compiled>({kModel, kModel, kBlocks, kBoth});
    using enum compile::Mode;
    program_.options.mode = random.chance(0.06)  ? kMaxAutotune  // takes its time
                            : random.chance(0.2) ? kReduceOverhead
                                                 : kDefault;
  }

  // Runs of neighbouring steps become functions, inside each other now and then.
  void choose_parts() {
    if (program_.steps.empty() || !random.chance(0.35)) return;
    for (int64_t n = random.between(1, 3); n > 0; --n) {
      const auto begin = static_cast<size_t>(random.below(static_cast<int64_t>(program_.steps.size())));
      const int parent = program_.steps[begin].part;
      program_.parts.push_back({parent, random.chance(0.8)});
      const auto part = static_cast<int>(program_.parts.size());
      for (size_t i = begin, end = begin + static_cast<size_t>(random.between(1, 6));
           i < std::min(end, program_.steps.size()); ++i)
        if (program_.steps[i].part == parent) program_.steps[i].part = part;
    }
    const bool one_is = std::any_of(program_.parts.begin(), program_.parts.end(),
                                    [](const Part& p) { return p.compiled; });
    if (one_is && random.chance(0.4)) program_.compiled = Program::Compiled::kParts;
  }

  // What may be replayed depends on its arguments only, and does nothing but return a tensor.
  void choose_capture() {
    if (!random.chance(0.5) || !program_.parts.empty()) return;
    for (const Step& step : program_.steps)
      if (step.when != Step::When::kAlways || (step.kind->has(kEffect) && !step.kind->has(kInPlace)) ||
          step.kind->has(kReads) || step.kind->has(kCounts))
        return;
    for (Leaf& leaf : program_.leaves) {
      if (leaf.role == Leaf::Role::kOutside) leaf.role = Leaf::Role::kInput;
      // An argument that is passed twice is refused.
      if (leaf.role == Leaf::Role::kInput && leaf.calls == kEveryCall && random.chance(0.7))
        leaf.same_as = kNone, leaf.overlap = -1;
    }
    program_.outputs.resize(1);
    if (random.chance(0.9)) return_no_view();
    drop_unused(program_);
    if (!batch_is_in_arguments(program_)) return;
    program_.as_function = true;
    program_.compiled = random.chance(0.9) ? Program::Compiled::kBlocks : Program::Compiled::kBoth;
    using enum compile::Capture;
    program_.options.capture = random.pick<compile::Capture>({kRecord, kReplay, kReplay, kVerify});
  }

  void return_no_view() {
    for (size_t i = program_.steps.size(); i-- > 0;) {
      const Step& step = program_.steps[i];
      if (step.out.size() != 1) continue;
      const Tensor& result = machine_.value(step.out[0]);
      const bool is_view = std::any_of(step.in.begin(), step.in.end(), [&](ValueId id) {
        return id != kNone && machine_.value(id).storage() == result.storage();
      });
      if (is_view) continue;
      program_.outputs = {step.out[0]};
      return;
    }
  }

  // A write may make what eager execution saved stale: an error, in both modes, that hides the rest of the program.
  // Most such programs lose the write.
  void repair() {
    using enum Program::OverwriteResults;
    if (program_.overwrite_results != kNo && program_.seed % 4 != 0 && fuzz::run(program_, Mode::kEager).backward_threw)
      program_.overwrite_results = kNo;
    if (random.chance(0.1)) return;
    for (size_t i = program_.steps.size(); i-- > 0;) {
      if (!program_.steps[i].kind->has(kInPlace)) continue;
      if (!fuzz::run(program_, Mode::kEager).backward_threw) return;
      if (is_read(program_.steps[i])) continue;
      program_.steps.erase(program_.steps.begin() + static_cast<std::ptrdiff_t>(i));
    }
    drop_unused(program_);
  }

  bool is_read(const Step& step) const {
    return std::ranges::any_of(step.out, [&](ValueId made) {
      const auto is_made = [made](ValueId id) { return id == made; };
      return std::ranges::any_of(program_.outputs, is_made) ||
             std::ranges::any_of(program_.steps, [&](const Step& s) { return std::ranges::any_of(s.in, is_made); });
    });
  }

  const GenerateOptions& options_;
  Program program_;
  Interpreter machine_;
  std::vector<ValueId> values_;
  std::vector<const StepKind*> kinds_;
  ValueId next_value_ = 0;
  bool large_ = false, special_values_ = false;
  DType main_dtype_ = kF32;
};

}  // namespace

Program generate(uint64_t seed, const GenerateOptions& options) {
  Random random(seed);
  return Generator(seed, random, options).run();
}

}  // namespace rondo::fuzz
