#include "rondo/dist/gloo_group.h"

#ifndef RONDO_GLOO

namespace rondo::dist {

bool gloo_available() { return false; }
std::shared_ptr<ProcessGroup> connect_gloo(const Environment&, GroupOptions) {
  throw DistError(
      "this Rondo was built without Gloo, so a job has one process; install libgloo-dev and configure again");
}

}  // namespace rondo::dist

#else

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/broadcast.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "gloo/types.h"
#include "rondo/dist/reduction.h"
#include "rondo/dist/store.h"

namespace rondo::dist {
namespace {

// Where Gloo's pairs find each other's addresses.
class Rendezvous final : public gloo::rendezvous::Store {
 public:
  Rendezvous(dist::Store& store, std::string prefix, Milliseconds timeout)
      : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(prefix_ + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    std::vector<std::string> names;
    for (const std::string& key : keys) names.push_back(prefix_ + key);
    store_.wait(names, timeout);
  }

 private:
  dist::Store& store_;
  const std::string prefix_;
  const Milliseconds timeout_;
};

enum class Kind : uint8_t { kAllReduce, kBroadcast, kAllGather, kBarrier };
constexpr uint8_t kMessageSlotPrefix = 0x7F;  // Gloo's own collectives have others
constexpr const char* kKindNames[] = {"all_reduce", "broadcast", "all_gather", "barrier"};

// What a rank is about to do. The ranks exchange these before a tensor moves: sizes that differ would end the process
// from inside Gloo, and equal sizes with another meaning would give wrong numbers.
struct Header {
  uint64_t number = 0;  // of the collective, from 1
  int64_t numel = 0;
  int32_t root = 0;
  Kind kind = Kind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = kU8;
  char name[81] = {};
};

bool same(const Header& a, const Header& b) {
  return a.number == b.number && a.numel == b.numel && a.root == b.root && a.kind == b.kind && a.op == b.op &&
         a.dtype == b.dtype && std::strncmp(a.name, b.name, sizeof a.name) == 0;
}

// What goes to every rank at the start of a collective. A tensor that fits comes along, so that small collectives (a
// loss, the end of a step) take one message and not two.
constexpr size_t kSmall = 768;  // bytes
struct Message {
  Header header;
  unsigned char data[kSmall] = {};
};

std::string describe(const Header& h) {
  std::string text = absl::StrCat(kKindNames[static_cast<int>(h.kind)], " ", h.number, " (", std::string(h.name));
  if (h.kind == Kind::kBarrier) return text + ")";
  absl::StrAppend(&text, "; ", h.numel, " ", std::string(name_of(h.dtype)));
  if (h.kind == Kind::kAllReduce && h.op == ReduceOp::kAverage) text += ", average";
  if (h.kind == Kind::kBroadcast) absl::StrAppend(&text, " from rank ", h.root);
  return text + ")";
}

size_t bytes_of(const Header& h) { return static_cast<size_t>(h.numel) * size_of(h.dtype); }

struct Job {
  Header header;
  Tensor out, in;  // kept alive
  void* to = nullptr;
  const void* from = nullptr;
  std::shared_ptr<Work::State> state;
};

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(const Environment& environment, GroupOptions options)
      : rank_(environment.rank), world_size_(environment.world_size), timeout_(options.timeout) {
    if (timeout_.count() <= 0) throw Error("ProcessGroup: the timeout must be positive");
    meet(environment);
    thread_ = std::thread([this] { run(); });
  }

