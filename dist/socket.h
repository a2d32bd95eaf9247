// TCP with deadlines: what the store's two ends are made of. No call blocks past its deadline or raises SIGPIPE.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "rondo/dist/errors.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

using Milliseconds = std::chrono::milliseconds;
using Deadline = std::chrono::steady_clock::time_point;
inline Deadline after(Milliseconds timeout) { return std::chrono::steady_clock::now() + timeout; }
// For poll(2): rounded up, never negative.
int milliseconds_until(Deadline deadline);

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  void reset() noexcept;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Listens on `host` (a name or address of this machine; "" for all of them), port 0 for a free one. Not blocking.
Fd listen_on(const std::string& host, int port);
int port_of(const Fd& socket);
// The address of this end, as text: what the peer's machine can reach this one by.
std::string local_address(const Fd& socket);

// Tries again until the deadline while nobody listens there. The socket does not block. Throws TimeoutError, or
// ConnectionError if there is no such host.
Fd connect_to(const std::string& host, int port, Deadline deadline);
// Throw TimeoutError or ConnectionError; some of the bytes may then be through. `peer` is for the message.
void send_all(const Fd& socket, std::string_view bytes, Deadline deadline, std::string_view peer);
void receive_exactly(const Fd& socket, char* bytes, size_t n, Deadline deadline, std::string_view peer);

}  // namespace rondo::dist
#pragma GCC visibility pop
