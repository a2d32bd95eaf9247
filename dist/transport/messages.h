// Messages between ranks over connected sockets. The thread that calls wait_*() moves the bytes; there is no background
// thread. Between these calls only the bytes move that fit into the kernel's buffers.
//
// Messages between two ranks are received in the order in which they were sent. Each has a slot and a size, and the
// receiver must ask for the same slot and size.
//
// Thread safety: one thread; interrupt() may be called from another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

class Messages {
 public:
  // Counts the completed messages that no wait_*() has taken yet. A Count must outlive all its messages, or be passed
  // to forget().
  struct Count {
    size_t sent = 0, received = 0;
  };

  // `connections`: one to each rank; the one to this rank itself is empty. REQUIRES: they do not block.
  explicit Messages(std::vector<Fd> connections);

  // Start a message. The bytes are not copied and must stay valid until the message is completed. A message counts as
  // sent when the kernel has taken it. Throws ConnectionError.
  void send(int to, uint64_t slot, const void* data, size_t bytes, Count& count);
  void receive(int from, uint64_t slot, void* data, size_t bytes, Count& count);

  // Wait for one more message of the count, and subtract it from the count. Throw TimeoutError or ConnectionError:
  // after that no message can be sent or received any more.
  void wait_sent(Count& count, Deadline deadline) { wait(count.sent, deadline, false); }
  void wait_received(Count& count, Deadline deadline) { wait(count.received, deadline, false); }
  // Like wait_sent() and wait_received(), but return false after interrupt().
  bool wait_sent_or_interrupted(Count& count, Deadline deadline) { return wait(count.sent, deadline, true); }
  bool wait_received_or_interrupted(Count& count, Deadline deadline) { return wait(count.received, deadline, true); }

  // Drops the unfinished messages of the count and closes their connections. Call it before the count or the bytes of
  // such a message are freed.
  void forget(const Count& count) noexcept;
  // Shuts all connections down, so that the other ranks notice at once. interrupt() ends a wait_*_or_interrupted().
  void close() noexcept;
  void interrupt();

 private:
  struct Header {
    uint64_t slot = 0, bytes = 0;
  };
  struct Transfer {
    Header header = {}, came = {};  // `came`: the header that was received
    char* data = nullptr;
    size_t done = 0;  // bytes that are sent or received, the header's included
    size_t* completed = nullptr;
    size_t total() const { return sizeof header + header.bytes; }
  };
  struct Peer {
    Fd socket;
    std::deque<Transfer> out, in;
  };

  bool wait(size_t& completed, Deadline deadline, bool until_interrupted);
  void move_out(size_t rank);
  void move_in(size_t rank);
  Peer& peer(int rank);
  [[noreturn]] void fail(const std::string& why);

  std::vector<Peer> peers_;
  Fd wake_;
  std::atomic<bool> interrupted_ = false;
  std::string broken_;  // why nothing can be sent or received any more
};

}  // namespace rondo::dist
