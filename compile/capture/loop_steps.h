// LoopSteps: finds a loop over time in a recording: the repeated step of a recurrent cell, with the same parameters.
//
// Note [Loops over time]. C++ unrolls the loop, so a recording of T steps has T times the ops of one, and another T is
//   another recording. A long loop is therefore run in pieces of kSteps steps, while it is recorded: each piece is the
//   same recording, so it is compiled once whatever T is, and the tape goes back through the pieces as through the
//   layers of a model. What is left at the end runs in pieces of 8, 4, 2 and 1 steps.
//   A step that reads its own part of a tensor (`x.select(1, t)`), or compares with its number (`t < lengths`), would
//   be another recording than the step before it: its integers are part of the key. In a piece such views and constants
//   are computed at once, and become inputs of the recording. So do constants with which a piece would begin, such as a
//   first state of zeros. Random numbers count from the beginning of a piece.
//   Whether a loop is found changes only time and the number of recordings, not results: a graph break could stand
//   wherever a piece is cut, and the key of each piece holds all that it records.
//   A region remembers its loops, so that the pieces of later calls begin with the loop's first step. In the first call
//   the loop is found only after some steps, and these are one piece with the ops before them. A short loop would never
//   be found, and each of its lengths would be a recording. So in a region with several recordings, kFewSteps steps are
//   enough to find a loop.
//   A loop whose step has no matrix product stays whole: it is a few kernels, which pieces would split. A loop over
//   layers, which have their own parameters, also stays whole: compile_regions() is for these.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

class LoopSteps {
 public:
  // Steps in a piece: enough that one large product replaces many small ones, few enough to compile fast.
  static constexpr int kSteps = 16;
  // Repetitions that show a loop in a region that varies.
  static constexpr int kFewSteps = 4;

  // Describes a call by hashes. `call` and `parameters` are equal in all steps of a loop; `integers` may differ.
  struct Line {
    uint64_t call = 0;        // its op, its place in the program, the dtypes and sizes of its results
    uint64_t parameters = 0;  // the parameters that it reads
    uint64_t integers = 0;    // its integers that are part of the key: positions, sizes
    bool may_move = false;    // a view, or a constant: it can be made at once
    bool is_product = false;
    bool repeats(const Line& other) const { return call == other.call && parameters == other.parameters; }
    friend bool operator==(const Line&, const Line&) = default;
  };
  static Line line_of(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                      std::span<const Tensor> outputs, std::source_location where);

  // The step of a loop that was found.
  struct Step {
    std::vector<Line> lines;
    std::vector<bool> moves;  // by line: has other integers in each step
    friend bool operator==(const Step&, const Step&) = default;
  };

  // True if a recording of `n` calls is to be searched: a few times in a long one, never in a short one. `varies`: the
  // region has several recordings already, so that a loop of another length in each call is likely.
  static bool is_time_to_search(size_t n, bool varies) {
    return n >= (varies ? kShortestThatVaries : kShortest) && (n & (n - 1)) == 0;
  }
  // Looks for a loop at the end of a recording. True: it found one; from then on, pass each call to next().
  bool search(std::span<const Line> lines, bool varies);
  // True if `line` begins a step of `known`, whatever its parameters are: the loop runs from this call on. Pass the
  // call to next().
  bool begin(const Step& known, const Line& line);
  const Step& step() const { return step_; }
  bool is_running() const { return !step_.lines.empty(); }

  // What to do before a call is recorded.
  enum class Next : uint8_t {
    kRecord,
    kCutAndRecord,  // a piece is complete: run it. It has complete_steps()
    kEnd,           // the call is not the loop's next one
  };
  Next next(const Line& line);
  // The number of steps in the complete piece. 0: it is the piece in which the loop was found.
  int complete_steps() const { return complete_; }
  // True if the call that next() has just admitted has other integers in each step, and can be made at once.
  bool moves() const { return !in_first_ && step_.moves[(at_ == 0 ? step_.lines.size() : at_) - 1]; }
  // The number of whole steps since the latest cut, and how many calls of one step are recorded.
  int steps_left() const { return in_first_ ? 0 : steps_; }
  int32_t calls_a_step() const;
  void forget() { *this = LoopSteps(); }

 private:
  static constexpr size_t kShortest = 128;  // calls of a recording: usual blocks are shorter
  static constexpr size_t kShortestThatVaries = 16;

  Step step_;      // without lines: no loop has been found
  size_t at_ = 0;  // the line that comes next
  int steps_ = 0;  // whole steps since the latest cut
  int complete_ = 0;
  bool learns_ = false;    // it takes the parameters from the first step
  bool in_first_ = false;  // in the piece in which the loop was found, whose views are recorded
};

// The loops that the recordings of a region have: the latest few. Thread safe.
class KnownLoops {
 public:
  using Steps = std::vector<LoopSteps::Step>;
  // Null: none.
  std::shared_ptr<const Steps> steps() const;
  void add(const LoopSteps::Step& step);
  void forget();

 private:
  std::atomic<bool> any_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Steps> steps_;
};

}  // namespace rondo::compile
