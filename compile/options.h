// What users can choose: for a compiled module (CompileOptions), for a tensor (mark_dynamic), and for the whole
// process (set_stance, set_check_units, set_check_floats). All of compile/ may include this header. Plain data;
// stance() is thread safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/tensor/dynamic_range.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

// What a call of a compiled module does.
enum class Capture : uint8_t {
  // Runs the module's C++ in every call, to record its ops. Then the program that was compiled for this recording runs.
  // Always correct.
  kRecord,
  // Reuses a recording of the same module without running its C++. Guards check the arguments' dtypes, devices, shapes,
  // strides, requires_grad and is_leaf, train/eval, grad mode, autocast and the default device. Besides these, forward
  // must depend on nothing but the next numbers of the thread's default generator.
  kReplay,
  kVerify,  // records, and throws Error if kReplay would run something different
};

// Tells compiled regions that the size of a dimension will change. From the first compilation on, their code reads the
// size at run time. CompileOptions::shapes decides about all other dimensions. With buckets, each bucket compiles
// at most once.
//
//   compile::mark_dynamic(tokens, 1, {.min = 8, .max = 1024, .multiple_of = 8});
//   compile::mark_dynamic(tokens, 1, {.max = 256, .buckets = 8});
//
// A mark is metadata. Views and detach() keep it if they show the dimension, and regions pass it to results that have
// the dimension. Results of other ops have no mark; to mark them as arguments of modules, use CompileOptions::dynamic.
// A mark matters only if the tensor is an input of a region. It never changes results. For sizes 0 to 2, and for models
// in which Rondo cannot tell what depends on the dimension, the code is more general or is compiled again. A second
// mark of a dimension replaces the first. `dim` may be negative. Throws Error, with the caller's line, if there is no
// such dimension, if its size is outside the range, if the range is empty, or if a bucket is outside the range. Thread
// safety: no other thread may use the tensor during the call.
void mark_dynamic(const Tensor& tensor, int64_t dim, DynamicRange range = {},
                  std::source_location where = std::source_location::current());

enum class Shapes : uint8_t {
  kAutomatic,  // the first sizes get code for exactly these sizes; later sizes get code that reads sizes at run time
  kStatic,     // each set of sizes gets its own code
  kDynamic,    // code reads its sizes at run time: one compilation, but slightly slower than code for fixed sizes
};

// A dimension of an argument. Every call of the compiled module marks it, as mark_dynamic() does.
struct DynamicArgument {
  int argument = 0;  // position among forward's arguments, which must all be tensors
  int64_t dim = 0;   // negative: from the end
  DynamicRange range = {};
};

// The values that a backward recomputes instead of reading what the forward saved.
enum class Recompute : uint8_t {
  kAuto,    // elementwise values, if that saves memory; the kernels that read them compute them
  kNone,    // recomputes nothing
  kFull,    // everything: a block saves its inputs only (activation checkpointing)
  kBudget,  // like kAuto. If that still saves more than CompileOptions::recompute_budget: products, reductions and
            // library calls too, beginning with those with the least work per byte, until the rest fits
};

// The effort of compilation.
enum class Mode : uint8_t {
  kDefault,
  kReduceOverhead,  // a program keeps its working memory between runs: it allocates only its results (for small models)
  kMaxAutotune,  // each launch is timed in several ways, and the fastest is kept, also on disk: thread split and tiles
                 // of kernels, packing and threads of products. With `exact`, only ways with the same bits are tried
};
// Returns "default", "reduce-overhead" or "max-autotune": the mode's name in options of programs.
std::string_view name_of(Mode mode);
inline constexpr Mode kModes[] = {Mode::kDefault, Mode::kReduceOverhead, Mode::kMaxAutotune};

// Whether products add residuals and apply GELU to their own results before they are stored (the library's post-ops).
enum class Epilogues : uint8_t {
  kTuned,   // if Mode::kMaxAutotune measures a gain: often a fused kernel that reads the result again is faster. A bf16
            // product (say, a weight's gradient) writes f32 if only f32 is needed, unless `exact`
  kAlways,  // wherever possible; with `exact`, only f32 sums, whose bits are those of the separate op
  kNever,
};

struct CompileOptions {
  // On: forward and backward give the bits of eager execution. Off: generated code rounds a * b + c once instead of
  // twice (codegen/relax.h), and results are equal within rounding (tested for every op and its gradient: 1e-5 of the
  // largest element in f32). In both modes the number of threads does not change the bits. Gradients of gradients equal
  // eager's only within rounding in both modes, because their sums are added in another order.
  bool exact = false;
  Mode mode = Mode::kDefault;
  Epilogues epilogues = Epilogues::kTuned;
  Capture capture = Capture::kRecord;
  Shapes shapes = Shapes::kAutomatic;
  // Marked dimensions, for modules whose arguments are intermediate results. A size outside its range is an Error.
  std::vector<DynamicArgument> dynamic = {};
  Recompute recompute = Recompute::kAuto;
  // With Recompute::kBudget: bytes that one call may save for its backward, besides its inputs and outputs. 0 is the
  // same as kFull. RegionReport has the bytes and the cost of recomputing. With a region for each block, any budget
  // saves memory. With one region for the whole model, a small budget saves none, because everything is then recomputed
  // at once from the model's inputs.
  int64_t recompute_budget = 0;
  // If true, a graph break throws Error with the reason and the user's line.
  bool fullgraph = false;
  // Recordings kept per region, and backwards of other gradients kept per recording; at least 1. Beyond this, each new
  // recording replaces one of the least used, and each new backward replaces the least recently used. A dropped
  // recording or backward that is needed again is planned again. RegionReport::forgotten counts dropped recordings,
  // and one warning says so.
  int max_entries = 256;
  // How many recordings and backwards of a region may need machine code that this process does not have. They count
  // whether the code is generated or comes from disk, so a warm start has the same limit. Recordings and backwards that
  // share code (another length of the same loop, say) do not count. Beyond the limit, new ones run eagerly, with one
  // warning. With 0, everything runs eagerly.
  int recompile_limit = 32;
};

// What all regions of the process do with a new recording, or with a backward for other gradients than before.
enum class Stance : uint8_t {
  kDefault,           // compile it
  kFailOnRecompile,   // a region's first recording compiles; later ones throw Error with the difference if they need
                      // code that no cache has. No code is generated, so the same call fails again
  kEagerOnRecompile,  // a region's first recording compiles; later new recordings and backwards run eagerly
  kForceEager,        // nothing is recorded or compiled
};
void set_stance(Stance stance);
Stance stance();

// Finds wrong numbers: while it is on, compiled programs also run op by op. If the results differ, the run throws
// InternalError. The error names the smallest part that is wrong on its own, with its line, or else the pass that is
// wrong. It also names a file that reproduces the difference. In exact mode no bit may differ; in default mode,
// elements may differ by 1e-5 of the largest one (bf16, f16: 0.02), or by four times the effect of changing the last
// bits of inputs and intermediate results. RONDO_CHECK=units turns it on, too.
void set_check_units(bool on);
// Checks the formulas that compute the float attributes of compiled programs (region/check_floats.h).
// RONDO_CHECK=floats turns it on, too. On in debug builds.
void set_check_floats(bool on);

}  // namespace rondo::compile
#pragma GCC visibility pop
