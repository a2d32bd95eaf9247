#include "rondo/optim/norm.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "rondo/optim/foreach.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/launch_queue.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::optim {
namespace {

constexpr int64_t kGrain = 1 << 15;  // with fewer elements, a thread costs more than it saves

// ---- Sums by host code
// Element i is added to lane i % kLanes. The lanes are two vectors of eight doubles, so that the additions of one
// vector need not wait for the other.
constexpr int kWidth = 8, kVectors = kLanes / kWidth;
using Lanes = double __attribute__((vector_size(kWidth * sizeof(double))));

// Adds the elements of one block to the totals, as Note [Row order] says.
template <bool kSquare, class T> void add_block(const T* values, int64_t n, double (&totals)[kLanes]) {
  Lanes sums[kVectors] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int v = 0; v < kVectors; ++v) {
      Lanes x;
      if constexpr (std::is_same_v<T, float>) {
        float __attribute__((vector_size(kWidth * sizeof(float)))) narrow;
        std::memcpy(&narrow, values + i + v * kWidth, sizeof(narrow));
        x = __builtin_convertvector(narrow, Lanes);
      } else {
        for (int k = 0; k < kWidth; ++k) x[k] = static_cast<double>(values[i + v * kWidth + k]);
      }
      sums[v] += kSquare ? x * x : x;  // the square of an f32 is exact
    }
  double lanes[kLanes];
  static_assert(sizeof(lanes) == sizeof(sums));
  std::memcpy(lanes, sums, sizeof(lanes));
  for (int k = 0; i < n; ++i, ++k) {
    const double x = static_cast<double>(values[i]);
    lanes[k] += kSquare ? x * x : x;
  }
  for (int k = 0; k < kLanes; ++k) totals[k] += lanes[k];
}
template <bool kSquare, class T> double sum_row(const T* values, int64_t n) {
  double totals[kLanes] = {};
  for (int64_t first = 0; first < n; first += kRowBlock)
    add_block<kSquare>(values + first, std::min(kRowBlock, n - first), totals);
  return combine_lanes(totals, [](double a, double b) { return a + b; });
}

struct Row {
  const std::byte* data;
  DType dtype;
  int64_t n;
};

double sum_of_squares(std::span<const NormOperand> operands) {
  std::vector<Row> rows;
  rows.reserve(operands.size());
  int64_t elements = 0;
  for (const NormOperand& o : operands) {
    elements += o.n;
    for (int64_t at = 0; at < o.n; at += kNormRow)
      rows.push_back({static_cast<const std::byte*>(o.data) + at * static_cast<int64_t>(size_of(o.dtype)), o.dtype,
                      std::min(kNormRow, o.n - at)});
  }
  std::vector<double> sums(rows.size());
  // Rows may be small, so each thread gets as many rows as are worth a thread.
  const auto n = static_cast<int64_t>(rows.size());
  const int64_t grain = std::max<int64_t>(1, n * kGrain / std::max<int64_t>(elements, 1));
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Row& row = rows[static_cast<size_t>(r)];
      visit_floating(row.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        sums[static_cast<size_t>(r)] = sum_row<true>(reinterpret_cast<const T*>(row.data), row.n);
      });
    }
  });
  return sum_row<false>(sums.data(), n);
}

// ---- Sums by generated code: one sum for each row of an item
void build_square(const void* /*context*/, LoopValue* values, const LoopValue* /*scalars*/) {
  values[1] = values[0] * values[0];
}
void build_same(const void* /*context*/, LoopValue* values, const LoopValue* /*scalars*/) { values[1] = values[0]; }

std::shared_ptr<Foreach> row_sums(Device device, DType dtype, bool square) {
  const Body body{.name = square ? "sum_of_squares" : "sum_of_list",
                  .n_values = 1,
                  .n_sums = 1,
                  .build = square ? &build_square : &build_same,
                  .wide = true};
  return shared_pass(device, body, {{.dtype = dtype}, {.role = Role::kSum, .dtype = kF64}});
}

}  // namespace

void queue_sums(LaunchQueue& queue, Device device, std::span<const ListSum> lists) {
  if (runs_host_code(device))
    return queue.add([device, lists = std::vector<ListSum>(lists.begin(), lists.end())] {
      enqueue_host_code(device, [lists] {
        for (const ListSum& list : lists) *list.out = sum_row<false>(list.data, list.n);
      });
    });
  const std::shared_ptr<Foreach> pass = row_sums(device, kF64, false);
  ForeachTable& table = queue.table();
  for (const ListSum& list : lists) {
    if (list.n == 0) {
      backend_of(device).fill(device.index, list.out, 0, sizeof(double));
      continue;
    }
    const std::span<void*> to = table.add(pass->item(list.n, list.n, nullptr), pass->n_operands());
    to[0] = const_cast<double*>(list.data);
    to[1] = list.out;
  }
  queue.add(pass);
}

void enqueue_sum_of_squares(Device device, std::span<const NormOperand> operands, double* sum) {
  if (runs_host_code(device)) {
    if (runs_at_once(device)) {
      *sum = sum_of_squares(operands);
      return;
    }
    return enqueue_host_code(device, [operands = std::vector<NormOperand>(operands.begin(), operands.end()), sum] {
      *sum = sum_of_squares(operands);
    });
  }
  const auto rows_of = [](const NormOperand& o) { return (o.n + kNormRow - 1) / kNormRow; };
  int64_t rows = 0;
  for (const NormOperand& o : operands) rows += rows_of(o);
  const Storage sums = Storage::allocate(static_cast<size_t>(rows) * sizeof(double), device);
  auto* const first = reinterpret_cast<double*>(sums.data());
  for (DType dtype : {kF32, kBF16, kF16, kF64}) {  // one launch for each dtype of the operands
    const bool any = std::any_of(operands.begin(), operands.end(),
                                 [&](const NormOperand& o) { return o.dtype == dtype && o.n > 0; });
    if (!any) continue;
    const std::shared_ptr<Foreach> pass = row_sums(device, dtype, true);
    ForeachTable table;
    double* out = first;
    for (const NormOperand& o : operands) {
      if (o.dtype == dtype && o.n > 0) {
        const std::span<void*> to = table.add(pass->item(o.n, kNormRow, nullptr), pass->n_operands());
        to[0] = const_cast<void*>(o.data);
        to[1] = out;
      }
      out += rows_of(o);
    }
    launch(device, pass, table, compile::Condition{});
  }
  const ListSum all[] = {{first, rows, sum}};
  LaunchQueue at_once;
  at_once.start(device);
  at_once.keep(false);
  queue_sums(at_once, device, all);
}

}  // namespace rondo::optim
