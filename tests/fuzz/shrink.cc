#include "rondo/tests/fuzz/shrink.h"

#include <algorithm>
#include <set>

#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

class Shrinker {
 public:
  Shrinker(const Program& program, absl::FunctionRef<bool(const Program&)> fails, int budget)
      : best_(program), fails_(fails), budget_(budget) {}

  Program run() {
    do {
      changed_ = false;
      simplify_use();
      drop_outputs();
      drop_steps();
      simplify_steps();
      simplify_leaves();
      shrink_sizes();
    } while (changed_ && budget_ > 0);
    return best_;
  }

 private:
  // Keeps the candidate if it still fails.
  bool attempt(Program candidate) {
    if (budget_ <= 0 || candidate.outputs.empty()) return false;
    --budget_;
    drop_unused(candidate);
    if (candidate.as_function && !batch_is_in_arguments(candidate)) return false;
    if (!fails_(candidate)) return false;
    best_ = std::move(candidate);
    return changed_ = true;
  }
  template <class Change> bool attempt_change(Change change) {
    Program candidate = best_;
    change(candidate);
    return attempt(std::move(candidate));
  }

  void simplify_use() {
    for (size_t i = best_.batches.size(); best_.batches.size() > 1 && i-- > 0;)
      attempt_change([&](Program& p) { p.batches.erase(p.batches.begin() + static_cast<std::ptrdiff_t>(i)); });
    for (size_t i = 0; i < best_.batches.size(); ++i)
      for (int64_t smaller : {2, 1, 5, 64})
        if (smaller < best_.batches[i] && attempt_change([&](Program& p) { p.batches[i] = smaller; })) break;
    if (best_.calls > 1) attempt_change([](Program& p) { p.calls = 1; });
    if (best_.overwrite_results != Program::OverwriteResults::kNo)
      attempt_change([](Program& p) { p.overwrite_results = Program::OverwriteResults::kNo; });
    if (best_.layers > 1) attempt_change([](Program& p) { p.layers = 1; });
    if (best_.backward != Program::Backward::kOnce)
      attempt_change([](Program& p) { p.backward = Program::Backward::kOnce; });
    if (!best_.parts.empty())
      attempt_change([](Program& p) {
        p.parts.clear();
        for (Step& step : p.steps) step.part = 0;
        if (p.compiled == Program::Compiled::kParts) p.compiled = Program::Compiled::kModel;
      });
    if (best_.compiled == Program::Compiled::kBoth)
      attempt_change([](Program& p) { p.compiled = Program::Compiled::kBlocks; });
    if (best_.compiled != Program::Compiled::kModel)
      attempt_change([](Program& p) { p.compiled = Program::Compiled::kModel; });
    for (bool Program::*flag :
         {&Program::chained, &Program::optimise, &Program::flip_training, &Program::freeze, &Program::few_gradients,
          &Program::accumulate, &Program::inference, &Program::autocast, &Program::flip_leaves, &Program::overwrite,
          &Program::anneal, &Program::threads, &Program::watch, &Program::tie_layers, &Program::as_function})
      if (best_.*flag) attempt_change([&](Program& p) { p.*flag = false; });
    const compile::CompileOptions& options = best_.options;
    if (options.recompute != compile::Recompute::kAuto) attempt_change([](Program& p) { p.options.recompute = {}; });
    if (options.mode != compile::Mode::kDefault) attempt_change([](Program& p) { p.options.mode = {}; });
    if (options.shapes != compile::Shapes::kAutomatic) attempt_change([](Program& p) { p.options.shapes = {}; });
    if (options.capture != compile::Capture::kRecord) attempt_change([](Program& p) { p.options.capture = {}; });
    if (options.max_entries < 256) attempt_change([](Program& p) { p.options.max_entries = 256; });
  }

  void drop_outputs() {
    for (size_t i = best_.outputs.size(); best_.outputs.size() > 1 && i-- > 0;)
      attempt_change([&](Program& p) { p.outputs.erase(p.outputs.begin() + static_cast<std::ptrdiff_t>(i)); });
    // End earlier: return one value, and nothing happens after it.
    for (size_t i = 0; i + 1 < best_.steps.size(); ++i) {
      if (best_.steps[i].out.empty()) continue;
      if (attempt_change([&](Program& p) {
            p.outputs = {p.steps[i].out[0]};
            p.steps.resize(i + 1);
          }))
        break;
    }
    // Return an operand instead, where that makes the program shorter.
    for (size_t i = best_.outputs.size(); i-- > 0;) {
      const Step* step = best_.producer(best_.outputs[i]);
      if (step == nullptr) continue;
      for (ValueId id : std::vector<ValueId>(step->in)) {
        Program candidate = best_;
        candidate.outputs[i] = id;
        drop_unused(candidate);
        if (id != kNone && candidate.steps.size() < best_.steps.size() && attempt(std::move(candidate))) break;
      }
    }
  }

  void drop_steps() {
    // Several at once where they only have effects, then one by one from the end.
    for (size_t i = best_.steps.size(); i-- > 0;) {
      if (i >= best_.steps.size()) continue;
      const Step step = best_.steps[i];
      if (step.out.empty()) {
        attempt_change([&](Program& p) { p.steps.erase(p.steps.begin() + static_cast<std::ptrdiff_t>(i)); });
        continue;
      }
      // Its result may be another value of the same kind, or a new input.
      if (replace_by_operand(i, step)) continue;
      attempt_change([&](Program& p) {
        p.steps.erase(p.steps.begin() + static_cast<std::ptrdiff_t>(i));
        for (size_t k = 0; k < step.out.size(); ++k) {
          Leaf leaf;
          leaf.id = step.out[k];
          leaf.meta = step.metas[k];
          leaf.requires_grad = is_floating(leaf.meta.dtype);
          leaf.computed = leaf.requires_grad;
          if (!leaf.requires_grad) leaf.bound = leaf.meta.dtype == kBool ? 2 : 1;
          p.leaves.push_back(leaf);
        }
      });
    }
  }

