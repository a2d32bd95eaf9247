// The functions that users call. They set hooks on modules; a hook records a call (region/region_trace.h)
// or replays it.
#include "rondo/compile/compile.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <typeindex>

#include "absl/strings/str_cat.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/compile/region/marks.h"
#include "rondo/compile/region/region_trace.h"
#include "rondo/compile/region/stashed_hooks.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/modules/eager_scope.h"
#include "rondo/modules/layers/decode_step.h"
#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {
namespace {

// Returns why calls run op by op now; null: they run compiled. DetectAnomaly is a reason because it checks each op
// separately.
const char* why_bypassed() {
  if (stance() == Stance::kForceEager) return "Stance::kForceEager";
  if (nn::EagerScope::active()) return "EagerScope";
  if (autograd::detecting_anomaly()) return "DetectAnomaly";
  return nullptr;
}

// Note [Used, but never called]. Only a call of a compiled module runs compiled: `model(x)`. A program may use the
// model's parts instead, in another member function or by `model.forward(x)`, and would run eagerly without noticing.
// So a module that is compiled but has not been called yet watches for two events: one of its parameters gets a
// gradient (RegionHook), or a module below it is called (PartHook). The module's first call ends the watch, so later
// steps have no overhead.
class RegionHook final : public nn::CallHook {
 public:
  RegionHook(std::shared_ptr<Region> region, nn::ModuleBase& module)
      : region_(std::move(region)), calls_(region_->add_layer()) {
    for (const nn::NamedTensor& p : module.named_parameters()) {
      if (!p.tensor.requires_grad() || !p.tensor.is_leaf()) continue;
      const auto note = [this, name = p.name] { note_use(absl::StrCat("its parameter ", name, " got a gradient")); };
      watched_.emplace_back(p.tensor, autograd::on_accumulated(p.tensor, note));
    }
  }
  ~RegionHook() override { end_watch(); }

  // Records that a part of the module was used, unless the module itself has been called.
  void note_use(const std::string& what) {
    // A decode step calls the parts of a model on purpose, so it gets no warning. Compiled blocks run compiled in it; a
    // model that was compiled as a whole does not.
    if (StashedHooks::active() || why_bypassed() != nullptr || nn::in_decode_step()) return;
    if (active_recorder() != nullptr) called_ = true;  // the call is part of another recording
    if (!called_) region_->note_use_without_call(what);
  }

  void around(const nn::ModuleCall& call, absl::FunctionRef<void()> forward) override {
    if (!called_.exchange(true)) end_watch();
    // A block inside another recording is part of that recording, so it only runs its forward.
    if (active_recorder() != nullptr) return forward();
    if (const char* why = why_bypassed(); why != nullptr) {
      count(Outcome::kBypassed, why);
      return forward();
    }
    const Capture capture = region_->options().capture;
    const std::shared_ptr<const Replay> known = capture == Capture::kRecord ? nullptr : calls_->find(call);
    const bool replays = known != nullptr && capture == Capture::kReplay;
    region_->begin_call(call, replays);
    enter_stage(CompilerStage::kRecord);
    if (replays) return known->run(call);
    SharedRandomState random;
    std::vector<GeneratorState> drawn;  // the generators' states before the call drew numbers
    std::optional<GeneratorScope> note;
    if (capture != Capture::kRecord) note.emplace(GeneratorScope::kNote, drawn);
    // If there is a replay to compare with, the call is recorded in one piece, as the replay was. The region may have
    // found a loop in the module since then: in a longer call, or because it searches short recordings, too, once it
    // has several of them (LoopSteps::is_time_to_search()).
    RegionTrace trace(*region_, call, random, /*in_pieces=*/known == nullptr);
    if (capture == Capture::kRecord) trace.follow(calls_->latest());
    try {
      RecorderScope record(&trace);
      forward();
    } catch (...) {
      // As in eager execution, the ops before the throw take effect: tensors that left the call get their values.
      trace.finish();
      throw;
    }
    if (capture == Capture::kRecord) {
      trace.finish();
      return calls_->set_latest(trace.take_latest());
    }
    if (known != nullptr) region_->verify_replay(trace, known->binding());
    std::string why_not;
    const std::shared_ptr<const Replay> made = trace.finish_for_replay(drawn, why_not);
    if (known != nullptr) return;
    if (made == nullptr) return region_->refuse_replay(why_not);
    calls_->add(made);
  }

 private:
  void end_watch() {
    for (const auto& [parameter, id] : std::exchange(watched_, {})) autograd::remove_on_accumulated(parameter, id);
  }

