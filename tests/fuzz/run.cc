#include "rondo/tests/fuzz/run.h"

#include <algorithm>
#include <map>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fuzz/breaks.h"
#include "rondo/tests/fuzz/model.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

bool is_second_order(const Program& program) {
  return program.backward == Program::Backward::kCreateGraph ||
         std::any_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
           return std::string_view(step.kind->name) == "grad_inside" && step.ints[0] == 1;
         });
}

class Runner {
 public:
  Runner(const Program& program, Mode mode, double perturbation)
      : program_(program), compiled_(mode != Mode::kEager), scene_(program, perturbation), model_(&scene_) {
    compile::CompileOptions options = program.options;
    options.exact = mode == Mode::kExact;
    using enum Program::Compiled;
    if (compiled_ && (program.compiled == kBlocks || program.compiled == kBoth))
      regions_.push_back(compile::compile_regions(model_, options));
    if (compiled_ && (program.compiled == kModel || program.compiled == kBoth))
      regions_.push_back(compile::compile_module(model_, options));
    options.capture = compile::Capture::kRecord;  // parts have other effects than their result
    for (size_t i = 0; i < program.parts.size(); ++i) add_part(static_cast<int>(i) + 1, options);
  }

  Trail run() {
    manual_seed(program_.seed);
    for (size_t step = 0; step < program_.batches.size() && !trail_.backward_threw; ++step) train(step);
    for (const compile::Regions& regions : regions_) {
      for (compile::RegionReport& report : regions.report()) trail_.reports.push_back(std::move(report));
      for (const auto& region : regions.regions()) {
        if (trail_.unlisted.empty()) trail_.unlisted = unexpected_break(program_, *region);
        if (trail_.unlisted.empty()) trail_.unlisted = unexpected_library_call(*region);
        trail_.orders_sums = trail_.orders_sums || breaks_to_order_sums(*region);
        trail_.joins += called_ops(*region)["cat"];
      }
    }
    set_num_threads(threads_);
    trail_.second_order = is_second_order(program_);
    using enum compile::Recompute;
    const auto any_named = [&](std::string_view end) {
      return std::ranges::any_of(program_.steps,
                                 [&](const Step& s) { return std::string_view(s.kind->name).ends_with(end); });
    };
    const bool writes = std::ranges::any_of(program_.steps, [](const Step& s) { return s.kind->has(kInPlace); });
    // Eager execution keeps all inputs of a checkpoint, and of a norm of which only statistics, constants, are used. A
    // write inside a region makes another version: what was read before stays.
    trail_.keeps_less = compiled_ && (program_.options.recompute != kNone || writes || any_named("checkpoint") ||
                                      any_named("batch_norm"));
    // A norm's mean depends on no weight. Its op leads to the weight all the same, and a region does not.
    trail_.depends_less = compiled_ && trail_.second_order && any_named("batch_norm");
    // By default only parameters are read again, which a program may write to by a pointer.
    // An input that is kept for one gradient is read again for others. Replayed, or for fewer gradients, a backward may
    // then need an input that the ops in its way did not save.
    const bool other_backward = trail_.second_order || program_.watch || program_.few_gradients || any_named("_inside");
    trail_.recomputes = compiled_ && (program_.options.recompute == kFull || program_.options.recompute == kBudget ||
                                      (program_.options.recompute == kAuto && writes) ||
                                      ((program_.overwrite || writes) && other_backward) || wrote_an_input_);
    return std::move(trail_);
  }

 private:
  void add_part(int part, const compile::CompileOptions& options) {
    std::function<Tensor(const Tensor&)> body = [this, part](const Tensor&) {
      const auto [begin, end] = scene_.range;
      scene_.run_steps(begin, end, part);
      const std::vector<ValueId>& last = program_.steps[end - 1].out;
      return last.empty() || !scene_.machine.has(last[0]) ? Tensor() : scene_.machine.value(last[0]);
    };
    if (!compiled_ || !program_.parts[static_cast<size_t>(part) - 1].compiled) {
      scene_.parts.push_back(std::move(body));
      return;
    }
    auto function = std::make_shared<compile::Compiled<std::function<Tensor(const Tensor&)>>>(
        compile::compile(std::move(body), options));
    regions_.push_back(function->regions());
    scene_.parts.push_back([function](const Tensor& first) { (*function)(first); });
  }

