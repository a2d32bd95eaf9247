// Timing the ways in which launches can run (Mode::kMaxAutotune).
#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/exec/program_frame.h"
#include "rondo/compile/exec/tuner.h"
#include "rondo/compile/report/stages.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/recorder.h"

namespace rondo::compile {
namespace {

// A tensor with a value's layout, of halves.
Tensor made_up(const Value& value) {
  int64_t extent = 1;
  for (int d = 0; d < value.sizes.rank(); ++d) extent += std::max<int64_t>(value.sizes[d] - 1, 0) * value.strides[d];
  const Tensor memory = Tensor::full({extent}, 0.5, {value.dtype});
  return Tensor::over(memory.storage(), 0, value.sizes, value.strides, value.dtype);
}

// What times depend on.
void describe(const Graph& graph, const ValueIds& ids, std::string& text) {
  for (ValueId id : ids) {
    if (id == kNoValue) continue;
    const Value& value = graph.value(id);
    absl::StrAppend(&text, std::string(name_of(value.dtype)), rondo::to_string(value.sizes),
                    rondo::to_string(value.strides), "\n");
  }
}

// True if the product may as well write f32, which nobody but the caller reads: the gradient of a weight.
bool only_widens(const Graph& graph, const std::vector<int32_t>& chain) {
  if (chain.size() != 1 || graph.nodes[static_cast<size_t>(chain[0])].op->epilogue != Epilogue::kWiden) return false;
  const ValueId result = graph.nodes[static_cast<size_t>(chain[0])].outputs[0];
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue && node.op->kind != OpKind::kView && graph.written(id) == result) return false;
  return true;
}

}  // namespace

EpilogueChains Program::choose_epilogues(const ProgramOptions& options) const {
  if (options.epilogues == Epilogues::kNever || !enabled(CompilerStage::kEpilogues)) return {};
  EpilogueChains chains = find_epilogues(graph_, options.exact);
  if (options.epilogues == Epilogues::kAlways) return chains;
  // A product that widens its result is as fast as one that does not. Where a kernel goes on with it, 16 bits are less
  // to read.
  std::vector<bool> free(chains.size(), false);
  for (size_t n = 0; n < chains.size(); ++n) {
    free[n] = !chains[n].empty() && only_widens(graph_, chains[n]);
    const bool widens = !chains[n].empty() &&
                        graph_.nodes[static_cast<size_t>(chains[n][0])].op->epilogue == Epilogue::kWiden;
    if (!free[n] && (widens || options.mode != Mode::kMaxAutotune)) chains[n].clear();
  }
  if (options.mode != Mode::kMaxAutotune) return chains;
  // One more pass over the result, by the op's own kernel, stands for what the op would cost elsewhere.
  NoGrad off;
  RecorderScope eager(nullptr);
  const auto made_up = [&](ValueId id) { return rondo::compile::made_up(graph_.value(id)); };
  for (size_t n = 0; n < chains.size(); ++n) {
    if (chains[n].empty() || free[n]) continue;
    const GraphNode& product = graph_.nodes[n];
    std::vector<Tensor> operands, added;
    std::vector<const Tensor*> pointers;
    for (ValueId id : product.inputs) operands.push_back(id == kNoValue ? Tensor() : made_up(id));
    for (const Tensor& operand : operands) pointers.push_back(&operand);
    Tensor result = made_up(product.outputs[0]);
    std::vector<EpilogueCall> calls;
    added.reserve(chains[n].size());
    for (int32_t epilogue : chains[n]) {
      const GraphNode& node = graph_.nodes[static_cast<size_t>(epilogue)];
      added.push_back(made_up(product.outputs[0]));
      calls.push_back({node.op->epilogue, node.inputs.size() > 1 ? &added.back() : nullptr});
    }
    const auto run_product = [&](std::span<const EpilogueCall> epilogues) {
      product.op->kernel[static_cast<int>(Backend::kCPU)](
          {*product.op, pointers, {&result, 1}, product.attrs, product.where, epilogues});
    };
    const std::function<void()> apart = [&] {
      run_product({});
      for (size_t i = 0; i < chains[n].size(); ++i) {
        const GraphNode& node = graph_.nodes[static_cast<size_t>(chains[n][i])];
        const Tensor* inputs[] = {&result, &added[i]};
        node.op->kernel[static_cast<int>(Backend::kCPU)](
            {*node.op, {inputs, node.inputs.size()}, {&result, 1}, node.attrs, node.where});
      }
    };
    const std::function<void()> candidates[] = {apart, [&] { run_product(calls); }};
    std::string what = absl::StrCat("epilogues of ", product.op->name, ", ", num_threads(), " threads\n");
    describe(graph_, product.inputs, what);
    for (int32_t epilogue : chains[n])
      absl::StrAppend(&what, graph_.nodes[static_cast<size_t>(epilogue)].op->name, "\n");
    if (Tuner::instance().fastest(what, candidates) == 0) chains[n].clear();
  }
  return chains;
}

