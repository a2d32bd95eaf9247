#include "rondo/tests/fuzz/differential.h"

#include <cmath>
#include <limits>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {

const Tensor& Interpreter::value(ValueId id) const {
  static const Tensor kUndefined;
  return id == kNone ? kUndefined : values_.at(id);
}

std::vector<Tensor> Interpreter::call(const Step& step, int64_t times) {
  std::optional<GradMode> mode;
  if (step.no_grad) mode.emplace(false);
  std::optional<amp::Autocast> autocast;
  if (step.autocast) autocast.emplace(kBF16);
  Scene scene{step, {}, batch, counter, training, kept, retained, hook_calls};
  for (ValueId id : step.in) scene.in.push_back(value(id));
  std::vector<Tensor> results;
  for (int64_t i = 0; i < times; ++i) {
    results = step.kind->run(scene);
    if (!results.empty()) scene.in[0] = results[0];
  }
  return results;
}

void Interpreter::run(const Step& step) {
  if (step.when == Step::When::kOddSteps && counter % 2 == 0) {
    if (!step.out.empty()) values_[step.out[0]] = value(step.in[0]);
    return;
  }
  const std::vector<Tensor> results = call(step, step.when == Step::When::kRepeated ? 1 + counter % 3 : 1);
  for (size_t i = 0; i < step.out.size(); ++i) values_[step.out[i]] = results[i];
}

namespace {

// Values of a leaf, in f64.
std::vector<double> numbers(const Leaf& leaf, int64_t n, uint64_t seed, bool perturbed) {
  Random random(seed);
  std::vector<double> values(static_cast<size_t>(n));
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double special[] = {0, -0.0, kInf, -kInf, std::nan(""), 1e-40, 6e-8, 3e4, 1e20};
  for (double& v : values) {
    if (leaf.bound > 0) {
      v = static_cast<double>(random.below(leaf.bound));
      continue;
    }
    // About normal: the sum of three uniform numbers.
    v = random.uniform(-1, 1) + random.uniform(-1, 1) + random.uniform(-1, 1);
    if (leaf.fill == Fill::kHalves) v = std::floor(v * 2) / 2;
    if (leaf.fill == Fill::kPositive) v = std::abs(v) + 0.1;
    if (leaf.fill == Fill::kSpecial && random.chance(0.1)) v = special[random.below(std::size(special))];
    if (perturbed) v *= 1 + random.uniform(-1, 1) * 0x1p-22;
  }
  return values;
}

uint64_t mix(uint64_t a, uint64_t b) { return Random(a * 0x9E3779B97F4A7C15u + b).next(); }

Tensor in_layout(const Tensor& dense, Layout layout) {
  if (layout == Layout::kDense) return dense;
  constexpr const char* kNames[] = {"", "last two transposed", "every second", "offset", "expanded along 0"};
  for (test::Layout& candidate : test::layouts_of(dense))
    if (candidate.name == kNames[static_cast<int>(layout)]) return candidate.tensor;
  return dense;
}

}  // namespace

Tensor make_leaf(const Program& program, const Leaf& leaf, int64_t batch, uint64_t salt, bool perturbed) {
  const Dims sizes = concrete(leaf.meta.sizes, batch);
  int64_t room = 0;  // for other handles to this memory
  for (const Leaf& other : program.leaves)
    if (other.same_as == leaf.id) room = std::max(room, other.overlap);
  const int64_t n = sizes.numel() + room;
  const uint64_t seed = mix(mix(program.seed, static_cast<uint64_t>(leaf.id)), salt);
  const Tensor flat = Tensor::from(numbers(leaf, n, seed, perturbed), {n}).to(leaf.meta.dtype);
  const Tensor dense = Tensor::from_storage(flat.storage(), flat.storage_offset(), sizes, contiguous_strides(sizes), leaf.meta.dtype);
  return room > 0 ? dense : in_layout(dense, leaf.layout);
}

namespace {

struct ProgramModule : nn::Module<ProgramModule> {
  ProgramModule(const Program& program, bool perturbed) : program(program) {
    for (const Leaf& leaf : program.leaves) {
      if (leaf.role != Leaf::Role::kParameter && leaf.role != Leaf::Role::kBuffer) continue;
      const std::string name = absl::StrCat("v", leaf.id);
      Tensor value = make_leaf(program, leaf, program.batches[0], 0, perturbed);
      Tensor& handle = leaf.role == Leaf::Role::kParameter ? parameter(name, value) : buffer(name, value);
      if (leaf.same_as != kNone) handle = *lasting.at(leaf.same_as);
      else handle.requires_grad_(leaf.requires_grad);
      lasting[leaf.id] = &handle;
    }
    for (size_t i = 0; i < program.steps.size(); ++i)
      for (ValueId id : program.steps[i].in) last_use[id] = i;
  }

