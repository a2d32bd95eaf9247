// What compiling costs: the whole model as one region, one region per repeated block, and both warm starts.
//
//   bench_regional              a table: 64 small layers (PyTorch's regional compilation recipe), 12 GPT-2 blocks
//   bench_regional --json       the same as JSON: an array with an object for each model
//   bench_regional --layers=1   other depths: the cost of a region does not depend on the depth
//
// A figure is compiler time for one forward and backward, as RegionReport::compile_ms counts it. It leaves out running,
// data, and loading LLVM, which a trivial kernel does first. Warm starts use the disk cache or the artifact file of a
// process before; they never load LLVM, and reading the artifact file counts. The table also shows how much longer the
// first step took than a later one, which includes all of it. Every figure comes from a process of its own (this
// program runs itself with --measure), so that nothing is warm by accident.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/examples/flags.h"
#include "rondo/modules/layers/attention.h"

namespace {

using namespace rondo;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// ---- The models

// pytorch.org/tutorials/recipes/regional_compilation.html
struct Layer : nn::Module<Layer> {
  nn::Linear linear1 = child("linear1", 10, 10);
  nn::Linear linear2 = child("linear2", 10, 10);
  Tensor forward(const Tensor& x) { return ops::relu(linear2(ops::sigmoid(ops::relu(linear1(x))))); }  // (10, 10)
};
struct Recipe : nn::Module<Recipe> {
  explicit Recipe(int64_t n_layer) : n_layer(n_layer) {}
  int64_t n_layer;
  nn::Linear linear = child("linear", 10, 10);
  nn::ModuleList<Layer> layers = child("layers", n_layer);
  Tensor forward(const Tensor& x_) {
    Tensor x = linear(x_);
    for (Layer& layer : layers) x = layer(x);
    return x;
  }
};
// The blocks of GPT-2 124M, without embedding and head: those are not repeated.
struct Gpt2Blocks : nn::Module<Gpt2Blocks> {
  explicit Gpt2Blocks(int64_t n_layer) : n_layer(n_layer) {}
  int64_t n_layer;
  nn::ModuleList<nn::TransformerBlock> h = child("h", n_layer, 768, 12);
  Tensor forward(const Tensor& x_) {  // (B, T, 768)
    Tensor x = x_;
    for (nn::TransformerBlock& block : h) x = block(x);
    return x;
  }
};

// One forward and backward; gradients are dropped again.
template <class Model> void step(Model& model, const Tensor& x) {
  ops::mean(model(x)).backward();
  model.zero_grad();
}

// ---- One measurement, in a process that does nothing else

// Loads LLVM and compiles, or loads, a kernel that is no model's.
void load_code_generator() {
  nn::ReLU relu;
  compile::compile_module(relu);
  relu(Tensor::ones({3}));
}

template <class Model>
Json measure(const std::string& what, int64_t n_layer, const Tensor& x, const std::string& artifacts) {
  Model model(n_layer);
  step(model, x);  // eager: memory, threads and products of these shapes are there
  double load_ms = 0;
  if (what == "artifact") {
    const auto start = Clock::now();
    compile::load_artifacts(artifacts);
    load_ms = ms_since(start);
  } else if (what != "warm") {
    load_code_generator();
  }
  const compile::Regions regions = what == "full" ? compile::compile_module(model) : compile::compile_regions(model);
  auto start = Clock::now();
  step(model, x);
  const double first_ms = ms_since(start);
  std::vector<double> later_ms;
  for (int i = 0; i < 5; ++i) {
    start = Clock::now();
    step(model, x);
    later_ms.push_back(ms_since(start));
  }
  const double later = *std::min_element(later_ms.begin(), later_ms.end());
  if (what == "regional" && !artifacts.empty()) compile::save_artifacts(artifacts);
  double compile_ms = load_ms;
  int kernels = 0, compilations = 0;
  const std::vector<compile::RegionReport> report = regions.report();
  for (const compile::RegionReport& region : report) {
    compile_ms += region.compile_ms;
    kernels += region.kernels;
    compilations += region.compilations;
  }
  return {{"compile_ms", compile_ms},
          {"first_over_later_ms", first_ms - later},
          {"regions", report.size()},
          {"kernels", kernels},
          {"recompiles", std::max(0, compilations - static_cast<int>(report.size()))},
          {"misses", compile::cache_report().misses}};
}

Json measure(const std::string& what, const std::string& model, int64_t n_layer, const std::string& artifacts) {
  if (model == "recipe") return measure<Recipe>(what, n_layer, Tensor::randn({10, 10}), artifacts);
  // As behind an embedding: a first block whose input needs no gradient has a backward of its own.
  return measure<Gpt2Blocks>(what, n_layer, Tensor::randn({4, 64, 768}).requires_grad_(), artifacts);
}

// ---- All measurements

// A fresh folder, removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "rondo-regional-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw Error("cannot make a folder in " + path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs this program again. `cache`: the folder of the disk cache, in which the artifact file lies too.
Json measure_apart(const std::string& what, const std::string& model, int64_t n_layer, const std::string& cache) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = absl::StrCat(
      what == "artifact" ? "RONDO_CACHE=off" : "RONDO_CACHE_DIR='" + cache + "/kernels'", " '", self,
      "' --measure=", what, " --model=", model, " --layers=", n_layer, " --artifacts='", cache, "/artifacts'");
  std::unique_ptr<FILE, int (*)(FILE*)> child(popen(command.c_str(), "r"), pclose);
  if (!child) throw Error("cannot run " + command);
  std::string output;
  char part[512];
  while (std::fgets(part, sizeof part, child.get()) != nullptr) output += part;
  if (pclose(child.release()) != 0) throw Error("failed: " + command);
  return Json::parse(output);
}

