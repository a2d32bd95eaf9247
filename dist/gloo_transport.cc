// Note [Gloo over our own connections]
// Gloo's own TCP transport takes the first connection that comes to a pair's port, hands nobody its socket, and reads
// from it at once: the sizes and places in what it reads are believed. So nothing can be proved before a stranger's
// bytes are acted upon. Gloo's collectives work over any gloo::transport::Context; this file gives them one whose
// messages go over proved connections (mesh.h, messages.h).
#include "rondo/dist/gloo_transport.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/broadcast.h"
#include "gloo/context.h"
#include "gloo/transport/context.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/unbound_buffer.h"
#include "gloo/types.h"
#include "rondo/dist/mesh.h"
#include "rondo/dist/messages.h"
#include "rondo/dist/reduction.h"

namespace rondo::dist {
namespace {

constexpr uint8_t kExchangePrefix = 0x7F;  // of slots; Gloo's own collectives have others

class Buffer final : public gloo::transport::UnboundBuffer {
 public:
  Buffer(Messages& messages, void* data, size_t bytes) : UnboundBuffer(data, bytes), messages_(messages) {}
  ~Buffer() override { messages_.forget(count_); }

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    messages_.send(to, slot, static_cast<char*>(ptr) + offset, length(offset, bytes), count_);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    messages_.receive(from, slot, static_cast<char*>(ptr) + offset, length(offset, bytes), count_);
  }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override { throw_internal("Gloo receives from any rank"); }

  // The collectives used here ask for no rank, and give a timeout.
  bool waitSend(int*, Milliseconds timeout) override { return messages_.wait_sent(count_, after(timeout)), true; }
  bool waitRecv(int*, Milliseconds timeout) override { return messages_.wait_received(count_, after(timeout)), true; }
  void abortWaitSend() override { throw_internal("Gloo aborts a message"); }
  void abortWaitRecv() override { throw_internal("Gloo aborts a message"); }

 private:
  size_t length(size_t offset, size_t bytes) const { return bytes == kUnspecifiedByteCount ? size - offset : bytes; }

  Messages& messages_;
  Messages::Count count_;
};

// Messages of a count, which are given up if they are not waited for.
struct Pending {
  Messages& messages;
  Messages::Count count = {};
  ~Pending() { messages.forget(count); }
};

// Gloo's collectives ask whether there is one, and no more. Versions of Gloo differ in which of these functions a pair
// must have, so none of them says `override`; the last three are of newer ones.
class Pair final : public gloo::transport::Pair {
 public:
  using Bound = std::unique_ptr<gloo::transport::Buffer>;
  const gloo::transport::Address& address() const { unused(); }
  void connect(const std::vector<char>&) { unused(); }
  void close() {}
  void setSync(bool, bool) { unused(); }
  Bound createSendBuffer(int, void*, size_t) { unused(); }
  Bound createRecvBuffer(int, void*, size_t) { unused(); }
  void send(gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) { unused(); }
  void recv(gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) { unused(); }
  bool isConnected() { return true; }
  int getPeerRank() const { unused(); }
  const gloo::transport::Address& peer() const { unused(); }

 private:
  [[noreturn]] static void unused() { throw_internal("Gloo uses a pair"); }
};

class Connected final : public gloo::transport::Context {
 public:
  Connected(int rank, int size, Messages& messages) : Context(rank, size), messages_(messages) {
    for (int r = 0; r < size; ++r)
      if (r != rank) createPair(r);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int r) override {
    return pairs_.at(static_cast<size_t>(r)) = std::make_unique<Pair>();
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, size_t bytes) override {
    return std::make_unique<Buffer>(messages_, data, bytes);
  }

 private:
  Messages& messages_;
};

class GlooContext final : public gloo::Context {
 public:
  GlooContext(int rank, int size, Messages& messages) : Context(rank, size) {
    transportContext_ = std::make_shared<Connected>(rank, size, messages);
  }
};

}  // namespace

struct GlooTransport::State {
  State(int rank, int world_size, Milliseconds timeout, std::vector<Fd> connections)
      : rank(rank),
        world_size(world_size),
        timeout(timeout),
        messages(std::move(connections)),
        context(std::make_shared<GlooContext>(rank, world_size, messages)) {}

  const int rank, world_size;
  const Milliseconds timeout;
  Messages messages;
  const std::shared_ptr<gloo::Context> context;
  uint32_t tag = 0;

  template <class Options> void set_up(Options& options) {
    options.setTag(tag++);
    options.setTimeout(timeout);
  }

