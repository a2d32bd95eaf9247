#include "rondo/dist/groups/tcp_group.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/groups/agreement.h"
#include "rondo/dist/groups/collective.h"
#include "rondo/dist/groups/tcp_transport.h"
#include "rondo/dist/kernels/reduction.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/dist/transport/peer_status.h"
#include "rondo/dist/transport/rendezvous.h"
#include "rondo/dist/transport/store.h"
#include "rondo/runtime/base/floating_point_scope.h"

namespace rondo::dist {
namespace {

constexpr size_t kLongestName = 80;
// kLeaving: how long a group that is being destroyed waits for a collective that already moves data. kStoreLeaving: how
// long it waits for the ranks that still use its store.
constexpr Milliseconds kLeaving{2'000}, kStoreLeaving{5'000};
// If ranks disagree, a rank waits this long for another rank's description of its call.
constexpr Milliseconds kTelling{5'000};

// A collective that was issued and has no outcome yet.
struct Job {
  Call call;
  std::string name;
  Tensor out, in;  // keeps the tensors alive
  void* to = nullptr;
  const void* from = nullptr;
  std::shared_ptr<Work::State> state;

  std::string text() const { return describe(call, name); }
};

// The ranks of a group. A subgroup has some of the job's ranks.
struct Members {
  std::vector<int> ranks;  // the members' ranks in the job
  std::string prefix;      // the prefix of a subgroup's keys in the store; empty: the whole job, meet() chooses it
  std::string label;       // " of subgroup NAME (ranks 1, 3)", for messages

  int position_of(int rank) const {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
};

Members all_ranks(int world_size) {
  Members all;
  for (int r = 0; r < world_size; ++r) all.ranks.push_back(r);
  return all;
}

std::unique_ptr<Store> open_store(const Environment& environment, Milliseconds timeout) {
  const HostPort at = environment.store_address();
  try {
    return std::make_unique<Store>(at.host, at.port, timeout, environment.store_token);
  } catch (const TimeoutError& e) {
    if (!environment.store.empty() || environment.rank == 0) throw;
    throw TimeoutError(absl::StrCat("rank ", environment.rank, " of ", environment.world_size,
                                    " finds no rank 0, which keeps the store of the job: ", e.what(),
                                    ". All processes of the job must be started, with the same MASTER_ADDR and "
                                    "MASTER_PORT; rondorun does both"));
  }
}

// Opens the store of a job without a launcher.
std::unique_ptr<StoreServer> keep_store(const Environment& e) {
  try {
    return std::make_unique<StoreServer>(e.master_addr, e.master_port, e.store_token);
  } catch (const ConnectionError& error) {
    throw ConnectionError(absl::StrCat("rank 0 ", error.what(),
                                       ". Two processes of this job may have RANK=0; otherwise choose another "
                                       "MASTER_PORT"));
  }
}

// The part of a group that the communication thread uses. The thread takes jobs in order and finishes each one.
class Communicator {
 public:
  Communicator(const Environment& job, Milliseconds timeout, Members members)
      : members_(std::move(members)),
        rank_(members_.position_of(job.rank)),
        world_size_(static_cast<int>(members_.ranks.size())),
        timeout_(timeout) {
    store_ = open_store(job, timeout);
    try {
      prefix_ = members_.prefix.empty() ? meet(*store_, job, timeout) : members_.prefix;
      peers_ = std::make_unique<PeerStatus>(*store_, job, prefix_, members_.ranks);
      Environment group = job;
      group.rank = rank_;
      group.world_size = world_size_;
      transport_ = std::make_unique<TcpTransport>(*store_, prefix_, group, timeout);
    } catch (const MissingRanksError& e) {
      std::vector<int> missing;
      for (const int r : e.ranks) missing.push_back(members_.ranks[static_cast<size_t>(r)]);
      const MissingRanksError error(counted_in_group(e.what()), std::move(missing));
      if (peers_) peers_->fail(error.what(), error.ranks);
      else write_failure(*store_, job, FailureRecord::now(error.ranks, error.what()));
      throw error;
    } catch (const DistError& e) {
      if (peers_) peers_->fail(e.what(), {});
      throw;
    }
  }

  const Members& members() const { return members_; }
  const std::string& prefix() const { return prefix_; }
  PeerStatus& peers() { return *peers_; }

  // True in a fork of the process that connected: it has no communication thread, and the sockets are its parent's.
  bool is_in_fork() const { return ::getpid() != process_; }

  Work issue(Job job, std::string_view name) {
    if (is_in_fork())
      throw Error(absl::StrCat("process group (", std::string(name), "): this process is a fork of process ", process_,
                               ", which has connected; it cannot take part"));
    job.name = name.substr(0, kLongestName);
    job.call.name = hash_of_name(job.name);
    job.state = std::make_shared<Work::State>();
    Work work(job.state);
    {
      const std::lock_guard lock(mutex_);
      job.call.number = ++issued_;
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
    return work;
  }

  // The communication thread's main function. Returns when close() was called and every job has an outcome.
  void run() {
    const FloatingPointScope floating_point;  // the thread sums gradients
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closing_ || !jobs_.empty() || was_given_up(); });
        if (was_given_up()) {
          failure_ = failed_with_;
          lock.unlock();
          transport_->close();  // so that the other ranks notice at once
          continue;
        }
        if (jobs_.empty()) break;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        if (closing_ && failure_.empty()) failure_ = "the process group was closed";
      }
      finish(std::move(job));
    }
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
  }

