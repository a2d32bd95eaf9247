#include "rondo/compile/jit/cpu/launch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/compile/codegen/tiles.h"
#include "rondo/compile/jit/cpu/rows_on_device.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/ops/wrapping.h"

namespace rondo::compile::cpu {
namespace {

KernelEntry entry_of(KernelHandle code) { return reinterpret_cast<KernelEntry>(const_cast<void*>(code)); }

// Splits the iteration space between the threads, as schedule() says.
void run(const KernelCall& call) {
  const LoopKernel& kernel = *call.kernel;
  const KernelEntry entry = entry_of(call.code);
  const auto run = [&](int64_t begin, int64_t end) { entry(call.operands, call.scalars, call.extents, begin, end); };
  if (kernel.split_columns) {
    parallel_for(
        (kernel.cols + kSplitGrain - 1) / kSplitGrain, call.grain / kSplitGrain,
        [&](int64_t begin, int64_t end) { run(begin * kSplitGrain, std::min(end * kSplitGrain, kernel.cols)); });
    return;
  }
  if (kernel.starts >= 0)
    return parallel_for(kernel.segments,
                        std::max<int64_t>(1, call.grain * kernel.segments / (kernel.rows * kernel.cols)), run);
  if (kernel.chunk_rows == 0) {
    // A thread gets whole vectors of rows, or whole groups of tiles.
    int64_t least = kernel.inner > 1 ? kSplitGrain : 1;
    if (kernel.rows > kRowsTogether && kernel.rows * kernel.cols > call.grain && goes_in_tiles(kernel))
      least = kRowsTogether;
    parallel_for(kernel.rows, std::max<int64_t>(least, call.grain / kernel.cols), run);
    return;
  }
  parallel_for(chunks(kernel), std::max<int64_t>(1, call.grain / (kernel.cols * kernel.chunk_rows)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t k = begin; k < end; ++k)
                   run(k * kernel.chunk_rows, std::min((k + 1) * kernel.chunk_rows, kernel.rows));
               });
}

// Runs a kernel that may have operands that are checks. The code only records that some index is out of range. Then the
// indices are searched, so that the error names the index.
void run_checked(const KernelCall& call) {
  if (call.checks.empty()) [[likely]]
    return run(call);
  int64_t found = 0;
  absl::InlinedVector<void*, 24> operands(call.operands, call.operands + call.kernel->operands.size());
  for (const IndexCheck& check : call.checks) operands[static_cast<size_t>(check.operand)] = &found;
  KernelCall noting = call;
  noting.operands = operands.data();
  run(noting);
  if (found == 0) return;
  for (const IndexCheck& check : call.checks)
    rondo::cpu::require_in_range(check.op,
                                 {reinterpret_cast<const int64_t*>(check.indices), *check.sizes, *check.strides},
                                 check.size, check.at_position, check.where);
  throw_internal("a kernel met an index out of range, and its indices are not");
}

// Reduces partial[chunk][c] over the chunks in order, into partial[0][c].
template <class C, class Combine> void fold(C* partial, int64_t chunks, int64_t cols, Combine combine) {
  for (int64_t k = 1; k < chunks; ++k)
    for (int64_t c = 0; c < cols; ++c) partial[c] = combine(partial[c], partial[k * cols + c]);
}
template <class C> void combine(const CombineCall::Sum& sum, int64_t chunks, int64_t cols) {
  auto* partial = reinterpret_cast<C*>(sum.partial);
  if (sum.op == LoopOp::kColumnSum) {
    fold(partial, chunks, cols, [](C a, C b) { return ops::wrapping_add(a, b); });
  } else if constexpr (std::is_floating_point_v<C>) {
    if (sum.op == LoopOp::kColumnMax) fold(partial, chunks, cols, [](C a, C b) { return scalar::maximum(a, b); });
    else fold(partial, chunks, cols, [](C a, C b) { return scalar::minimum(a, b); });
  } else {
    if (sum.op == LoopOp::kColumnMax) fold(partial, chunks, cols, [](C a, C b) { return std::max(a, b); });
    else fold(partial, chunks, cols, [](C a, C b) { return std::min(a, b); });
  }
  visit_dtype(sum.result, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t c = 0; c < cols; ++c) reinterpret_cast<T*>(sum.out)[c] = ops::convert<T>(partial[c]);
  });
}
void run(std::span<const CombineCall::Sum> sums, int64_t chunks, int64_t cols) {
  for (const CombineCall::Sum& sum : sums) {
    if (sum.compute == kF64) combine<double>(sum, chunks, cols);
    else if (sum.compute == kI64) combine<int64_t>(sum, chunks, cols);
    else combine<float>(sum, chunks, cols);
  }
}

