// The compiler's options of this program, under the names that all training programs have.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/dist/process_group.h"
#include "rondo/examples/flags.h"
#include "rondo/optim/optimizer.h"
#include "rondo/runtime/data/batch_source.h"
#include "rondo/runtime/data/example_batches.h"

namespace rondo::examples {

struct CompilerOptions {
  std::string compile = "auto";  // after complete(): none, regions or whole
  std::string mode = "default", dynamic = "auto", buckets;
  bool fullgraph = false, warm_up = false;
};

void add_options(Flags& flags, CompilerOptions& options);
// Replaces "auto" and checks the rest. Throws Error. Returns what the user should know, or "".
std::string complete(CompilerOptions& options, Device device);
// The same batches, padded to the sizes of --buckets.
data::ExampleBatchesOptions in_buckets(const CompilerOptions& options, data::ExampleBatchesOptions batches);

// What varies in the batches: dimensions of the first tensor.
struct Varying {
  std::vector<int> dims;
  int64_t max = INT64_MAX;
  int64_t multiple_of = 1;
  bool is_in_blocks = true;
  bool is_padded = false;
};

class Compiler {
 public:
  Compiler(const CompilerOptions& options, nn::ModuleBase& model, Varying varying);
  void compile(optim::Optimizer& optimizer) const;
  void mark(const data::Batch& batch) const;
  // With --warm_up: runs `step` at each of the sizes, the largest first. Returns what happened, or "".
  std::string warm_up(dist::ProcessGroup& group, data::BatchSource& source, Device device,
                      const std::vector<int64_t>& sizes, const std::function<void(const data::Batch&)>& step);
  std::string summary() const { return regions_.summary(); }

 private:
  const CompilerOptions& o_;
  nn::ModuleBase& model_;
  const Varying varying_;
  compile::Regions regions_{{}};
};

}  // namespace rondo::examples
