// Note [Collectives over our own connections]
// Data from a connection is used only after the connection has proved that it is a rank of the job (mesh.h). Libraries
// of collectives make their own connections: Gloo's transport accepts the first connection to a port and trusts the
// sizes and offsets that it reads. Using only Gloo's collectives, over our connections, took no fewer lines than this
// file, because Gloo expects a lot from a transport. And Debian 13's Gloo needs MPI, which needs UCX, which installs
// handlers for five signals at the start of every program that links it.
#include "rondo/dist/groups/tcp_transport.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rondo/dist/kernels/reduction.h"
#include "rondo/dist/transport/mesh.h"
#include "rondo/dist/transport/messages.h"

namespace rondo::dist {
namespace {

// Large tensors are sent in pieces of this size, so that a rank adds one piece while it receives the next.
constexpr size_t kPieceBytes = 1 << 19;

// Counts messages that belong together. The destructor drops messages that were not waited for.
struct Pending {
  Messages& messages;
  Messages::Count count = {};
  ~Pending() { messages.forget(count); }
};

}  // namespace

struct TcpTransport::State {
  const size_t me, ranks;
  const Milliseconds timeout;
  Messages messages;
  uint64_t slot = 0;  // the slot of the next message; the same on all ranks because they make the same calls

  // Return the rank me + distance or me - distance, modulo the number of ranks.
  int behind(size_t distance) const { return static_cast<int>((me + distance) % ranks); }
  int before(size_t distance) const { return static_cast<int>((me + ranks - distance) % ranks); }