  // Closes the communicator: jobs that have not begun get an error. Waits up to `patience` for a job that already moves
  // data, because other ranks take part in it. Returns false if this job takes longer: the thread then ends by itself
  // when the group's timeout has passed.
  bool close(const char* how, bool failed, Milliseconds patience) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      first = failed_with_.empty();
    }
    if (failed && first) peers_->fail(how, {});
    peers_->leave(how);
    transport_->interrupt();
    changed_.notify_all();
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [this] { return ended_; });
  }

  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failed_with_;
  }
  void give_up(const std::string& sentence) {
    {
      const std::lock_guard lock(mutex_);
      if (!failed_with_.empty()) return;
      failed_with_ = sentence;
    }
    transport_->interrupt();
    changed_.notify_all();
  }
  // Returns a message of the transport; in a subgroup, with a note that it numbers the ranks as in the group.
  std::string counted_in_group(std::string text) const {
    return members_.label.empty() ? text : absl::StrCat(text, " (its ranks are counted", members_.label, ")");
  }

 private:
  // True if give_up() was called since the communication thread last looked. REQUIRES: mutex_ is held.
  bool was_given_up() const { return failure_.empty() && !failed_with_.empty(); }

  void finish(Job job) {
    auto outcome = Work::Outcome::kDone;
    std::string error;
    try {
      if (!failure_.empty()) throw ConnectionError(absl::StrCat(text_of(job), " cannot run: ", failure_));
      execute(job);
    } catch (const std::exception& e) {
      error = e.what();
      outcome = dynamic_cast<const MismatchError*>(&e)  ? Work::Outcome::kMismatch
                : dynamic_cast<const TimeoutError*>(&e) ? Work::Outcome::kLate
                                                        : Work::Outcome::kLost;
    }
    const std::shared_ptr<Work::State> state = job.state;
    job = Job();  // drop the tensors before the waiting thread continues: that thread owns them again
    state->finish(outcome, std::move(error));
  }

  void execute(Job& job) {
    const auto began = std::chrono::steady_clock::now();
    peers_->begin(PeerStatus::Lane::kHost, job.call.number, text_of(job));
    try {
      const std::vector<CallMessage> calls = agree(job);
      const size_t bytes = job.call.bytes();
      if (bytes <= kInline) take_inline(job, calls);
      else if (bytes <= kSmall) exchange_small(job);
      else move(job);
    } catch (const MismatchError& e) {
      fail(e.what(), {});
      throw;
    } catch (const std::exception& e) {
      const std::string what = absl::StrCat("rank ", members_.ranks[static_cast<size_t>(rank_)], ": ", text_of(job));
      throw_if_given_up(what);
      const bool late = std::chrono::steady_clock::now() - began >= timeout_;
      const PeerStatus::Diagnosis diagnosis = peers_->diagnose(PeerStatus::Lane::kHost, job.call.number, what, late,
                                                               timeout_, counted_in_group(e.what()));
      throw_if_given_up(what);  // the device's diagnosis names the real cause
      fail(diagnosis.sentence, diagnosis.causes);
      if (late) throw TimeoutError(diagnosis.sentence);
      throw ConnectionError(diagnosis.sentence);
    }
  }

  // Throws if the group was closed or given up during the collective that `what` describes.
  void throw_if_given_up(const std::string& what) {
    std::string why;
    {
      const std::lock_guard lock(mutex_);
      why = !failed_with_.empty() ? failed_with_ : closing_ ? "the process group was closed" : "";
    }
    if (why.empty()) return;
    failure_ = why;
    transport_->close();
    throw ConnectionError(absl::StrCat(what, " was given up: ", why));
  }

  void fail(const std::string& sentence, const std::vector<int>& causes) {
    failure_ = sentence;
    {
      const std::lock_guard lock(mutex_);
      if (failed_with_.empty()) failed_with_ = sentence;
    }
    peers_->fail(sentence, causes);
    transport_->close();  // so that the other ranks need not wait for their timeout
  }

  std::string text_of(const Job& job) const { return job.text() + members_.label; }

  // ---- The ranks agree on the next collective
  // Throws MismatchError, with the same text on every rank, unless all ranks call the same collective.
  std::vector<CallMessage> agree(const Job& job) {
    CallMessage mine{.call = job.call};
    if (sends(job.call) && job.call.bytes() <= kInline && job.call.bytes() > 0)
      std::memcpy(mine.data, source(job), job.call.bytes());
    std::vector<CallMessage> all(static_cast<size_t>(world_size_));
    transport_->exchange(&mine, sizeof mine, all.data());
    const size_t other = first_that_differs(all, world_size_);
    if (other == 0) return all;
    peers_->publish_call(text_of(job));
    throw MismatchError(absl::StrCat("the ranks do not call the same collectives: rank ", members_.ranks[0], " is at ",
                                     call_of(members_.ranks[0], all[0].call), ", rank ", members_.ranks[other], " at ",
                                     call_of(members_.ranks[other], all[other].call)));
  }
  std::string call_of(int rank, const Call& call) {
    try {
      return peers_->call_of(rank, kTelling);
    } catch (const DistError&) {
      return describe(call, "its name is not known");
    }
  }

  bool sends(const Call& call) const { return call.kind != CollectiveKind::kBroadcast || call.root == rank_; }
  static const void* source(const Job& job) { return job.from != nullptr ? job.from : job.to; }

  // ---- Moving and reducing tensors
  void take_inline(Job& job, const std::vector<CallMessage>& calls) {
    const size_t bytes = job.call.bytes();
    std::vector<unsigned char> all(calls.size() * bytes);
    for (size_t r = 0; r < calls.size() && bytes > 0; ++r) std::memcpy(all.data() + r * bytes, calls[r].data, bytes);
    combine_small(job.call, rank_, world_size_, all.data(), job.to);
  }

  void exchange_small(Job& job) {
    std::vector<unsigned char> all(static_cast<size_t>(world_size_) * job.call.bytes());
    transport_->exchange(source(job), job.call.bytes(), all.data());
    combine_small(job.call, rank_, world_size_, all.data(), job.to);
  }

  void move(Job& job) {
    const Call& call = job.call;
    const auto n = static_cast<size_t>(call.numel);
    switch (call.kind) {
      case CollectiveKind::kBarrier: return;
      case CollectiveKind::kBroadcast: return transport_->broadcast(job.to, call.bytes(), call.root);
      case CollectiveKind::kAllGather: {
        const auto mine = static_cast<char*>(job.to) + static_cast<size_t>(rank_) * call.bytes();
        if (job.from != mine) std::memcpy(mine, job.from, call.bytes());
        return transport_->all_gather(job.to, 1, static_cast<size_t>(world_size_) * call.bytes());
      }
      case CollectiveKind::kAllReduce: {
        const size_t width = size_of(call.dtype);
        reduce(call, job.to, static_cast<char*>(job.to) + block_of(n).begin * width);
        return transport_->all_gather(job.to, width, n);
      }
      case CollectiveKind::kReduceScatter: return reduce(call, job.from, job.to);
    }
  }

  Block block_of(size_t n) const { return {n, static_cast<size_t>(world_size_), static_cast<size_t>(rank_)}; }

  // Reduces the tensors of all ranks. `reduced` receives this rank's block of the sums or averages, in the dtype of the
  // call. `reduced` may be that block of `in`.
  void reduce(const Call& call, const void* in, void* reduced) {
    const auto n = static_cast<size_t>(call.numel), mine = block_of(n).size();
    const DType wire = wire_dtype(call.dtype);
    const bool widens = wire != call.dtype;
    std::vector<float> wide(widens ? mine : 0);
    void* sums = widens ? wide.data() : reduced;
    transport_->reduce_scatter(in, call.dtype, n, sums);
    if (call.op == ReduceOp::kAverage) divide(sums, wire, mine, world_size_);
    if (widens) narrow(wide.data(), reduced, call.dtype, mine);
  }

  const Members members_;
  const int rank_, world_size_;  // in the group
  const Milliseconds timeout_;
  const pid_t process_ = ::getpid();
  std::string prefix_;  // the prefix of the group's keys in the store
  std::unique_ptr<Store> store_;
  std::unique_ptr<PeerStatus> peers_;
  std::unique_ptr<TcpTransport> transport_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  uint64_t issued_ = 0;
  bool closing_ = false, ended_ = false;
  std::string failed_with_;  // why the group has failed; empty if it has not

  std::string failure_;  // why no job can run any more; used by the communication thread only
};

