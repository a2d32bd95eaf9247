// Executor: runs a plan. It is the same for all targets. It binds memory and floats, and enqueues the launches in
// order, with the target's launch functions, on the compute stream of the code's device. The CPU runs them immediately.
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

// Receives the results of a seam (plan/seams.h), in the order of Seam::outputs.
using TakeResults = std::function<void(const Plan::Seam& seam, std::vector<Tensor> results)>;

// The memory of one run: inputs, copies of parameters, fresh buffers, the arena.
struct Frame {
  struct Slot {
    std::byte* data = nullptr;
    Storage storage;
    int64_t byte_offset = 0;  // offset of `data` in `storage`
  };
  absl::InlinedVector<Slot, 48> slots;

  std::byte* at(const Address& address) const {
    return address.slot < 0 ? nullptr : slots[static_cast<size_t>(address.slot)].data + address.offset;
  }
  // Returns a tensor over the memory at `address`, with the layout of `like`.
  Tensor tensor(const Value& like, const Address& address) const {
    const Slot& slot = slots[static_cast<size_t>(address.slot)];
    return Tensor::over(slot.storage, (slot.byte_offset + address.offset) / static_cast<int64_t>(size_of(like.dtype)),
                        like.sizes, like.strides, like.dtype);
  }
};

// The argument of one table launch.
struct TableArgument {
  const Table* table;  // with addresses of the code's device; may be freed when the launch is enqueued
  Condition when;
};

// An Executor is cheap to make, so each run makes its own. Its arguments must live until the last launch has run. On
// devices that run asynchronously, `owner` keeps them alive; if `owner` is null, the caller does.
class Executor {
 public:
  Executor(const Plan& plan, const Code& code, const Floats& floats, std::shared_ptr<const void> owner = nullptr)
      : plan_(plan), code_(code), floats_(floats), owner_(std::move(owner)) {}

  // `inputs`: as graph.inputs, with the same dtypes, sizes and strides; undefined if no launch reads the input. Returns
  // one tensor for each of graph.outputs, without history. `release`: donated inputs that only `inputs` holds are
  // written over. If a launch throws, `finished` (if not null, and `take` gets no seams) receives the complete outputs,
  // and undefined for the others. `homes`: by output, the memory in which the caller wants the output. For undefined
  // entries, and for entries missing at the end, the run allocates memory. A home is not used if its layout or
  // alignment does not fit the output, or if the output shares memory. `take`: receives the results of seams, which are
  // then returned as undefined. Null: all results are returned.
  std::vector<Tensor> run(std::span<const Tensor> inputs, bool release, std::vector<Tensor>* finished = nullptr,
                          std::span<const Tensor> homes = {}, const TakeResults& take = nullptr) const;

  // Runs a plan of table launches (make_table_plan).
  void run_tables(std::span<const TableArgument> tables) const;
  // Runs one table launch in two parts. This call does what may fail and returns a function that does the rest. If no
  // part can fail, it does nothing and returns null: call run_tables().
  absl::AnyInvocable<void()> ready_table(size_t launch, const TableArgument& argument) const;

  // The parts of run(), for timing single launches. Fresh buffers whose first launch is `end` or later get no memory.
  Frame make_frame(std::span<const Tensor> inputs, bool release, std::span<const Tensor> homes = {},
                   size_t end = SIZE_MAX) const;
  void run_launch(size_t launch, const Frame& frame) const;

 private:
  // Allocates the fresh buffers whose first launch is in [begin, end).
  void allocate_fresh(Frame& frame, size_t begin, size_t end) const;
  // Runs all launches; `take` receives the results of seams.
  std::vector<Tensor> run_with_seams(std::span<const Tensor> inputs, bool release, std::span<const Tensor> homes,
                                     const TakeResults& take) const;
  // Returns, for each fresh buffer, the home of the output that fills the buffer; null: none.
  std::vector<const Tensor*> homes_of_fresh(std::span<const Tensor> homes) const;
  void run_kernel(const Launch& launch, const Frame& frame) const;
  IndexCheck index_check(const Launch& launch, const Launch::Check& check, const Frame& frame) const;
  void run_library_call(size_t index, const Frame& frame) const;
  void run_copy(const Launch& launch, const Frame& frame) const;
  // Runs this launch and the consecutive launches of its kind.
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
