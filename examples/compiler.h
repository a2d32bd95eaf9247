// The compiler, as every training program offers it: the same options, said and done in one place.
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
  std::string load_code, save_code;  // commands of the user's
  bool fullgraph = false, explain = false, warm_up = false, compile_optimizer = true;
};

void add_options(Flags& flags, CompilerOptions& options);
// Replaces "auto" and checks what does not go together. Throws Error. Returns what the user should know, or "".
std::string complete(CompilerOptions& options, Device device);

// --buckets: how many, or which sizes. Neither: the option is not given.
struct Buckets {
  int64_t count = 0;
  std::vector<int64_t> sizes = {};
};
Buckets buckets_of(const CompilerOptions& options);

// The same batches, padded to the sizes of --buckets.
data::ExampleBatchesOptions in_buckets(const CompilerOptions& options, data::ExampleBatchesOptions batches);

// What varies in the batches of a program.
struct Varying {
  std::vector<int> dims;    // those that vary, in the batch's first tensors and in the blocks' first argument
  int64_t max = INT64_MAX;  // the largest size
  int64_t multiple_of = 1;  // every size is a multiple of this
  size_t tensors = 1;       // how many of the batch's first tensors have the dimensions
  // The argument of the whole model that varies, if it is made of a tensor of the batch; -1: it is a tensor of the
  // batch.
  int argument = -1;
  // False: the arguments of blocks have other sizes, so only the whole model can be marked.
  bool is_in_blocks = true;
  // True: the batches have the sizes of --buckets already, so --dynamic does not matter.
  bool is_padded = false;
};

class Compiler {
 public:
  // Compiles what the options say of the model, which must outlive this. Throws Error; for a part that the model does
  // not have with the nearest name.
  Compiler(const CompilerOptions& options, nn::ModuleBase& model, Varying varying);

  bool compiles() const { return !regions_.regions().empty(); }
  const compile::Regions& regions() const { return regions_; }
  // Unless --compile_optimizer=false.
  void compile(optim::Optimizer& optimizer) const;
  // --dynamic=marked of a whole model: marks a batch before the model is called with it.
  void mark(const data::Batch& batch) const;

  // With --warm_up: `step` runs on the next batch of `source`, which stays the next one, at each of the sizes that
  // batches will have, or at its own if none are known. Of several processes the first compiles for all. The step may
  // not communicate.
  // Returns what happened, or "".
  std::string warm_up(dist::ProcessGroup& group, data::BatchSource& source, Device device,
                      const std::vector<int64_t>& sizes, const std::function<void(const data::Batch&)>& step);
  // A line for each region; "" if there is none.
  std::string summary() const { return regions_.summary(); }
  // With --explain: summary, graph breaks and hints; all there is goes to explain.html and explain.txt in the folder,
  // unless its name is empty.
  std::string explain(const std::string& folder) const;
  // What --load_code brought; "": the option is not given.
  const std::string& loaded() const { return loaded_; }
  // For the end of a run: rank 0 gives --save_code what was compiled, then back to eager execution without it. With
  // --explain returns what was forgotten, else "".
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

// explain() after the first step of a Trainer, by rank 0.
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