  // What has not begun ends with an error; what moves data already is waited for, as its peers are there.
  ~GlooGroup() override {
    say_goodbye("it has left the group");
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      if (waiting_ != nullptr)
        for (const auto& buffer : *waiting_) buffer->abortWaitRecv();
    }
    jobs_changed_.notify_all();
    thread_.join();
    context_.reset();
    if (server_) wait_for_the_others();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    check_reducible(tensor, op, name);
    Job job;
    job.header = {.numel = tensor.numel(), .kind = Kind::kAllReduce, .op = op, .dtype = tensor.dtype()};
    job.out = tensor;
    job.to = job.out.raw_mutable_data();
    return issue(std::move(job), name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    check_dense(tensor, "broadcast", name);
    if (root < 0 || root >= world_size_)
      throw Error(absl::StrCat("broadcast (", std::string(name), "): there is no rank ", root));
    Job job;
    job.header = {.numel = tensor.numel(), .root = root, .kind = Kind::kBroadcast, .dtype = tensor.dtype()};
    job.out = tensor;
    // The root only reads.
    job.to = root == rank_ ? const_cast<void*>(tensor.raw_data()) : job.out.raw_mutable_data();
    return issue(std::move(job), name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    check_gather(out, in, world_size_, name);
    Job job;
    job.header = {.numel = in.numel(), .kind = Kind::kAllGather, .dtype = in.dtype()};
    job.in = in;
    job.from = in.raw_data();
    job.out = out;
    job.to = job.out.raw_mutable_data();
    return issue(std::move(job), name);
  }
  Work barrier(std::string_view name) override { return issue(Job(), name); }

 private:
  // ---- Meeting the others
  void meet(const Environment& e) {
    std::pair<std::string, int> at = {e.master_addr, e.master_port};
    if (!e.store.empty()) {
      const size_t colon = e.store.rfind(':');
      if (colon == std::string::npos || !absl::SimpleAtoi(e.store.substr(colon + 1), &at.second))
        throw Error(absl::StrCat("the variable RONDO_STORE=", e.store, " must be host:port"));
      at.first = e.store.substr(0, colon);
    } else if (rank_ == 0) {
      server_ = std::make_unique<StoreServer>(at.first, at.second);
    }
    store_ = std::make_unique<Store>(at.first, at.second, timeout_);
    // Groups that are made one after the other are told apart by how many this rank has made.
    prefix_ = absl::StrCat("group/", store_->add(absl::StrCat("groups/", rank_), 1), "/");
    store_->barrier(prefix_ + "connect", rank_, world_size_, timeout_);
    store_->set_will(gone_key(rank_), "its process ended");
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_, world_size_);
    // While connecting, Gloo waits five times as long as it is told.
    context->setTimeout(std::max(timeout_ / 5, Milliseconds(1)));
    Rendezvous rendezvous(*store_, prefix_ + "address/", timeout_);
    gloo::transport::tcp::attr attributes;
    attributes.hostname = store_->local_address();
    try {
      std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
      context->connectFullMesh(rendezvous, device);
    } catch (const DistError&) {
      throw;
    } catch (const std::exception& e) {
      throw ConnectionError(absl::StrCat("rank ", rank_, " cannot connect to the other ranks: ", e.what()));
    }
    context_ = std::move(context);
  }

  std::string gone_key(int rank) const { return absl::StrCat(prefix_, "gone/", rank); }
  std::string failed_key(int rank) const { return absl::StrCat(prefix_, "failed/", rank); }
  std::string late_key(int rank) const { return absl::StrCat(prefix_, "late/", rank); }
  std::string progress_key(int rank) const { return absl::StrCat(prefix_, "progress/", rank); }

  void say_goodbye(const char* how) noexcept {
    try {
      store_->set(gone_key(rank_), how);
      store_->set_will("", "");
    } catch (const std::exception&) {  // without a store the others learn it from their sockets
    }
  }

