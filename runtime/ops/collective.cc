// all_reduce_sum: the sum of a tensor over all processes of a job.
#include "rondo/runtime/op/communicator.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/collective_log.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo {
namespace {

struct Registry {
  std::mutex mutex;
  int64_t latest = 0;
  HashMap<int64_t, Communicator*> all;
};
Registry& registry() {
  static Registry& registry = *new Registry;  // never destroyed: communicators may outlive static objects
  return registry;
}
int64_t add(Communicator* communicator) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  r.all.try_emplace(++r.latest, communicator);
  return r.latest;
}

}  // namespace

Communicator::Communicator() : id_(add(this)) {}
Communicator::~Communicator() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  r.all.erase(id_);
}
Communicator& Communicator::of(int64_t id) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  const auto found = r.all.find(id);
  if (found == r.all.end())
    throw Error(absl::StrCat("all_reduce_sum: communicator ", id,
                             " has been destroyed; keep it, and its process group, until backward has run"));
  return *found->second;
}

namespace ops {

void all_reduce_kernel(const KernelContext& c) {
  const Tensor dense = c.in(0).contiguous(c.where);
  const Device device = c.out().device();
  copy_bytes(device, c.out().mutable_address(), device, dense.address(c.where), static_cast<size_t>(dense.nbytes()));
  CollectiveScope::all_reduce_sum(c.attrs.ints[0], c.out());
}

// ints: {Communicator::id()}. The loss of every rank depends on the sum, so the gradient of an element is the sum of
// the gradients that arrive on all ranks.
constexpr OpDef kAllReduceSum = {
    .name = "all_reduce_sum",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .host = {&all_reduce_kernel},
    .grad = [](const GradContext& g) { g.set(0, call(kAllReduceSum, {g.grad_out()}, g.attrs())); },
    .trait = trait::Exchange{},
};

Tensor all_reduce_sum(TensorArg x, const Communicator& communicator) {
  return call(kAllReduceSum, {x}, {.ints = {communicator.id()}});
}

constexpr OpList kCollectiveOps = {&kAllReduceSum};

}  // namespace ops
}  // namespace rondo
