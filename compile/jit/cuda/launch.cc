#include "rondo/compile/jit/cuda/launch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/compile/jit/cuda/kernel_code.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::compile::cuda {
namespace {

// cuLaunchKernel takes the address of each argument, and only reads the argument.
using Arguments = absl::InlinedVector<void*, 64>;
template <class T> void add(Arguments& list, const T& argument) {
  list.push_back(const_cast<void*>(static_cast<const void*>(&argument)));
}

void enqueue_grid(Device device, const rondo::cuda::Kernel& function, const Grid& grid, Arguments& arguments) {
  rondo::cuda::launch(device.index, function, {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)},
                      {static_cast<unsigned>(grid.threads)}, 0, arguments.data());
}

}  // namespace

void launch_kernel(Device device, const KernelCall& call, const LaunchFunctions::Owner& /*owner*/) {
  const KernelCode::Run run = KernelCode::of(call.code).at(*call.kernel, call.extents);
  Arguments arguments;
  absl::InlinedVector<rondo::cuda::IndexCheck, 2> checks;
  for (const IndexCheck& check : call.checks)
    checks.push_back(rondo::cuda::check_indices_at(device.index, check.op, check.where, check.size, check.at_position));
  for (size_t i = 0, next = 0; i < call.kernel->operands.size(); ++i) {
    if (!call.kernel->operands[i].is_check) {
      add(arguments, call.operands[i]);
      continue;
    }
    add(arguments, checks[next].status);
    add(arguments, checks[next++].call);
  }
  for (int32_t i = 0; i < call.kernel->n_scalars; ++i) add(arguments, call.scalars[i]);
  for (const int64_t& integer : run.integers) add(arguments, integer);
  enqueue_grid(device, run.code->function(device.index), run.grid, arguments);
}

void launch_combine(Device device, std::span<const CombineCall> calls, const LaunchFunctions::Owner& /*owner*/) {
  RondoSums sums;
  size_t n = 0;
  int64_t most_cols = 0;
  const KernelCode& any = KernelCode::of(calls[0].code);  // every object with sums has the same function
  const auto enqueue = [&] {
    Arguments arguments;
    add(arguments, sums);
    enqueue_grid(device, any.combine(device.index), combine_grid(most_cols, static_cast<int32_t>(n)), arguments);
    n = 0;
    most_cols = 0;
  };
  for (const CombineCall& call : calls) {
    const KernelCode& code = KernelCode::of(call.code);
    invariant(code.object().sums.size() == call.sums.size(), "a combine of other sums than its kernel leaves");
    for (size_t i = 0; i < call.sums.size(); ++i) {
      const CombineCall::Sum& sum = call.sums[i];
      invariant(code.object().sums[i] == sum.compute, "a combine of sums of another type");
      if (n == kMostSums) enqueue();
      sums.at[n++] = {sum.partial,
                      sum.out,
                      chunks(*call.kernel),
                      call.kernel->cols,
                      static_cast<int>(sum.compute),
                      static_cast<int>(sum.result),
                      static_cast<int>(sum.op) - static_cast<int>(LoopOp::kColumnSum)};
      most_cols = std::max(most_cols, call.kernel->cols);
    }
  }
  if (n > 0) enqueue();
}

namespace {

// The arguments of a table's kernel, and the memory that the kernel reads. The memory is freed in stream order, after
// the launch.
struct ReadyTable {
  Device device;
  Storage memory;
  const rondo::cuda::Kernel* function;
  Grid grid;
  int64_t n_items;
  Condition when;

  void enqueue() {
    const auto* const table = reinterpret_cast<const RondoTableRow*>(memory.data());
    const rondo::cuda::DevicePtr failed = rondo::cuda::device_state(device.index).status();  // DeviceStatus::call
    static_assert(offsetof(rondo::cuda::DeviceStatus, call) == 0);
    Arguments arguments;
    add(arguments, table);
    add(arguments, n_items);
    add(arguments, when.value);
    add(arguments, when.equals);
    add(arguments, failed);
    enqueue_grid(device, *function, grid, arguments);
  }
};

ReadyTable make_ready(Device device, const TableCall& call) {
  const LoopKernel& kernel = *call.kernel;
  const KernelCode& code = KernelCode::of(call.code);
  const auto n_items = static_cast<size_t>(call.rows.n_items);
  const size_t n_operands = kernel.operands.size(), rows_bytes = n_items * sizeof(RondoTableRow),
               bytes = rows_bytes + n_items * n_operands * sizeof(void*);
  Storage memory = Storage::allocate(bytes, device);
  std::vector<RondoTableRow> rows(n_items);
  int64_t largest = 0;
  for (size_t i = 0; i < n_items; ++i) {
    const TableItem& item = call.rows.items[i];
    auto* const operands = reinterpret_cast<void* const*>(memory.data() + rows_bytes) + i * n_operands;
    rows[i] = {0, item.rows, item.width, item.numel, item.scalars, operands};
    largest = std::max(largest, item.numel);
  }
  // Items of all sizes use the schedule of the kernel's own sizes, because it decides the order of sums. Only the
  // indices of a large item need more bits.
  Schedule schedule = code.object().schedule;
  if (largest > int64_t{1} << 30) schedule.wide = true;
  const KernelCode& made = code.for_schedule(kernel, schedule);
  const Grid grid = table_grid(kernel, schedule, rows);
  std::vector<std::byte> packed(bytes);
  std::memcpy(packed.data(), rows.data(), rows_bytes);
  std::memcpy(packed.data() + rows_bytes, call.rows.operands, bytes - rows_bytes);
  copy_bytes(device, memory.data(), kCPU, packed.data(), bytes);
  return {device, std::move(memory), &made.function(device.index), grid, call.rows.n_items, call.when};
}

}  // namespace

void launch_table(Device device, const TableCall& call, const LaunchFunctions::Owner& /*owner*/) {
  make_ready(device, call).enqueue();
}

absl::AnyInvocable<void()> ready_table(Device device, const TableCall& call, const LaunchFunctions::Owner& owner) {
  // Captures `owner`, which keeps the code of the launched function loaded.
  return [ready = make_ready(device, call), owner]() mutable { ready.enqueue(); };
}

void launch_library_call(Device /*device*/, const std::shared_ptr<const PreparedKernel>& call,
                         std::span<std::byte* const> addresses) {
  call->run(addresses);
}

}  // namespace rondo::compile::cuda