  // Keeps the store open while another rank may still ask it what went wrong.
  void wait_for_the_others() noexcept {
    try {
      std::vector<std::string> keys;
      for (int r = 0; r < world_size_; ++r) keys.push_back(gone_key(r));
      store_->wait(keys, Milliseconds(5'000));
    } catch (const std::exception&) {
    }
  }

  // ---- The queue
  Work issue(Job job, std::string_view name) {
    std::memcpy(job.header.name, name.data(), std::min(name.size(), sizeof job.header.name - 1));
    job.state = std::make_shared<Work::State>();
    Work work(job.state);
    {
      const std::lock_guard lock(mutex_);
      job.header.number = ++issued_;
      jobs_.push_back(std::move(job));
    }
    jobs_changed_.notify_all();
    return work;
  }

  void run() {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        jobs_changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        if (closing_ && failure_.empty()) failure_ = "the process group was closed";
      }
      auto outcome = Work::Outcome::kDone;
      std::string error;
      try {
        if (!failure_.empty()) throw ConnectionError(absl::StrCat(describe(job.header), " cannot run: ", failure_));
        execute(job);
      } catch (const std::exception& e) {
        error = e.what();
        outcome = dynamic_cast<const MismatchError*>(&e)  ? Work::Outcome::kMismatch
                  : dynamic_cast<const TimeoutError*>(&e) ? Work::Outcome::kLate
                                                          : Work::Outcome::kLost;
      }
      const std::shared_ptr<Work::State> state = job.state;
      job = Job();  // before whoever waits goes on: the tensors are theirs again
      state->finish(outcome, std::move(error));
    }
  }

  // ---- One collective
  void execute(Job& job) {
    const auto began = std::chrono::steady_clock::now();
    try {
      store_->post(progress_key(rank_), absl::StrCat(job.header.number, " ", describe(job.header)));
    } catch (const DistError&) {  // only errors would be the poorer for it
    }
    try {
      const std::vector<Message> all = agree(job);
      if (bytes_of(job.header) <= kSmall) take_small(job, all);
      else move(job);
    } catch (const MismatchError& e) {
      fail(e.what());
      throw;
    } catch (const std::exception& e) {
      const bool late = std::chrono::steady_clock::now() - began >= timeout_;
      const std::string what = diagnose(job.header, late, e.what());
      fail(what);
      if (late) throw TimeoutError(what);
      throw ConnectionError(what);
    }
  }

  // Throws MismatchError, the same sentence on every rank, unless all are about to do the same. Here is where a rank
  // waits for one that is late, so it is done with buffers of our own, which the destructor can wake.
  std::vector<Message> agree(const Job& job) {
    Message mine{.header = job.header};
    const void* source = job.header.kind == Kind::kAllGather ? job.from : job.to;
    const size_t bytes = bytes_of(job.header);
    const bool sends = job.header.kind != Kind::kBroadcast || job.header.root == rank_;
    if (sends && bytes > 0 && bytes <= kSmall) std::memcpy(mine.data, source, bytes);
    std::vector<Message> all(static_cast<size_t>(world_size_), mine);
    const uint64_t slot = gloo::Slot::build(kMessageSlotPrefix, tag_++);
    Buffers sent, received;
    for (int r = 0; r < world_size_; ++r) {
      if (r == rank_) continue;
      received.push_back(context_->createUnboundBuffer(&all[static_cast<size_t>(r)], sizeof mine));
      received.back()->recv(r, slot);
      sent.push_back(context_->createUnboundBuffer(&mine, sizeof mine));
      sent.back()->send(r, slot);
    }
    {
      const WaitingScope scope(*this, received);
      const Deadline deadline = after(timeout_);
      for (const auto& buffer : received)
        if (!buffer->waitRecv(left_until(deadline))) throw ConnectionError("interrupted");
      for (const auto& buffer : sent) buffer->waitSend(left_until(deadline));
    }
    for (size_t r = 1; r < all.size(); ++r) {
      Header &first = all[0].header, &other = all[r].header;
      other.name[sizeof other.name - 1] = '\0';
      if (!same(first, other))
        throw MismatchError(absl::StrCat("the ranks do not call the same collectives: rank 0 is at ", describe(first),
                                         ", rank ", r, " at ", describe(other)));
    }
    return all;
  }