  std::vector<Tensor> forward(const Tensor& first) {
    for (const auto& [id, handle] : lasting) machine.bind(id, *handle);
    for (const auto& [id, tensor] : inputs) machine.bind(id, tensor);
    if (first_input != kNone) machine.bind(first_input, first);
    machine.training = is_training();
    struct Clear {
      Interpreter& machine;
      ~Clear() { machine.clear(); }
    } clear{machine};
    const auto is_output = [&](ValueId id) { return std::find(program.outputs.begin(), program.outputs.end(), id) != program.outputs.end(); };
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const Step& step = program.steps[i];
      machine.run(step);
      // As in C++, a value lives until its scope ends: here, its last use.
      for (ValueId id : step.in)
        if (last_use[id] == i && !is_output(id)) machine.release(id);
      for (ValueId id : step.out)
        if (!last_use.contains(id) && !is_output(id)) machine.release(id);
    }
    std::vector<Tensor> results;
    for (ValueId id : program.outputs) results.push_back(machine.value(id));
    return results;
  }

  const Program& program;
  Interpreter machine;
  std::map<ValueId, Tensor*> lasting;  // parameters and buffers
  std::map<ValueId, Tensor> inputs;    // of this call
  ValueId first_input = kNone;
  std::map<ValueId, size_t> last_use;
};

class Runner {
 public:
  Runner(const Program& program, Mode mode, bool perturbed)
      : program_(program), perturbed_(perturbed), module_(program, perturbed) {
    compile::CompileOptions options = program.options;
    options.exact = mode == Mode::kExact;
    if (mode != Mode::kEager) regions_.emplace(compile::compile_module(module_, options));
    for (const Leaf& leaf : program.leaves)
      if (leaf.role == Leaf::Role::kInput && module_.first_input == kNone) module_.first_input = leaf.id;
  }

  Trail run() {
    manual_seed(program_.seed);
    for (size_t step = 0; step < program_.batches.size() && !trail_.backward_threw; ++step) train(step);
    if (regions_) trail_.report = regions_->report()[0];
    trail_.recomputes = regions_ && program_.options.recompute != compile::Recompute::kNone;
    return std::move(trail_);
  }

 private:
  void train(size_t step) {
    const int64_t batch = program_.batches[step];
    module_.machine.batch = batch;
    module_.machine.counter = static_cast<int64_t>(step);
    module_.machine.kept.clear();
    module_.machine.retained.clear();
    if (program_.flip_training) module_.train(step % 2 == 0);
    if (program_.freeze && !module_.parameters().empty() && module_.parameters()[0].is_leaf()) {
      Tensor first = module_.parameters()[0];
      first.requires_grad_(step % 2 == 0);
    }
    module_.zero_grad();
    leaves_.clear();
    std::vector<Tensor> roots, outputs;
    for (int call = 0; call < program_.calls; ++call) {
      const std::string where = absl::StrCat("step ", step, ", call ", call);
      make_inputs(step, call, batch, outputs);
      bool threw = false;
      try {
        outputs = module_(module_.first_input == kNone ? Tensor::zeros({1}) : module_.inputs[module_.first_input]);
      } catch (const std::exception& e) {
        // What escaped before the exception is as good as ever.
        see(where, describe("forward", e));
        if (dynamic_cast<const Error*>(&e) != nullptr) ++trail_.forward_errors;
        outputs.clear();
        threw = true;
      }
      see_call(where, outputs);
      roots.insert(roots.end(), outputs.begin(), outputs.end());
      if (threw) break;
    }
    roots.insert(roots.end(), module_.machine.kept.begin(), module_.machine.kept.end());
    go_backward(step, std::move(roots));
    if (trail_.backward_threw) return;
    see_gradients(absl::StrCat("step ", step));
    if (!program_.optimise) return;
    no_grad([&] {
      for (Tensor p : module_.parameters())
        if (p.grad().defined()) p.sub_(p.grad() * 0.05);
    });
  }

