#include "rondo/examples/compiler.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/cache.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/warm_up.h"
#include "rondo/dist/groups/compile_once.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::examples {
namespace {

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const compile::Mode mode : compile::kModes) names.emplace_back(compile::name_of(mode));
  return names;
}
compile::Mode mode_named(const std::string& name) {
  const std::vector<std::string> names = mode_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw Error(
        absl::StrCat("no mode is called ", name, did_you_mean(name, names), " (", absl::StrJoin(names, ", "), ")"));
  return compile::kModes[found - names.begin()];
}
compile::Shapes shapes_named(const std::string& dynamic) {
  if (dynamic == "all") return compile::Shapes::kDynamic;
  if (dynamic == "off") return compile::Shapes::kStatic;
  return compile::Shapes::kAutomatic;
}

compile::CompileOptions options_of(const CompilerOptions& o) {
  return {.mode = mode_named(o.mode), .shapes = shapes_named(o.dynamic), .fullgraph = o.fullgraph};
}

// One entry of --parts: NAME:eager, or NAME:OPTION=VALUE:OPTION=VALUE.
struct Part {
  std::string name;
  bool eager = false;
  compile::CompileOptions options = {};
};
std::vector<Part> parts_of(const CompilerOptions& o) {
  std::vector<Part> parts;
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(o.parts, ',', absl::SkipEmpty()))) {
    const auto fail = [&](const std::string& why) { throw Error(absl::StrCat("--parts: ", text, ": ", why)); };
    const std::vector<std::string> words = absl::StrSplit(text, ':');
    Part part{.name = words[0], .options = options_of(o)};
    if (words.size() < 2 || part.name.empty()) fail("write NAME:eager, or NAME:OPTION=VALUE");
    for (size_t i = 1; i < words.size(); ++i) {
      const std::pair<std::string, std::string> setting = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
      const auto& [option, value] = setting;
      if (words[i] == "eager") part.eager = true;
      else if (option == "mode") part.options.mode = mode_named(value);
      else if (option == "dynamic" && (value == "auto" || value == "all" || value == "off"))
        part.options.shapes = shapes_named(value);
      else if (option == "fullgraph" && absl::SimpleAtob(value, &part.options.fullgraph)) continue;
      else fail(absl::StrCat(words[i], " is none of eager, mode=, dynamic=auto, =all or =off, fullgraph="));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

// ---- Compiled code in object storage, through a command of the user, such as `aws s3 cp s3://bucket/code -`.

std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw Error(absl::StrCat("--load_code=", command, ": no process can be made"));
  std::string output;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  if (::pclose(pipe) != 0) throw Error(absl::StrCat("--load_code=", command, ": the command failed"));
  return output;
}
void give(const std::string& bytes, const std::string& command) {
  auto* const before = std::signal(SIGPIPE, SIG_IGN);  // a command that ends early must not end this process
  std::FILE* const pipe = ::popen(command.c_str(), "w");
  const bool taken = pipe != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), pipe) == bytes.size();
  const bool ended_well = pipe != nullptr && ::pclose(pipe) == 0;
  std::signal(SIGPIPE, before);
  if (!taken || !ended_well) throw Error(absl::StrCat("--save_code=", command, ": the command failed"));
}

// Loads the code that a command writes, and returns a note about it. If the code is of another build or machine, the
// note says so, and everything is compiled here. Throws ArtifactError if the code is damaged.
std::string load_code(const std::string& command) {
  const std::string bytes = output_of(command);
  if (bytes.empty()) return "--load_code: nothing is there yet";
  try {
    return absl::StrCat("--load_code: ", compile::load_artifact_bytes(bytes), " kernels");
  } catch (const compile::ArtifactError& error) {
    if (error.cause() == compile::ArtifactError::Cause::kDamaged) throw;
    return absl::StrCat("--load_code: not used, ", error.what());
  }
}

}  // namespace

void add_options(Flags& flags, CompilerOptions& o) {
  flags.add("compile", &o.compile, "regions: the repeated blocks; whole: the model; auto: regions, where there are any",
            {"auto", "none", "regions", "whole"});
  flags.add("mode", &o.mode, "how much work the compiler does: less overhead, or several ways timed", mode_names());
  flags.add(
      "dynamic", &o.dynamic,
      "auto: code for any size from the second size on; marked: for the sizes that vary, from the start; all: for "
      "every size; off: for each size anew",
      {"auto", "marked", "all", "off"});
  flags.add(
      "buckets", &o.buckets,
      "how many sizes batches are padded to, or which, as 64,128,256; with --dynamic=marked each has its own code");
  flags.add("parts", &o.parts,
            "options for parts of the model, as encoder:mode=max-autotune:dynamic=off,decoder:dynamic=all,head:eager");
  flags.add("fullgraph", &o.fullgraph, "a graph break is an error");
  flags.add("compile_optimizer", &o.compile_optimizer, "where the model is compiled: the optimizer's step, too");
  flags.add("explain", &o.explain, "after the first step: what was compiled; all of it in explain.html");
  flags.add(
      "load_code", &o.load_code,
      "a command that prints compiled code, as 'aws s3 cp s3://bucket/code -'; its kernels are not compiled again");
  flags.add("save_code", &o.save_code, "a command that takes the compiled code at the end of the run");
  flags.add("warm_up", &o.warm_up, "compile for all sizes before the first step; of several processes one does it");
}