  using Buffers = std::vector<std::unique_ptr<gloo::transport::UnboundBuffer> >;
  // Lets the destructor interrupt waiting for these.
  class WaitingScope {
   public:
    WaitingScope(GlooGroup& group, Buffers& buffers) : group_(group) {
      const std::lock_guard lock(group.mutex_);
      if (group.closing_) throw ConnectionError("interrupted");
      group.waiting_ = &buffers;
    }
    ~WaitingScope() {
      const std::lock_guard lock(group_.mutex_);
      group_.waiting_ = nullptr;
    }
    WaitingScope(const WaitingScope&) = delete;
    WaitingScope& operator=(const WaitingScope&) = delete;

   private:
    GlooGroup& group_;
  };
  // Zero would mean for ever.
  static Milliseconds left_until(Deadline deadline) {
    return std::max(Milliseconds(1), std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now()));
  }

  // Everything is here already. Every rank adds in the order of the ranks: the same bits.
  void take_small(Job& job, const std::vector<Message>& all) {
    const Header& h = job.header;
    const size_t bytes = bytes_of(h), n = static_cast<size_t>(h.numel);
    if (bytes == 0) return;
    if (h.kind == Kind::kBroadcast && h.root != rank_)
      std::memcpy(job.to, all[static_cast<size_t>(h.root)].data, bytes);
    if (h.kind == Kind::kAllGather)
      for (size_t r = 0; r < all.size(); ++r) std::memcpy(static_cast<char*>(job.to) + r * bytes, all[r].data, bytes);
    if (h.kind != Kind::kAllReduce) return;
    const DType wire = wire_dtype(h.dtype);
    alignas(8) unsigned char sum[2 * kSmall] = {}, part[2 * kSmall];
    for (size_t r = 0; r < all.size(); ++r) {
      unsigned char* into = r == 0 ? sum : part;
      if (wire == h.dtype) std::memcpy(into, all[r].data, bytes);
      else widen(all[r].data, h.dtype, reinterpret_cast<float*>(into), n);
      if (r > 0) sum_of(wire)(sum, sum, part, n);
    }
    if (h.op == ReduceOp::kAverage) divide(sum, wire, n, world_size_);
    if (wire == h.dtype) std::memcpy(job.to, sum, bytes);
    else narrow(reinterpret_cast<const float*>(sum), job.to, h.dtype, n);
  }

  void move(Job& job) {
    const Header& h = job.header;
    const auto n = static_cast<size_t>(h.numel);
    const size_t bytes = bytes_of(h);
    switch (h.kind) {
      case Kind::kBarrier: return;
      case Kind::kBroadcast: {
        gloo::BroadcastOptions options(context_);
        options.setOutput(static_cast<char*>(job.to), bytes);
        options.setRoot(h.root);
        set_up(options);
        return gloo::broadcast(options);
      }
      case Kind::kAllGather: {
        gloo::AllgatherOptions options(context_);
        options.setInput(static_cast<char*>(const_cast<void*>(job.from)), bytes);
        options.setOutput(static_cast<char*>(job.to), bytes * static_cast<size_t>(world_size_));
        set_up(options);
        return gloo::allgather(options);
      }
      case Kind::kAllReduce: {
        const DType wire = wire_dtype(h.dtype);
        if (wire == h.dtype) return reduce(job.to, wire, n, h.op);
        std::vector<float> wide(n);
        widen(job.to, h.dtype, wide.data(), n);
        reduce(wide.data(), wire, n, h.op);
        return narrow(wide.data(), job.to, h.dtype, n);
      }
    }
  }

  void reduce(void* values, DType wire, size_t n, ReduceOp op) {
    gloo::AllreduceOptions options(context_);
    if (size_of(wire) == 8) options.setOutput(static_cast<double*>(values), n);
    else options.setOutput(static_cast<float*>(values), n);
    options.setReduceFunction(sum_of(wire));
    set_up(options);
    gloo::allreduce(options);
    if (op == ReduceOp::kAverage) divide(values, wire, n, world_size_);
  }

  template <class Options> void set_up(Options& options) {
    options.setTag(tag_++);
    options.setTimeout(timeout_);
  }

