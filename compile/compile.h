// Regional compilation: START HERE.
//
//   nn::GPT2 model(config);
//   compile::Regions regions = compile::compile_regions(model);   // finds the repeated block
//   model.loss(x, y).backward();                                  // the first call compiles once; all layers reuse it
//   puts(regions.summary().c_str());   // region TransformerBlock: compiled once in 93 ms, reused by 12 layers
//
// A compiled module records its forward on every call: ops append to a recording instead of running. The recording,
// compared in full, decides which executable runs. So C++ control flow, hyper-parameters and shapes may change from
// call to call.
//
// Graph breaks. Some calls inside a region cannot wait: reading a value (item(), data()), writing in place, writable
// memory that a recorded op reads (mutable_data()), backward(), autograd::grad(), an optimizer's step, an op on another
// device. Rondo runs what is recorded so far, makes the call, and records on. RegionReport::graph_breaks counts breaks.
//
// Host writes. A recorded op reads its operands when the recording runs, which is later than the line that calls it.
// Inside a region, do not write through a pointer that you obtained before the latest op: call mutable_data() again.
// Rondo cannot see such a write, and the op may read the new value.
//
// Writes before backward. A region may keep an input where eager execution keeps a result that is cheap to compute
// again from it. If a tensor that a region has read is overwritten in place before backward, backward may throw
// StaleTensorError although eager execution does not need the tensor. Clone it before the write.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/module.h"
#include "rondo/runtime/dynamic_range.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/source_location.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

// What a call of a compiled module does.
enum class Capture : uint8_t {
  kRecord,  // runs the module's C++, which records; the recording decides what runs. Always right
  kReplay,  // reuses a recording of the same module without running its C++. Guards check the arguments' dtypes,
            // devices, shapes, strides, requires_grad and is_leaf, train/eval, grad mode, autocast and the default
            // device: forward must depend on nothing else. With dropout in training every call is recorded
  kVerify,  // records, and throws Error if kReplay would run something else
};

// Tells compiled regions that the size of a dimension will change. From the first compilation on, their code reads the
// size at run time. CompileOptions::shapes decides about all other dimensions. With buckets, each bucket compiles at
// most once.
//
//   compile::mark_dynamic(tokens, 1, {.min = 8, .max = 1024, .multiple_of = 8});
//   compile::mark_dynamic(tokens, 1, {.max = 256, .buckets = 8});
//
// A mark is metadata. Views and detach() keep it where they show the dimension, and regions pass it to results that
// have the dimension; results of other ops have none (CompileOptions::dynamic marks the arguments of modules). It
// matters where the tensor is the input of a region. It never changes results. For sizes 0 to 2, and for models in
// which Rondo cannot tell what depends on the dimension, the code is more general or compiled again. A second mark of a
// dimension replaces the first. `dim` may be negative. Throws Error, with the caller's line, if there is no such
// dimension, if its size is outside the range, if the range is empty, or if a bucket lies outside it. Thread safety: no
// other thread may use the tensor during the call.
void mark_dynamic(const Tensor& tensor, int64_t dim, DynamicRange range = {},
                  std::source_location where = std::source_location::current());

enum class Shapes : uint8_t {
  kAutomatic,  // the first sizes compile code for exactly these sizes; later sizes, code that reads sizes at run time
  kStatic,     // each set of sizes compiles code of its own
  kDynamic,    // code reads its sizes at run time from the start: one compilation, a little slower for fixed sizes
};

// An argument's dimension that is marked in every call of a compiled module (see mark_dynamic).
struct DynamicArgument {
  int argument = 0;  // of forward, which must take tensors only
  int64_t dim = 0;   // negative: from the end
  DynamicRange range = {};
};

// What a backward recomputes instead of reading what the forward saved.
enum class Recompute : uint8_t {
  kAuto,    // elementwise values, where that saves memory; the kernels that read them compute them
  kNone,    // nothing
  kFull,    // everything: a block saves its inputs only (activation checkpointing)
  kBudget,  // as kAuto. If that saves more than CompileOptions::recompute_budget: products, reductions and library
            // calls too, first those with the least work for each byte, until the rest fits
};