  void train(size_t step) {
    const int64_t batch = program_.batches[step];
    const bool odd = step % 2 == 1;
    if (program_.threads && compiled_) set_num_threads(1 + static_cast<int>(step % 3));
    Interpreter& machine = scene_.machine;
    machine.batch = batch;
    machine.counter = static_cast<int64_t>(step);
    // A replay keeps the floats that were recorded, as everything else that forward depends on.
    machine.anneals = program_.anneal && program_.options.capture == compile::Capture::kRecord;
    machine.wild = program_.wild;
    machine.kept.clear();
    machine.retained.clear();
    if (program_.flip_training) model_.train(!odd);
    if (program_.freeze && !model_.parameters().empty() && model_.parameters()[0].is_leaf()) {
      Tensor first = model_.parameters()[0];
      first.requires_grad_(!odd);
    }
    if (!program_.accumulate || !odd) model_.zero_grad();
    std::optional<amp::Autocast> lower;
    if (program_.autocast && step != 1) lower.emplace(kBF16);
    std::optional<NoGrad> inference;
    if (program_.inference && odd) inference.emplace();
    leaves_.clear();
    std::vector<Tensor> roots, outputs;
    size_t kept = 0;  // so many of machine.kept have gone backward
    for (int call = 0; call < program_.calls && !trail_.backward_threw; ++call) {
      const std::string where = absl::StrCat("step ", step, ", call ", call);
      make_inputs(step, call, batch, outputs);
      const bool threw = !forward(where, outputs);
      see_call(where, outputs);
      roots.insert(roots.end(), outputs.begin(), outputs.end());
      if (program_.watch) watch(outputs);
      if (program_.backward == Program::Backward::kEveryCall) {
        // What a region returns and what escaped from it have one history there, and go backward together.
        roots.insert(roots.end(), machine.kept.begin() + static_cast<std::ptrdiff_t>(kept), machine.kept.end());
        kept = machine.kept.size();
        go_backward(step, std::exchange(roots, {}));
      }
      if (threw) break;
    }
    if (trail_.backward_threw) return;
    if (program_.overwrite) overwrite_inputs();
    roots.insert(roots.end(), machine.kept.begin() + static_cast<std::ptrdiff_t>(kept), machine.kept.end());
    if (program_.overwrite_results != Program::OverwriteResults::kNo) overwrite_results(step, roots);
    go_backward(step, std::move(roots));
    if (trail_.backward_threw) return;
    see_gradients(absl::StrCat("step ", step));
    if (!program_.optimise) return;
    if (is_second_order(program_) && trail_.comparable == SIZE_MAX) trail_.comparable = trail_.seen.size();
    no_grad([&] {
      for (Tensor p : model_.parameters())
        if (p.grad().defined()) p.sub_(p.grad() * 0.05);
    });
  }

  // False if it threw.
  bool forward(const std::string& where, std::vector<Tensor>& outputs) {
    try {
      outputs = model_(scene_.first_input == kNone ? scene_.nothing : scene_.inputs[scene_.first_input]);
      return true;
    } catch (const std::exception& e) {
      // What escaped before the exception is as good as ever.
      see(where, describe("forward", e));
      if (dynamic_cast<const Error*>(&e) != nullptr) ++trail_.forward_errors;
      outputs.clear();
      return false;
    }
  }

  // From outside, after the call.
  void watch(const std::vector<Tensor>& outputs) {
    for (Tensor y : outputs) {
      if (!y.requires_grad() || y.is_leaf()) continue;
      try {
        y.retain_grad();
      } catch (const Error& e) {  // its history cannot be had any more
        see("a retained gradient", describe("retain_grad", e));
        continue;
      }
      scene_.machine.retained.push_back(y);
      y.register_hook([&calls = scene_.machine.hook_calls](const Tensor& g) {
        ++calls;
        return g * 0.75;
      });
    }
  }