std::string complete(CompilerOptions& o, Device device) {
  buckets_of(o);
  const std::vector<Part> parts = parts_of(o);
  if (o.compile == "whole")
    for (const Part& part : parts)
      if (!part.eager)
        throw Error(absl::StrCat("--parts: ", part.name,
                                 " has options of its own, which --compile=whole leaves no room ",
                                 "for: compile regions, or none but the parts"));
  const bool compiles = o.compile != "none" ||
                        std::any_of(parts.begin(), parts.end(), [](const Part& part) { return !part.eager; });
  if (o.warm_up && !compiles) throw Error("--warm_up: --compile=none compiles nothing");
  if (o.compile != "auto") return "";
  const bool has_code = !o.load_code.empty();  // loaded code needs no compiler
  o.compile = has_code || compile::jit_available(device) ? "regions" : "none";
  if (o.compile == "regions") return "";
  o.warm_up = false;
  return absl::StrCat("Eager execution: no code generator for ", to_string(device), " (LLVM, or CUDA's NVRTC).");
}

Buckets buckets_of(const CompilerOptions& o) {
  Buckets buckets;
  int64_t before = 0;
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(o.buckets, ',', absl::SkipEmpty()))) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(text, &size) || size <= before)
      throw Error(absl::StrCat("--buckets=", o.buckets,
                               ": must be a number of buckets, or ascending sizes with commas ", "between"));
    buckets.sizes.push_back(before = size);
  }
  constexpr int64_t kMostBuckets = 1024;  // code is generated for each bucket
  if (buckets.sizes.empty() && !o.buckets.empty())
    throw Error(absl::StrCat("--buckets=", o.buckets, ": there is no size"));
  if (buckets.sizes.size() == 1 && o.buckets.find(',') == std::string::npos) {
    if (buckets.sizes[0] > kMostBuckets)
      throw Error(absl::StrCat("--buckets=", o.buckets, ": must be at most ", kMostBuckets));
    buckets.count = buckets.sizes[0];
    buckets.sizes.clear();
  }
  return buckets;
}

data::ExampleBatchesOptions in_buckets(const CompilerOptions& o, data::ExampleBatchesOptions batches) {
  const Buckets buckets = buckets_of(o);
  if (buckets.count > 0) batches.max_sizes = buckets.count;
  if (!buckets.sizes.empty()) batches.sizes = buckets.sizes;
  return batches;
}

Compiler::Compiler(const CompilerOptions& options, nn::ModuleBase& model, Varying varying)
    : o_(options), model_(model), varying_(std::move(varying)) {
  if (!o_.load_code.empty()) loaded_ = load_code(o_.load_code);
  const bool is_marked = o_.dynamic == "marked";
  if (!o_.buckets.empty() && !varying_.is_padded && !is_marked)
    throw Error("--buckets: batches of this program are not padded, so buckets need --dynamic=marked");
  compile::CompileOptions how = options_of(o_);
  const auto mark_argument = [&](int argument) {
    for (const int dim : varying_.dims) how.dynamic.push_back({.argument = argument, .dim = dim, .range = range()});
  };
  if (o_.compile == "whole") {
    if (is_marked && varying_.argument >= 0) mark_argument(varying_.argument);
    regions_ = compile::compile_module(model, how);
  }
  if (o_.compile == "regions") {
    if (is_marked && !varying_.is_in_blocks)
      throw Error("--dynamic=marked: the blocks of this model have sizes of their own, so it needs --compile=whole");
    if (is_marked) mark_argument(0);
    regions_ = compile::compile_regions(model, how);
  }
  compile_parts();
}