  void make_inputs(size_t step, int call, int64_t batch, const std::vector<Tensor>& previous) {
    module_.inputs.clear();
    for (const Leaf& leaf : program_.leaves) {
      if (leaf.role != Leaf::Role::kInput && leaf.role != Leaf::Role::kOutside) continue;
      Tensor& slot = module_.inputs[leaf.id];
      if (leaf.same_as != kNone) {
        const Tensor& base = module_.inputs.at(leaf.same_as);
        if (leaf.overlap < 0) {
          slot = base;
        } else if (program_.leaf(leaf.same_as)->computed) {
          slot = base.rank() > 0 ? base.slice(0, {}) : base;
        } else {
          slot = Tensor::from_storage(base.storage(), base.storage_offset() + leaf.overlap, base.sizes(), base.strides(), base.dtype());
          if (leaf.requires_grad) slot.requires_grad_();
          leaves_.emplace_back(leaf.id, slot);
        }
        continue;
      }
      // An outside tensor stays for two steps.
      const size_t salt = leaf.role == Leaf::Role::kOutside ? 1 + step / 2 : 1000 + step * 10 + static_cast<size_t>(call);
      slot = make_leaf(program_, leaf, batch, salt, perturbed_);
      if (leaf.requires_grad) {
        slot.requires_grad_();
        leaves_.emplace_back(leaf.id, slot);
      }
      if (leaf.computed) slot = slot * 1.25;
      const bool shared = std::any_of(program_.leaves.begin(), program_.leaves.end(), [&](const Leaf& l) { return l.same_as == leaf.id; });
      if (call > 0 && program_.chained && leaf.id == module_.first_input && !shared) {
        for (const Tensor& y : previous)
          if (y.dtype() == slot.dtype() && y.sizes() == slot.sizes()) slot = y;
      }
    }
  }

  void go_backward(size_t step, std::vector<Tensor> candidates) {
    std::vector<Tensor> roots, seeds;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const Tensor& y = candidates[i];
      if (!y.requires_grad()) continue;
      const uint64_t seed = mix(mix(program_.seed, 77 + step), i);
      if (program_.few_gradients && seed % 3 == 0) continue;
      roots.push_back(y);
      seeds.push_back(Tensor::from(numbers({}, y.numel(), seed, perturbed_), y.sizes()).to(y.dtype()));
    }
    if (roots.empty()) return;
    try {
      autograd::backward(roots, seeds, false, false, std::source_location::current());
    } catch (const std::exception& e) {
      // How far the gradients got is not defined: the program ends here.
      see(absl::StrCat("step ", step), describe("backward", e));
      trail_.backward_threw = true;
    }
  }

  static std::string describe(const char* what, const std::exception& e) {
    const bool internal = dynamic_cast<const InternalError*>(&e) != nullptr;
    const bool stale = dynamic_cast<const StaleTensorError*>(&e) != nullptr;
    const bool user = dynamic_cast<const Error*>(&e) != nullptr;
    last_error() = e.what();
    return absl::StrCat(what, " throws ", internal ? "an internal error" : stale ? "StaleTensorError" : user ? "Error" : "the program's own exception");
  }

 public:
  // The text of the last exception, for the report.
  static std::string& last_error() {
    static std::string text;
    return text;
  }

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
    for (size_t i = 0; i < module_.machine.kept.size(); ++i) all.emplace_back(absl::StrCat("kept ", i), module_.machine.kept[i]);
    const size_t fresh = all.size();
    for (const auto& [id, tensor] : module_.inputs) all.emplace_back(absl::StrCat("input %", id), tensor);
    for (const auto& [id, handle] : module_.lasting) all.emplace_back(absl::StrCat("value %", id), *handle);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [name, tensor] = all[i];
      see(absl::StrCat(where, ", ", name), tensor);
      if (i >= fresh) continue;
      std::string text = absl::StrCat("strides ", to_string(tensor.strides()), tensor.requires_grad() ? ", requires grad" : "",
                                      tensor.is_leaf() ? ", leaf" : "");
      for (size_t k = i + 1; k < all.size(); ++k) {
        const Tensor& other = all[k].second;
        if (tensor.is_same(other)) absl::StrAppend(&text, ", is ", all[k].first);
        else if (tensor.storage() == other.storage())
          absl::StrAppend(&text, ", in the memory of ", all[k].first, " at ", tensor.storage_offset() - other.storage_offset());
      }
      see(absl::StrCat(where, ", ", name), std::move(text));
    }
    see(where, absl::StrCat("random stream at ", default_generator().offset()));
  }

  void see_gradients(const std::string& where) {
    for (const auto& [id, leaf] : leaves_) see(absl::StrCat(where, ", gradient of input %", id), leaf.grad());
    for (const auto& [id, handle] : module_.lasting)
      if (program_.leaf(id)->role == Leaf::Role::kParameter) see(absl::StrCat(where, ", gradient of parameter %", id), handle->grad());
    for (size_t i = 0; i < module_.machine.retained.size(); ++i)
      see(absl::StrCat(where, ", retained gradient ", i), module_.machine.retained[i].grad());
    see(where, absl::StrCat(module_.machine.hook_calls, " hook calls"));
  }

  const Program& program_;
  bool perturbed_;
  ProgramModule module_;
  std::optional<compile::Regions> regions_;
  std::vector<std::pair<ValueId, Tensor>> leaves_;
  Trail trail_;
};