// What compilation spends its time on.
enum class Mode : uint8_t {
  kDefault,
  kReduceOverhead,  // a program keeps its working memory from run to run: no allocation but of results (small models)
  kMaxAutotune,  // each launch is timed in several ways, and the fastest kept, on disk too: thread split and tiles of
                 // kernels, packing and threads of products. With `exact`, only ways with the same bits are tried
};

// Whether products add residuals and apply GELU to their own results before these are stored (the library's post-ops).
enum class Epilogues : uint8_t {
  kTuned,   // where Mode::kMaxAutotune measures that it pays: often a fused kernel that reads the result again is
            // faster. A bf16 product writes f32 where that is all that becomes of it (a weight's gradient), unless
            // `exact`
  kAlways,  // wherever it can be done; with `exact`, only f32 sums, whose bits are those of the separate op
  kNever,
};

struct CompileOptions {
  // On: forward and backward give the bits of eager execution. Off: generated code rounds a * b + c once instead of
  // twice (codegen/relax.h), in the same kernels, and results are equal within rounding (tested for every op and its
  // gradient: 1e-5 of the largest element in f32). In both modes the number of threads does not change the bits.
  // Gradients of gradients equal eager's within rounding in both modes: their sums meet in another order.
  bool exact = false;
  Mode mode = Mode::kDefault;
  Epilogues epilogues = Epilogues::kTuned;
  Capture capture = Capture::kRecord;
  Shapes shapes = Shapes::kAutomatic;
  // Marked dimensions, for modules that take intermediate results. A size outside its range is an Error.
  std::vector<DynamicArgument> dynamic = {};
  Recompute recompute = Recompute::kAuto;
  // With Recompute::kBudget: bytes that one call may save for its backward, besides its inputs and outputs. 0 saves the
  // same as kFull. RegionReport has the bytes and what recomputing costs. In blocks any budget saves memory. In a
  // region that is a whole model a small budget does not: everything is then recomputed from the model's inputs at
  // once.
  int64_t recompute_budget = 0;
  // A graph break throws Error, with the reason and the user's line.
  bool fullgraph = false;
  // Recordings kept per region, and backwards of other gradients kept per recording. The least recently used is
  // dropped.
  int max_entries = 256;
  // Compilations per region, backwards included. Beyond it, what is new runs eagerly, with one warning.
  int recompile_limit = 32;
};

// What all regions of the process do with a new recording, or with a backward of other gradients than before.
enum class Stance : uint8_t {
  kDefault,           // compile it
  kFailOnRecompile,   // a region's first recording compiles; later, throw Error with the difference if code is needed
                      // that no cache has. No code is generated, so the same call fails again
  kEagerOnRecompile,  // a region's first recording compiles; what is new later runs eagerly
  kForceEager,        // do not record or compile anything
};
void set_stance(Stance stance);
Stance stance();

class [[gnu::visibility("hidden")]] Region;

