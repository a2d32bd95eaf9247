// SharedBuffers: makes the buffers of a model equal on all ranks at the end of a step. These are the buffers that each
// rank's forward writes, such as BatchNorm's running statistics. DistributedDataParallel has one SharedBuffers.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/modules/module.h"

namespace rondo::dist {

class SharedBuffers {
 public:
  // Shares the buffers that `model` has now; those that it gets later are not shared.
  SharedBuffers(const nn::ModuleBase& model, BufferSync how);
  // A collective: one for each dtype of the buffers. Afterwards each buffer has the same bits on every rank. With
  // BufferSync::kLeave, does nothing.
  void share(ProcessGroup& group, int64_t step) const;

 private:
  const BufferSync how_;
  std::vector<Tensor> buffers_;
};

}  // namespace rondo::dist