// Within the rounding of a few dozen operations, measured against the largest element.
bool is_close(const Tensor& a, const Tensor& b) {
  if (!is_floating(a.dtype())) return bool(test::same_bits(a, b));
  const double tolerance = a.dtype() == kF64 ? 1e-10 : a.dtype() == kF32 ? 1e-4 : a.dtype() == kF16 ? 1e-2 : 6e-2;
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double scale = 1e-3;
  for (double v : x)
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!(std::abs(x[i] - y[i]) <= tolerance * scale)) return false;
  }
  return true;
}

// The index of the first observation that differs; the number of them if none does.
size_t first_difference(const Trail& a, const Trail& b, bool in_every_bit, std::string& what) {
  const size_t n = std::min(a.seen.size(), b.seen.size());
  for (size_t i = 0; i < n; ++i) {
    const Observation &x = a.seen[i], &y = b.seen[i];
    // A region keeps less than eager execution does, and so may go backward where that finds a stale tensor.
    if (a.backward_threw && i + 1 == n && x.text.ends_with("StaleTensorError") && !b.backward_threw) break;
    // What is computed again needs its operands as they were, and says so where eager has kept the result.
    if (b.recomputes && y.text.ends_with("backward throws StaleTensorError")) break;
    if (x.what != y.what || x.text != y.text) {
      what = absl::StrCat(x.what, ": eager: ", x.text, "; compiled: ", y.what == x.what ? "" : y.what + ": ", y.text);
      return i;
    }
    if (!x.value.defined() || !y.value.defined()) continue;
    const auto same = test::same_bits(x.value, y.value);
    if (same || (!in_every_bit && is_close(x.value, y.value))) continue;
    what = absl::StrCat(x.what, ": ", same.message(), " (eager, compiled)");
    return i;
  }
  if (what.empty() && a.seen.size() != b.seen.size() && !a.backward_threw && !b.recomputes) what = "one run saw more than the other";
  return n;
}

}  // namespace

Trail run(const Program& program, Mode mode, bool perturbed) { return Runner(program, mode, perturbed).run(); }

std::string difference(const Program& program, const Check& check) {
  const Trail eager = run(program, Mode::kEager);
  std::string what;
  std::optional<Trail> exact;
  Runner::last_error().clear();
  auto with_error = [](const std::string& text) {
    return Runner::last_error().empty() ? text : text + "\n  last exception: " + Runner::last_error();
  };
  if (check.exact) {
    exact = run(program, Mode::kExact);
    first_difference(eager, *exact, true, what);
    if (!what.empty()) return with_error("exact mode: " + what);
  }
  if (!check.default_mode) return "";
  const Trail relaxed = run(program, Mode::kDefault);
  const size_t at = first_difference(eager, relaxed, false, what);
  if (!what.empty()) {
    // Where the last bits of the inputs decide (a comparison, a cancellation), rounding may, too.
    std::string ignored;
    if (first_difference(eager, run(program, Mode::kEager, true), false, ignored) > at) return with_error("default mode: " + what);
  }
  if (!exact) return "";
  const compile::RegionReport &e = *exact->report, &d = *relaxed.report;
  // Only library calls may take over what are kernels in exact mode.
  if (e.entries != d.entries || e.kernels < d.kernels || (e.kernels > d.kernels && e.library_calls == 0))
    return absl::StrCat("exact mode runs ", e.kernels, " kernels in ", e.entries, " entries, default mode ", d.kernels, " in ", d.entries);
  return "";
}

}  // namespace rondo::fuzz
