#include "rondo/dist/ddp/shared_buffers.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::dist {

SharedBuffers::SharedBuffers(const nn::ModuleBase& model, BufferSync how) : how_(how) {
  if (how == BufferSync::kLeave) return;
  for (const nn::NamedTensor& buffer : model.named_buffers())
    if (buffer.tensor.numel() > 0) buffers_.push_back(buffer.tensor);
}

void SharedBuffers::share(ProcessGroup& group, int64_t step) const {
  if (group.world_size() == 1) return;
  const NoGrad off;
  std::map<DType, std::vector<Tensor>> by_dtype;
  for (const Tensor& buffer : buffers_) by_dtype[buffer.dtype()].push_back(buffer.detach());
  struct Sent {
    std::vector<Tensor> buffers;
    Tensor side_by_side;
    bool is_average;
    Work work;
  };
  std::vector<Sent> sent;
  for (auto& [dtype, buffers] : by_dtype) {
    std::vector<Tensor> flat;
    for (const Tensor& buffer : buffers) flat.push_back(buffer.reshape({-1}));
    const Tensor all = ops::cat(flat, 0);
    // Integers are counts, which are not averaged.
    const bool is_average = how_ == BufferSync::kAverage && is_floating(dtype);
    const std::string name = absl::StrCat("buffers (", std::string(name_of(dtype)), ") of step ", step);
    Work work = is_average ? group.all_reduce(all, ReduceOp::kAverage, name) : group.broadcast(all, 0, name);
    sent.push_back({std::move(buffers), all, is_average, std::move(work)});
  }
  for (Sent& s : sent) {
    s.work.wait();
    if (!s.is_average && group.rank() == 0) continue;
    int64_t at = 0;
    for (Tensor& buffer : s.buffers) {
      const int64_t n = buffer.numel();
      buffer.copy_(s.side_by_side.slice(0, {at, at + n}).view(buffer.sizes()));
      at += n;
    }
  }
}

}  // namespace rondo::dist
