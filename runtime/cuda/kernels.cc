#include "rondo/runtime/cuda/kernels.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cuda {
namespace {

struct OpKernels {
  const char* op;
  BackendEntry entry;
};

// The kernels of each op, in the order of kernels.h. An op with neither a row nor a body runs as a generated kernel, or
// as its decomposition.
constexpr OpKernels kTable[] = {
    {"cast", {&cast_kernel}},
    {"copy", {&copy_kernel}},
    {"revalue", {&copy_kernel}},
    {"overwrite", {&overwrite_kernel}},
    {"window_copy", {&window_copy_kernel}},
    {"fill", {&fill_kernel}},
    {"full", {&fill_kernel}},
    {"zeros", {&zeros_kernel}},
    {"arange", {&arange_kernel}},
    {"draw", {&draw_kernel}},
    {"draw_integers", {&draw_integers_kernel}},
    {"sum", {&sum_kernel}},
    {"max", {&max_kernel}},
    {"min", {&min_kernel}},
    {"any", {&any_kernel}},
    {"all", {&all_kernel}},
    {"matmul", {&matmul_kernel, &prepare_matmul, &product_absorbs}},
    {"linear", {&linear_kernel, &prepare_linear, &product_absorbs}},
    {"conv2d", {&conv2d_kernel}},
    {"conv2d_grad_input", {&conv2d_grad_input_kernel}},
    {"conv2d_grad_weight", {&conv2d_grad_weight_kernel}},
    {"attention", {&attention_kernel}},
    {"attention_grad", {&attention_grad_kernel}},
    {"rotary", {&rotary_kernel}},
    {"dropout", {&dropout_kernel}},
    {"embedding", {&embedding_kernel}},
    {"index_select", {&embedding_kernel}},
    {"embedding_grad", {&embedding_grad_kernel}},
    {"embedding_grad_onto", {&embedding_grad_onto_kernel}},
    {"cat", {&cat_kernel}},
    {"slice_grad", {&slice_grad_kernel}},
    {"tril", {&tril_kernel}},
    {"triu", {&triu_kernel}},
    {"gather", {&gather_kernel}},
    {"pick", {&gather_kernel}},
    {"check_indices", {&check_indices_kernel}},
    {"scatter", {&scatter_kernel}},
    {"scatter_add", {&scatter_sum_kernel}},
    {"write_rows", {&write_rows_kernel}},
    {"cumsum", {&cumsum_kernel}},
    {"sort_segments", {&sort_segments_kernel}},
    {"sum_segments", {&sum_segments_kernel}},
    {"argmax", {&argmax_kernel}},
    {"argsort", {&argsort_kernel}},
    {"topk", {&topk_kernel}},
    {"cross_entropy", {&cross_entropy_kernel}},
    {"cross_entropy_grad", {&cross_entropy_grad_kernel}},
    {"linear_cross_entropy", {&linear_cross_entropy_kernel}},
    {"linear_cross_entropy_grad", {&linear_cross_entropy_grad_kernel}},
    {"scale", {&scale_kernel}},
    {"all_reduce_sum", {&ops::all_reduce_kernel}},
};

constexpr BackendEntry kElementwiseEntry = {&elementwise_kernel}, kNoEntry = {};

// Keyed by op, not by name: a program's own op has no row, even if its name is in the table.
using Entries = HashMap<const OpDef*, BackendEntry>;
Entries entries_of_table() {
  Entries entries;
  for (const OpKernels& row : kTable) {
    const OpDef* const op = find_op(row.op);
    if (op == nullptr) throw_internal(absl::StrCat("CUDA's kernels: no op is called ", row.op));
    if (!entries.try_emplace(op, row.entry).second)
      throw_internal(absl::StrCat("CUDA's kernels: ", row.op, " has two rows"));
  }
  return entries;
}

}  // namespace

const BackendEntry& own_kernels(const OpDef& op) {
  // Never destroyed: programs may call ops while they exit.
  static const Entries& entries = *new Entries(entries_of_table());
  if (const auto found = entries.find(&op); found != entries.end()) return found->second;
  return op.body != nullptr ? kElementwiseEntry : kNoEntry;
}

}  // namespace rondo::cuda
