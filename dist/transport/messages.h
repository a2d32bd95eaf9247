// Messages between ranks over connections that are there. The thread that waits moves the bytes: there is no thread
// behind it, so nothing moves while nobody waits, except what fits into the kernel's buffers.
//
// Messages between two ranks are received in the order in which they were sent. Each has a slot and a size, and the
// receiver must ask for the same.
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
  // Completed messages that nobody has waited for yet. Lives until all its messages are completed, or forget().
  struct Count {
    size_t sent = 0, received = 0;
  };

  // `connections`: one to each rank; the one to this rank itself is empty. REQUIRES: they do not block.
  explicit Messages(std::vector<Fd> connections);

  // The bytes are not copied: they must stay until the message is completed. A message counts as sent when the kernel
  // has it. Throws ConnectionError.
  void send(int to, uint64_t slot, const void* data, size_t bytes, Count& count);
  void receive(int from, uint64_t slot, void* data, size_t bytes, Count& count);

  // Wait for one more message of the count, and take it from the count. Throw TimeoutError or ConnectionError: after
  // that no message can be sent or received any more.
  void wait_sent(Count& count, Deadline deadline) { wait(count.sent, deadline, false); }
  void wait_received(Count& count, Deadline deadline) { wait(count.received, deadline, false); }
  // As these, but false after interrupt().
  bool wait_sent_or_interrupted(Count& count, Deadline deadline) { return wait(count.sent, deadline, true); }
  bool wait_received_or_interrupted(Count& count, Deadline deadline) { return wait(count.received, deadline, true); }

  // The count and the bytes of its messages go away. If a message was under way, its connection is closed.
  void forget(const Count& count) noexcept;
  // The other ranks see at once that this one is of no more use.
  void close() noexcept;
  void interrupt();

 private:
  struct Header {
    uint64_t slot = 0, bytes = 0;
  };
  struct Transfer {
    Header header = {}, came = {};  // the second: what was received as the header
    char* data = nullptr;
    size_t done = 0;  // bytes, the header's included
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
