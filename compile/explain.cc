#include "rondo/compile/explain.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/region/region.h"
#include "rondo/compile/region/stashed_hooks.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cuda/dnn_plan.h"
#include "rondo/runtime/cuda/product.h"

namespace rondo::compile {
namespace {

std::vector<std::string> products_without_algorithm() {
  const cuda::ProductReport report = cuda::product_report();
  if (report.last.empty()) return {};
  constexpr size_t kMost = 8;
  std::vector<std::string> texts = {absl::StrCat("products without an algorithm of cuBLASLt: ", report.apart,
                                                 " as plain sums that a kernel finishes, ", report.copied,
                                                 " on copies of their operands, ", report.by_kernel,
                                                 " by a kernel of Rondo's own; ", report.runs, " runs")};
  texts.insert(texts.end(), report.last.end() - static_cast<std::ptrdiff_t>(std::min(kMost, report.last.size())),
               report.last.end());
  return texts;
}

std::vector<std::string> calls_without_plan() {
  const cuda::DnnReport report = cuda::dnn_report();
  if (report.last.empty()) return {};
  constexpr size_t kMost = 8;
  std::vector<std::string> texts = {absl::StrCat("convolutions and attention without a plan of cuDNN: ", report.refused,
                                                 ", ", report.runs_otherwise, " runs; with one: ", report.runs,
                                                 " runs")};
  texts.insert(texts.end(), report.last.end() - static_cast<std::ptrdiff_t>(std::min(kMost, report.last.size())),
               report.last.end());
  return texts;
}

}  // namespace

Explanation explain(const Regions& regions) try {
  Explanation explanation;
  for (const std::shared_ptr<Region>& region : regions.regions()) {
    RegionExplanation& e = explanation.regions.emplace_back();
    e.report = region->report();
    e.breaks = region->breaks();
    for (const std::shared_ptr<const Entry>& entry : region->entries()) e.entries.push_back(explain(*entry));
    if (e.report.graph_breaks > 0)
      e.hints.push_back(absl::StrCat(counted(e.report.graph_breaks, "graph break"),
                                     e.report.graph_breaks == 1 ? " cuts" : " cut",
                                     " the region into pieces that cannot fuse; the last: ", e.report.last_break));
    if (e.report.forgotten > 0)
      e.hints.push_back(absl::StrCat(
          e.report.forgotten, " recordings were dropped, as there are more than CompileOptions::max_entries; one that ",
          "comes again is recorded and planned anew. Raise it, or let fewer sizes occur (pad to multiples, say)"));
    if (!e.entries.empty())
      for (std::string& hint : perf_hints(e.entries.back())) e.hints.push_back(std::move(hint));
  }
  explanation.products = products_without_algorithm();
  for (std::string& text : calls_without_plan()) explanation.products.push_back(std::move(text));
  return explanation;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("explain");
}

TemporaryRegions::TemporaryRegions(nn::ModuleBase& model, CompileOptions options) try
    : hooks_(std::make_unique<StashedHooks>(model)),
      regions_(model.repeated_blocks().empty() ? compile_module(model, options) : compile_regions(model, options)) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("explain");
}
TemporaryRegions::~TemporaryRegions() = default;

}  // namespace rondo::compile
