// One process of a job compiles, the others load its code.
//
//   dist::compile_once(*group, [&] { compile::warm_up(model, {x, y}, step); });     // step: forward and backward
//   optim::compile(optimizer); ...                                                  // compiles what is missing
#pragma once

#include <functional>

#include "rondo/dist/groups/process_group.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

// Rank 0 calls `work`, then sends all code that its process has compiled (artifacts, compile/cache.h). Each other rank
// loads this code before it calls `work`, which then compiles nothing if it needs the same code. A rank whose
// processor, device or build differs from rank 0's compiles for itself. `work` must not communicate, because the ranks
// call it at different times: run the backward of a DistributedDataParallel under no_sync(). Returns the number of
// kernels that this rank loaded; 0 on rank 0. A collective. If `work` throws on rank 0, that error is rethrown there,
// and all other ranks throw Error with its message. If `work` throws on another rank, only that rank throws.
int compile_once(ProcessGroup& group, const std::function<void()>& work);

}  // namespace rondo::dist
#pragma GCC visibility pop
