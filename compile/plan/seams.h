// The seams of a plan.
//
// Note [Seams]. A backward of several parts of a model (modules/seam_plan.h) hands over the gradients of each block
// while it computes those of the next: at a seam, which stands between two launches. Each parameter outside of the
// blocks has a seam of its own, and so has the first part of a tied embedding's gradient (Note [Gradients in parts] in
// runtime/autograd/accumulate_node.h), whose rows come at the end. DistributedDataParallel sends buckets at seams, and
// UpdateAtSeams updates parameters, so:
//   - A seam stands behind the last launch that touches its gradients, or the parameters themselves. A gradient that
//     something else reads, and a parameter that several parts use, wait for the last of these.
//   - It is an effect in the order of the plan, as a recorded collective is (Note [Collectives are effects] in
//     runtime/op/op.h), and goes the same way, through the process group: all ranks have one plan, so buckets and the
//     sums of layers (BatchNorm over all ranks) leave in one order. No seam moves a launch. Where sums wait for each
//     other (Capabilities::gathers_sums), they wait for the next seam at most.
//   - Memory comes and goes with the seams. A gradient's buffer is allocated at the seam before its first launch, and
//     the run lets go of it at its own. Nothing else takes its place in between: what a caller gets has memory of its
//     own (memory.h).
//   - Between seams a run computes in Rondo's floating-point state and without a recorder. At a seam, the caller's code
//     runs in the caller's state.
// A plan has seams only if somebody waits for gradients when its backward is compiled (Arriving::at_seams): otherwise
// nothing differs from a plan without.
#pragma once

#include <vector>

#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// What a seam hands over, before the plan is made.
struct PlannedSeam {
  int32_t part = 0;                  // Plan::Seam::part
  std::vector<int32_t> outputs;      // positions in Graph::outputs
  std::vector<int32_t> overwritten;  // positions of inputs whose memory the caller may write to from then on
};

// Plan::seams, of a plan whose memory is planned. A seam hands over its results in the order in which they are final.
void place_seams(Plan& plan, const std::vector<PlannedSeam>& seams);
// Plan::FreshBuffer::first_launch and Plan::last_launch, which runs need at seams.
void note_lifetimes(Plan& plan);

}  // namespace rondo::compile
