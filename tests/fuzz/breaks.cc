#include "rondo/tests/fuzz/breaks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/compile/region/region.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

constexpr unsigned kAnyWrite = kInPlace | kOwnMemory;

constexpr std::string_view kOrdersSums = "a view is read again whose base was written to";
constexpr AllowedBreak kAllowed[] = {
    // C++ between the ops.
    {"a value is read", kHost, "C++ asks for a number, which only a run has"},
    {"memory that a recorded op reads is written", kHost, "a write through a pointer is no op"},
    {"memory that a recorded op writes is read", kHost | kTape, "so is a read through a pointer, and a hook of a view"},
    // The tape, inside a region.
    {"a gradient is watched", kTape, "a hook sees a gradient that a compiled backward may never compute"},
    {"backward", kTape, "a backward runs what is recorded so far, and frees it"},
    {"autograd::grad", kTape, "the same"},
    {"a tape node is made", kOwnNode, "nodes run in the order in which they are made: what is recorded comes first"},
    {"the history of a value is asked for", kOwnNode, "the program's node leads to it, so it must be there"},
    {"a tensor that a recorded op reads gets another history", kOwnNode,
     "what was made of it before keeps the old one"},
    // Writes that no version of a value describes (Note [Writes]).
    {"in place: two tensors share memory", kAnyWrite, "unknown aliasing is never guessed"},
    {"a tensor is read whose place in memory that was written is unknown", kAnyWrite, "the same"},
    {"in place: the tensor that holds the memory is not dense", kAnyWrite, "a version is a dense value"},
    {"in place: the tensor overlaps itself", kAnyWrite, "eager execution refuses most of these"},
    {"in place: the tensor comes from outside and has a history", kAnyWrite,
     "eager execution gives the caller's tensor another history, which goes through the old one"},
    {"in place: somebody holds another tensor of the memory", kAnyWrite, "who holds it is not known"},
    {"in place: a second handle of the memory", kAnyWrite, "two histories of one memory"},
    {"in place: somebody holds a view", kAnyWrite, "eager execution refuses to read it"},
    {"in place: the tensor is a view that was made under no_grad", kAnyWrite, "eager execution refuses it"},
    {"in place: the tensor keeps its history", kAnyWrite, "a hook would see gradients of two versions in one"},
    {"in place: another region has yet to compute the tensor", kAnyWrite, "the outer recording knows no such write"},
    {"in place: a loop over time runs in pieces", kAnyWrite, "a piece is played as often as there are steps"},
    {kOrdersSums, kAnyWrite, "exact mode adds gradients in eager's order"},
};

constexpr const char *kProduct = "a vendor's product is faster than generated loops",
                     *kPlaces =
                         "an index or a place says where to read or write: no loop over the elements of the result",
                     *kOrder = "to sort is no loop over elements",
                     *kWholeRows = "one call reads whole rows, several times: a kernel of its own is faster",
                     *kReduces = "one row, a layout without one stride, or the whole tensor: chunks in eager's order",
                     *kWindows = "each element reads a window of others: a kernel of its own is faster",
                     *kCheck = "throws for bad data, before anything else runs";

// Besides these, any op runs as a call whose result has no elements, or no dimensions: a kernel has rows and columns.
constexpr LibraryOp kLibraryOps[] = {
    {"matmul", kProduct},
    {"conv2d", kProduct},
    {"conv2d_grad_input", kProduct},
    {"conv2d_grad_weight", kProduct},
    {"max_pool2d", kWindows},
    {"interpolate", kWindows},
    {"interpolate_grad", kWindows},
    {"sort_segments", kOrder},
    {"sum_segments", "its rows are no kernel's: a sum of rows that are in memory"},
    {"linear", kProduct},
    {"attention", kWholeRows},
    {"attention_grad", kWholeRows},
    {"attention_scores_grad", kWholeRows},
    {"cross_entropy", kWholeRows},
    {"cross_entropy_grad", kWholeRows},
    {"pixel_cross_entropy", kWholeRows},
    {"pixel_cross_entropy_grad", kWholeRows},
    {"linear_cross_entropy", kProduct},
    {"linear_cross_entropy_grad", kProduct},
    {"softmax", kWholeRows},
    {"softmax_grad", kWholeRows},
    {"log_softmax", kWholeRows},
    {"log_softmax_grad", kWholeRows},
    {"var_mean", kWholeRows},
    {"std", kWholeRows},
    {"layer_norm", kWholeRows},
    {"layer_norm_grad", kWholeRows},
    {"rms_norm", kWholeRows},
    {"rms_norm_grad", kWholeRows},
    {"batch_norm", kWholeRows},
    {"batch_norm_grad", kWholeRows},
    {"group_norm", kWholeRows},
    {"group_norm_grad", kWholeRows},
    {"rotary", kWholeRows},
    {"overwrite", kPlaces},
    {"slice_grad", kPlaces},
    {"window_copy", kPlaces},
    {"cat", kPlaces},
    {"gather", kPlaces},
    {"embedding", kPlaces},
    {"index_select", kPlaces},
    {"scatter", kPlaces},
    {"scatter_add", kPlaces},
    {"embedding_grad", kPlaces},
    {"embedding_grad_onto", kPlaces},
    {"write_rows", kPlaces},
    {"triu", kPlaces},
    {"tril", kPlaces},
    {"draw_integers", "numbers that do not fit are drawn again"},
    {"fill", "reads nothing: a call that sets memory"},
    {"copy", "reads one value: a call that copies memory"},
    {"topk", kOrder},
    {"argsort", kOrder},
    {"cumsum", "from the end, or of one row: each sum needs the one before it"},
    {"sum", kReduces},
    {"max", kReduces},
    {"min", kReduces},
    {"any", kReduces},
    {"all", kReduces},
    {"argmax", kReduces},
    {"argmin", kReduces},
    {"check_indices", kCheck},
};

}  // namespace

