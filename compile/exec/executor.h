// Executor: runs a plan. One for all targets: it binds memory and floats, and enqueues the launches, in order, on the
// compute stream of the code's device, by the target's launch functions. The CPU runs them at once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "rondo/compile/exec/code.h"
#include "rondo/compile/exec/floats.h"
#include "rondo/compile/plan/plan.h"
#include "rondo/compile/target/launch.h"
#include "rondo/compile/target/table.h"

namespace rondo::compile {

// Gets the results of a seam (plan/seams.h), in the order of Seam::outputs.
using TakeResults = std::function<void(const Plan::Seam& seam, std::vector<Tensor> results)>;

// The memory of one run: inputs, copies of parameters, fresh buffers, the arena.
struct Frame {
  struct Slot {
    std::byte* data = nullptr;
    Storage storage;
    int64_t byte_offset = 0;  // of `data` in it
  };
  absl::InlinedVector<Slot, 48> slots;

  std::byte* at(const Address& address) const {
    return address.slot < 0 ? nullptr : slots[static_cast<size_t>(address.slot)].data + address.offset;
  }
  // The memory there, seen with the layout of `like`.
  Tensor tensor(const Value& like, const Address& address) const {
    const Slot& slot = slots[static_cast<size_t>(address.slot)];
    return Tensor::over(slot.storage, (slot.byte_offset + address.offset) / static_cast<int64_t>(size_of(like.dtype)),
                        like.sizes, like.strides, like.dtype);
  }
};

// The tables that table launches run on, in order of the plan's table launches.
struct TableArgument {
  const Table* table;  // of addresses of the code's device; free again when the launch is enqueued
  Condition when;
};

// Cheap to make for each run. What it is made from must live until the last launch of a run has run. On devices that
// run late, `owner` keeps it alive; null: the maker does.
class Executor {
 public:
  Executor(const Plan& plan, const Code& code, const Floats& floats, std::shared_ptr<const void> owner = nullptr)
      : plan_(plan), code_(code), floats_(floats), owner_(std::move(owner)) {}

  // Inputs as graph.inputs: same dtypes, sizes and strides; undefined where nothing reads one. Returns one tensor per
  // graph.outputs, without history. `release`: donated inputs that nobody but `inputs` holds are written over.
  // If a launch throws, `finished` (not null) gets the outputs that were complete by then, the others undefined.
  // `homes`: by output, the memory that the caller wants it in; undefined, or missing at the end: the run's own. An
  // output whose layout or alignment does not fit its home, or whose memory is not its alone, goes elsewhere.
  // `take`: what it gets is returned as undefined. Null: all results are returned.
  std::vector<Tensor> run(std::span<const Tensor> inputs, bool release, std::vector<Tensor>* finished = nullptr,
                          std::span<const Tensor> homes = {}, const TakeResults& take = nullptr) const;

  // A plan of table launches (make_table_plan).
  void run_tables(std::span<const TableArgument> tables) const;
  // The same for one of them, in two parts: what may fail, and what the result does. Null: nothing may fail.
  absl::AnyInvocable<void()> ready_table(size_t launch, const TableArgument& argument) const;

  // The parts of run(), for timing single launches. What a launch from `end` on is the first to touch has no memory.
  Frame make_frame(std::span<const Tensor> inputs, bool release, std::span<const Tensor> homes = {},
                   size_t end = SIZE_MAX) const;
  void run_launch(size_t launch, const Frame& frame) const;

 private:
  // The fresh buffers that a launch in [begin, end) is the first to touch.
  void allocate_fresh(Frame& frame, size_t begin, size_t end) const;
  // A run of all launches, in which `take` gets the results of seams.
  std::vector<Tensor> run_with_seams(std::span<const Tensor> inputs, bool release, std::span<const Tensor> homes,
                                     const TakeResults& take) const;
  // By fresh buffer: the home of the output that is all of it; null: none.
  std::vector<const Tensor*> homes_of_fresh(std::span<const Tensor> homes) const;
  void run_kernel(const Launch& launch, const Frame& frame) const;
  IndexCheck index_check(const Launch& launch, const Launch::Check& check, const Frame& frame) const;
  void run_library_call(size_t index, const Frame& frame) const;
  void run_copy(const Launch& launch, const Frame& frame) const;
  // That launch, and those of its kind that follow.
  void run_combines(size_t first, const Frame& frame) const;
  void run_table(const Launch& launch, const TableArgument& argument) const;
  TableCall table_call(const Launch& launch, const TableArgument& argument) const;
  std::vector<Tensor> outputs(const Frame& frame, size_t launches_done) const;

  const Plan& plan_;
  const Code& code_;
  const Floats& floats_;
  std::shared_ptr<const void> owner_;
};

}  // namespace rondo::compile
