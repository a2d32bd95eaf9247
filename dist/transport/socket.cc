#include "rondo/dist/transport/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"

namespace rondo::dist {
namespace {

// How long looking up this machine's own name may take, and how often a peer's name is looked up again.
constexpr Milliseconds kLookup{30'000}, kLookupInterval{1'000};

using Addresses = std::shared_ptr<addrinfo>;

// Returns null and sets `error` if there is no such host.
Addresses look_up(const std::string& host, int port, int flags, std::string& error) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) error = gai_strerror(code);
  return code == 0 ? Addresses(found, freeaddrinfo) : nullptr;
}

// Reads a numeric address, which needs no name server. Returns null if `host` is a name.
Addresses read_address(const std::string& host, int port) {
  std::string ignored;
  return look_up(host, port, AI_NUMERICHOST, ignored);
}

struct Answer {
  std::vector<std::string> addresses;
  std::string error;
};

// Returns nullopt if the lookup takes too long. getaddrinfo() has no deadline, so it runs in a thread, which is
// detached.
std::optional<Answer> look_up_until(const std::string& host, Deadline deadline, const HostLookup& lookup) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Answer> answer;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, host, lookup] {
    Answer answer;
    answer.addresses = lookup(host, answer.error);
    const std::lock_guard lock(shared->mutex);
    shared->answer = std::move(answer);
    shared->done.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  shared->done.wait_until(lock, deadline, [&] { return shared->answer.has_value(); });
  return shared->answer;
}

// Returns the numeric addresses of a host. If there is no such host, returns none and sets `error`. Throws
// TimeoutError.
std::vector<std::string> addresses_of(const std::string& host, Deadline deadline, const HostLookup& lookup,
                                      std::string& error) {
  if (read_address(host, 0)) return {host};
  const std::optional<Answer> answer = look_up_until(host, deadline, lookup);
  if (!answer) throw TimeoutError(absl::StrCat("no name server answers for the host \"", host, "\""));
  error = answer->error;
  return answer->addresses;
}

Fd open_socket(const addrinfo& address) {
  return Fd(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
}

// Sends small messages at once: the peer waits for them.
void no_delay(const Fd& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Waits until the socket is ready for `events`. Returns false at the deadline. An error or the end of the stream counts
// as ready; the next call on the socket will report it.
bool wait_for(const Fd& socket, short events, Deadline deadline) {
  for (;;) {
    pollfd poll_fd = {socket.get(), events, 0};
    const int ready = ::poll(&poll_fd, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) throw ConnectionError(absl::StrCat("poll: ", std::strerror(errno)));
  }
}

// Tries once to connect. Returns 0, or the errno.
int try_connect(const Fd& socket, const addrinfo& address, Deadline deadline) {
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  if (!wait_for(socket, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

}  // namespace

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
}

void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::vector<std::string> system_lookup(const std::string& host, std::string& error) {
  std::vector<std::string> all;
  const Addresses found = look_up(host, 0, 0, error);
  char text[NI_MAXHOST] = "";
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next)
    if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      all.emplace_back(text);
  return all;
}

Fd listen_on(const std::string& host, int port) {
  std::string error;
  std::vector<std::string> names = {host};
  if (!host.empty()) names = addresses_of(host, after(kLookup), system_lookup, error);
  if (names.empty()) throw ConnectionError(absl::StrCat("cannot find the host \"", host, "\": ", error));
  for (const std::string& name : names) {
    const Addresses addresses = look_up(name, port, AI_PASSIVE | AI_NUMERICHOST, error);
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      Fd socket = open_socket(*address);
      const int on = 1;
      if (socket && setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
          ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0)
        return socket;
      error = std::strerror(errno);
    }
  }
  throw ConnectionError(absl::StrCat("cannot listen on ", host, ":", port, ": ", error));
}

int port_of(const Fd& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string local_address(const Fd& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = "";
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
    throw ConnectionError("cannot tell this machine's own address");
  return text;
}

Fd connect_to(const std::string& host, int port, Deadline deadline, const HostLookup& lookup) {
  std::vector<std::string> names;
  Deadline next_lookup{};
  for (auto pause = Milliseconds(5);; pause = std::min(2 * pause, Milliseconds(200))) {
    std::string error;
    // Look the name up again from time to time: a restarted machine may have a new address, and names may appear late.
    if (std::chrono::steady_clock::now() >= next_lookup) {
      names = addresses_of(host, deadline, lookup, error);
      next_lookup = after(kLookupInterval);
    }
    const bool found = !names.empty();
    for (const std::string& name : names) {
      const Addresses address = look_up(name, port, AI_NUMERICHOST, error);
      if (!address) continue;
      Fd socket = open_socket(*address);
      const int code = socket ? try_connect(socket, *address, deadline) : errno;
      if (code == 0) {
        no_delay(socket);
        return socket;
      }
      error = std::strerror(code);
    }
    if (std::chrono::steady_clock::now() + pause >= deadline) {
      if (!found) throw ConnectionError(absl::StrCat("cannot find the host \"", host, "\": ", error));
      throw TimeoutError(absl::StrCat("cannot connect to ", host, ":", port, ": ", error));
    }
    if (!found) next_lookup = {};
    std::this_thread::sleep_for(pause);
  }
}

void send_all(const Fd& socket, std::string_view bytes, Deadline deadline, std::string_view peer) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) bytes.remove_prefix(static_cast<size_t>(n));
    else if (errno == EINTR) continue;
    else if (errno != EAGAIN)
      throw ConnectionError(absl::StrCat("cannot send to ", std::string(peer), ": ", std::strerror(errno)));
    else if (!wait_for(socket, POLLOUT, deadline))
      throw TimeoutError(absl::StrCat(std::string(peer), " takes no bytes"));
  }
}

void receive_exactly(const Fd& socket, char* bytes, size_t n, Deadline deadline, std::string_view peer) {
  while (n > 0) {
    const ssize_t got = ::recv(socket.get(), bytes, n, 0);
    if (got > 0) {
      bytes += got;
      n -= static_cast<size_t>(got);
    } else if (got == 0) {
      throw ConnectionError(absl::StrCat(std::string(peer), " closed the connection"));
    } else if (errno == EINTR) {
      continue;
    } else if (errno != EAGAIN) {
      throw ConnectionError(absl::StrCat("cannot receive from ", std::string(peer), ": ", std::strerror(errno)));
    } else if (!wait_for(socket, POLLIN, deadline)) {
      throw TimeoutError(absl::StrCat(std::string(peer), " does not answer"));
    }
  }
}

}  // namespace rondo::dist