double median_of(const std::vector<Json>& runs, const char* key) {
  std::vector<double> values;
  for (const Json& run : runs) values.push_back(run.at(key).get<double>());
  return median(values);
}

struct Row {
  std::string model;
  int64_t n_layer;
  std::vector<Json> full, regional, shallow;  // shallow: regional, of a model of one layer
  std::vector<Json> warm, artifact;           // after a regional one: from its disk cache, from its artifact file
};

Row measure_model(const std::string& model, int64_t n_layer, int64_t repeats) {
  Row row{model, n_layer, {}, {}, {}, {}, {}};
  // In turns: the machine is the same for all.
  for (int64_t i = 0; i < repeats; ++i) {
    row.full.push_back(measure_apart("full", model, n_layer, TemporaryFolder().path()));
    const TemporaryFolder cache;
    row.regional.push_back(measure_apart("regional", model, n_layer, cache.path()));
    row.warm.push_back(measure_apart("warm", model, n_layer, cache.path()));
    row.artifact.push_back(measure_apart("artifact", model, n_layer, cache.path()));
    for (const Json* run : {&row.warm.back(), &row.artifact.back()})
      if (run->at("misses") != 0) throw Error("a warm start compiled " + run->at("misses").dump() + " kernels");
    row.shallow.push_back(measure_apart("regional", model, 1, TemporaryFolder().path()));
  }
  return row;
}

Json to_json(const Row& row) {
  const Json& regional = row.regional.front();
  return {{"model", row.model},
          {"layers", row.n_layer},
          {"full_ms", median_of(row.full, "compile_ms")},
          {"regional_ms", median_of(row.regional, "compile_ms")},
          {"warm_ms", median_of(row.warm, "compile_ms")},
          {"artifact_ms", median_of(row.artifact, "compile_ms")},
          {"regions", regional.at("regions")},
          {"kernels", regional.at("kernels")},
          {"recompiles", regional.at("recompiles")}};
}

void print_row(const Row& row) {
  const Json& regional = row.regional.front();
  std::printf("%s, %lld layers: %d regions, %d kernels, %d recompiles\n", row.model.c_str(),
              static_cast<long long>(row.n_layer), regional.at("regions").get<int>(), regional.at("kernels").get<int>(),
              regional.at("recompiles").get<int>());
  const auto line = [](const char* what, const std::vector<Json>& runs) {
    std::printf("  %-26s%9.1f ms   (first step: + %.1f ms)\n", what, median_of(runs, "compile_ms"),
                median_of(runs, "first_over_later_ms"));
  };
  line("whole model, cold", row.full);
  line("regional, cold", row.regional);
  line("regional, cold, 1 layer", row.shallow);
  line("regional, warm from disk", row.warm);
  line("regional, from artifacts", row.artifact);
  std::printf("  %lld layers cost %.2f x 1 layer\n", static_cast<long long>(row.n_layer),
              median_of(row.regional, "compile_ms") / median_of(row.shallow, "compile_ms"));
}

}  // namespace

int main(int argc, char** argv) try {
  bool json = false;
  int64_t layers = 0, repeats = 3;
  std::string model = "all", what, artifacts;
  examples::Flags flags("bench_regional", "Measures what compiling costs: whole, regional, warm.");
  flags.add("json", &json, "print JSON, not a table");
  flags.add("model", &model, "which model", {"all", "recipe", "gpt2"});
  flags.add("layers", &layers, "depth; 0: 64 for recipe, 12 for gpt2");
  flags.add("repeats", &repeats, "processes per figure; the median counts");
  flags.add("measure", &what, "one figure, in this process", {"", "full", "regional", "warm", "artifact"});
  flags.add("artifacts", &artifacts, "with --measure: the artifact file, written by \"regional\"");
  flags.parse({argv + 1, argv + argc});
  if (flags.help_wanted()) return std::fputs(flags.usage().c_str(), stdout), 0;
  if (!what.empty()) return std::puts(measure(what, model, layers, artifacts).dump().c_str()), 0;
  Json all = Json::array();
  for (const auto& [name, depth] : {std::pair{"recipe", 64}, std::pair{"gpt2", 12}}) {
    if (model != "all" && model != name) continue;
    const Row row = measure_model(name, layers > 0 ? layers : depth, repeats);
    if (json) all.push_back(to_json(row));
    else print_row(row);
  }
  if (json) std::puts(all.dump(1).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_regional: %s\n", error.what());
  return 1;
}
