// One process of a job compiles, the others load its code.
//
//   dist::compile_once(*group, [&] { compile::warm_up(model, {x, y}, step); });     // step: forward and backward
//   optim::compile(optimizer); ...                                                  // compiles nothing that is there
#pragma once

#include <functional>

#include "rondo/dist/groups/process_group.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

// Rank 0 calls `work`, and then sends what its process has compiled (artifacts, compile/cache.h). Each other rank loads
// that before it calls `work`, which compiles nothing if it asks for the same code. A rank whose processor, device or
// build differs from rank 0's compiles for itself. `work` may not communicate, as the ranks call it at different times:
// a backward of a DistributedDataParallel runs under no_sync(). Returns the number of kernels that this rank loaded; 0
// on rank 0. A collective: throws what `work` throws on its own rank, and Error with rank 0's message on all ranks if
// it fails there.
int compile_once(ProcessGroup& group, const std::function<void()>& work);

}  // namespace rondo::dist
#pragma GCC visibility pop
