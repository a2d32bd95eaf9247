// The values that one run of an entry keeps for its backward, and when they are freed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::compile {

// Note [Freed in parts]. As on the eager tape, a backward frees the saved tensors of the ops that it goes through, and
// of no others. So a later backward may start from another output, or go through a part that grad() left out. If it
// reaches an op that has freed its saved tensors, that op throws, with its own name and line. An op that saves nothing,
// such as a view, never throws. The memory is freed when no output in use leads to an op that still has saved tensors.
// To know which outputs are in use, each output has a port: its history owns the port, and the port owns the node.
//
// Thread safe: two threads may go backward through two outputs.
class KeptValues {
 public:
  // `values` holds the kept values that are not inputs, by position in Partition::kept().
  struct Tensors {
    std::vector<SavedTensor> inputs, values;
  };
  // One backward through the node.
  struct Pass {
    std::shared_ptr<const Tensors> saved;
    // The ops that this backward goes through; nullopt: all ops that may still be used.
    std::optional<OpSet> ops;
    OpSet freed;            // the ops that have freed what they saved; empty: none
    bool is_last = false;   // it leaves nothing for another backward, unless the graph is retained
    bool released = false;  // KeptValues freed `saved` before the run, which writes over it
  };

  // `entry` outlives this.
  KeptValues(const Entry& entry, std::span<const Tensor> inputs, std::span<const Tensor> results);

  // Returns the port of an output. The history of the output owns the port, which shows that the output is in use; the
  // port owns `node`. Null: all outputs share one history, the node itself.
  std::shared_ptr<void> port(int output, std::shared_ptr<Node> node);
  // True if a backward may come from some outputs and not from others.
  bool has_ports() const { return !ports_.empty(); }

  // Call when a backward begins, for which gradients of these `outputs` have arrived. Throws Error if the backward
  // reaches an op that has freed its saved tensors. As on the eager tape, the ops before that one free theirs, too.
  Pass begin(const std::vector<bool>& outputs);
  // Frees the saved tensors of the ops of `pass`.
  void free(const Pass& pass);
  // Does what free() does, before a run that overwrites saved tensors: if the run throws, no later backward may read
  // them.
  void release(Pass& pass);
  // Frees all saved tensors: from now on an eager tape runs the backwards.
  void free_all() { free(Pass()); }

 private:
  struct Port {
    std::shared_ptr<Node> node;
  };
  bool is_in_use(size_t output) const;
  OpSet freed_and(OpSet ops) const;
  bool leaves_any(const OpSet& freed) const;

  const Entry& entry_;
  std::vector<bool> differentiable_;  // by output
  std::mutex mutex_;                  // guards the members below
  std::shared_ptr<const Tensors> saved_;
  bool all_freed_ = false;                  // nothing in `saved_` is defined any more
  OpSet freed_;                             // the ops that have freed their saved tensors; empty: none
  std::vector<std::weak_ptr<Port>> ports_;  // by output; empty: at most one output is differentiable
};

}  // namespace rondo::compile
