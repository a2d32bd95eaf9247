// Running a program.
#include <algorithm>

#include "rondo/compile/exec/program_frame.h"
#include "rondo/compile/report/check_units.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/gradient_memory.h"
#include "rondo/runtime/lowered.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/recorder.h"

namespace rondo::compile {

namespace {

// out[c] = sum over chunks, in order, onto the first: Note [Column order].
template <class C> void combine_chunks(C* partial, int64_t chunks, int64_t cols, const Value& value, std::byte* out) {
  for (int64_t k = 1; k < chunks; ++k)
    for (int64_t c = 0; c < cols; ++c) partial[c] = partial[c] + partial[k * cols + c];
  visit_floating(value.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t c = 0; c < cols; ++c) reinterpret_cast<T*>(out)[c] = static_cast<T>(partial[c]);
  });
}

// The epilogues of a library call, given the tensors that its launch reads.
absl::InlinedVector<EpilogueCall, kMaxEpilogues> epilogue_calls(const Graph& graph, const Program::Launch& launch,
                                                                std::span<const Tensor> inputs) {
  absl::InlinedVector<EpilogueCall, kMaxEpilogues> calls;
  size_t next = graph.nodes[static_cast<size_t>(launch.node)].inputs.size();
  for (size_t i = 1; i < launch.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[static_cast<size_t>(launch.nodes[i])];
    calls.push_back({node.op->epilogue, node.inputs.size() > 1 ? &inputs[next++] : nullptr});
  }
  return calls;
}

// Calls `use` with the kernel's view of a library call; `tensor(id)` gives the value's tensor, `result(like, id)` one
// of `like`'s layout in the memory of `id`.
template <class MakeTensor, class MakeResult, class Use>
void with_context(const Graph& graph, const Program::Launch& launch, MakeTensor tensor, MakeResult result, Use use) {
  const GraphNode& node = graph.nodes[static_cast<size_t>(launch.node)];
  Tensor inputs[kMaxOpInputs + kMaxEpilogues], outputs[kMaxOpOutputs];
  const Tensor* pointers[kMaxOpInputs];
  for (size_t i = 0; i < launch.inputs.size(); ++i)
    if (launch.inputs[i] != kNoValue) inputs[i] = tensor(launch.inputs[i]);
  for (size_t i = 0; i < node.inputs.size(); ++i) pointers[i] = &inputs[i];
  // The product's own result, written where the last epilogue's belongs.
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    Value like = graph.value(node.outputs[i]);
    like.dtype = graph.value(launch.outputs[i]).dtype;
    outputs[i] = result(like, launch.outputs[i]);
  }
  const auto epilogues = epilogue_calls(graph, launch, inputs);
  use(KernelContext{
      *node.op, {pointers, node.inputs.size()}, {outputs, node.outputs.size()}, node.attrs, node.where, epilogues});
}

}  // namespace

Program::Frame Program::make_frame(std::span<const Tensor> inputs, bool release) const {
  Frame frame;
  frame.slots.resize(inputs.size() + copies_.size() + fresh_.size() + 1);
  // Asked before the frame holds them, too.
  std::vector<bool> given(inputs.size(), false);
  if (release)
    for (const FreshBuffer& buffer : fresh_)
      if (buffer.donor >= 0)
        given[static_cast<size_t>(buffer.donor)] = autograd::is_only_holder(inputs[static_cast<size_t>(buffer.donor)]);
  Frame::Slot* slot = frame.slots.data();
  for (const Tensor& input : inputs) {
    // The caller knows that nothing reads what is undefined.
    if (input.defined()) {
      Storage storage = input.storage();  // throws if an error came before the value
      *slot = {input.impl()->data(), std::move(storage),
               input.storage_offset() * static_cast<int64_t>(size_of(input.dtype()))};
    }
    ++slot;
  }
  const auto fill = [&](Storage storage) {
    slot->data = storage.data();
    slot->storage = std::move(storage);
    ++slot;
  };
  for (const ParameterCopy& copy : copies_) fill(amp::lowered(inputs[copy.input], copy.dtype).storage());
  for (const FreshBuffer& buffer : fresh_) {
    if (buffer.donor >= 0 && given[static_cast<size_t>(buffer.donor)])
      *slot++ = frame.slots[static_cast<size_t>(buffer.donor)];
    else fill(Storage::allocate(static_cast<size_t>(buffer.bytes)));
  }
  if (stats_.arena_bytes == 0) return frame;
  if (keeps_arena_) {
    std::lock_guard lock(mutex_);
    if (!arenas_.empty()) {
      fill(std::move(arenas_.back()));
      arenas_.pop_back();
      return frame;
    }
  }
  fill(Storage::allocate(static_cast<size_t>(stats_.arena_bytes)));
  return frame;
}

