// TCP sockets with deadlines. No call blocks past its deadline (lookups may: HostLookup) or raises SIGPIPE.
#pragma once

#include <functional>
#include <mutex>  // std::chrono::milliseconds; <chrono> also includes calendars and streams, and compiles 3x slower
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/dist/transport/errors.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

using Milliseconds = std::chrono::milliseconds;
using Deadline = std::chrono::steady_clock::time_point;
inline Deadline after(Milliseconds timeout) { return std::chrono::steady_clock::now() + timeout; }
// Returns the time left, for poll(2): rounded up, never negative.
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

// Listens on `host`: a name or address of this machine, or "" for all its addresses. Port 0: any free port. The socket
// does not block. Throws ConnectionError.
Fd listen_on(const std::string& host, int port);
int port_of(const Fd& socket);
// Returns the address of this end, as text: the peer's machine can reach this machine at this address.
std::string local_address(const Fd& socket);

// Returns the numeric addresses of a host. If there is no such host, returns none and sets `error`. May block.
using HostLookup = std::function<std::vector<std::string>(const std::string& host, std::string& error)>;
std::vector<std::string> system_lookup(const std::string& host, std::string& error);

// Connects to `port` of `host`. While nobody listens there, looks the host up again and retries until the deadline. The
// socket does not block. Throws TimeoutError, also if no name server answers in time; ConnectionError if there is no
// such host.
Fd connect_to(const std::string& host, int port, Deadline deadline, const HostLookup& lookup = system_lookup);
// Throw TimeoutError or ConnectionError; then part of the bytes may have been sent or received. `peer` is for the
// message.
void send_all(const Fd& socket, std::string_view bytes, Deadline deadline, std::string_view peer);
void receive_exactly(const Fd& socket, char* bytes, size_t n, Deadline deadline, std::string_view peer);

}  // namespace rondo::dist
#pragma GCC visibility pop
