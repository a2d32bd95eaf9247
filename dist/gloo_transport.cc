#include "rondo/dist/gloo_transport.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/broadcast.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "gloo/types.h"
#include "rondo/dist/reduction.h"

namespace rondo::dist {
namespace {

constexpr uint8_t kExchangePrefix = 0x7F;  // of slots; Gloo's own collectives have others

// Where Gloo's pairs find each other's addresses.
class AddressBook final : public gloo::rendezvous::Store {
 public:
  AddressBook(dist::Store& store, std::string prefix, Milliseconds timeout)
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

// Zero would mean for ever.
Milliseconds left_until(Deadline deadline) {
  return std::max(Milliseconds(1), std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now()));
}

sigset_t sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

SigpipeBlocked::SigpipeBlocked() {
  const sigset_t set = sigpipe();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

SigpipeBlocked::~SigpipeBlocked() {
  if (sigismember(&before_, SIGPIPE) != 0) return;
  // One that came meanwhile was ours.
  const sigset_t set = sigpipe();
  const timespec now = {};
  while (sigtimedwait(&set, nullptr, &now) == SIGPIPE) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

struct GlooTransport::State {
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  State(int rank, int world_size, Milliseconds timeout) : rank(rank), world_size(world_size), timeout(timeout) {}

  const int rank, world_size;
  const Milliseconds timeout;
  std::shared_ptr<gloo::rendezvous::Context> context;
  uint32_t tag = 0;

  std::mutex mutex;  // guards what follows
  bool interrupted = false;
  gloo::transport::UnboundBuffer *receiving = nullptr, *sending = nullptr;

  template <class Options> void set_up(Options& options) {
    options.setTag(tag++);
    options.setTimeout(timeout);
  }

  // Sends to one rank and receives from another, at once.
  void send_and_receive(void* out, size_t out_bytes, int to, void* in, size_t in_bytes, int from, Deadline deadline) {
    const uint64_t slot = gloo::Slot::build(kExchangePrefix, tag++);
    const Buffer received = context->createUnboundBuffer(in, in_bytes),
                 sent = context->createUnboundBuffer(out, out_bytes);
    received->recv(from, slot);
    sent->send(to, slot);
    const auto watch = [this](gloo::transport::UnboundBuffer* receive, gloo::transport::UnboundBuffer* send) {
      const std::lock_guard lock(mutex);
      receiving = receive;
      sending = send;
      return !interrupted;
    };
    struct Unwatch {
      const decltype(watch)& set;
      ~Unwatch() { set(nullptr, nullptr); }
    } const unwatch{watch};
    if (!watch(received.get(), sent.get()) || !received->waitRecv(left_until(deadline)) ||
        !sent->waitSend(left_until(deadline)))
      throw ConnectionError("interrupted");
  }
};

GlooTransport::GlooTransport(Store& store, const std::string& prefix, int rank, int world_size, Milliseconds timeout)
    : state_(new State(rank, world_size, timeout)) {
  const SigpipeBlocked blocked;  // Gloo's thread starts here
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, world_size);
  // While connecting, Gloo waits five times as long as it is told.
  context->setTimeout(std::max(timeout / 5, Milliseconds(1)));
  AddressBook addresses(store, prefix + "address/", timeout);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = store.local_address();
  try {
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    context->connectFullMesh(addresses, device);
  } catch (const DistError&) {
    throw;
  } catch (const std::exception& e) {
    throw ConnectionError(absl::StrCat("rank ", rank, " cannot connect to the other ranks: ", e.what()));
  }
  state_->context = std::move(context);
}

GlooTransport::~GlooTransport() {
  const SigpipeBlocked blocked;
  state_->context.reset();
}

// Bruck's algorithm: before round k a rank has the blocks of 2^k ranks, its own and those behind it.
void GlooTransport::exchange(const void* mine, size_t bytes, void* all) {
  State& s = *state_;
  const auto n = static_cast<size_t>(s.world_size), me = static_cast<size_t>(s.rank);
  const Deadline deadline = after(s.timeout);
  std::vector<unsigned char> blocks(n * bytes);  // of ranks me, me + 1, ..., wrapped around
  std::memcpy(blocks.data(), mine, bytes);
  for (size_t have = 1; have < n; have *= 2) {
    const size_t count = std::min(have, n - have);
    s.send_and_receive(blocks.data(), count * bytes, static_cast<int>((me + n - have) % n),
                       blocks.data() + have * bytes, count * bytes, static_cast<int>((me + have) % n), deadline);
  }
  for (size_t i = 0; i < n; ++i)
    std::memcpy(static_cast<unsigned char*>(all) + (me + i) % n * bytes, blocks.data() + i * bytes, bytes);
}

void GlooTransport::broadcast(void* data, size_t bytes, int root) {
  gloo::BroadcastOptions options(state_->context);
  options.setOutput(static_cast<char*>(data), bytes);
  options.setRoot(root);
  state_->set_up(options);
  gloo::broadcast(options);
}

void GlooTransport::all_gather(const void* in, void* out, size_t bytes) {
  gloo::AllgatherOptions options(state_->context);
  options.setInput(static_cast<char*>(const_cast<void*>(in)), bytes);
  options.setOutput(static_cast<char*>(out), bytes * static_cast<size_t>(state_->world_size));
  state_->set_up(options);
  gloo::allgather(options);
}

void GlooTransport::all_reduce(void* values, DType wire, size_t n) {
  gloo::AllreduceOptions options(state_->context);
  if (size_of(wire) == 8) options.setOutput(static_cast<double*>(values), n);
  else options.setOutput(static_cast<float*>(values), n);
  options.setReduceFunction(sum_of(wire));
  state_->set_up(options);
  gloo::allreduce(options);
}

void GlooTransport::interrupt() {
  const std::lock_guard lock(state_->mutex);
  state_->interrupted = true;
  if (state_->receiving != nullptr) state_->receiving->abortWaitRecv();
  if (state_->sending != nullptr) state_->sending->abortWaitSend();
}

void GlooTransport::close() noexcept {
  const SigpipeBlocked blocked;
  try {
    state_->context->closeConnections();
  } catch (const std::exception&) {  // then the others learn it when their timeout is over
  }
}

}  // namespace rondo::dist