  // Sends to one rank and receives from another at the same time.
  void send_and_receive(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes, int from,
                        Deadline deadline) {
    Pending pending{messages};
    messages.receive(from, slot, in, in_bytes, pending.count);
    messages.send(to, slot++, out, out_bytes, pending.count);
    if (!messages.wait_received_or_interrupted(pending.count, deadline) ||
        !messages.wait_sent_or_interrupted(pending.count, deadline))
      throw ConnectionError("interrupted");
  }
};

TcpTransport::TcpTransport(Store& store, const std::string& prefix, const Environment& environment,
                           Milliseconds timeout)
    : state_(new State{.me = static_cast<size_t>(environment.rank),
                       .ranks = static_cast<size_t>(environment.world_size),
                       .timeout = timeout,
                       .messages = Messages(connect_mesh(store, {.prefix = prefix,
                                                                 .token = environment.store_token,
                                                                 .rank = environment.rank,
                                                                 .world_size = environment.world_size,
                                                                 .timeout = timeout}))}) {}

TcpTransport::~TcpTransport() = default;

// Bruck's algorithm: before round k, a rank has the blocks of 2^k ranks: me, me + 1, and so on.
void TcpTransport::exchange(const void* mine, size_t bytes, void* all) {
  State& s = *state_;
  const Deadline deadline = after(s.timeout);
  std::vector<unsigned char> blocks(s.ranks * bytes);  // of ranks me, me + 1, ..., wrapped around
  std::memcpy(blocks.data(), mine, bytes);
  for (size_t have = 1; have < s.ranks; have *= 2) {
    const size_t count = std::min(have, s.ranks - have);
    s.send_and_receive(blocks.data(), count * bytes, s.before(have), blocks.data() + have * bytes, count * bytes,
                       s.behind(have), deadline);
  }
  for (size_t i = 0; i < s.ranks; ++i)
    std::memcpy(static_cast<unsigned char*>(all) + (s.me + i) % s.ranks * bytes, blocks.data() + i * bytes, bytes);
}

// A binomial tree. With ranks counted from the root, rank r receives from r without its lowest set bit, and sends to r
// plus each lower bit. Pieces are forwarded as they arrive.
void TcpTransport::broadcast(void* data, size_t bytes, int root) {
  State& s = *state_;
  const size_t from_root = (s.me + s.ranks - static_cast<size_t>(root)) % s.ranks;
  size_t lowest_bit = 1;
  while (lowest_bit < s.ranks && (from_root & lowest_bit) == 0) lowest_bit *= 2;
  const Deadline deadline = after(s.timeout);
  Pending sent{s.messages}, received{s.messages};
  size_t sends = 0;
  for (size_t at = 0; at < bytes; at += kPieceBytes, ++s.slot) {
    char* piece = static_cast<char*>(data) + at;
    const size_t size = std::min(kPieceBytes, bytes - at);
    if (from_root != 0) {
      s.messages.receive(s.before(lowest_bit), s.slot, piece, size, received.count);
      s.messages.wait_received(received.count, deadline);
    }
    for (size_t bit = lowest_bit / 2; bit > 0; bit /= 2) {
      if (from_root + bit >= s.ranks) continue;
      s.messages.send(s.behind(bit), s.slot, piece, size, sent.count);
      ++sends;
    }
  }
  for (size_t i = 0; i < sends; ++i) s.messages.wait_sent(sent.count, deadline);
}

// Sends to all other ranks, and receives from them, at the same time.
void TcpTransport::all_gather(void* values, size_t width, size_t n) {
  State& s = *state_;
  const Deadline deadline = after(s.timeout);
  Pending pending{s.messages};
  const Block mine(n, s.ranks, s.me);
  for (size_t k = 1; k < s.ranks; ++k) {
    const Block theirs(n, s.ranks, static_cast<size_t>(s.behind(k)));
    char* bytes = static_cast<char*>(values);
    s.messages.receive(s.behind(k), s.slot, bytes + theirs.begin * width, theirs.size() * width, pending.count);
    s.messages.send(s.before(k), s.slot, bytes + mine.begin * width, mine.size() * width, pending.count);
  }
  ++s.slot;
  for (size_t k = 1; k < s.ranks; ++k) {
    s.messages.wait_received(pending.count, deadline);
    s.messages.wait_sent(pending.count, deadline);
  }
}

// In round k a rank sends to rank me - k that rank's block, and receives its own block from rank me + k. So each rank
// sends (ranks - 1) / ranks of the bytes. 16-bit numbers are sent as 16 bits.
void TcpTransport::reduce_scatter(const void* in, DType dtype, size_t n, void* sums) {
  State& s = *state_;
  const size_t width = size_of(dtype), piece = kPieceBytes / width;
  const DType wire = wire_dtype(dtype);
  const bool widens = wire != dtype;
  const Block mine(n, s.ranks, s.me);
  const auto address = [&](size_t element) { return static_cast<const char*>(in) + element * width; };
  if (widens) widen(address(mine.begin), dtype, static_cast<float*>(sums), mine.size());
  else if (sums != address(mine.begin)) std::memcpy(sums, address(mine.begin), mine.size() * width);

  const size_t longest = (n + s.ranks - 1) / s.ranks, room = std::min(longest, piece);
  std::vector<char> came[2] = {std::vector<char>(room * width), std::vector<char>(room * width)};
  std::vector<float> wide(widens ? room : 0);
  const Deadline deadline = after(s.timeout);
  Pending sent{s.messages}, received{s.messages};
  const uint64_t first_slot = s.slot;
  const size_t pieces = (longest + piece - 1) / piece, total = pieces * (s.ranks - 1);
  s.slot += total;
  // The range of the i-th piece within its block: its first element, and its size, which may be 0.
  const auto begin_of = [&](size_t i) { return i % pieces * piece; };
  const auto size_of_piece = [&](size_t i, const Block& block) {
    return std::min(piece, block.size() - std::min(block.size(), begin_of(i)));
  };
  const auto start = [&](size_t i) {
    const size_t k = i / pieces + 1;
    s.messages.receive(s.behind(k), first_slot + i, came[i % 2].data(), size_of_piece(i, mine) * width, received.count);
    const Block theirs(n, s.ranks, static_cast<size_t>(s.before(k)));
    s.messages.send(s.before(k), first_slot + i, address(theirs.begin + begin_of(i)), size_of_piece(i, theirs) * width,
                    sent.count);
  };
  if (total > 0) start(0);
  for (size_t i = 0; i < total; ++i) {
    s.messages.wait_received(received.count, deadline);
    if (i + 1 < total) start(i + 1);
    const size_t count = size_of_piece(i, mine);
    const void* addend = came[i % 2].data();
    if (widens) {
      widen(addend, dtype, wide.data(), count);
      addend = wide.data();
    }
    char* into = static_cast<char*>(sums) + begin_of(i) * size_of(wire);
    sum_of(wire)(into, into, addend, count);
  }
  for (size_t i = 0; i < total; ++i) s.messages.wait_sent(sent.count, deadline);
}

void TcpTransport::interrupt() { state_->messages.interrupt(); }

void TcpTransport::close() noexcept { state_->messages.close(); }

}  // namespace rondo::dist
