#include "rondo/dist/groups/process_group.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/groups/host_group.h"
#include "rondo/dist/groups/nccl_group.h"
#include "rondo/dist/groups/sequence.h"
#include "rondo/dist/groups/tcp_group.h"
#include "rondo/dist/groups/work_state.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

// One process: nothing to move. Tensors of a device stay in the order of its compute stream.
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

// ---- Work

void Work::State::finish(Outcome with, std::string why) {
  {
    const std::lock_guard lock(mutex);
    outcome = with;
    error = std::move(why);
  }
  done_changed.notify_all();
}

// Every call throws an exception of its own: one object must not be shared by the threads that catch it.
void Work::State::throw_error(std::unique_lock<std::mutex>&) const {
  switch (outcome) {
    case Outcome::kLate: throw TimeoutError(error);
    case Outcome::kLost: throw ConnectionError(error);
    case Outcome::kMismatch: throw MismatchError(error);
    default: return;
  }
}

void Work::State::synchronize() {
  std::unique_lock lock(mutex);
  done_changed.wait(lock, [this] { return outcome != Outcome::kPending; });
  throw_error(lock);
}

bool Work::State::is_done() {
  const std::lock_guard lock(mutex);
  return outcome != Outcome::kPending;
}

void Work::wait() const {
  if (state_) state_->wait();
}
void Work::synchronize() const {
  if (state_) state_->synchronize();
}
bool Work::is_done() const { return !state_ || state_->is_done(); }

// ---- Groups

void ProcessGroup::check_usable(std::string_view what) {
  if (const std::string why = failure(); !why.empty())
    throw ConnectionError(absl::StrCat(std::string(what), " cannot run: ", why));
}

namespace {

std::string kind_of(Device device) {
  std::string name = to_string(device);
  name.resize(std::min(name.find(':'), name.size()));  // without its number
  return name;
}

// A collective of one message. An option that one rank alone has would leave it waiting for the others.
void agree_on_options(ProcessGroup& host, const GroupOptions& options) {
  constexpr int64_t kNone = -1;
  const Tensor mine = Tensor::from<int64_t>(
      {options.timeout.count(), options.device ? static_cast<int64_t>(options.device->backend) : kNone,
       options.compare_each ? 1 : 0},
      {3}, kCPU);
  const auto text_of = [](size_t option, int64_t value) -> std::string {
    if (option == 0) return absl::StrCat("timeout = ", value, " ms");
    if (option == 1) return "device = " + (value == kNone ? "none" : kind_of({static_cast<Backend>(value)}));
    return absl::StrCat("compare_each = ", value != 0 ? "true" : "false");
  };
  Tensor all = Tensor::zeros({host.world_size(), 3}, {kI64, kCPU});
  host.all_gather(all, mine, "options of the group").wait();
  const std::vector<int64_t> values = all.to_vector<int64_t>();
  std::string differences;
  for (size_t option = 0; option < 3; ++option) {
    std::map<int64_t, std::vector<size_t>> ranks;  // that have this value
    for (size_t r = 0; 3 * r < values.size(); ++r) ranks[values[3 * r + option]].push_back(r);
    for (const auto& [value, those] : ranks)
      if (ranks.size() > 1)
        absl::StrAppend(&differences, "; ", text_of(option, value), those.size() > 1 ? " on ranks " : " on rank ",
                        absl::StrJoin(those, ", "));
  }
  if (!differences.empty()) throw MismatchError("the ranks connect with different GroupOptions" + differences);
}

// Clocks count nanoseconds in 64 bits: the time in 300 years cannot be said.
constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::connect(const Environment& environment, GroupOptions options) {
  options.timeout = std::min(options.timeout, kLongestTimeout);
  if (options.device && has_host_memory(*options.device)) options.device.reset();
  if (options.device) require_device(*options.device);
  if (environment.world_size == 1) return make_solo_group(options);
  std::shared_ptr<HostGroup> host = connect_tcp(environment, {.timeout = options.timeout});
  agree_on_options(*host, options);
  if (options.device) return connect_nccl(std::move(host), options);
  return host;
}

std::shared_ptr<ProcessGroup> ProcessGroup::subgroup(const std::vector<int>&, std::string_view name) {
  throw Error(absl::StrCat("subgroup (", std::string(name), "): a group of this kind has none"));
}

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

// ---- Checks

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
// `all` has a row of the shape and dtype of `one` for each rank.
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

// The bytes of the two tensors have something in common.
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

// ---- The comparison of device collectives

namespace {

constexpr int64_t kLongestText = 4096;

// What a rank sends. The text follows: `reserved` bytes.
struct CheckHeader {
  uint64_t count = 0, hash = 0;
  uint32_t text_bytes = 0, has_more = 0;  // has_more: the text did not fit
};
static_assert(sizeof(CheckHeader) == 24);

// Where two sequences part: the number of the collective, and the first rank that differs from rank 0 there.
struct Difference {
  uint64_t number = 0;
  size_t rank = 0;
};

// A collective. Nothing if the ranks part before what all of them have kept.
std::optional<Difference> find_difference(ProcessGroup& group, const SequenceRecord& record, uint64_t count,
                                          const std::string& name) {
  const auto n = static_cast<size_t>(group.world_size());
  const Tensor mine = Tensor::from<int64_t>({static_cast<int64_t>(record.first()), static_cast<int64_t>(count)}, {2},
                                            kCPU);
  Tensor all = Tensor::zeros({group.world_size(), 2}, {kI64, kCPU});
  group.all_gather(all, mine, name).wait();
  const std::vector<int64_t> ranges = all.to_vector<int64_t>();
  int64_t from = 1, to = 0;
  for (size_t r = 0; r < n; ++r) from = std::max(from, ranges[2 * r]), to = std::max(to, ranges[2 * r + 1]);
  const int64_t length = std::min<int64_t>(std::max<int64_t>(to - from + 1, 0), SequenceRecord::kMost);
  if (length == 0) return std::nullopt;
  Tensor hashes = Tensor::zeros({length}, {kI64, kCPU}),
         every = Tensor::zeros({group.world_size(), length}, {kI64, kCPU});
  for (int64_t i = 0; i < length && static_cast<uint64_t>(from + i) <= count; ++i)
    hashes.mutable_data<int64_t>()[i] = static_cast<int64_t>(record.hash_at(static_cast<uint64_t>(from + i)));
  group.all_gather(every, hashes, name).wait();
  const int64_t* at = every.data<int64_t>();
  const auto has = [&](size_t r, int64_t i) { return from + i <= ranges[2 * r + 1]; };
  for (int64_t i = 0; i < length; ++i)
    for (size_t r = 1; r < n; ++r)
      if (has(r, i) != has(0, i) || at[static_cast<int64_t>(r) * length + i] != at[i])
        // Hashes are of all calls so far: a first one that differs may be due to one that is forgotten.
        return i == 0 && static_cast<uint64_t>(from) != record.agreed() + 1
                   ? std::nullopt
                   : std::optional(Difference{static_cast<uint64_t>(from + i), r});
  return std::nullopt;
}

}  // namespace

SequenceCheck ProcessGroup::begin_check(std::string_view text, std::string_view name, int64_t reserved) {
  if (reserved < 0 || reserved > kLongestText)
    throw Error(absl::StrCat("check_sequence (", std::string(name), "): ", reserved, " bytes cannot be reserved; the ",
                             "most is ", kLongestText));
  SequenceCheck check;
  check.group_ = this;
  check.text_ = text.substr(0, static_cast<size_t>(kLongestText));
  check.name_ = name;
  check.reserved_ = std::max<int64_t>(reserved, 8);
  CheckHeader header{.text_bytes = static_cast<uint32_t>(check.text_.size()),
                     .has_more = static_cast<int64_t>(check.text_.size()) > check.reserved_};
  if (const SequenceRecord* record = sequence()) {
    header.count = check.count_ = record->count();
    header.hash = record->hash();
  }
  const int64_t row = static_cast<int64_t>(sizeof header) + check.reserved_;
  check.mine_ = Tensor::zeros({row}, {kU8, kCPU});
  check.all_ = Tensor::zeros({world_size(), row}, {kU8, kCPU});
  auto* const to = check.mine_.mutable_data<uint8_t>();
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + sizeof header, check.text_.data(),
              std::min(check.text_.size(), static_cast<size_t>(check.reserved_)));
  check.work_ = all_gather(check.all_, check.mine_, name);
  return check;
}