// What one region has done so far.
struct RegionReport {
  std::string name;         // class of the block
  int layers = 0;           // modules that share it
  int entries = 0;          // different recordings met: shapes, control flow, integers (floats do not count)
  int compilations = 0;     // times that code had to be generated: for a recording, or for a backward (other_backwards)
  int kernels = 0;          // generated kernels of the latest entry, forward and backward
  int library_calls = 0;    // matrix products and the like, of the latest entry
  int other_backwards = 0;  // compiled for other gradients than those of all outputs; each may count as a compilation
  int eager_runs = 0;       // recordings and backwards that ran eagerly: a stance, the recompile limit, a failed stage
  double compile_ms = 0;    // all entries together; the first kernel that a process compiles loads LLVM, too
  int64_t kept_bytes = 0;   // by one call for its backward, besides inputs and outputs; of the latest entry
  // The work of the products that one backward of the latest entry computes again. A library call counts where its
  // products are known.
  int64_t recomputed_flops = 0;
  int64_t calls = 0;
  int64_t replays = 0;           // of the calls, those that ran no C++ of the module
  std::string why_not_replayed;  // with Capture::kReplay: why some call was recorded all the same
  // Calls that threw an error of their data, such as an index out of range. Values that were complete can be read;
  // another one throws Error with the reason. Errors that a device throws later, when the call is over, do not count.
  int64_t failed_runs = 0;
  std::string last_failure;
  // Recordings and backwards that run eagerly because a stage of the compiler failed, which is a bug of Rondo, or
  // because there is no compiler for their device.
  int failed_compilations = 0;
  std::string last_failed_compilation;
  // Recordings that differed from an entry in floats only: the entry ran with other floats, nothing was planned.
  int64_t float_changes = 0;
  int64_t graph_breaks = 0;
  std::string last_break;  // the user's file:line and why
  // Why the latest recording after the first was new: its first difference to the nearest one, as in
  // "dim 1 of input #0 (read by linear (train.cc:41)): 64 -> 96". Of those that run eagerly, the first only.
  std::string last_recompile;
};

class Regions {
 public:
  explicit Regions(std::vector<std::shared_ptr<Region>> regions) : regions_(std::move(regions)) {}
  std::vector<RegionReport> report() const;
  // One line per region.
  std::string summary() const;
  const std::vector<std::shared_ptr<Region>>& regions() const { return regions_; }

 private:
  std::vector<std::shared_ptr<Region>> regions_;
};

// Compiles the repeated blocks of `model`: the children of every list of modules, one region per class. The hooks live
// in the modules; the result is for reports. Throws Error if there is no code generator for any device that is here.
Regions compile_regions(nn::ModuleBase& model, CompileOptions options = {});

// One region for exactly this module.
Regions compile_module(nn::ModuleBase& module, CompileOptions options = {});

// Back to eager execution, for this module and all below it.
void disable(nn::ModuleBase& module);

// A function of tensors as a region of its own: auto f = compile::compile([&](const Tensor& x) { ... }); f(x).
template <class F> class Compiled {
 public:
  Compiled(F function, CompileOptions options)
      : module_(std::make_unique<Function>(std::move(function))), regions_(compile_module(*module_, options)) {}
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

// ---- Compiled code outlives the process
//
// Every kernel is kept on disk, in RONDO_CACHE_DIR, else $XDG_CACHE_HOME/rondo, else ~/.cache/rondo (RONDO_CACHE=off:
// nowhere; RONDO_CACHE_MB: at most so much, 256 by default), so that the next process compiles nothing and never loads
// LLVM.

// Writes every kernel that this process has compiled or loaded, for all its devices, to one file, for shipping. Throws
// FileError.
void save_artifacts(const std::string& path);
// Makes the kernels of such a file this process's own, those for devices that are here; returns how many they are. A
// host without the compiler (LLVM, NVRTC) can use them. Throws FileError with the reason and what to do if the file is
// damaged, if none of it is for a device that is here (another processor or architecture, another build of Rondo,
// another version of the compiler), or if others than its owner (us or root) could have written it: it is code that
// will be run.
int load_artifacts(const std::string& path);

// Where the code of this process came from, for all its devices.
struct CacheReport {
  std::string folder;       // of the disk cache; "": none
  int64_t from_memory = 0;  // kernels asked for that were there already
  int64_t from_artifacts = 0;
  int64_t from_disk = 0;
  int64_t misses = 0;  // compiled
  struct Miss {
    std::string kernel;     // its text, or a name
    std::string component;  // what differs from the nearest entry: "build", "cpu", "llvm", "nvrtc", "kernel", ...; or
                            // "by hand": a kernel of the runtime's own sources
    std::string why;        // "cpu: there avx512f, here nothing more"; "line 1: there "cols=768 ...", here ..."
  };
  std::vector<Miss> missed;  // the latest 256
};
CacheReport cache_report();

}  // namespace rondo::compile
#pragma GCC visibility pop