void Program::run_kernel(const Launch& launch, Frame& frame) const {
  const LoweredUnit& unit = kernels_[static_cast<size_t>(launch.kernel)];
  const LoopKernel& kernel = unit.kernel;
  absl::InlinedVector<void*, 24> operands(unit.operands.size());
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = frame.at(launch.addresses[i]);
  const KernelEntry entry = code_[static_cast<size_t>(launch.kernel)].entry;
  const double* scalars = unit.scalars.data();
  const int64_t* extents = unit.extents.data();
  if (kernel.split_columns) {
    parallel_for(
        (kernel.cols + kSplitGrain - 1) / kSplitGrain, launch.grain / kSplitGrain, [&](int64_t begin, int64_t end) {
          entry(operands.data(), scalars, extents, begin * kSplitGrain, std::min(end * kSplitGrain, kernel.cols));
        });
    return;
  }
  if (unit.column_results.empty()) {
    parallel_for(kernel.rows, std::max<int64_t>(1, launch.grain / kernel.cols),
                 [&](int64_t begin, int64_t end) { entry(operands.data(), scalars, extents, begin, end); });
    return;
  }
  const int64_t chunks = (kernel.rows + kernel.chunk_rows - 1) / kernel.chunk_rows;
  parallel_for(chunks, std::max<int64_t>(1, launch.grain / (kernel.cols * kernel.chunk_rows)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t k = begin; k < end; ++k)
                   entry(operands.data(), scalars, extents, k * kernel.chunk_rows,
                         std::min((k + 1) * kernel.chunk_rows, kernel.rows));
               });
  for (size_t i = 0; i < unit.column_results.size(); ++i) {
    const ColumnResult& result = unit.column_results[i];
    void* sums = operands[static_cast<size_t>(result.operand)];
    std::byte* out = frame.at(launch.addresses[unit.operands.size() + i]);
    const Value& value = graph_.value(result.value);
    if (result.compute == kF64) combine_chunks(static_cast<double*>(sums), chunks, kernel.cols, value, out);
    else combine_chunks(static_cast<float*>(sums), chunks, kernel.cols, value, out);
  }
}

void Program::run_library_call(const Launch& launch, Frame& frame) const {
  const GraphNode& node = graph_.nodes[static_cast<size_t>(launch.node)];
  const memory::Cause cause("", node.op->name, node.where);
  if (launch.prepared != nullptr) {
    absl::InlinedVector<std::byte*, kMaxOpInputs + 1> addresses;
    for (const Address& address : launch.addresses) addresses.push_back(frame.at(address));
    return launch.prepared->run(addresses);
  }
  with_context(
      graph_, launch, [&](ValueId id) { return frame.tensor(graph_.value(id), address_of(id)); },
      [&](const Value& like, ValueId id) { return frame.tensor(like, address_of(id)); },
      [](const KernelContext& context) { context.op.kernel[static_cast<int>(Backend::kCPU)](context); });
}

void Program::run_launch(const Launch& launch, Frame& frame) const {
  if (launch.kernel >= 0) run_kernel(launch, frame);
  else run_library_call(launch, frame);
}

std::vector<Tensor> Program::run(std::span<const Tensor> inputs, bool release) const {
  if (!checks_units()) [[likely]]
    return run_launches(inputs, release);
  std::vector<std::vector<int32_t>> units;
  for (const Launch& launch : launches_) units.push_back(launch.nodes);
  const UnitCheck eager(graph_, std::move(units), inputs, {.exact = exact_, .epilogues = epilogues_});
  std::vector<Tensor> outputs = run_launches(inputs, release);
  eager.check(outputs);
  return outputs;
}

std::vector<Tensor> Program::run_launches(std::span<const Tensor> inputs, bool release) const {
  NoGrad off;
  RecorderScope eager(nullptr);
  Frame frame = make_frame(inputs, release);
  for (const Launch& launch : launches_) run_launch(launch, frame);
  std::vector<Tensor> outputs;
  outputs.reserve(graph_.outputs.size());
  for (ValueId id : graph_.outputs) outputs.push_back(frame.tensor(graph_.value(id), address_of(id)));
  if (keeps_arena_ && stats_.arena_bytes > 0) {
    std::lock_guard lock(mutex_);
    arenas_.push_back(std::move(frame.slots.back().storage));
  }
  return outputs;
}

std::shared_ptr<const PreparedKernel> Program::prepare(const Launch& launch, int variant) const {
  const OpDef& op = *graph_.nodes[static_cast<size_t>(launch.node)].op;
  if (op.prepare == nullptr) return nullptr;
  NoGrad off;
  RecorderScope eager(nullptr);
  // Stand-ins for memory: only who shares with whom matters.
  std::vector<std::pair<int32_t, Storage>> memory;
  const auto stand_in = [&](const Value& like, ValueId id) {
    const int32_t slot = address_of(id).slot;
    const int64_t offset = address_of(id).offset / static_cast<int64_t>(size_of(like.dtype));
    auto found = std::find_if(memory.begin(), memory.end(), [&](const auto& entry) { return entry.first == slot; });
    if (found == memory.end()) found = memory.insert(found, {slot, Storage::allocate(1)});
    return Tensor::over(found->second, offset, like.sizes, like.strides, like.dtype);
  };
  std::shared_ptr<const PreparedKernel> prepared;
  with_context(
      graph_, launch, [&](ValueId id) { return stand_in(graph_.value(id), id); }, stand_in,
      [&](const KernelContext& context) { prepared = op.prepare(context, variant); });
  return prepared;
}

}  // namespace rondo::compile