  // Sends to one rank and receives from another, at once.
  void send_and_receive(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes, int from,
                        Deadline deadline) {
    const uint64_t slot = gloo::Slot::build(kExchangePrefix, tag++);
    Pending pending{messages};
    messages.receive(from, slot, in, in_bytes, pending.count);
    messages.send(to, slot, out, out_bytes, pending.count);
    if (!messages.wait_received_or_interrupted(pending.count, deadline) ||
        !messages.wait_sent_or_interrupted(pending.count, deadline))
      throw ConnectionError("interrupted");
  }
};

GlooTransport::GlooTransport(Store& store, const std::string& prefix, const Environment& environment,
                             Milliseconds timeout)
    : state_(new State(environment.rank, environment.world_size, timeout,
                       connect_mesh(store, {.prefix = prefix,
                                            .token = environment.store_token,
                                            .rank = environment.rank,
                                            .world_size = environment.world_size,
                                            .timeout = timeout}))) {}

GlooTransport::~GlooTransport() = default;

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

// Gloo has none over unbound buffers. In round k a rank sends the block of the rank k before it and receives its own
// from the rank k behind it, so (n - 1) / n of the bytes leave each rank, and 16-bit numbers travel as such. Blocks
// come in pieces: one is added while the next is under way.
void GlooTransport::reduce_scatter(const void* in, DType dtype, void* sums, size_t n) {
  constexpr size_t kPieceBytes = 1 << 19;
  State& s = *state_;
  const auto ranks = static_cast<size_t>(s.world_size), me = static_cast<size_t>(s.rank);
  const size_t width = size_of(dtype), piece = kPieceBytes / width;
  const DType wire = wire_dtype(dtype);
  const auto block = [&](size_t rank) { return static_cast<const char*>(in) + rank * n * width; };
  const bool widens = wire != dtype;
  if (widens) widen(block(me), dtype, static_cast<float*>(sums), n);
  else std::memcpy(sums, block(me), n * width);
  const size_t longest = std::min(n, piece);
  std::vector<char> came[2] = {std::vector<char>(longest * width), std::vector<char>(longest * width)};
  std::vector<float> wide(widens ? longest : 0);
  const Deadline deadline = after(s.timeout);
  Pending sent{s.messages}, received{s.messages};
  const uint32_t first_tag = s.tag;
  const size_t pieces = (n + piece - 1) / piece, total = pieces * (ranks - 1);
  s.tag += static_cast<uint32_t>(total);
  // The i-th piece that this rank sends, and the i-th that it receives.
  const auto slot_of = [&](size_t i) {
    return gloo::Slot::build(kExchangePrefix, first_tag + static_cast<uint32_t>(i));
  };
  const auto size_of_piece = [&](size_t i) { return std::min(piece, n - i % pieces * piece); };
  const auto start = [&](size_t i) {
    const size_t k = i / pieces + 1, at = i % pieces * piece;
    s.messages.receive(static_cast<int>((me + k) % ranks), slot_of(i), came[i % 2].data(), size_of_piece(i) * width,
                       received.count);
    const size_t to = (me + ranks - k) % ranks;
    s.messages.send(static_cast<int>(to), slot_of(i), block(to) + at * width, size_of_piece(i) * width, sent.count);
  };
  if (total > 0) start(0);
  for (size_t i = 0; i < total; ++i) {
    s.messages.wait_received(received.count, deadline);
    if (i + 1 < total) start(i + 1);
    const size_t at = i % pieces * piece, count = size_of_piece(i);
    const void* addend = came[i % 2].data();
    if (widens) {
      widen(addend, dtype, wide.data(), count);
      addend = wide.data();
    }
    char* into = static_cast<char*>(sums) + at * size_of(wire);
    sum_of(wire)(into, into, addend, count);
  }
  for (size_t i = 0; i < total; ++i) s.messages.wait_sent(sent.count, deadline);
}

void GlooTransport::all_reduce(void* values, DType wire, size_t n) {
  gloo::AllreduceOptions options(state_->context);
  if (size_of(wire) == 8) options.setOutput(static_cast<double*>(values), n);
  else options.setOutput(static_cast<float*>(values), n);
  options.setReduceFunction(sum_of(wire));
  state_->set_up(options);
  gloo::allreduce(options);
}

void GlooTransport::interrupt() { state_->messages.interrupt(); }

void GlooTransport::close() noexcept { state_->messages.close(); }

}  // namespace rondo::dist
