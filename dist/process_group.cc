#include "rondo/dist/process_group.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/dist/gloo_group.h"
#include "rondo/runtime/backend.h"

namespace rondo::dist {
namespace {

// One process: nothing to move.
class SoloGroup final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    check_reducible(tensor, op, name);
    return Work();
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    check_dense(tensor, "broadcast", name);
    if (root != 0) throw Error(absl::StrCat("broadcast (", std::string(name), "): there is no rank ", root));
    return Work();
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    check_gather(out, in, 1, name);
    copy_bytes(in, out);
    return Work();
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    check_scatter(out, in, 1, op, name);
    copy_bytes(in, out);
    return Work();
  }
  Work barrier(std::string_view) override { return Work(); }

 private:
  static void copy_bytes(const Tensor& from, Tensor to) {
    if (from.nbytes() > 0) std::memcpy(to.raw_mutable_data(), from.raw_data(), static_cast<size_t>(from.nbytes()));
  }
};

}  // namespace

void Work::State::finish(Outcome with, std::string why) {
  {
    const std::lock_guard lock(mutex);
    outcome = with;
    error = std::move(why);
  }
  done_changed.notify_all();
}

// Every call throws an exception of its own: one object must not be shared by the threads that catch it.
void Work::wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->done_changed.wait(lock, [this] { return state_->outcome != Outcome::kPending; });
  switch (state_->outcome) {
    case Outcome::kLate: throw TimeoutError(state_->error);
    case Outcome::kLost: throw ConnectionError(state_->error);
    case Outcome::kMismatch: throw MismatchError(state_->error);
    default: return;
  }
}

bool Work::is_done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->outcome != Outcome::kPending;
}

std::shared_ptr<ProcessGroup> ProcessGroup::connect(const Environment& environment, GroupOptions options) {
  if (environment.world_size == 1) return std::make_shared<SoloGroup>();
  return connect_gloo(environment, options);
}

void check_dense(const Tensor& tensor, std::string_view collective, std::string_view name) {
  const std::string what = absl::StrCat(std::string(collective), " (", std::string(name), "): ");
  if (!tensor.defined()) throw Error(what + "the tensor is undefined");
  if (!has_host_memory(tensor.device()))
    throw Error(absl::StrCat(what, "the tensor is on ", to_string(tensor.device()),
                             ", and processes exchange host memory only; copy it with to(kCPU)"));
  if (!tensor.is_contiguous()) throw Error(what + "the tensor is not contiguous; use contiguous()");
}

void check_reducible(const Tensor& tensor, ReduceOp op, std::string_view name, std::string_view collective) {
  check_dense(tensor, collective, name);
  const DType t = tensor.dtype();
  if (is_floating(t) || (op == ReduceOp::kSum && (t == kI64 || t == kI32))) return;
  throw Error(absl::StrCat(std::string(collective), " (", std::string(name), "): ", std::string(name_of(t)),
                           " cannot be ", op == ReduceOp::kSum ? "summed" : "averaged"));
}

namespace {
// `all` has a row of the shape and dtype of `one` for each rank.
bool is_row_per_rank(const Tensor& all, const Tensor& one, int world_size) {
  bool fits = all.rank() == one.rank() + 1 && all.dtype() == one.dtype() && all.size(0) == world_size;
  for (int d = 0; fits && d < one.rank(); ++d) fits = all.size(d + 1) == one.size(d);
  return fits;
}
}  // namespace

void check_scatter(const Tensor& out, const Tensor& in, int world_size, ReduceOp op, std::string_view name) {
  check_reducible(in, op, name, "reduce_scatter");
  check_dense(out, "reduce_scatter", name);
  if (!is_row_per_rank(in, out, world_size))
    throw Error(absl::StrCat("reduce_scatter (", std::string(name), "): ", std::string(name_of(in.dtype())),
                             to_string(in.sizes()), " does not part into ", world_size, " ranks with ",
                             std::string(name_of(out.dtype())), to_string(out.sizes())));
  if (out.storage() == in.storage())
    throw Error(absl::StrCat("reduce_scatter (", std::string(name), "): the result lies in the operand's memory"));
}

void check_gather(const Tensor& out, const Tensor& in, int world_size, std::string_view name) {
  check_dense(out, "all_gather", name);
  check_dense(in, "all_gather", name);
  if (!is_row_per_rank(out, in, world_size))
    throw Error(absl::StrCat("all_gather (", std::string(name), "): ", world_size, " ranks with ",
                             std::string(name_of(in.dtype())), to_string(in.sizes()), " do not make ",
                             std::string(name_of(out.dtype())), to_string(out.sizes())));
}

std::vector<std::string> ProcessGroup::check_sequence(std::string_view text, std::string_view name, int64_t) {
  return gather_texts(*this, text, 4096, name);
}

std::vector<std::string> gather_texts(ProcessGroup& group, std::string_view text, int64_t max_bytes,
                                      std::string_view name) {
  const auto n = static_cast<size_t>(group.world_size());
  text = text.substr(0, static_cast<size_t>(max_bytes));
  // On the CPU, whatever default_device() is. The lengths are sent first: a row is then no longer than the longest
  // text, and no row is sent if all texts are empty.
  const Tensor length = Tensor::from<int64_t>({static_cast<int64_t>(text.size())}, {1}, kCPU);
  Tensor lengths = Tensor::zeros({group.world_size(), 1}, {kI64, kCPU});
  group.all_gather(lengths, length, name).wait();
  const std::vector<int64_t> sizes = lengths.to_vector<int64_t>();
  const int64_t row = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> texts(n);
  if (row == 0) return texts;
  Tensor mine = Tensor::zeros({row}, {kU8, kCPU}), all = Tensor::zeros({group.world_size(), row}, {kU8, kCPU});
  std::memcpy(mine.mutable_data<uint8_t>(), text.data(), text.size());
  group.all_gather(all, mine, name).wait();
  for (size_t r = 0; r < n; ++r) {
    const char* from = reinterpret_cast<const char*>(all.data<uint8_t>()) + static_cast<int64_t>(r) * row;
    texts[r].assign(from, static_cast<size_t>(sizes[r]));
  }
  return texts;
}

}  // namespace rondo::dist