// Runs a table's kernel on all items, piece by piece.
class TableRunner {
 public:
  explicit TableRunner(const TableCall& call)
      : call_(call),
        entry_(entry_of(call.code)),
        extents_(call.extents.begin(), call.extents.end()),
        n_operands_(call.kernel->operands.size()) {
    if (!call.kernel->split_columns) width_at_ = width_extents(*call.kernel);
  }

  void run() const {
    for_each_piece(call_.rows, !call_.kernel->split_columns, [&](size_t i, int64_t begin, int64_t end) {
      run_piece(call_.rows.items[i], call_.rows.operands + i * n_operands_, begin, end);
    });
  }

 private:
  void run_piece(const TableItem& item, void* const* operands, int64_t begin, int64_t end) const {
    absl::InlinedVector<int64_t, 128> extents(extents_.begin(), extents_.end());
    if (call_.kernel->split_columns) {
      extents[0] = item.numel;
      return entry_(operands, item.scalars, extents.data(), begin, end);
    }
    extents[0] = item.width;
    for (size_t at : width_at_) extents[at] = item.width;
    entry_(operands, item.scalars, extents.data(), begin / item.width, end / item.width);
    const int64_t rest = end % item.width;
    if (rest == 0) return;
    // The last, shorter row is run as a separate item that has only this row.
    absl::InlinedVector<void*, 32> moved;
    for (size_t k = 0; k < n_operands_; ++k) {
      const Operand& operand = call_.kernel->operands[k];
      const RowPart part = row_part(operand);
      const int64_t index = part == RowPart::kNone ? 0 : item.rows * (part == RowPart::kWhole ? item.width : 1);
      moved.push_back(static_cast<std::byte*>(operands[k]) + index * static_cast<int64_t>(size_of(operand.dtype)));
    }
    extents[0] = rest;
    entry_(moved.data(), item.scalars, extents.data(), 0, 1);
  }

  const TableCall& call_;
  const KernelEntry entry_;
  const absl::InlinedVector<int64_t, 128> extents_;
  const size_t n_operands_;
  std::vector<size_t> width_at_;  // the positions in extents_ of the width of an item's rows
};

void run(Device device, const TableCall& call) {
  const Condition& when = call.when;
  if (when.value == nullptr ? backend_of(device).failed(device.index) : *when.value != when.equals) return;
  TableRunner(call).run();
}

}  // namespace

void launch_kernel(Device device, const KernelCall& call, const LaunchFunctions::Owner& owner) {
  if (runs_at_once(device)) [[likely]]
    return run_checked(call);
  enqueue(device, [call = KernelCall(call),
                   operands = std::vector<void*>(call.operands, call.operands + call.kernel->operands.size()),
                   checks = std::vector<IndexCheck>(call.checks.begin(), call.checks.end()), owner]() mutable {
    call.operands = operands.data();
    call.checks = checks;
    run_checked(call);
  });
}

void launch_combine(Device device, std::span<const CombineCall> calls, const LaunchFunctions::Owner& /*owner*/) {
  for (const CombineCall& call : calls) {
    const int64_t chunks = compile::chunks(*call.kernel), cols = call.kernel->cols;
    if (runs_at_once(device)) [[likely]] {
      run(call.sums, chunks, cols);
      continue;
    }
    enqueue(device, [sums = std::vector<CombineCall::Sum>(call.sums.begin(), call.sums.end()), chunks, cols] {
      run(sums, chunks, cols);
    });
  }
}

void launch_table(Device device, const TableCall& call, const LaunchFunctions::Owner& owner) {
  if (runs_at_once(device)) [[likely]]
    return run(device, call);
  if (has_host_memory(device)) return enqueue(device, [device, call, owner] { run(device, call); });
  ready_table(device, call, owner)();
}

absl::AnyInvocable<void()> ready_table(Device device, const TableCall& call, const LaunchFunctions::Owner& owner) {
  if (has_host_memory(device)) return nullptr;
  return [device, call, owner, rows = RowsOnDevice(call.rows, call.kernel->operands.size(), device)] {
    TableCall there = call;
    there.rows = rows.rows();
    enqueue(device, [device, there, owner] { run(device, there); });
  };
}

void launch_library_call(Device device, const std::shared_ptr<const PreparedKernel>& call,
                         std::span<std::byte* const> addresses) {
  if (runs_at_once(device)) [[likely]]
    return call->run(addresses);
  enqueue(device,
          [call, addresses = std::vector<std::byte*>(addresses.begin(), addresses.end())] { call->run(addresses); });
}

}  // namespace rondo::compile::cpu
