#include "rondo/dist/groups/host_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

void check_members(const std::vector<int>& ranks, int world_size, std::string_view name) {
  const std::string what = absl::StrCat("subgroup (", std::string(name), "): ");
  if (ranks.empty()) throw Error(what + "it has no ranks");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world_size)
      throw Error(absl::StrCat(what, "there is no rank ", ranks[i], " among ", world_size));
    if (std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i))
      throw Error(absl::StrCat(what, "rank ", ranks[i], " is named twice"));
  }
}

// The group of a single process: it has nothing to send. Device tensors need no wait: the compute stream orders them.
class SoloGroup final : public HostGroup {
 public:
  SoloGroup(const GroupOptions& options, int rank_in_job) : options_(options), rank_in_job_(rank_in_job) {}
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::optional<Device> device() const override { return options_.device; }
  int rank_in_job(int) const override { return rank_in_job_; }
  std::string failure() override { return ""; }
  void give_up(const std::string&) override {}
  PeerStatus* peers() override { return nullptr; }

  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    check_reducible(tensor, op, name, device());
    return Work();
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    check_dense(tensor, "broadcast", name, device());
    check_root(root, 1, name);
    return Work();
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    check_gather(out, in, 1, name, device());
    copy(in, out);
    return Work();
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    check_scatter(out, in, 1, op, name, device());
    copy(in, out);
    return Work();
  }
  Work barrier(std::string_view) override { return Work(); }
  std::shared_ptr<HostGroup> host_subgroup(const std::vector<int>& ranks, std::string_view name) override {
    check_members(ranks, 1, name);
    return make_solo_group(options_, rank_in_job_);
  }

 private:
  static void copy(const Tensor& from, Tensor to) {
    std::byte* const into = to.mutable_address();
    if (from.address() != into)
      copy_bytes(to.device(), into, from.device(), from.address(), static_cast<size_t>(from.nbytes()));
  }

  const GroupOptions options_;
  const int rank_in_job_;
};

}  // namespace

std::shared_ptr<HostGroup> make_solo_group(const GroupOptions& options, int rank_in_job) {
  return std::make_shared<SoloGroup>(options, rank_in_job);
}

void agree_on_members(ProcessGroup& group, const std::vector<int>& ranks, std::string_view name) {
  check_members(ranks, group.world_size(), name);
  const std::string mine = absl::StrJoin(ranks, ", ");
  io::Checksum sum;
  sum.update(mine);
  const auto n = static_cast<int64_t>(group.world_size());
  const Tensor hash = Tensor::from<int64_t>({static_cast<int64_t>(sum.digest())}, {1}, kCPU);
  Tensor hashes = Tensor::zeros({n, 1}, {kI64, kCPU});
  const std::string what = absl::StrCat("subgroup ", std::string(name));
  group.all_gather(hashes, hash, what).wait();
  const std::vector<int64_t> all = hashes.to_vector<int64_t>();
  const auto other = static_cast<size_t>(std::find_if(all.begin(), all.end(), [&](int64_t h) { return h != all[0]; }) -
                                         all.begin());
  if (other == all.size()) return;
  const std::vector<std::string> texts = gather_texts(group, mine, 4096, what);
  throw MismatchError(
      absl::StrCat(what, ": rank ", other, " makes it of ranks ", texts[other], ", rank 0 of ranks ", texts[0]));
}

// ---- Checks of tensors and arguments

namespace {
std::string prefix_of(std::string_view collective, std::string_view name) {
  return absl::StrCat(std::string(collective), " (", std::string(name), "): ");
}
}  // namespace

void check_dense(const Tensor& tensor, std::string_view collective, std::string_view name,
                 std::optional<Device> device) {
  if (!tensor.defined()) throw Error(prefix_of(collective, name) + "the tensor is undefined");
  if (!has_host_memory(tensor.device()) && device != tensor.device()) {
    const std::string there = absl::StrCat(prefix_of(collective, name), "the tensor is on ", to_string(tensor.device()),
                                           ", and ");
    if (device) throw Error(absl::StrCat(there, "the group's device is ", to_string(*device)));
    throw Error(absl::StrCat(there,
                             "processes exchange host memory only; copy it with to(kCPU), or connect the group "
                             "with GroupOptions::device"));
  }
  if (!tensor.is_contiguous())
    throw Error(prefix_of(collective, name) + "the tensor is not contiguous; use contiguous()");
}

void check_root(int root, int world_size, std::string_view name) {
  if (root < 0 || root >= world_size)
    throw Error(absl::StrCat(prefix_of("broadcast", name), "there is no rank ", root));
}

void check_reducible(const Tensor& tensor, ReduceOp op, std::string_view name, std::optional<Device> device,
                     std::string_view collective) {
  check_dense(tensor, collective, name, device);
  const DType t = tensor.dtype();
  if (is_floating(t) || (op == ReduceOp::kSum && (t == kI64 || t == kI32))) return;
  throw Error(absl::StrCat(prefix_of(collective, name), std::string(name_of(t)), " cannot be ",
                           op == ReduceOp::kSum ? "summed" : "averaged"));
}

namespace {
// True if `all` is (world_size, ...) for `one` (...), with the same dtype.
bool is_row_per_rank(const Tensor& all, const Tensor& one, int world_size) {
  bool fits = all.rank() == one.rank() + 1 && all.dtype() == one.dtype() && all.size(0) == world_size;
  for (int d = 0; fits && d < one.rank(); ++d) fits = all.size(d + 1) == one.size(d);
  return fits;
}

void check_same_device(const Tensor& out, const Tensor& in, std::string_view collective, std::string_view name) {
  if (out.device() != in.device())
    throw Error(absl::StrCat(prefix_of(collective, name), "one tensor is on ", to_string(in.device()),
                             ", the result on ", to_string(out.device())));
}

bool overlap(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.address() < b.address() + b.nbytes() && b.address() < a.address() + a.nbytes();
}
}  // namespace

void check_scatter(const Tensor& out, const Tensor& in, int world_size, ReduceOp op, std::string_view name,
                   std::optional<Device> device) {
  check_reducible(in, op, name, device, "reduce_scatter");
  check_dense(out, "reduce_scatter", name, device);
  check_same_device(out, in, "reduce_scatter", name);
  if (!is_row_per_rank(in, out, world_size))
    throw Error(absl::StrCat(prefix_of("reduce_scatter", name), std::string(name_of(in.dtype())), to_string(in.sizes()),
                             " does not part into ", world_size, " ranks with ", std::string(name_of(out.dtype())),
                             to_string(out.sizes())));
  if (out.storage() == in.storage())
    throw Error(prefix_of("reduce_scatter", name) + "the result lies in the operand's memory");
}

void check_gather(const Tensor& out, const Tensor& in, int world_size, std::string_view name,
                  std::optional<Device> device, int rank) {
  check_dense(out, "all_gather", name, device);
  check_dense(in, "all_gather", name, device);
  check_same_device(out, in, "all_gather", name);
  if (!is_row_per_rank(out, in, world_size))
    throw Error(absl::StrCat(prefix_of("all_gather", name), world_size, " ranks with ",
                             std::string(name_of(in.dtype())), to_string(in.sizes()), " do not make ",
                             std::string(name_of(out.dtype())), to_string(out.sizes())));
  if (overlap(out, in) && in.address() != out.address() + rank * in.nbytes())
    throw Error(absl::StrCat(prefix_of("all_gather", name), "the operand lies in the result's memory, and not as row ",
                             rank, " of it"));
}

}  // namespace rondo::dist