std::vector<std::string> SequenceCheck::wait() {
  if (group_ == nullptr) throw Error("SequenceCheck::wait: there is no exchange, or it was waited for before");
  ProcessGroup& group = *std::exchange(group_, nullptr);
  work_.synchronize();
  const auto n = static_cast<size_t>(group.world_size());
  std::vector<CheckHeader> headers(n);
  std::vector<std::string> texts(n);
  bool more = false;
  const size_t row = sizeof(CheckHeader) + static_cast<size_t>(reserved_);
  for (size_t r = 0; r < n; ++r) {
    const auto* from = reinterpret_cast<const char*>(all_.data<uint8_t>()) + r * row;
    std::memcpy(&headers[r], from, sizeof(CheckHeader));
    more = more || headers[r].has_more != 0;
    texts[r].assign(from + sizeof(CheckHeader),
                    std::min<size_t>(headers[r].text_bytes, static_cast<size_t>(reserved_)));
  }
  if (more) texts = gather_texts(group, text_, kLongestText, name_);
  SequenceRecord* const record = group.sequence();
  if (record == nullptr) return texts;
  const auto differs = [&](const CheckHeader& h) { return h.count != headers[0].count || h.hash != headers[0].hash; };
  if (std::none_of(headers.begin(), headers.end(), differs)) {
    record->set_agreed(count_);
    return texts;
  }
  const std::optional<Difference> found = find_difference(group, *record, count_, name_);
  std::string sentence = "the ranks do not call the same collectives on their devices: ";
  if (found) {
    const std::vector<std::string> calls = gather_texts(group,
                                                        found->number > count_
                                                            ? absl::StrCat("the end of its calls, after ", count_)
                                                            : record->describe_at(found->number),
                                                        kLongestText, name_);
    absl::StrAppend(&sentence, "rank ", group.rank_in_job(0), " is at ", calls[0], ", rank ",
                    group.rank_in_job(static_cast<int>(found->rank)), " at ", calls[found->rank]);
  } else {
    absl::StrAppend(&sentence, "the first that differs is older than the last ", SequenceRecord::kMost,
                    ", which are kept; call check_sequence() more often");
  }
  for (size_t r = 0; r < n; ++r)
    if (!texts[r].empty())
      absl::StrAppend(&sentence, "; rank ", group.rank_in_job(static_cast<int>(r)), " says: ", texts[r]);
  group.fail_mismatched(sentence);
  throw MismatchError(sentence);
}

std::vector<std::string> ProcessGroup::check_sequence(std::string_view text, std::string_view name, int64_t reserved) {
  return begin_check(text, name, reserved).wait();
}

}  // namespace rondo::dist
