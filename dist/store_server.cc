// One thread, one poll(2) over all connections. Nothing that a peer sends can make it block, throw or grow without
// bound.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/store.h"
#include "rondo/dist/store_protocol.h"

namespace rondo::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Milliseconds kGreetingTime{5'000};
constexpr Milliseconds kNever{int64_t{1000} * 3600 * 24 * 365};

struct Waiting {
  std::vector<std::string> keys;
  Deadline deadline;
  bool wants_value;  // of the one key
};

struct Connection {
  Fd socket;
  Deadline greet_by;
  bool greeted = false;
  bool ended = false;
  std::string in, out;
  std::optional<Waiting> waiting;  // requests behind it stay in `in`
  std::string will_key, will_value;

  void reply(std::string message) { out += message; }
};

std::string ok_reply() { return MessageWriter(static_cast<uint8_t>(StoreStatus::kOk)).finish(); }
std::string refusal(std::string_view why) {
  return MessageWriter(static_cast<uint8_t>(StoreStatus::kRefused)).text(why).finish();
}

}  // namespace

class StoreServer::Loop {
 public:
  Loop(const std::string& host, int port)
      : listener_(listen_on(host, port)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), port_(port_of(listener_)) {
    if (!wake_) throw ConnectionError("store: no file descriptors left");
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    const uint64_t one = 1;
    // An eventfd takes any write that does not overflow it.
    if (::write(wake_.get(), &one, sizeof one) == sizeof one) thread_.join();
    else thread_.detach();
  }
  int port() const { return port_; }

 private:
  void run() {
    for (;;) {
      std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
      // Out of descriptors: those who wait at the door get in when one is free.
      const bool open_door = connections_.size() < kMaxConnections && Clock::now() >= closed_until_;
      fds.push_back({open_door ? listener_.get() : -1, POLLIN, 0});
      for (const Connection& c : connections_) {
        const bool takes_more = c.in.size() < kMaxMessage + 5 && c.out.size() < kMaxMessage;
        fds.push_back(
            {c.socket.get(), static_cast<short>((takes_more ? POLLIN : 0) | (c.out.empty() ? 0 : POLLOUT)), 0});
      }
      if (::poll(fds.data(), fds.size(), milliseconds_until(next_deadline())) < 0 && errno != EINTR) return;
      if (fds[0].revents != 0) return;
      for (size_t i = 0; i < connections_.size(); ++i) {
        const short events = fds[i + 2].revents;
        if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(connections_[i]);
        else if ((events & POLLNVAL) != 0) connections_[i].ended = true;
      }
      check_deadlines();
      bury();
      for (Connection& c : connections_) write_to(c);
      if (fds[1].revents != 0) accept_one();
    }
  }

  Deadline next_deadline() const {
    Deadline next = after(kNever);
    if (Clock::now() < closed_until_) next = closed_until_;
    for (const Connection& c : connections_) {
      if (!c.greeted) next = std::min(next, c.greet_by);
      if (c.waiting) next = std::min(next, c.waiting->deadline);
    }
    return next;
  }