// Every launch that can run in several ways is timed on made-up data.
void Program::tune(bool exact) {
  std::vector<Tensor> inputs;
  for (ValueId id : graph_.inputs) inputs.push_back(made_up(graph_.value(id)));
  NoGrad off;
  RecorderScope eager(nullptr);
  Frame frame = make_frame(inputs, /*release=*/false);
  for (size_t i = graph_.inputs.size(); i < frame.slots.size(); ++i) {
    Frame::Slot& slot = frame.slots[i];
    if (slot.data == nullptr) continue;
    // One half in f32 and bf16, and some ordinary number in any other type.
    const uint16_t halves[] = {0x3f00, 0x3f00};
    const size_t bytes = slot.storage.bytes();
    for (size_t at = 0; at + sizeof(halves) <= bytes; at += sizeof(halves))
      std::memcpy(slot.data + at, halves, sizeof(halves));
  }
  for (Launch& launch : launches_) {
    std::string what;
    std::vector<std::function<void()>> candidates;
    if (launch.kernel >= 0) {
      LoweredUnit& unit = kernels_[static_cast<size_t>(launch.kernel)];
      const int64_t tile = unit.kernel.chunk_rows;
      struct Choice {
        int64_t grain, tile;
      };
      std::vector<Choice> choices{{kGrain, tile}, {kGrain / 8, tile}, {kGrain * 8, tile}, {int64_t{1} << 40, tile}};
      // Other chunks are other sums. Larger ones need less room than was planned.
      if (tile > 0 && !exact)
        for (int64_t times : {2, 4})
          if (tile * times < unit.kernel.rows) choices.push_back({kGrain, tile * times});
      const auto choose = [&](const Choice& choice) {
        launch.grain = choice.grain;
        unit.kernel.chunk_rows = unit.extents[1] = choice.tile;
      };
      for (const Choice& choice : choices)
        candidates.push_back([&, choice] {
          choose(choice);
          run_kernel(launch, frame);
        });
      what = absl::StrCat("kernel, ", num_threads(), " threads, ", exact ? "exact" : "default", "\n",
                          to_string(unit.kernel));
      choose(choices[static_cast<size_t>(Tuner::instance().fastest(what, candidates))]);
      continue;
    }
    if (launch.prepared == nullptr || exact) continue;  // other products are other sums
    std::vector<std::shared_ptr<const PreparedKernel>> variants{launch.prepared};
    constexpr int kMostVariants = 8;
    for (int variant = 1; variant < kMostVariants; ++variant)
      if (auto prepared = prepare(launch, variant)) variants.push_back(std::move(prepared));
    for (const auto& variant : variants)
      candidates.push_back([&, variant] {
        launch.prepared = variant;
        run_library_call(launch, frame);
      });
    what = absl::StrCat(graph_.nodes[static_cast<size_t>(launch.node)].op->name, ", ", num_threads(), " threads\n");
    describe(graph_, launch.inputs, what);
    describe(graph_, launch.outputs, what);
    for (size_t i = 1; i < launch.nodes.size(); ++i)
      absl::StrAppend(&what, graph_.nodes[static_cast<size_t>(launch.nodes[i])].op->name, "\n");
    launch.prepared = variants[static_cast<size_t>(Tuner::instance().fastest(what, candidates))];
  }
}

}  // namespace rondo::compile
