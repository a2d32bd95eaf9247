// Compiler: compiles a model as the command line says. CompilerOptions: the options for this, which all training
// programs share.
//
//   CompilerOptions o;
//   add_options(flags, o);                                     // --compile, --mode, --dynamic, ...
//   job.say(complete(o, device));
//   Compiler compiler(o, model, {.dims = {1}, .max = 128});    // tokens (B, T): T varies
//   compiler.compile(optimizer);
//   job.say(compiler.warm_up(*job.group, batches, device, sizes, [&](auto& batch) { loss_of(batch).backward(); }));
//   for (...) { compiler.mark(batch); ... }
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/examples/flags.h"
#include "rondo/examples/job.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/trainer/callback.h"
#include "rondo/runtime/data/batch_source.h"
#include "rondo/runtime/data/example_batches.h"

namespace rondo::examples {

struct CompilerOptions {
  std::string compile = "auto";  // after complete(): none, regions or whole
  std::string mode = "default", dynamic = "auto", buckets, parts;
  std::string load_code, save_code;  // shell commands of the user
  bool fullgraph = false, explain = false, warm_up = false, compile_optimizer = true;
};

void add_options(Flags& flags, CompilerOptions& options);
// Replaces "auto". Throws Error if options do not fit together. Returns a note for the user, or "".
std::string complete(CompilerOptions& options, Device device);

// The value of --buckets: a number of buckets, or their sizes. If the option is not given, both members are empty.
struct Buckets {
  int64_t count = 0;
  std::vector<int64_t> sizes = {};
};
Buckets buckets_of(const CompilerOptions& options);

// Returns `batches`, padded to the sizes of --buckets.
data::ExampleBatchesOptions in_buckets(const CompilerOptions& options, data::ExampleBatchesOptions batches);

// The dimensions that vary in the batches of a program.
struct Varying {
  std::vector<int> dims;    // dimensions of the batch's first tensors, and of the blocks' first argument
  int64_t max = INT64_MAX;  // the largest size
  int64_t multiple_of = 1;  // every size is a multiple of this
  size_t tensors = 1;       // how many of the batch's first tensors have the dimensions
  // If the whole model is not called with the batch's own tensors: which of its arguments varies. -1: it is called with
  // them.
  int argument = -1;
  // False if the arguments of blocks have other sizes, so only the whole model can be marked.
  bool is_in_blocks = true;
  // True if the batches are padded to the sizes of --buckets already. Then --dynamic has no effect.
  bool is_padded = false;
};

class Compiler {
 public:
  // Compiles the parts of the model that the options name. The model must outlive this object. Throws Error, which for
  // an unknown part names the nearest one.
  Compiler(const CompilerOptions& options, nn::ModuleBase& model, Varying varying);

  bool compiles() const { return !regions_.regions().empty(); }
  const compile::Regions& regions() const { return regions_; }
  // Compiles the optimizer's step if the model is compiled, unless --compile_optimizer=false.
  void compile(optim::Optimizer& optimizer) const;
  // With --dynamic=marked and a whole model: marks a batch before the model is called with it.
  void mark(const data::Batch& batch) const;

  // With --warm_up: runs `step` on the next batch of `source`, resized to each of `sizes` (empty: as it is). The source
  // keeps its position. With several processes, rank 0 compiles for all. `step` may not communicate. Returns a note on
  // what was compiled, or "".
  std::string warm_up(dist::ProcessGroup& group, data::BatchSource& source, Device device,
                      const std::vector<int64_t>& sizes, const std::function<void(const data::Batch&)>& step);
  // Returns a line for each region, or "" if there is no region.
  std::string summary() const { return regions_.summary(); }
  // With --explain: returns summary, graph breaks and hints, else "". Writes the whole explanation to explain.html and
  // explain.txt in `folder`, unless that is "".
  std::string explain(const std::string& folder) const;
  // Returns a note on what --load_code loaded, or "" if the option is not given.
  const std::string& loaded() const { return loaded_; }
  // Called at the end of a run. Rank 0 passes the compiled code to --save_code. Then the model is eager again, and the
  // code is freed. With --explain returns how much was freed, else "".
  std::string finish(const dist::ProcessGroup& group);

 private:
  DynamicRange range() const;
  void compile_parts();

  const CompilerOptions& o_;
  nn::ModuleBase& model_;
  const Varying varying_;
  compile::Regions regions_{{}};
  std::string loaded_;
};

// Calls explain() after the first step of a Trainer, on rank 0.
class ExplainsFirstStep : public optim::Callback {
 public:
  ExplainsFirstStep(const Compiler& compiler, const Job& job, std::string folder)
      : compiler_(compiler), job_(job), folder_(std::move(folder)) {}
  void on_step(const optim::Progress& now) override;

 private:
  const Compiler& compiler_;
  const Job& job_;
  const std::string folder_;
  bool done_ = false;
};

}  // namespace rondo::examples
