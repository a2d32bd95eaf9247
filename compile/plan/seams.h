// The seams of a plan.
//
// Note [Seams]. A seam is a place between two launches of a backward where the backward hands over gradients that are
// final. If the backward spans several parts of a model (modules/seam_plan.h), there is a seam for the gradients of
// each block, and one for each parameter outside of the blocks. The first part of a tied embedding's gradient also has
// its own seam (Note [Gradients in parts] in runtime/autograd/accumulate_node.h); the second part, its rows, comes at
// the end. DistributedDataParallel sends buckets at seams, and UpdateAtSeams updates parameters, so:
// - A seam comes after the last launch that accesses its gradients or the parameters themselves. A gradient that other
//   launches read, and a parameter that several parts use, wait for the last of these launches.
// - A seam is an effect in the order of the plan, like a recorded collective (Note [Collectives are effects] in
//   runtime/op/op.h). Both use the process group. All ranks have the same plan, so buckets and the sums of layers
//   (BatchNorm over all ranks) are sent in the same order on each rank. No seam moves a launch. If sums are gathered
//   (Capabilities::gathers_sums), they wait at most until the next seam.
// - Memory follows the seams. A gradient's buffer is allocated at the seam before its first launch, and the run
//   releases it at its own seam. Nothing else uses that memory in between: values that are returned have their
//   own memory (memory.h).
// - Between seams a run computes in Rondo's floating-point state and without a recorder. At a seam, the caller's code
//   runs in the caller's state.
// A plan has seams only if someone waits for gradients when its backward is compiled (Arriving::at_seams).
#pragma once

#include <vector>

#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// The results that a seam hands over, before the plan is made.
struct PlannedSeam {
  int32_t part = 0;                  // Plan::Seam::part
  std::vector<int32_t> outputs;      // positions in Graph::outputs
  std::vector<int32_t> overwritten;  // positions of inputs whose memory the caller may write from then on
};

// Sets Plan::seams. REQUIRES: the plan's memory is planned. A seam hands over its results in the order in which
// they are final.
void place_seams(Plan& plan, const std::vector<PlannedSeam>& seams);
// If the plan has seams, sets Plan::FreshBuffer::first_launch and Plan::last_launch.
void note_lifetimes(Plan& plan);

}  // namespace rondo::compile