  // ---- When it goes wrong
  void fail(const std::string& what) {
    failure_ = what;
    try {
      store_->set(failed_key(rank_), what);
    } catch (const DistError&) {
    }
    close_connections();  // the others need not wait until they run out of patience
  }
  void close_connections() noexcept {
    try {
      context_->closeConnections();
    } catch (const std::exception&) {  // then it takes them as long as the timeout
    }
  }

  // The sentence that says which rank is missing. A socket may tell of a peer's end before the store does.
  std::string diagnose(const Header& mine, bool late, const std::string& what) {
    const std::string begin = absl::StrCat("rank ", rank_, ": ", describe(mine));
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return begin + " was given up: the process group was closed";
    }
    std::string lost = begin + (late ? absl::StrCat(" did not complete within ", timeout_.count(), " ms") : " failed");
    std::vector<std::string> silent;
    try {
      if (late) store_->set(late_key(rank_), absl::StrCat(mine.number));
      for (const Deadline until = after(Milliseconds(2'000)); std::chrono::steady_clock::now() < until;
           std::this_thread::sleep_for(Milliseconds(20))) {
        std::vector<std::string> gone, behind, failed;
        silent.clear();
        for (int r = 0; r < world_size_; ++r) {
          if (r == rank_) continue;
          const std::optional<std::string> left = store_->get_if_there(gone_key(r));
          if (store_->get_if_there(late_key(r)) != absl::StrCat(mine.number))
            silent.push_back(absl::StrCat("rank ", r));
          const std::optional<std::string> sentence = store_->get_if_there(failed_key(r));
          const std::string progress = store_->get_if_there(progress_key(r)).value_or("0 ");
          const std::pair<std::string, std::string> seen = absl::StrSplit(progress, absl::MaxSplits(' ', 1));
          uint64_t number = 0;
          if (sentence) failed.push_back(absl::StrCat("rank ", r, " gave up (", *sentence, ")"));
          else if (left) gone.push_back(absl::StrCat("rank ", r, " is gone: ", *left));
          else if (absl::SimpleAtoi(seen.first, &number) && number < mine.number)
            behind.push_back(absl::StrCat("rank ", r, " has not come to it, ",
                                          number == 0 ? "nor to any before" : "and was last at ", seen.second));
        }
        if (!gone.empty()) return absl::StrCat(lost, ": ", absl::StrJoin(gone, "; "));
        if (!failed.empty()) return absl::StrCat(lost, ": ", failed[0]);
        if (late && !behind.empty()) return absl::StrCat(lost, ": ", absl::StrJoin(behind, "; "));
        if (late && silent.empty()) return absl::StrCat(lost, ": every rank has come to it, but not all its bytes");
      }
    } catch (const DistError& e) {
      return absl::StrCat(lost, ", and ", e.what(), " (", what, ")");
    }
    // All have come, and those that still run have run out of patience, too.
    if (late) return absl::StrCat(lost, ": ", absl::StrJoin(silent, ", "), " came to it and was not heard of since");
    return absl::StrCat(lost, ": ", what);
  }

  const int rank_, world_size_;
  const Milliseconds timeout_;
  std::unique_ptr<StoreServer> server_;  // outlives the client
  std::unique_ptr<Store> store_;
  std::string prefix_;
  std::shared_ptr<gloo::rendezvous::Context> context_;

  std::mutex mutex_;  // guards the queue
  std::condition_variable jobs_changed_;
  std::deque<Job> jobs_;
  uint64_t issued_ = 0;
  bool closing_ = false;
  Buffers* waiting_ = nullptr;

  // The communication thread's own.
  uint32_t tag_ = 0;
  std::string failure_;
  std::thread thread_;
};

}  // namespace

bool gloo_available() { return true; }

std::shared_ptr<ProcessGroup> connect_gloo(const Environment& environment, GroupOptions options) {
  return std::make_shared<GlooGroup>(environment, options);
}

}  // namespace rondo::dist

#endif
