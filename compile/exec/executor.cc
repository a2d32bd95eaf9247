#include "rondo/compile/exec/executor.h"

#include <algorithm>
#include <optional>

#include "rondo/compile/exec/library_call.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/library_error.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/lowered.h"

namespace rondo::compile {

std::vector<const Tensor*> Executor::homes_of_fresh(std::span<const Tensor> homes) const {
  const auto first = static_cast<int32_t>(plan_.graph.inputs.size() + plan_.copies.size());
  std::vector<const Tensor*> found(plan_.fresh.size(), nullptr);
  std::vector<int> outputs_in(plan_.fresh.size(), 0);
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    const Address& address = plan_.outputs[i];
    if (address.slot < first || address.slot >= plan_.arena_slot()) continue;
    const auto at = static_cast<size_t>(address.slot - first);
    ++outputs_in[at];
    if (i >= homes.size() || !homes[i].defined()) continue;
    const Tensor& home = homes[i];
    const Value& value = plan_.graph.value(plan_.graph.outputs[i]);
    const bool fits = home.dtype() == value.dtype && home.sizes() == value.sizes && home.is_contiguous() &&
                      is_contiguous(value.sizes, value.strides) && address.offset == 0 &&
                      plan_.fresh[at].bytes == home.nbytes() && home.device() == code_.device() &&
                      reinterpret_cast<uintptr_t>(home.impl()->data()) % kAlignment == 0;
    if (fits) found[at] = &home;
  }
  for (size_t at = 0; at < found.size(); ++at)
    if (outputs_in[at] > 1) found[at] = nullptr;
  return found;
}

void Executor::allocate_fresh(Frame& frame, size_t begin, size_t end) const {
  Frame::Slot* slot = frame.slots.data() + plan_.graph.inputs.size() + plan_.copies.size();
  for (const Plan::FreshBuffer& buffer : plan_.fresh) {
    const auto first = static_cast<size_t>(buffer.first_launch);
    if (!slot->storage && begin <= first && first < end) {
      slot->storage = Storage::allocate(static_cast<size_t>(buffer.bytes), code_.device());
      slot->data = slot->storage.data();
    }
    ++slot;
  }
}