  void make_inputs(size_t step, int call, int64_t batch, const std::vector<Tensor>& previous) {
    scene_.inputs.clear();
    for (const Leaf& leaf : program_.leaves) {
      if (leaf.role != Leaf::Role::kInput && leaf.role != Leaf::Role::kOutside) continue;
      Tensor& slot = scene_.inputs[leaf.id];
      if (leaf.is_same_in(step * static_cast<size_t>(program_.calls) + static_cast<size_t>(call))) {
        const Tensor& base = scene_.inputs.at(leaf.same_as);
        if (leaf.overlap >= 0) {
          slot = Tensor::from_storage(base.storage(), base.storage_offset() + leaf.overlap, base.sizes(),
                                      base.strides(), base.dtype());
          if (leaf.requires_grad) slot.requires_grad_();
          leaves_.emplace_back(leaf.id, slot);
          continue;
        }
        slot = look_at(base, leaf.look);
        if (slot.defined() && slot.sizes() == concrete(leaf.meta.sizes, batch)) continue;
      }
      // An outside tensor stays for two steps.
      const size_t salt = leaf.role == Leaf::Role::kOutside ? 1 + step / 2
                                                            : 1000 + step * 10 + static_cast<size_t>(call);
      slot = make_leaf(program_, leaf, batch, salt, scene_.perturbation);
      if (leaf.requires_grad) {
        slot.requires_grad_();
        leaves_.emplace_back(leaf.id, slot);
      }
      if (leaf.computed && !(program_.flip_leaves && step % 2 == 1)) slot = slot * 1.25;
      if (call == 0 || !program_.chained || leaf.id != scene_.first_input || is_shared(leaf)) continue;
      for (size_t i = 0; i < previous.size(); ++i)
        if (const Tensor& y = previous[i]; y.dtype() == slot.dtype() && y.sizes() == slot.sizes() &&
                                           program_.may_chain(program_.outputs[i % program_.outputs.size()], leaf.id))
          slot = program_.backward == Program::Backward::kEveryCall ? y.detach() : y;  // its history is used up
    }
    versions_before_.clear();
    for (const auto& [id, tensor] : scene_.inputs) versions_before_[id] = tensor.version();
  }
  void overwrite_inputs() {
    for (const Leaf& leaf : program_.leaves) {
      if (!leaf.computed || !scene_.inputs.contains(leaf.id)) continue;
      try {
        scene_.inputs.at(leaf.id).mul_(1.5);
      } catch (const Error&) {  // a leaf, or what overlaps itself
      }
    }
  }
  void overwrite_results(size_t step, std::span<const Tensor> results) {
    using enum Program::OverwriteResults;
    const bool part = program_.overwrite_results == kPartNoGrad || program_.overwrite_results == kPartWithGrad;
    const bool gradients = program_.overwrite_results == kWithGrad || program_.overwrite_results == kPartWithGrad;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!is_floating(results[i].dtype()) || mix(program_.seed, 31 * step + i) % 2 == 0) continue;
      try {
        const GradMode mode(gradients && grad_enabled());
        Tensor target = results[i];
        if (part && target.rank() > 0 && target.size(0) > 1) target = target.slice(0, {0, target.size(0) / 2});
        wrote_an_input_ = wrote_an_input_ || is_input(target);
        target.mul_(1.5);
      } catch (const Error& e) {
        see(absl::StrCat("step ", step, ", result ", i), describe("a write", e));
      }
    }
  }
  // Whether a result is an input, or a view of one.
  bool is_input(const Tensor& y) const {
    return std::ranges::any_of(scene_.inputs, [&](const auto& x) { return x.second.storage() == y.storage(); });
  }
  bool is_shared(const Leaf& leaf) const {
    return std::ranges::any_of(program_.leaves, [&](const Leaf& l) { return l.same_as == leaf.id; });
  }

  void go_backward(size_t step, std::vector<Tensor> candidates) {
    if (!grad_enabled()) return;
    std::vector<Tensor> roots, seeds;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const Tensor& y = candidates[i];
      if (!y.requires_grad()) continue;
      const uint64_t seed = mix(mix(program_.seed, 77 + step), i);
      if (program_.few_gradients && seed % 3 == 0) continue;
      roots.push_back(y);
      seeds.push_back(
          Tensor::from(perturbed(numbers({}, y.numel(), seed), scene_.perturbation, seed), y.sizes()).to(y.dtype()));
    }
    if (roots.empty()) return;
    try {
      const bool twice = program_.backward == Program::Backward::kTwice;
      if (program_.backward == Program::Backward::kCreateGraph) return go_backward_twice(step, roots, seeds);
      if (twice) autograd::backward(roots, seeds, true, false, std::source_location::current());
      autograd::backward(roots, seeds, false, false, std::source_location::current());
    } catch (const std::exception& e) {
      // How far the gradients got is not defined: the program ends here.
      see(absl::StrCat("step ", step), describe("backward", e));
      trail_.backward_threw = true;
    }
  }

  // Gradients with a history, and theirs.
  void go_backward_twice(size_t step, const std::vector<Tensor>& roots, const std::vector<Tensor>& seeds) {
    std::vector<Tensor> inputs;
    for (const auto& [id, leaf] : leaves_)
      if (leaf.requires_grad()) inputs.push_back(leaf);
    for (const Tensor& p : model_.parameters())
      if (p.requires_grad()) inputs.push_back(p);
    if (inputs.empty()) return;
    const std::vector<Tensor> grads = autograd::grad(roots, inputs, seeds, true, /*create_graph=*/true, true);
    Tensor loss;
    for (size_t i = 0; i < grads.size(); ++i) {
      see(absl::StrCat("step ", step, ", first gradient ", i), grads[i].defined() ? grads[i].detach() : Tensor());
      if (!grads[i].defined() || !grads[i].requires_grad()) continue;
      const Tensor term = ops::sum(ops::tanh(grads[i]).to(kF64));
      loss = loss.defined() ? loss + term : term;
    }
    if (loss.defined()) loss.backward();
  }

  static std::string describe(const char* what, const std::exception& e) {
    const bool internal = dynamic_cast<const InternalError*>(&e) != nullptr;
    const bool stale = dynamic_cast<const StaleTensorError*>(&e) != nullptr;
    const bool user = dynamic_cast<const Error*>(&e) != nullptr;
    last_error() = e.what();
    return absl::StrCat(what, " throws ",
                        internal ? "an internal error"
                        : stale  ? "StaleTensorError"
                        : user   ? "Error"
                                 : "the program's own exception");
  }

 public:
  // The text of the last exception, for the report.

 private:
  void see(std::string what, std::string text) { trail_.seen.push_back({std::move(what), std::move(text), {}}); }
  void see(std::string what, const Tensor& tensor) {
    if (!tensor.defined()) return see(std::move(what), "undefined");
    std::string text = absl::StrCat(std::string(name_of(tensor.dtype())), to_string(tensor.sizes()));
    trail_.seen.push_back({std::move(what), std::move(text), test::dense_copy(tensor)});
  }

  void see_call(const std::string& where, const std::vector<Tensor>& outputs) {
    std::vector<std::pair<std::string, Tensor>> all;
    for (size_t i = 0; i < outputs.size(); ++i) all.emplace_back(absl::StrCat("output ", i), outputs[i]);
    for (size_t i = 0; i < scene_.machine.kept.size(); ++i)
      all.emplace_back(absl::StrCat("kept ", i), scene_.machine.kept[i]);
    const size_t fresh = all.size();
    std::vector<int64_t> before;  // versions: of a region's results, which a chained call reads, they mean nothing
    for (const auto& [id, tensor] : scene_.inputs) {
      all.emplace_back(absl::StrCat("input %", id), tensor);
      before.push_back(versions_before_.at(id));
    }
    for (Block& block : model_.h)
      for (const auto& [id, handle] : block.lasting)
        all.emplace_back(absl::StrCat("value %", id, " of layer ", block.name()), *handle);
    before.resize(all.size() - fresh, 0);
    for (size_t i = fresh; i < all.size(); ++i)
      see(absl::StrCat(where, ", ", all[i].first),
          absl::StrCat(int64_t{all[i].second.version()} - before[i - fresh], " writes"));
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [name, tensor] = all[i];
      see(absl::StrCat(where, ", ", name), tensor);
      if (i >= fresh) continue;
      std::string text = absl::StrCat("strides ", to_string(tensor.strides()),
                                      tensor.requires_grad() ? ", requires grad" : "",
                                      tensor.is_leaf() ? ", leaf" : "");
      for (size_t k = i + 1; k < all.size(); ++k) {
        const Tensor& other = all[k].second;
        if (tensor.is_same(other)) absl::StrAppend(&text, ", is ", all[k].first);
        else if (tensor.storage() == other.storage() && tensor.numel() > 0 && other.numel() > 0)
          absl::StrAppend(&text, ", in the memory of ", all[k].first, " at ",
                          tensor.storage_offset() - other.storage_offset());
      }
      see(absl::StrCat(where, ", ", name), std::move(text));
    }
    see(where, absl::StrCat("random stream at ", default_generator().offset()));
  }

  void see_gradients(const std::string& where) {
    for (const auto& [id, leaf] : leaves_) see(absl::StrCat(where, ", gradient of input %", id), leaf.grad());
    for (Block& block : model_.h)
      for (const auto& [id, handle] : block.lasting)
        if (program_.leaf(id)->role == Leaf::Role::kParameter)
          see(absl::StrCat(where, ", gradient of parameter %", id, " of layer ", block.name()), handle->grad());
    for (size_t i = 0; i < scene_.machine.retained.size(); ++i)
      see(absl::StrCat(where, ", retained gradient ", i), scene_.machine.retained[i].grad());
    see(where, absl::StrCat(scene_.machine.hook_calls, " hook calls"));
  }

  const Program& program_;
  const bool compiled_;
  const int threads_ = num_threads();
  Scenery scene_;
  Stack model_;
  std::vector<compile::Regions> regions_;
  std::vector<std::pair<ValueId, Tensor>> leaves_;
  std::map<ValueId, int64_t> versions_before_;  // of the inputs, when the call began
  bool wrote_an_input_ = false;  // the program wrote a result of a call that is an input, or a view of one
  Trail trail_;
};

}  // namespace

Trail run(const Program& program, Mode mode, double perturbation) { return Runner(program, mode, perturbation).run(); }

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

}  // namespace rondo::fuzz
