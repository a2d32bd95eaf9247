#include "rondo/dist/groups/nccl_group.h"

#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/groups/nccl_communicator.h"
#include "rondo/dist/groups/placement.h"
#include "rondo/dist/groups/sequence.h"
#include "rondo/dist/groups/tcp_group.h"
#include "rondo/dist/transport/socket.h"

namespace rondo::dist {
namespace {

// How long the destructor waits for NCCL. kLeavingNccl: for collectives in flight and then for their abort.
// kAbortingNccl: for the abort alone.
constexpr Milliseconds kLeavingNccl{3'000}, kAbortingNccl{1'000};

NcclType nccl_type(DType dtype) {
  switch (dtype) {
    case kF64: return NcclType::kF64;
    case kF32: return NcclType::kF32;
    case kBF16: return NcclType::kBF16;
    case kF16: return NcclType::kF16;
    case kI64: return NcclType::kI64;
    case kI32: return NcclType::kI32;
    default: return NcclType::kU8;  // bool and u8, which are only copied
  }
}
NcclOp nccl_op(ReduceOp op) { return op == ReduceOp::kSum ? NcclOp::kSum : NcclOp::kAverage; }

class NcclGroup final : public ProcessGroup, public std::enable_shared_from_this<NcclGroup> {
 public:
  NcclGroup(const NcclLibrary& library, const NcclId& id, const GroupOptions& options, std::shared_ptr<HostGroup> host,
            std::string label)
      : library_(library),
        options_(options),
        device_(*options.device),
        exceptions_(std::uncaught_exceptions()),
        host_(std::move(host)),
        communicator_(std::make_shared<NcclCommunicator>(library, id,
                                                         NcclCommunicator::Options{.device = device_,
                                                                                   .rank = host_->rank(),
                                                                                   .world_size = host_->world_size(),
                                                                                   .timeout = options.timeout,
                                                                                   .label = std::move(label)},
                                                         host_)),
        thread_([communicator = communicator_] { communicator->watch(); }) {}

  ~NcclGroup() override {
    const bool unwinds = std::uncaught_exceptions() > exceptions_;
    if (communicator_->close(unwinds, unwinds ? kAbortingNccl : kLeavingNccl)) thread_.join();
    else thread_.detach();
  }

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  std::optional<Device> device() const override { return device_; }
  std::string failure() override {
    std::string why = communicator_->failure();
    return why.empty() ? host_->failure() : why;
  }

  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    check_reducible(tensor, op, name, device_);
    if (!is_mine(tensor)) return host_->all_reduce(tensor, op, name);
    Tensor out = tensor;
    void* const data = out.mutable_address();
    const auto n = static_cast<size_t>(out.numel());
    const NcclType type = nccl_type(out.dtype());
    return issue({.numel = out.numel(), .kind = CollectiveKind::kAllReduce, .op = op, .dtype = out.dtype()}, name, out,
                 Tensor(), [=](const NcclLibrary& library, NcclComm comm, void* stream) {
                   return library.all_reduce(data, data, n, type, nccl_op(op), comm, stream);
                 });
  }

  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    check_dense(tensor, "broadcast", name, device_);
    check_root(root, world_size(), name);
    if (!is_mine(tensor)) return host_->broadcast(tensor, root, name);
    Tensor out = tensor;
    // The root only reads its tensor: mutable_address() would raise the tensor's version.
    void* const data = root == rank() ? const_cast<std::byte*>(out.address()) : out.mutable_address();
    const auto bytes = static_cast<size_t>(out.nbytes());
    return issue({.numel = out.numel(), .root = root, .kind = CollectiveKind::kBroadcast, .dtype = out.dtype()}, name,
                 out, Tensor(), [=](const NcclLibrary& library, NcclComm comm, void* stream) {
                   return library.broadcast(data, data, bytes, NcclType::kU8, root, comm, stream);
                 });
  }

  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    check_gather(out, in, world_size(), name, device_, rank());
    if (!is_mine(in)) return host_->all_gather(out, in, name);
    Tensor all = out;
    const void* const from = in.address();
    void* const to = all.mutable_address();
    const auto bytes = static_cast<size_t>(in.nbytes());
    return issue({.numel = in.numel(), .kind = CollectiveKind::kAllGather, .dtype = in.dtype()}, name, all, in,
                 [=](const NcclLibrary& library, NcclComm comm, void* stream) {
                   return library.all_gather(from, to, bytes, NcclType::kU8, comm, stream);
                 });
  }

  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    check_scatter(out, in, world_size(), op, name, device_);
    if (!is_mine(in)) return host_->reduce_scatter(out, in, op, name);
    Tensor mine = out;
    const void* const from = in.address();
    void* const to = mine.mutable_address();
    const auto n = static_cast<size_t>(mine.numel());
    const NcclType type = nccl_type(in.dtype());
    return issue({.numel = in.numel(), .kind = CollectiveKind::kReduceScatter, .op = op, .dtype = in.dtype()}, name,
                 mine, in, [=](const NcclLibrary& library, NcclComm comm, void* stream) {
                   return library.reduce_scatter(from, to, n, type, nccl_op(op), comm, stream);
                 });
  }

  Work barrier(std::string_view name) override { return host_->barrier(name); }

  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, std::string_view name) override {
    std::shared_ptr<HostGroup> hosts = host_->host_subgroup(ranks, name);
    if (hosts == nullptr) return nullptr;
    if (ranks.size() == 1) return make_solo_group(options_, host_->rank_in_job(rank()));
    std::vector<int> members;
    for (const int r : ranks) members.push_back(host_->rank_in_job(r));
    return make_nccl_group(
        std::move(hosts), options_, &library_, "",
        absl::StrCat(" of subgroup ", std::string(name), " (ranks ", absl::StrJoin(members, ", "), ")"));
  }

 private:
  bool is_mine(const Tensor& tensor) const { return tensor.device() == device_; }
  SequenceRecord* sequence() override { return &record_; }
  void fail_mismatched(const std::string& sentence) override { communicator_->fail_mismatched(sentence); }
  int rank_in_job(int rank) const override { return host_->rank_in_job(rank); }

  Work issue(const Call& call, std::string_view name, const Tensor& out, const Tensor& in,
             NcclCommunicator::Enqueue enqueue) {
    const NamedCall named = record_.add(call, name);
    if (options_.compare_each) check_sequence("", "the comparison before a collective of devices");
    if (call.numel == 0) return Work();
    return communicator_->issue(named, out, in, enqueue);
  }

  const NcclLibrary& library_;
  const GroupOptions options_;
  const Device device_;
  const int exceptions_;
  const std::shared_ptr<HostGroup> host_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  std::thread thread_;
  SequenceRecord record_;
};

