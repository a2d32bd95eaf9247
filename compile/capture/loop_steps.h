// LoopSteps: finds a loop over time in a recording: the repeated step of a recurrent cell, with the same parameters.
//
// Note [Loops over time]. The recording of a C++ loop is unrolled: with T steps it has T times the ops of one step, and
//   each T is a different recording. A long loop is therefore run in pieces of kSteps steps, while it is recorded. All
//   pieces are the same recording, so one compilation serves every T. Backward runs through the pieces as through the
//   layers of a model. The steps that are left at the end run in pieces of 8, 4, 2 and 1 steps.
//   The integers of a call are part of the key. So a step that reads its own part of a tensor (`x.select(1, t)`), or
//   compares with its number (`t < lengths`), would not be the same recording as the step before it. In a piece, these
//   views and constants are not recorded: they are computed at once, and are inputs of the recording. Constants at the
//   beginning of a piece, such as an initial state of zeros, are inputs, too. The positions of random numbers are
//   counted from the beginning of a piece.
//   Whether a loop is found changes only the time and the number of recordings, not the results. A cut between pieces
//   acts like a graph break, which is allowed between any two calls. The key of each piece holds all that it records.
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
  // Steps that are enough to find a loop in a region that has several recordings.
  static constexpr int kFewSteps = 4;

  // Describes a call by hashes. `call` and `parameters` are equal in all steps of a loop; `integers` may differ.
  struct Line {
    uint64_t call = 0;        // its op, its place in the program, the dtypes and sizes of its results
    uint64_t parameters = 0;  // the parameters that the call reads
    uint64_t integers = 0;    // its integers that are part of the key: positions, sizes
    bool may_move = false;    // a view, or a constant: it can be computed at once instead of recorded
    bool is_product = false;
    bool repeats(const Line& other) const { return call == other.call && parameters == other.parameters; }
    friend bool operator==(const Line&, const Line&) = default;
  };
  static Line line_of(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                      std::span<const Tensor> outputs, std::source_location where);

  // The step of a loop that was found.
  struct Step {
    std::vector<Line> lines;
    std::vector<bool> moves;  // by line: its integers differ between steps
    friend bool operator==(const Step&, const Step&) = default;
  };

  // True if it is time to search a recording of `n` calls for a loop. While a recording grows, it is searched a few
  // times; a short recording is never searched. `varies`: the region has several recordings already, so that a loop of
  // another length in each call is likely.
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
    kCutAndRecord,  // a piece of complete_steps() steps is complete: run it, then record the call
    kEnd,           // the call is not the next call of the loop's step, so the loop has ended
  };
  Next next(const Line& line);
  // Returns the number of steps in the complete piece. 0: it is the piece in which the loop was found.
  int complete_steps() const { return complete_; }
  // True if the integers of the call that was just passed to next() differ between steps: compute it at once, do not
  // record it.
  bool moves() const { return !in_first_ && step_.moves[(at_ == 0 ? step_.lines.size() : at_) - 1]; }
  // steps_left(): the number of whole steps since the latest cut. calls_a_step(): the recorded calls of one step.
  int steps_left() const { return in_first_ ? 0 : steps_; }
  int32_t calls_a_step() const;
  void forget() { *this = LoopSteps(); }

 private:
  static constexpr size_t kShortest = 128;  // calls; shorter recordings, such as those of most blocks, are not searched
  static constexpr size_t kShortestThatVaries = 16;

  Step step_;      // without lines: no loop has been found
  size_t at_ = 0;  // the line that comes next
  int steps_ = 0;  // whole steps since the latest cut
  int complete_ = 0;
  bool learns_ = false;    // the first step after begin() is being recorded: its parameters replace those of step_
  bool in_first_ = false;  // the calls belong to the piece in which the loop was found; that piece records its views
};

// The few loops that were found most recently in the recordings of a region. Thread safe.
class KnownLoops {
 public:
  using Steps = std::vector<LoopSteps::Step>;
  // Returns null if no loop is known.
  std::shared_ptr<const Steps> steps() const;
  void add(const LoopSteps::Step& step);
  void forget();

 private:
  std::atomic<bool> any_ = false;
  mutable std::mutex mutex_;  // guards the members below
  std::shared_ptr<const Steps> steps_;
};

}  // namespace rondo::compile