  std::shared_ptr<Region> region_;
  std::atomic<bool> called_ = false;
  std::vector<std::pair<Tensor, int64_t>> watched_;  // until the first call: parameters and ids of on_accumulated()
  const std::shared_ptr<RecentCalls> calls_;
};

// The hook of a module inside a compiled one. It sees the module's first call, tells the outer region,
// and removes itself.
class PartHook final : public nn::CallHook {
 public:
  explicit PartHook(std::weak_ptr<RegionHook> compiled) : compiled_(std::move(compiled)) {}

  void around(const nn::ModuleCall& call, absl::FunctionRef<void()> forward) override {
    if (why_bypassed() == nullptr) {
      if (call.module.call_hook.get() == this) call.module.call_hook = nullptr;
      if (const std::shared_ptr<RegionHook> compiled = compiled_.lock()) note_call(call.module, *compiled);
    }
    forward();
  }
  bool is_over() const { return compiled_.expired(); }

 private:
  static void note_call(const nn::ModuleBase& part, RegionHook& compiled) {
    std::string name;
    const nn::ModuleBase* module = &part;
    for (; module != nullptr && module->call_hook.get() != &compiled; module = module->parent())
      name = name.empty() ? module->name() : absl::StrCat(module->name(), ".", name);
    if (module != nullptr) compiled.note_use(absl::StrCat("its part ", name, " was called"));
  }

  const std::weak_ptr<RegionHook> compiled_;
};

void set_hooks(nn::ModuleBase& module, const std::shared_ptr<Region>& region) {
  const auto hook = std::make_shared<RegionHook>(region, module);
  module.call_hook = hook;
  const auto part = std::make_shared<PartHook>(hook);
  for (const nn::NamedModule& inner : module.named_modules()) {
    std::shared_ptr<nn::CallHook>& now = inner.module.call_hook;
    const auto* const older = dynamic_cast<const PartHook*>(now.get());
    if (now == nullptr || (older != nullptr && older->is_over())) now = part;
  }
}

}  // namespace

std::vector<RegionReport> Regions::report() const try {
  std::vector<RegionReport> reports;
  for (const auto& region : regions_) reports.push_back(region->report());
  return reports;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Regions::report");
}

namespace {
void prepare(const CompileOptions& options) {
  log::configure_from_environment();
  disabled_stages();  // read RONDO_DISABLE and RONDO_CHECK now, to find a typing error at once
  checks_units();
  if (options.recompute_budget < 0)
    throw Error(formatted("compile: recompute_budget must not be negative: %d", options.recompute_budget));
  if (options.max_entries < 1)
    throw Error(formatted("compile: max_entries must be at least 1: %d", options.max_entries));
  if (options.recompile_limit < 0)
    throw Error(formatted("compile: recompile_limit must not be negative: %d", options.recompile_limit));
  if (!jit_available()) {
    const std::string path = toolchain_path();
    throw Error(absl::StrCat(
        "compile: there is no code generator for the devices that are here. Build Rondo with LLVM 19 or newer for the "
        "CPU",
        path.empty() ? "" : absl::StrCat(" (the file ", path, ", or the one that RONDO_JIT_LIBRARY names)"),
        ", install NVRTC (pip: nvidia-cuda-nvrtc) for CUDA, or run without compilation"));
  }
  check_options(options.dynamic);
}
}  // namespace

Regions compile_regions(nn::ModuleBase& model, CompileOptions options) try {
  prepare(options);
  std::vector<std::shared_ptr<Region>> regions;
  std::map<std::pair<nn::ModuleBase*, std::type_index>, std::shared_ptr<Region>> by_class;  // by list and class
  for (nn::ModuleBase* block : model.repeated_blocks()) {
    std::shared_ptr<Region>& region = by_class[{block->parent(), typeid(*block)}];
    if (!region) regions.push_back(region = std::make_shared<Region>(block->type_name(), options));
    set_hooks(*block, region);
  }
  if (regions.empty())
    throw Error(
        formatted("compile_regions: %s has no blocks, that is, no nn::ModuleList of modules; compile the whole "
                  "model with compile_module(model)",
                  model.type_name()));
  return Regions(std::move(regions));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("compile_regions");
}

Regions compile_module(nn::ModuleBase& module, CompileOptions options) try {
  prepare(options);
  auto region = std::make_shared<Region>(module.type_name(), options);
  set_hooks(module, region);
  return Regions({region});
} catch (const std::bad_alloc&) {
  throw_out_of_memory("compile_module");
}

}  // namespace rondo::compile