  bool replace_by_operand(size_t i, const Step& step) {
    if (step.out.size() != 1) return false;
    for (ValueId operand : step.in) {
      const Meta* meta = meta_of(operand);
      if (meta == nullptr || meta->dtype != step.metas[0].dtype || !(meta->sizes == step.metas[0].sizes)) continue;
      if (attempt_change([&](Program& p) {
            p.steps.erase(p.steps.begin() + static_cast<std::ptrdiff_t>(i));
            for (Step& other : p.steps) std::replace(other.in.begin(), other.in.end(), step.out[0], operand);
            std::replace(p.outputs.begin(), p.outputs.end(), step.out[0], operand);
          }))
        return true;
    }
    return false;
  }

  const Meta* meta_of(ValueId id) const {
    if (const Leaf* leaf = best_.leaf(id)) return &leaf->meta;
    const Step* step = best_.producer(id);
    if (step == nullptr) return nullptr;
    for (size_t i = 0; i < step->out.size(); ++i)
      if (step->out[i] == id) return &step->metas[i];
    return nullptr;
  }

  void simplify_steps() {
    for (size_t i = 0; i < best_.steps.size(); ++i) {
      if (best_.steps[i].when != Step::When::kAlways)
        attempt_change([&](Program& p) { p.steps[i].when = Step::When::kAlways; });
      if (best_.steps[i].part != 0)
        attempt_change([&](Program& p) { p.steps[i].part = p.parts[static_cast<size_t>(p.steps[i].part) - 1].parent; });
      if (best_.steps[i].no_grad) attempt_change([&](Program& p) { p.steps[i].no_grad = false; });
      if (best_.steps[i].autocast) attempt_change([&](Program& p) { p.steps[i].autocast = false; });
      // Operands that are the same value are simpler.
      for (size_t k = 1; k < best_.steps[i].in.size(); ++k)
        if (best_.steps[i].in[k] != best_.steps[i].in[0] && best_.steps[i].in[k] != kNone)
          attempt_change([&](Program& p) { p.steps[i].in[k] = p.steps[i].in[0]; });
    }
  }

  void simplify_leaves() {
    for (size_t i = best_.leaves.size(); i-- > 0;) {
      if (i >= best_.leaves.size()) continue;
      const Leaf leaf = best_.leaves[i];
      auto attempt_leaf = [&](auto change) {
        if (i < best_.leaves.size()) attempt_change([&](Program& p) { change(p.leaves[i]); });
      };
      if (leaf.same_as != kNone)
        attempt_leaf([](Leaf& l) {
          l.same_as = kNone;
          l.overlap = -1;
        });
      if (leaf.overlap > 0) attempt_leaf([](Leaf& l) { l.overlap = 0; });
      if (leaf.calls != kEveryCall) attempt_leaf([](Leaf& l) { l.calls = kEveryCall; });
      if (leaf.role != Leaf::Role::kInput) attempt_leaf([](Leaf& l) { l.role = Leaf::Role::kInput; });
      if (leaf.computed) attempt_leaf([](Leaf& l) { l.computed = false; });
      if (leaf.requires_grad) attempt_leaf([](Leaf& l) { l.requires_grad = false; });
      if (leaf.layout != Layout::kDense) attempt_leaf([](Leaf& l) { l.layout = Layout::kDense; });
      if (leaf.fill != Fill::kNormal) attempt_leaf([](Leaf& l) { l.fill = Fill::kNormal; });
      if (leaf.meta.dtype != kF32 && leaf.bound == 0) attempt_leaf([](Leaf& l) { l.meta.dtype = kF32; });
    }
    if (std::any_of(best_.leaves.begin(), best_.leaves.end(),
                    [](const Leaf& l) { return l.bound == 0 && l.meta.dtype != kF32; }))
      attempt_change([](Program& p) {
        for (Leaf& leaf : p.leaves)
          if (leaf.bound == 0 && is_floating(leaf.meta.dtype)) leaf.meta.dtype = kF32;
      });
  }

  // One size, everywhere.
  void shrink_sizes() {
    std::set<int64_t, std::greater<>> sizes;
    for (const Leaf& leaf : best_.leaves) sizes.insert(leaf.meta.sizes.begin(), leaf.meta.sizes.end());
    for (int64_t size : sizes) {
      for (int64_t smaller : {1, 2, 3}) {
        if (size == 0 || smaller >= std::abs(size)) continue;
        if (attempt_change([&](Program& p) {
              auto change = [&](Dims& dims) { std::replace(dims.begin(), dims.end(), size, smaller); };
              for (Leaf& leaf : p.leaves) {
                change(leaf.meta.sizes);
                if (leaf.bound == size) leaf.bound = smaller;
              }
              for (Step& step : p.steps) {
                change(step.sizes);
                for (Meta& meta : step.metas) change(meta.sizes);
              }
            }))
          break;
      }
    }
  }

  Program best_;
  absl::FunctionRef<bool(const Program&)> fails_;
  int budget_;
  bool changed_ = false;
};

}  // namespace

Program shrink(const Program& program, absl::FunctionRef<bool(const Program&)> fails, int budget) {
  return Shrinker(program, fails, budget).run();
}

}  // namespace rondo::fuzz
