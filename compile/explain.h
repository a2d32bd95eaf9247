// Reports of what the compiler made of a model: which ops became which kernels, from which lines, and how many
// bytes that saves.
//
//   compile::Explanation e = compile::explain(model, tokens);          // runs the model once, compiled
//   puts(compile::to_text(e).c_str());
//   io::write_file_atomic("compiled.html", compile::to_html(e));       // one page, no other files
//
// An explanation is plain data: it holds no tensors and outlives the model. Bytes count the elements of tensors; a
// value that a launch reads several times counts once.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/region/explain_entry.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

struct RegionExplanation {
  RegionReport report;
  std::vector<EntryExplanation> entries;  // the most recently used last
  std::vector<std::string> breaks;        // the reasons and places of its graph breaks: the first 32 different ones
  std::vector<std::string> hints;         // what the user could change to run faster
};

struct Explanation {
  std::vector<RegionExplanation> regions;
  // First products that run more slowly because cuBLASLt has no algorithm for them, then convolutions and attention for
  // which cuDNN has no plan. Each of these two lists begins with a line that counts all of this process, inside and
  // outside of regions; the lines after it are the latest ones. A list without entries has no lines.
  std::vector<std::string> products;
};

Explanation explain(const Regions& regions);

std::string to_text(const Explanation& explanation);
// Returns a complete HTML page that loads nothing: regions, graphs, kernels with their code and lines, memory over
// time.
std::string to_html(const Explanation& explanation);

class StashedHooks;

// Compiles the repeated blocks of a model, or the whole model if it has none. The destructor restores the
// model's previous hooks.
class TemporaryRegions {
 public:
  explicit TemporaryRegions(nn::ModuleBase& model, CompileOptions options = {});
  ~TemporaryRegions();
  const Regions& regions() const { return regions_; }

 private:
  const std::unique_ptr<StashedHooks> hooks_;
  Regions regions_;
};

// Runs `model(first, rest...)` once under TemporaryRegions and explains the regions. The run draws random numbers and
// changes buffers as any other run does. Throws what the run throws, and Error if Rondo was built without LLVM.
template <class Model, class... Rest>
requires std::derived_from<Model, nn::ModuleBase> Explanation explain(Model& model, TensorArg first, Rest&&... rest) {
  const TemporaryRegions temporary(model);
  static_cast<void>(model(first, std::forward<Rest>(rest)...));
  return explain(temporary.regions());
}

}  // namespace rondo::compile
#pragma GCC visibility pop
