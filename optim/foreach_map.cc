#include "rondo/optim/foreach_map.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/launch_queue.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::optim {
namespace {

// The memory of one tensor, from its first element to its last. `list` and `tensor`: the index of its list, and its
// index in the list.
struct Extent {
  const std::byte *begin, *end;
  size_t list, tensor;
  bool written;
};
Extent extent_of(const Tensor& t, size_t list, size_t tensor, bool written) {
  int64_t last = 0;
  for (int d = 0; d < t.rank(); ++d) last += (t.sizes()[d] - 1) * t.strides()[d];
  const std::byte* const begin = t.address();
  return {begin, begin + (last + 1) * static_cast<int64_t>(size_of(t.dtype())), list, tensor, written};
}

// Throws Error if a written tensor shares memory with another one.
void require_apart(std::vector<Extent>& extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.list, a.tensor) < std::tie(b.begin, b.list, b.tensor);
  });
  const Extent *farthest = nullptr, *farthest_written = nullptr;  // among the earlier extents, those that end last
  for (const Extent& extent : extents) {
    const Extent* const other = extent.written ? farthest : farthest_written;
    if (other != nullptr && extent.begin < other->end) {
      const Extent &written = extent.written ? extent : *other, &shared = extent.written ? *other : extent;
      throw Error(absl::StrCat("foreach_map: tensor ", written.tensor, " of list ", written.list,
                               " is written, and shares memory with tensor ", shared.tensor, " of list ", shared.list,
                               "; clone() one of them"));
    }
    if (farthest == nullptr || extent.end > farthest->end) farthest = &extent;
    if (extent.written && (farthest_written == nullptr || extent.end > farthest_written->end))
      farthest_written = &extent;
  }
}

}  // namespace

void MapPasses::run(const Body& body, std::span<const std::span<const Tensor>> lists, std::span<const double> scalars) {
  const NoGrad off;
  const memory::Cause cause("", "foreach_map", {});
  const size_t n = lists[0].size();
  const auto fail = [](size_t list, size_t i, std::string_view why) {
    throw Error(absl::StrCat("foreach_map: tensor ", i, " of list ", list, " ", std::string(why)));
  };
  for (size_t k = 0; k < lists.size(); ++k) {
    if (lists[k].size() != n)
      throw Error(absl::StrCat("foreach_map: list 0 has ", n, " tensors, list ", k, " ", lists[k].size()));
    for (size_t i = 0; i < n; ++i) {
      const Tensor& t = lists[k][i];
      if (!t.defined()) fail(k, i, "is undefined");
      if (!is_floating(t.dtype()))
        fail(k, i, absl::StrCat("is ", std::string(name_of(t.dtype())), ", not floating point"));
      if (!(t.device() == lists[0][0].device()))
        fail(k, i, absl::StrCat("is on ", to_string(t.device()), ", others on ", to_string(lists[0][0].device())));
      if (!(t.sizes() == lists[0][i].sizes()))
        fail(k, i, absl::StrCat("is ", to_string(t.sizes()), ", that of list 0 ", to_string(lists[0][i].sizes())));
    }
  }
  if (n == 0) return;
  const Device device = lists[0][0].device();
  std::map<std::shared_ptr<Foreach>, std::vector<size_t>> parts;
  std::vector<ArraySpec> arrays(lists.size());
  std::vector<Extent> extents;
  extents.reserve(n * lists.size());
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < lists.size(); ++k) arrays[k] = {.dtype = lists[k][i].dtype()};
    std::shared_ptr<Foreach> pass;
    for (const Known& known : passes_)
      if (known.device == device && known.pass->is(body, arrays)) pass = known.pass;
    if (pass == nullptr) pass = passes_.emplace_back(device, std::make_shared<Foreach>(body, arrays)).pass;
    if (compiled_ || !runs_host_code(device)) pass->compile(device);
    for (size_t k = 0; k < lists.size(); ++k) {
      const bool written = (pass->written() >> k & 1) != 0;
      if (written && !lists[k][i].is_contiguous()) fail(k, i, "is written, and not contiguous");
      if (lists[k][i].numel() > 0) extents.push_back(extent_of(lists[k][i], k, i, written));
    }
    parts[pass].push_back(i);
  }
  require_apart(extents);
  const Storage numbers = Storage::allocate(scalars.size_bytes(), device);
  copy_bytes(device, numbers.data(), kCPU, scalars.data(), scalars.size_bytes());
  std::vector<Tensor> dense;    // contiguous copies of tensors that are only read
  std::vector<Tensor> written;  // marked as written when all launches are ready
  LaunchQueue queue;
  queue.start(device);
  for (const auto& [pass, tensors] : parts) {
    ForeachTable& table = queue.table();
    for (size_t i : tensors) {
      const int64_t numel = lists[0][i].numel();
      if (numel == 0) continue;
      const std::span<void*> operands = table.add(pass->item(numel, 0, reinterpret_cast<const double*>(numbers.data())),
                                                  pass->n_operands());
      for (size_t k = 0; k < lists.size(); ++k) {
        Tensor t = lists[k][i];
        if ((pass->written() >> k & 1) != 0) written.push_back(t);
        else if (!t.is_contiguous()) t = dense.emplace_back(t.contiguous());
        operands[k] = const_cast<std::byte*>(t.address());
      }
    }
    queue.add(pass);
  }
  queue.make_ready();
  for (Tensor& t : written) static_cast<void>(t.mutable_address());
  queue.submit();
}

}  // namespace rondo::optim