void Compiler::compile_parts() {
  std::vector<std::shared_ptr<compile::Region>> all = regions_.regions();
  for (const Part& part : parts_of(o_)) {
    std::vector<std::string> names;
    nn::ModuleBase* found = nullptr;
    for (const nn::NamedModule& named : model_.named_modules()) {
      if (named.name == part.name) found = &named.module;
      if (!named.name.empty()) names.push_back(named.name);
    }
    if (found == nullptr)
      throw Error(absl::StrCat("--parts: the model has no part ", part.name, did_you_mean(part.name, names)));
    if (part.eager) {
      compile::disable(*found);
    } else {
      const compile::Regions own = compile::compile_module(*found, part.options);
      all.insert(all.end(), own.regions().begin(), own.regions().end());
    }
  }
  regions_ = compile::Regions(std::move(all));
}

void Compiler::compile(optim::Optimizer& optimizer) const {
  if (compiles() && o_.compile_optimizer) optim::compile(optimizer);
}

DynamicRange Compiler::range() const {
  const Buckets buckets = buckets_of(o_);
  DynamicRange range{.min = 1, .max = varying_.max, .multiple_of = varying_.multiple_of};
  if (buckets.count > 0) range.buckets = static_cast<int>(buckets.count);
  if (!buckets.sizes.empty()) {
    range.bucket_bounds = buckets.sizes;
    range.max = buckets.sizes.back();
  }
  return range;
}

void Compiler::mark(const data::Batch& batch) const {
  if (o_.compile != "whole" || o_.dynamic != "marked" || varying_.argument >= 0) return;
  for (size_t i = 0; i < std::min(varying_.tensors, batch.size()); ++i)
    for (const int dim : varying_.dims) compile::mark_dynamic(batch[i], dim, range());
}

std::string Compiler::warm_up(dist::ProcessGroup& group, data::BatchSource& source, Device device,
                              const std::vector<int64_t>& sizes, const std::function<void(const data::Batch&)>& step) {
  if (!o_.warm_up || !compiles()) return "";
  const data::BatchSource::Position at = source.position();
  data::Batch batch = source.next().value();
  source.seek(at);
  for (Tensor& tensor : batch) tensor = tensor.to(device);
  std::vector<compile::DynamicArgument> dynamic;
  if (!sizes.empty())
    for (size_t i = 0; i < std::min(varying_.tensors, batch.size()); ++i)
      for (const int dim : varying_.dims)
        dynamic.push_back({.argument = static_cast<int>(i), .dim = dim, .range = {.bucket_bounds = sizes}});
  compile::WarmUp report;
  const int loaded = dist::compile_once(group, [&] {
    const auto run = [&](std::span<const Tensor> inputs) {
      const data::Batch resized(inputs.begin(), inputs.end());
      mark(resized);
      step(resized);
    };
    report = compile::warm_up(model_, batch, run, dynamic);
  });
  const Tensor kernels = Tensor::from<int64_t>({report.kernels, loaded}, {2}, kCPU);
  group.all_reduce(kernels, dist::ReduceOp::kSum, "warm-up").wait();
  const std::vector<int64_t> all = kernels.to_vector<int64_t>();
  return formatted("warm-up: %d steps, %d kernels compiled, %d loaded by other processes, %.0f ms", report.steps,
                   all[0], all[1], report.ms);
}

std::string Compiler::explain(const std::string& folder) const {
  if (!o_.explain) return "";
  if (!compiles()) return absl::StrCat("compile=", o_.compile, ": nothing is compiled");
  const compile::Explanation explanation = compile::explain(regions_);
  std::string text = summary();
  for (const compile::RegionExplanation& region : explanation.regions) {
    for (const std::string& why : region.breaks)
      absl::StrAppend(&text, "\n  ", region.report.name, ": graph break: ", why);
    for (const std::string& hint : region.hints) absl::StrAppend(&text, "\n  ", region.report.name, ": hint: ", hint);
  }
  if (folder.empty()) return text;
  io::make_folders(folder);
  io::write_file_atomic(folder + "/explain.html", compile::to_html(explanation));
  io::write_file_atomic(folder + "/explain.txt", compile::to_text(explanation));
  return absl::StrCat(text, "\nAll of it is in ", folder, "/explain.html");
}

std::string Compiler::finish(const dist::ProcessGroup& group) {
  if (!compiles()) return "";
  if (!o_.save_code.empty() && group.rank() == 0) give(compile::artifact_bytes(), o_.save_code);
  compile::disable(model_);
  const compile::ResetReport report = compile::reset();
  if (!o_.explain) return "";
  return formatted("forgot %d recordings of %d regions, and %d kernels", report.recordings, report.regions,
                   report.kernels);
}

void ExplainsFirstStep::on_step(const optim::Progress&) {
  if (std::exchange(done_, true) || !job_.lead()) return;
  if (const std::string text = compiler_.explain(folder_); !text.empty()) job_.say(text);
}

}  // namespace rondo::examples