// The first character of the text that each rank sends to the others before they connect. kCannot: the text says why
// the rank cannot connect. kUnit: the text names its GPU.
constexpr char kCannot[] = "!", kUnit[] = "=";
constexpr int64_t kLongestReason = 512;

void require_all_able(const HostGroup& host, const std::vector<std::string>& told) {
  const auto in_job = [&](size_t r) { return host.rank_in_job(static_cast<int>(r)); };
  for (size_t r = 0; r < told.size(); ++r)
    if (absl::StartsWith(told[r], kCannot))
      throw Error(absl::StrCat("rank ", in_job(r), " cannot exchange tensors of its device: ", told[r].substr(1)));
  for (size_t a = 0; a < told.size(); ++a)
    for (size_t b = a + 1; b < told.size(); ++b)
      if (told[a] == told[b] && told[a].size() > std::strlen(kUnit))
        throw Error(
            absl::StrCat("rank ", in_job(a), " and rank ", in_job(b),
                         " use the same GPU; give each rank a device of its own, as rondorun's LOCAL_RANK says"));
}

}  // namespace

std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<HostGroup> host, const GroupOptions& options,
                                              const NcclLibrary* library, const std::string& why_no_library,
                                              std::string label) {
  const Device device = *options.device;
  const BackendTable& table = backend_of(device);
  std::string mine;
  if (table.call_library == nullptr)
    mine = absl::StrCat(kCannot, "libraries cannot enqueue work on ", to_string(device));
  else if (library == nullptr) mine = absl::StrCat(kCannot, why_no_library);
  else mine = absl::StrCat(kUnit, table.place == nullptr ? "" : table.place(device.index).unit);
  require_all_able(*host, gather_texts(*host, mine, kLongestReason, "the devices of the ranks"));
  NcclId id = {};
  Tensor bytes = Tensor::zeros({static_cast<int64_t>(sizeof id)}, {kU8, kCPU});
  NcclResult result = NcclResult::kSuccess;
  if (host->rank() == 0) {
    result = library->unique_id(&id);
    std::memcpy(bytes.mutable_data<uint8_t>(), &id, sizeof id);
  }
  const std::vector<std::string> told = gather_texts(
      *host, result == NcclResult::kSuccess ? "" : absl::StrCat(kCannot, describe(*library, result, nullptr)),
      kLongestReason, "the id of the communicator");
  require_all_able(*host, told);
  host->broadcast(bytes, 0, "the id of the communicator").wait();
  std::memcpy(&id, bytes.data<uint8_t>(), sizeof id);
  return std::make_shared<NcclGroup>(*library, id, options, std::move(host), std::move(label));
}

std::shared_ptr<ProcessGroup> connect_nccl(std::shared_ptr<HostGroup> host, const GroupOptions& options) {
  std::string why_not;
  const NcclLibrary* const library = find_nccl(&why_not);
  check_devices(*host, *options.device);  // NCCL would report two ranks on one GPU late, and without their numbers
  return make_nccl_group(std::move(host), options, library, why_not);
}

}  // namespace rondo::dist