std::span<const AllowedBreak> allowed_breaks() { return kAllowed; }
std::span<const LibraryOp> library_ops() { return kLibraryOps; }

std::string unexpected_break(const Program& program, const compile::Region& region) {
  for (const std::string& reason : region.breaks()) {
    const std::string said = absl::StrCat("region ", region.report().name, " breaks because ", reason);
    const auto* found = std::ranges::find_if(
        kAllowed, [&](const AllowedBreak& allowed) { return reason.find(allowed.reason) != std::string::npos; });
    if (found == std::end(kAllowed)) return said + ", which tests/fuzz/breaks.cc does not list";
    const bool may = std::any_of(program.steps.begin(), program.steps.end(),
                                 [&](const Step& step) { return (step.kind->flags & found->steps) != 0; });
    if (!may) return said + ", for which no step gives a reason";
  }
  return "";
}

bool breaks_to_order_sums(const compile::Region& region) {
  const std::vector<std::string> breaks = region.breaks();
  return std::ranges::any_of(breaks, [](const std::string& reason) { return reason.starts_with(kOrdersSums); });
}

std::map<std::string_view, int> called_ops(const compile::Region& region) {
  std::map<std::string_view, int> counts;
  const auto add = [&](const compile::Program& program) {
    for (const compile::Launch& launch : program.plan().launches) {
      if (launch.kind != compile::Launch::Kind::kLibraryCall) continue;
      const compile::GraphNode& node = program.graph().node(launch.op());
      const Dims& sizes = program.graph().value(node.outputs[0]).sizes;
      if (!sizes.empty() && sizes.numel() > 0) ++counts[node.op->name];
    }
  };
  for (const std::shared_ptr<const compile::Entry>& entry : region.entries()) {
    add(entry->forward());
    for (const auto& backward : entry->backwards()) add(*backward);
  }
  return counts;
}

std::string unexpected_library_call(const compile::Region& region) {
  for (const auto& [op, count] : called_ops(region))
    if (std::ranges::none_of(kLibraryOps, [&](const LibraryOp& known) { return known.name == op; }))
      return absl::StrCat("region ", region.report().name, " runs ", std::string(op),
                          " as a library call, which tests/fuzz/breaks.cc does not list");
  return "";
}

std::string difference_in_kernels(const std::vector<compile::RegionReport>& exact,
                                  const std::vector<compile::RegionReport>& relaxed, bool merges, int images) {
  for (size_t i = 0; i < exact.size(); ++i) {
    const compile::RegionReport &e = exact[i], &d = relaxed[i];
    if (e.entries != d.entries || e.calls != d.calls || e.replays != d.replays || e.graph_breaks != d.graph_breaks ||
        (merges ? e.library_calls < d.library_calls : e.library_calls != d.library_calls) ||
        e.kernels + images < d.kernels || (e.kernels > d.kernels && e.library_calls == 0))
      return absl::StrFormat(
          "region %d: exact mode runs %d kernels and %d library calls in %d entries (%d calls, %d replays, %d breaks), "
          "default mode %d and %d in %d (%d, %d, %d)",
          i, e.kernels, e.library_calls, e.entries, e.calls, e.replays, e.graph_breaks, d.kernels, d.library_calls,
          d.entries, d.calls, d.replays, d.graph_breaks);
  }
  return "";
}

}  // namespace rondo::fuzz
