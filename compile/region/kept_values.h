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

// Note [Freed in parts]. The ops of the recording free what they saved as on the eager tape: those through which a
// backward goes, and no others. So another output, or a part that grad() left out, may go backward later; an op that
// has freed already throws, by its own name and line. An op that saves nothing, such as a view, never throws. The
// memory is freed when every output that leads to an op with something left to free is out of use. For that, each
// output has a port: its history owns the port, and the port owns the node.
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
    // The ops that this backward goes through; nullopt: all that anybody may still use.
    std::optional<OpSet> ops;
    OpSet freed;            // the ops that have freed what they saved; empty: none
    bool is_last = false;   // it leaves nothing for another backward, unless the graph is retained
    bool released = false;  // KeptValues freed `saved` before the run, which writes over it
  };

  // `entry` outlives this.
  KeptValues(const Entry& entry, std::span<const Tensor> inputs, std::span<const Tensor> results);

  // The port that the history of an output owns, so that the output is known to be in use; it owns `node`. Null: all
  // outputs share one history, the node itself.
  std::shared_ptr<void> port(int output, std::shared_ptr<Node> node);
  // True if a backward may come from some outputs and not from others.
  bool has_ports() const { return !ports_.empty(); }

  // A backward begins, for which gradients of these `outputs` have arrived. Throws Error if an op in the way has freed
  // what it saved. As on the eager tape, those before it free, too.
  Pass begin(const std::vector<bool>& outputs);
  // The ops in its way free what they saved.
  void free(const Pass& pass);
  // The same before the run, which writes over what was saved: if it throws, no later backward may read that.
  void release(Pass& pass);
  // All ops free it: an eager tape goes backward from now on.
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
  std::mutex mutex_;                  // guards the rest
  std::shared_ptr<const Tensors> saved_;
  bool all_freed_ = false;                  // nothing in `saved_` is defined any more
  OpSet freed_;                             // empty: none
  std::vector<std::weak_ptr<Port>> ports_;  // by output; empty: there is but one to go backward from
};

}  // namespace rondo::compile