class TcpGroup final : public HostGroup, public std::enable_shared_from_this<TcpGroup> {
 public:
  // `parent`: the group that this subgroup was made from. The parent keeps the store's server, if this rank has one.
  TcpGroup(const Environment& environment, GroupOptions options, Members members,
           std::shared_ptr<HostGroup> parent = nullptr)
      : environment_(environment),
        options_(options),
        rank_(members.position_of(environment.rank)),
        world_size_(static_cast<int>(members.ranks.size())),
        exceptions_(std::uncaught_exceptions()),
        parent_(std::move(parent)) {
    if (options.timeout.count() <= 0) throw Error("ProcessGroup: the timeout must be positive");
    if (environment.store.empty() && environment.rank == 0 && parent_ == nullptr) server_ = keep_store(environment);
    communicator_ = std::make_shared<Communicator>(environment, options.timeout, std::move(members));
    thread_ = std::thread([communicator = communicator_] { communicator->run(); });
    if (server_) lookout_ = std::make_unique<Lookout>(environment);
  }

  ~TcpGroup() override {
    if (communicator_->is_in_fork()) {
      leave_to_parent();
      return;
    }
    const bool unwinds = std::uncaught_exceptions() > exceptions_;
    const bool ended = communicator_->close(unwinds ? "an exception ended it" : "it has left the group", unwinds,
                                            unwinds ? Milliseconds(0) : kLeaving);
    if (ended) thread_.join();
    else thread_.detach();
    communicator_.reset();
    lookout_.reset();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  int rank_in_job(int rank) const override { return communicator_->members().ranks.at(static_cast<size_t>(rank)); }
  std::string failure() override { return communicator_->failure(); }
  void give_up(const std::string& sentence) override { communicator_->give_up(sentence); }
  PeerStatus* peers() override { return &communicator_->peers(); }

  std::shared_ptr<HostGroup> host_subgroup(const std::vector<int>& ranks, std::string_view name) override {
    agree_on_members(*this, ranks, name);
    const int64_t number = ++subgroups_;
    Members members;
    for (const int r : ranks) members.ranks.push_back(rank_in_job(r));
    members.prefix = absl::StrCat(communicator_->prefix(), "subgroup/", number, "/");
    members.label = absl::StrCat(" of subgroup ", std::string(name), " (ranks ", absl::StrJoin(members.ranks, ", "),
                                 ")");
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
    if (ranks.size() == 1) return make_solo_group(options_, members.ranks[0]);
    return std::make_shared<TcpGroup>(environment_, options_, std::move(members), shared_from_this());
  }

  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    check_reducible(tensor, op, name);
    Job job;
    job.call = {.numel = tensor.numel(), .kind = CollectiveKind::kAllReduce, .op = op, .dtype = tensor.dtype()};
    job.out = tensor;
    job.to = job.out.raw_mutable_data();
    return communicator_->issue(std::move(job), name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    check_dense(tensor, "broadcast", name);
    check_root(root, world_size_, name);
    Job job;
    job.call = {.numel = tensor.numel(), .root = root, .kind = CollectiveKind::kBroadcast, .dtype = tensor.dtype()};
    job.out = tensor;
    // The root only reads its tensor: raw_mutable_data() would raise the tensor's version.
    job.to = root == rank_ ? const_cast<void*>(tensor.raw_data()) : job.out.raw_mutable_data();
    return communicator_->issue(std::move(job), name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    check_gather(out, in, world_size_, name, std::nullopt, rank_);
    Job job;
    job.call = {.numel = in.numel(), .kind = CollectiveKind::kAllGather, .dtype = in.dtype()};
    job.in = in;
    job.from = in.raw_data();
    job.out = out;
    job.to = job.out.raw_mutable_data();
    return communicator_->issue(std::move(job), name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    check_scatter(out, in, world_size_, op, name);
    Job job;
    job.call = {.numel = in.numel(), .kind = CollectiveKind::kReduceScatter, .op = op, .dtype = in.dtype()};
    job.in = in;
    job.from = in.raw_data();
    job.out = out;
    job.to = job.out.raw_mutable_data();
    return communicator_->issue(std::move(job), name);
  }
  Work barrier(std::string_view name) override { return communicator_->issue(Job(), name); }

 private:
  // Used in the process that keeps the store: its destructor waits until the other ranks have left, so that they can
  // still ask the store what went wrong.
  class Lookout {
   public:
    explicit Lookout(const Environment& environment) : environment_(environment) {}
    ~Lookout() {
      try {
        const HostPort at = environment_.store_address();
        Store store(at.host, at.port, kStoreLeaving, environment_.store_token);
        const std::string prefix = absl::StrCat(job_prefix(environment_), "group/",
                                                store.get_if_there(job_prefix(environment_) + "groups").value_or("0"),
                                                "/gone/");
        std::vector<std::string> keys;
        for (int r = 0; r < environment_.world_size; ++r) keys.push_back(absl::StrCat(prefix, r));
        store.wait_for(keys, kStoreLeaving);
      } catch (const std::exception&) {
      }
    }

   private:
    const Environment environment_;
  };

  // Leaks the members. In a fork they are copies: destroying them would wait for threads that do not exist here. It
  // would also tell the other ranks and the parent's threads, over shared sockets, that this rank leaves.
  void leave_to_parent() {
    struct Copies {
      std::unique_ptr<StoreServer> server;
      std::unique_ptr<Lookout> lookout;
      std::shared_ptr<Communicator> communicator;
      std::thread thread;
    };
    static auto* const kept = new std::vector<Copies>;  // never destroyed
    kept->push_back({std::move(server_), std::move(lookout_), std::move(communicator_), std::move(thread_)});
  }

  const Environment environment_;  // this process in its job
  const GroupOptions options_;
  const int rank_, world_size_;  // in the group
  const int exceptions_;
  const std::shared_ptr<HostGroup> parent_;
  int64_t subgroups_ = 0;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<Lookout> lookout_;
  std::shared_ptr<Communicator> communicator_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<HostGroup> connect_tcp(const Environment& environment, GroupOptions options) {
  return std::make_shared<TcpGroup>(environment, options, all_ranks(environment.world_size));
}

}  // namespace rondo::dist
