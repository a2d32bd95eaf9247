// Regional compilation: START HERE.
//
//   nn::GPT2 model(config);
//   compile::Regions regions = compile::compile_regions(model);   // finds the repeated block
//   model.loss(x, y).backward();                                  // the first call compiles once; all layers reuse it
//   puts(regions.summary().c_str());   // region TransformerBlock: compiled once in 93 ms, reused by 12 layers
//
// A compiled module records its forward on every call: ops append to a recording instead of running. The whole
// recording is the key that selects the executable. So C++ control flow, hyper-parameters and shapes may change from
// call to call.
//
// Only a call of the compiled module itself runs compiled: model(x), also inside a loss(). model.forward(x) runs
// eagerly, and so does a function that calls only the module's parts. Then one warning is printed, and
// Regions::summary() reports it.
//
// Two habits of eager code need care in a region. A write through a pointer obtained before the latest op is not seen:
// Note [Host writes]. If an input is overwritten before backward, backward may throw: Note [Writes before backward].
//
// Options are in options.h, what a region reports in region_report.h, the disk cache and artifact files in cache.h.
// At the end of this file: Note [Graph breaks], [Writes in place], [Host writes], [Writes before backward].
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/compile/cache.h"
#include "rondo/compile/options.h"
#include "rondo/compile/region_report.h"
#include "rondo/modules/eager_scope.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

class Regions {
 public:
  explicit Regions(std::vector<std::shared_ptr<Region>> regions) : regions_(std::move(regions)) {}
  std::vector<RegionReport> report() const;
  // Returns one line of text per region.
  std::string summary() const;
  const std::vector<std::shared_ptr<Region>>& regions() const { return regions_; }

 private:
  std::vector<std::shared_ptr<Region>> regions_;
};

// Compiles the repeated blocks of `model` (ModuleBase::repeated_blocks(): the items of its outermost ModuleLists), one
// region for each list and class. The modules keep the hooks; the result is only for reports. Throws Error if the model
// has no blocks, or if there is no code generator for any device of this process.
Regions compile_regions(nn::ModuleBase& model, CompileOptions options = {});

// Makes exactly this module one region.
Regions compile_module(nn::ModuleBase& module, CompileOptions options = {});

// Runs this module and all modules below it eagerly again. If the module is part of a compiled module, each call of the
// compiled module then has a graph break at this module. compile_module() and compile_regions() compile the module
// again.
void disable(nn::ModuleBase& module);

// Leaves a segment of a region eager.
using nn::EagerScope;

// True while this thread records a call of a compiled module, which is every call that does not replay. The module's
// C++ runs in each of these calls, so a branch on this value is safe: the recording contains the side that was taken.
// False inside an EagerScope.
bool is_compiling();

// Forgets what this process has compiled: the recordings of all regions, and the kernels in memory, artifacts included.
// The next call of a region compiles as its first one did, from the disk cache if that has the code. Hooks stay, and so
// does what Mode::kMaxAutotune has measured. Compiled optimizers, and backwards that have yet to run, keep their code.
// Other threads may run regions meanwhile: a call in progress finishes with the code that it has. Throws Error inside a
// region that is being recorded on this thread. Do not call it from a log sink: a region may wait for the sink.
ResetReport reset();

// Compiles a function of tensors as its own region: auto f = compile::compile([&](const Tensor& x) { ... }); f(x).
template <class F> class Compiled {
 public:
  Compiled(F function, CompileOptions options)
      : module_(within_memory("compile", [&] { return std::make_unique<Function>(std::move(function)); })),
        regions_(compile_module(*module_, options)) {}
  template <class First, class... Rest> auto operator()(First&& first, Rest&&... rest) {
    if (module_ == nullptr) throw Error("compile: the function was moved to another object");
    return (*module_)(std::forward<First>(first), std::forward<Rest>(rest)...);
  }
  const Regions& regions() const { return regions_; }

 private:
  struct Function : nn::Module<Function> {
    explicit Function(F function) : function(std::move(function)) {}
    F function;
    template <class... Args> auto forward(const Args&... args) { return function(args...); }
  };
  std::unique_ptr<Function> module_;
  Regions regions_;
};
template <class F> Compiled<F> compile(F function, CompileOptions options = {}) {
  return Compiled<F>(std::move(function), options);
}

}  // namespace rondo::compile
#pragma GCC visibility pop

// Note [Graph breaks]. Some calls inside a region cannot wait until the recording runs: reading a value (item(),
// data()), writable memory that a recorded op reads (mutable_data()), backward(), autograd::grad(), an optimizer's
// step, an op on another device. Two changes of the tape cannot wait either: adding a node of a class that the program
// defines, and changing a tensor's history (set_history, requires_grad_). At such a call, Rondo runs what is recorded
// so far, makes the call, and continues recording. An EagerScope is a graph break that you choose.
// RegionReport::graph_breaks counts graph breaks.
//
// Note [Writes in place]. A region records writes in place: to running statistics, counters, caches, through views. The
// memory is written when the recording runs, and all tensors that share the memory see the write then. If the host
// reads this memory, that is a graph break. A write is a graph break, too, if its memory is not dense, if two tensors
// share memory in an unknown way, or if the recording cannot represent the tensor's history after the write
// (capture/writes.cc lists all reasons).
//
// Note [Host writes]. A recorded op reads its operands when the recording runs, which is later than the line that calls
// it. Inside a region, do not write through a pointer that you obtained before the latest op: call mutable_data()
// again. Rondo cannot see such a write, and the op may read the new value.
//
// Note [Writes before backward]. Where eager execution saves a result for backward, a region may save an input instead,
// if the result is cheap to recompute from the input. So if a tensor that a region has read is overwritten in place
// before backward, backward may throw StaleTensorError although eager execution does not need the tensor. Clone it
// before the write.
