#include "rondo/examples/image_captioning/compiler.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/format.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::examples {
namespace {

std::vector<int64_t> sizes_of(const CompilerOptions& o) {
  std::vector<int64_t> sizes;
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(o.buckets, ',', absl::SkipEmpty()))) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(text, &size) || size <= (sizes.empty() ? 0 : sizes.back()))
      throw Error(absl::StrCat("--buckets=", o.buckets,
                               ": must be a number of buckets, or ascending sizes with commas between"));
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

void add_options(Flags& flags, CompilerOptions& o) {
  flags.add("compile", &o.compile, "regions: the repeated blocks; whole: the model; auto: regions, where there are any",
            {"auto", "none", "regions", "whole"});
  flags.add("mode", &o.mode, "how much work the compiler does: less overhead, or several ways timed",
            {"default", "reduce-overhead", "max-autotune"});
  flags.add("dynamic", &o.dynamic,
            "auto: code for any size from the second size on; marked: for the sizes that vary, from the start; all: "
            "for every size; off: for each size anew",
            {"auto", "marked", "all", "off"});
  flags.add("buckets", &o.buckets, "how many sizes batches are padded to, or which, as 64,128,256");
  flags.add("fullgraph", &o.fullgraph, "a graph break is an error");
  flags.add("warm_up", &o.warm_up, "compile for all sizes before the first step");
}

std::string complete(CompilerOptions& o, Device device) {
  sizes_of(o);
  if (o.warm_up && o.compile == "none") throw Error("--warm_up: --compile=none compiles nothing");
  if (o.compile != "auto") return "";
  o.compile = compile::jit_available(device) ? "regions" : "none";
  if (o.compile == "regions") return "";
  o.warm_up = false;
  return absl::StrCat("Eager execution: no code generator for ", to_string(device), " (LLVM, or CUDA's NVRTC).");
}

data::ExampleBatchesOptions in_buckets(const CompilerOptions& o, data::ExampleBatchesOptions batches) {
  const std::vector<int64_t> sizes = sizes_of(o);
  if (sizes.size() == 1 && o.buckets.find(',') == std::string::npos) batches.max_sizes = sizes[0];
  else if (!sizes.empty()) batches.sizes = sizes;
  return batches;
}

Compiler::Compiler(const CompilerOptions& options, nn::ModuleBase& model, Varying varying)
    : o_(options), model_(model), varying_(std::move(varying)) {
  const compile::CompileOptions how = {.mode = o_.mode == "default"           ? compile::Mode::kDefault
                                               : o_.mode == "reduce-overhead" ? compile::Mode::kReduceOverhead
                                                                              : compile::Mode::kMaxAutotune,
                                       .shapes = o_.dynamic == "all"   ? compile::Shapes::kDynamic
                                                 : o_.dynamic == "off" ? compile::Shapes::kStatic
                                                                       : compile::Shapes::kAutomatic,
                                       .fullgraph = o_.fullgraph};
  if (o_.dynamic == "marked" && o_.compile == "regions" && !varying_.is_in_blocks)
    throw Error("--dynamic=marked: the blocks of this model have sizes of their own, so it needs --compile=whole");
  if (o_.compile == "whole") regions_ = compile::compile_module(model_, how);
  if (o_.compile == "regions") regions_ = compile::compile_regions(model_, how);
}

void Compiler::compile(optim::Optimizer& optimizer) const {
  if (!regions_.regions().empty()) optim::compile(optimizer);
}

void Compiler::mark(const data::Batch& batch) const {
  if (o_.compile != "whole" || o_.dynamic != "marked") return;
  for (const int dim : varying_.dims)
    compile::mark_dynamic(batch[0], dim, {.min = 1, .max = varying_.max, .multiple_of = varying_.multiple_of});
}

std::string Compiler::warm_up(dist::ProcessGroup& /*group*/, data::BatchSource& source, Device device,
                              const std::vector<int64_t>& sizes, const std::function<void(const data::Batch&)>& step) {
  if (!o_.warm_up || regions_.regions().empty()) return "";
  const auto began = std::chrono::steady_clock::now();
  const data::BatchSource::Position at = source.position();
  data::Batch batch = source.next().value();
  source.seek(at);
  for (Tensor& tensor : batch) tensor = tensor.to(device);
  const int dim = varying_.dims.at(0);
  const Tensor one = batch[0].slice(dim, {0, 1});
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const std::vector<Tensor> columns(static_cast<size_t>(*size), one);
    batch[0] = ops::cat(columns, dim);
    mark(batch);
    step(batch);
    model_.zero_grad();
  }
  return formatted("warm-up: %d steps, %.0f ms", sizes.size(),
                   std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
}

}  // namespace rondo::examples