Frame Executor::make_frame(std::span<const Tensor> inputs, bool release, std::span<const Tensor> homes,
                           size_t end) const {
  Frame frame;
  frame.slots.resize(plan_.n_slots());
  // Finds the donated inputs that nobody else holds, before the frame holds them, too.
  absl::InlinedVector<bool, 48> given(release ? inputs.size() : 0, false);
  if (release)
    for (const Plan::FreshBuffer& buffer : plan_.fresh)
      if (buffer.donor >= 0)
        given[static_cast<size_t>(buffer.donor)] = autograd::is_only_holder(inputs[static_cast<size_t>(buffer.donor)]);
  Frame::Slot* slot = frame.slots.data();
  for (const Tensor& input : inputs) {
    // The caller knows that nothing reads an undefined input.
    if (input.defined()) {
      Storage storage = input.storage();  // throws if an earlier error on the device affects the value
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
  for (const Plan::ParameterCopy& copy : plan_.copies)
    fill(amp::lowered(inputs[static_cast<size_t>(copy.input)], copy.dtype).storage());
  const std::vector<const Tensor*> chosen = homes.empty() ? std::vector<const Tensor*>() : homes_of_fresh(homes);
  for (size_t i = 0; i < plan_.fresh.size(); ++i) {
    const Plan::FreshBuffer& buffer = plan_.fresh[i];
    if (!chosen.empty() && chosen[i] != nullptr)
      *slot++ = {chosen[i]->impl()->data(), chosen[i]->storage(),
                 chosen[i]->storage_offset() * static_cast<int64_t>(size_of(chosen[i]->dtype()))};
    else if (release && buffer.donor >= 0 && given[static_cast<size_t>(buffer.donor)])
      *slot++ = frame.slots[static_cast<size_t>(buffer.donor)];
    else ++slot;
  }
  allocate_fresh(frame, 0, end);
  if (plan_.arena_bytes > 0) fill(code_.lease_arena(plan_));
  return frame;
}

IndexCheck Executor::index_check(const Launch& launch, const Launch::Check& check, const Frame& frame) const {
  const GraphNode& node = plan_.graph.node(check.node);
  const auto at = static_cast<size_t>(check.operand);
  const ops::LookupName lookup = ops::lookup_of(node.attrs);
  const Value& indices = plan_.graph.value(node.inputs[0]);
  return {.operand = check.operand,
          .op = lookup.op,
          .where = line_of(node),
          .size = plan_.kernel_of(launch).kernel.operands[at].axes[0].size,
          .at_position = lookup.at_position,
          .indices = frame.at(launch.addresses[at]),
          .sizes = &indices.sizes,
          .strides = &indices.strides};
}

void Executor::run_kernel(const Launch& launch, const Frame& frame) const {
  const LoweredUnit& unit = plan_.kernel_of(launch);
  absl::InlinedVector<void*, 24> operands(unit.operands.size());
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = frame.at(launch.addresses[i]);
  absl::InlinedVector<IndexCheck, 2> checks;
  for (const Launch::Check& check : launch.checks) checks.push_back(index_check(launch, check, frame));
  const KernelCall call{.code = code_.handle(launch.kernel),
                        .kernel = &unit.kernel,
                        .extents = unit.extents.data(),
                        .operands = operands.data(),
                        .scalars = floats_.scalars.data() + unit.first_scalar,
                        .grain = launch.grain,
                        .checks = checks};
  code_.target().launch.kernel(code_.device(), call, owner_);
}

void Executor::run_combines(size_t first, const Frame& frame) const {
  absl::InlinedVector<CombineCall::Sum, 16> sums;
  absl::InlinedVector<size_t, 8> ends;  // by call: the end of its sums
  size_t end = first;
  for (; end < plan_.launches.size() && plan_.launches[end].kind == Launch::Kind::kCombine; ++end) {
    const Launch& launch = plan_.launches[end];
    const Address* address = launch.addresses.data();
    for (const ColumnResult& result : plan_.kernel_of(launch).column_results) {
      sums.push_back({frame.at(address[0]), frame.at(address[1]), result.compute, plan_.graph.value(result.value).dtype,
                      result.op});
      address += 2;
    }
    ends.push_back(sums.size());
  }
  absl::InlinedVector<CombineCall, 8> calls;
  for (size_t i = first, begin = 0; i < end; ++i) {
    const int32_t kernel = plan_.launches[i].kernel;
    const size_t last = ends[i - first];
    calls.push_back({code_.handle(kernel), &plan_.kernels[static_cast<size_t>(kernel)].kernel,
                     std::span(sums).subspan(begin, last - begin)});
    begin = last;
  }
  code_.target().launch.combine(code_.device(), calls, owner_);
}

void Executor::run_library_call(size_t index, const Frame& frame) const {
  const Launch& launch = plan_.launches[index];
  const GraphNode& node = plan_.graph.node(launch.op());
  const memory::Cause cause("", node.op->name, node.where);
  if (const auto& prepared = code_.prepared(index); prepared != nullptr) {
    absl::InlinedVector<std::byte*, kUsualInputs + 1> addresses;
    for (const Address& address : launch.addresses) addresses.push_back(frame.at(address));
    return naming_op(node.op->name, line_of(node),
                     [&] { code_.target().launch.library_call(code_.device(), prepared, addresses); });
  }
  const LibraryCall call(plan_, launch,
                         [&](const Value& like, const Address& address) { return frame.tensor(like, address); });
  const Attrs& attrs = launch.floats < 0 ? node.attrs : floats_.attrs[static_cast<size_t>(launch.floats)];
  call.with_context(attrs, [&](const KernelContext& context) { rondo::run_kernel(context); });
}

void Executor::run_copy(const Launch& launch, const Frame& frame) const {
  const Value& value = plan_.graph.value(launch.outputs[0]);
  const Device device = code_.device();
  backend_of(device).copy(device.index, frame.at(launch.addresses[1]), frame.at(launch.addresses[0]),
                          static_cast<size_t>(value.sizes.numel()) * size_of(value.dtype));
}

TableCall Executor::table_call(const Launch& launch, const TableArgument& argument) const {
  const LoweredUnit& unit = plan_.kernel_of(launch);
  return {code_.handle(launch.kernel), &unit.kernel, unit.extents, argument.table->rows(), argument.when};
}

void Executor::run_table(const Launch& launch, const TableArgument& argument) const {
  if (argument.table->items.empty()) return;
  code_.target().launch.table(code_.device(), table_call(launch, argument), owner_);
}

absl::AnyInvocable<void()> Executor::ready_table(size_t launch, const TableArgument& argument) const {
  enter_stage(CompilerStage::kRun);
  if (argument.table->items.empty()) return [] {};
  const auto ready = code_.target().launch.ready_table;
  return ready == nullptr ? nullptr : ready(code_.device(), table_call(plan_.launches[launch], argument), owner_);
}

void Executor::run_tables(std::span<const TableArgument> tables) const {
  enter_stage(CompilerStage::kRun);
  const FloatingPointScope floating_point;
  invariant(tables.size() == plan_.launches.size(), "a table for each launch was expected");
  for (size_t i = 0; i < tables.size(); ++i) run_table(plan_.launches[i], tables[i]);
}

void Executor::run_launch(size_t launch, const Frame& frame) const {
  switch (plan_.launches[launch].kind) {
    case Launch::Kind::kKernel: return run_kernel(plan_.launches[launch], frame);
    case Launch::Kind::kLibraryCall: return run_library_call(launch, frame);
    case Launch::Kind::kCopy: return run_copy(plan_.launches[launch], frame);
    case Launch::Kind::kCombine:
      // The first of several consecutive launches of this kind runs all of them.
      if (launch > 0 && plan_.launches[launch - 1].kind == Launch::Kind::kCombine) return;
      return run_combines(launch, frame);
    case Launch::Kind::kTable: throw_internal("a table launch runs by Executor::run_tables()");
  }
}

std::vector<Tensor> Executor::outputs(const Frame& frame, size_t launches_done) const {
  std::vector<bool> unfinished;  // by root value: a launch that is not done writes it; empty: all launches are done
  for (size_t i = launches_done; i < plan_.launches.size(); ++i) {
    unfinished.resize(plan_.graph.values.size(), false);
    for (ValueId id : written(plan_, plan_.launches[i]))
      if (id != kNoValue) unfinished[static_cast<size_t>(plan_.graph.value(id).root)] = true;
  }
  std::vector<Tensor> results;
  results.reserve(plan_.graph.outputs.size());
  for (size_t i = 0; i < plan_.graph.outputs.size(); ++i) {
    const Value& value = plan_.graph.value(plan_.graph.outputs[i]);
    const bool complete = unfinished.empty() || !unfinished[static_cast<size_t>(value.root)];
    results.push_back(complete ? frame.tensor(value, plan_.outputs[i]) : Tensor());
  }
  return results;
}

std::vector<Tensor> Executor::run(std::span<const Tensor> inputs, bool release, std::vector<Tensor>* finished,
                                  std::span<const Tensor> homes, const TakeResults& take) const {
  enter_stage(CompilerStage::kRun);
  if (take && !plan_.seams.empty()) return run_with_seams(inputs, release, homes, take);
  const FloatingPointScope floating_point;
  NoGrad off;
  RecorderScope eager(nullptr);
  Frame frame = make_frame(inputs, release, homes);
  size_t done = 0;
  try {
    for (; done < plan_.launches.size(); ++done) run_launch(done, frame);
  } catch (...) {
    if (finished != nullptr) *finished = outputs(frame, done);
    throw;
  }
  std::vector<Tensor> results = outputs(frame, done);
  if (plan_.keeps_arena && plan_.arena_bytes > 0) code_.return_arena(std::move(frame.slots.back().storage));
  return results;
}

std::vector<Tensor> Executor::run_with_seams(std::span<const Tensor> inputs, bool release,
                                             std::span<const Tensor> homes, const TakeResults& take) const {
  struct Scope {  // active between seams
    FloatingPointScope floating_point;
    NoGrad off;
    RecorderScope eager{nullptr};
  };
  std::optional<Scope> scope(std::in_place);
  Frame frame = make_frame(inputs, release, homes, static_cast<size_t>(plan_.seams[0].launch));
  std::vector<int> results_in(plan_.n_slots(), 0);  // by slot: the number of results that the frame still holds
  for (const Address& address : plan_.outputs) ++results_in[static_cast<size_t>(address.slot)];
  std::vector<bool> gone(plan_.outputs.size(), false);
  const auto let_go = [&](size_t output) {
    const auto slot = static_cast<size_t>(plan_.outputs[output].slot);
    Tensor result = frame.tensor(plan_.graph.value(plan_.graph.outputs[output]), plan_.outputs[output]);
    gone[output] = true;
    if (--results_in[slot] == 0) frame.slots[slot].storage = Storage();
    return result;
  };
  size_t done = 0;
  const auto run_until = [&](size_t end) {
    allocate_fresh(frame, done, end);
    for (; done < end; ++done) run_launch(done, frame);
  };
  std::vector<std::vector<Tensor>> waiting;  // results of seams after the last launch
  for (const Plan::Seam& seam : plan_.seams) {
    run_until(static_cast<size_t>(seam.launch));
    std::vector<Tensor> taken;
    for (const int32_t output : seam.outputs) taken.push_back(let_go(static_cast<size_t>(output)));
    if (done == plan_.launches.size()) {
      waiting.push_back(std::move(taken));
      continue;
    }
    scope.reset();
    take(seam, std::move(taken));
    scope.emplace();
  }
  run_until(plan_.launches.size());
  std::vector<Tensor> results(plan_.outputs.size());
  for (size_t i = 0; i < results.size(); ++i)
    if (!gone[i]) results[i] = let_go(i);
  if (plan_.keeps_arena && plan_.arena_bytes > 0) code_.return_arena(std::move(frame.slots.back().storage));
  frame = Frame();
  scope.reset();
  for (size_t i = 0; i < waiting.size(); ++i)
    take(plan_.seams[plan_.seams.size() - waiting.size() + i], std::move(waiting[i]));
  return results;
}

}  // namespace rondo::compile