  void accept_one() {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        closed_until_ = after(Milliseconds(100));
      return;
    }
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Connection& c = connections_.emplace_back();
    c.socket = std::move(socket);
    c.greet_by = after(kGreetingTime);
  }

  void read_from(Connection& c) {
    char buffer[1 << 16];
    const ssize_t n = ::recv(c.socket.get(), buffer, sizeof buffer, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) c.ended = true;
    if (n <= 0) return;
    c.in.append(buffer, static_cast<size_t>(n));
    work_off(c);
  }

  // Handles the whole messages in c.in.
  void work_off(Connection& c) {
    size_t at = 0;
    if (!c.greeted && c.in.size() >= kGreeting.size()) {
      if (!c.in.starts_with(kGreeting)) {
        c.ended = true;
        return;
      }
      c.greeted = true;
      at = kGreeting.size();
    }
    while (c.greeted && !c.ended && !c.waiting && c.out.size() < kMaxMessage && c.in.size() - at >= 4) {
      uint32_t size = 0;
      std::memcpy(&size, c.in.data() + at, sizeof size);
      if (size == 0 || size > kMaxMessage) c.ended = true;
      if (c.ended || c.in.size() - at - 4 < size) break;
      handle(c, std::string_view(c.in).substr(at + 4, size));
      at += 4 + size;
    }
    c.in.erase(0, at);
    if (!c.greeted && c.in.size() > kGreeting.size()) c.ended = true;
  }

  void handle(Connection& c, std::string_view message) {
    const auto op = static_cast<StoreOp>(message[0]);
    MessageReader fields(message.substr(1));
    switch (op) {
      case StoreOp::kSet:
      case StoreOp::kPost: {
        const std::string_view key = fields.text(), value = fields.text();
        if (!fields.done()) break;
        const char* trouble = set(key, value);
        if (op == StoreOp::kSet) c.reply(trouble == nullptr ? ok_reply() : refusal(trouble));
        return;
      }
      case StoreOp::kGet:
      case StoreOp::kWait: {
        const auto patience = Milliseconds(std::clamp<int64_t>(fields.get<int64_t>(), 0, kNever.count()));
        const uint32_t count = op == StoreOp::kGet ? 1 : fields.get<uint32_t>();
        if (count > kMaxKeys) break;
        Waiting waiting{{}, after(patience), op == StoreOp::kGet};
        for (uint32_t i = 0; i < count && fields.ok(); ++i) waiting.keys.emplace_back(fields.text());
        if (!fields.done()) break;
        c.waiting = std::move(waiting);
        answer_if_there(c);
        if (c.waiting && patience.count() == 0) answer_timeout(c);
        return;
      }
      case StoreOp::kAdd: {
        const std::string_view key = fields.text();
        const auto delta = fields.get<int64_t>();
        if (!fields.done()) break;
        int64_t sum = 0;
        const auto found = table_.find(key);
        if (found != table_.end() && !absl::SimpleAtoi(found->second, &sum))
          return c.reply(refusal(absl::StrCat(std::string(key), " is not a number")));
        // Wraps, as any counter of 64 bits.
        sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(delta));
        if (const char* trouble = set(key, absl::StrCat(sum))) return c.reply(refusal(trouble));
        return c.reply(MessageWriter(static_cast<uint8_t>(StoreStatus::kOk)).put(sum).finish());
      }
      case StoreOp::kRemove: {
        const std::string_view key = fields.text();
        if (!fields.done()) break;
        const auto found = table_.find(key);
        if (found != table_.end()) {
          stored_ -= found->first.size() + found->second.size();
          table_.erase(found);
        }
        return c.reply(ok_reply());
      }
      case StoreOp::kWill: {
        const std::string_view key = fields.text(), value = fields.text();
        if (!fields.done() || key.size() > kMaxKey) break;
        c.will_key = key;
        c.will_value = value;
        return c.reply(ok_reply());
      }
    }
    c.ended = true;  // not a message of ours
  }

  // Null, or why not.
  const char* set(std::string_view key, std::string_view value) {
    if (key.empty() || key.size() > kMaxKey) return "a key has 1 to 1024 bytes";
    const auto found = table_.find(key);
    const size_t before = found == table_.end() ? 0 : key.size() + found->second.size();
    if (stored_ - before + key.size() + value.size() > kMaxStored) return "the store is full";
    stored_ += key.size() + value.size() - before;
    if (found != table_.end()) found->second = value;
    else table_.emplace(key, value);
    for (Connection& c : connections_)
      if (c.waiting) answer_if_there(c);
    return nullptr;
  }

  void answer_if_there(Connection& c) {
    for (const std::string& key : c.waiting->keys)
      if (!table_.contains(key)) return;
    MessageWriter message(static_cast<uint8_t>(StoreStatus::kOk));
    if (c.waiting->wants_value) message.text(table_.find(c.waiting->keys[0])->second);
    c.reply(message.finish());
    c.waiting.reset();
  }
  void answer_timeout(Connection& c) {
    std::vector<std::string_view> missing;
    for (const std::string& key : c.waiting->keys)
      if (!table_.contains(key)) missing.push_back(key);
    MessageWriter message(static_cast<uint8_t>(StoreStatus::kTimeout));
    message.put(static_cast<uint32_t>(missing.size()));
    for (const std::string_view key : missing) message.text(key);
    c.reply(message.finish());
    c.waiting.reset();
  }

  void check_deadlines() {
    const Deadline now = Clock::now();
    for (size_t i = 0; i < connections_.size(); ++i) {
      Connection& c = connections_[i];
      if (!c.greeted && now >= c.greet_by) c.ended = true;
      if (c.waiting && now >= c.waiting->deadline) answer_timeout(c);
      // What stood behind an answered wait, or behind a full buffer.
      if (!c.waiting && !c.ended && !c.in.empty()) work_off(c);
    }
  }

  // Removes the connections that have ended and does what they left behind.
  void bury() {
    std::vector<std::pair<std::string, std::string>> wills;
    std::erase_if(connections_, [&](Connection& c) {
      if (c.ended && !c.will_key.empty()) wills.emplace_back(std::move(c.will_key), std::move(c.will_value));
      return c.ended;
    });
    for (const auto& [key, value] : wills) set(key, value);
  }

  void write_to(Connection& c) {
    if (c.out.empty()) return;
    const ssize_t n = ::send(c.socket.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n > 0) c.out.erase(0, static_cast<size_t>(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR) c.ended = true;  // buried in the next round
  }

  Fd listener_, wake_;
  const int port_;
  Deadline closed_until_{};
  std::vector<Connection> connections_;
  std::map<std::string, std::string, std::less<>> table_;
  size_t stored_ = 0;
  std::thread thread_;
};

StoreServer::StoreServer(const std::string& host, int port) : loop_(std::make_unique<Loop>(host, port)) {}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return loop_->port(); }

}  // namespace rondo::dist
