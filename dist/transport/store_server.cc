// One thread with one epoll(7) over all connections. Nothing that a peer sends can make the thread block or throw, or
// exceed the StoreLimits.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/transport/keyed_hash.h"
#include "rondo/dist/transport/store.h"
#include "rondo/dist/transport/store_protocol.h"
#include "rondo/dist/transport/store_table.h"

namespace rondo::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Milliseconds kNever{int64_t{1000} * 3600 * 24 * 365};
// How long the server accepts nothing if no descriptor is free or too many connections have not proved the token.
constexpr Milliseconds kDoorPause{100};
constexpr size_t kMaxUnprovedClients = 1024;
// How long an unproved connection keeps its place when others wait to be accepted.
constexpr Milliseconds kStrangersTime{1000};
// Bytes that a connection may hold without being counted, enough for small requests.
constexpr size_t kFreeBuffer = 4096;
constexpr uint64_t kWake = 0, kDoor = 1, kFirstClient = 2;

struct Connection {
  StoreTable::Client id = 0;
  Fd socket;
  bool greeted = false, known = false;  // has sent the greeting; has proved the token
  std::string challenge;
  bool ended = false;
  bool wants_value = false;  // its wait is a kGet: reply with the key's value
  bool deferred = false;     // there is no room now for its next request or reply
  std::string in, out;
  size_t out_begin = 0;  // bytes of `out` already sent
  size_t counted = 0;    // how many bytes of Loop::buffers_ belong to this connection
  uint32_t events = 0;   // the events registered with epoll
  Deadline came{};
  Deadline wait_until{};             // only while the table has a wait of this client
  std::optional<Deadline> in_by;     // until when the client must send the rest of a message
  std::optional<Deadline> out_by;    // until when the client must receive what is sent
  std::optional<Deadline> deadline;  // the earliest of wait_until, in_by and out_by, as in Loop::deadlines_

  size_t unsent() const { return out.size() - out_begin; }
};

std::string ok_reply() { return MessageWriter(static_cast<uint8_t>(StoreStatus::kOk)).finish(); }
std::string refusal(std::string_view why) {
  return MessageWriter(static_cast<uint8_t>(StoreStatus::kRefused)).text(why).finish();
}

}  // namespace

class StoreServer::Loop {
 public:
  Loop(const std::string& host, int port, std::string token, const StoreLimits& limits)
      : token_(std::move(token)),
        limits_(limits),
        listener_(listen_on(host, port)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        port_(port_of(listener_)),
        table_(limits.max_stored) {
    if (!wake_ || !epoll_) throw ConnectionError("store: no file descriptors left");
    watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWake);
    watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kDoor);
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    const uint64_t one = 1;
    // The write fails only if the eventfd's counter would overflow.
    while (::write(wake_.get(), &one, sizeof one) != sizeof one) {
    }
    thread_.join();
  }
  int port() const { return port_; }

 private:
  void run() {
    epoll_event events[64];
    for (;;) {
      const int n = ::epoll_wait(epoll_.get(), events, 64, milliseconds_until(next_deadline()));
      try {
        for (int i = 0; i < n; ++i) {
          if (events[i].data.u64 == kWake) return;
          if (events[i].data.u64 == kDoor) accept_all();
          else handle_events(events[i].data.u64, events[i].events);
        }
        check_deadlines();
        serve_deferred();
        bury();
      } catch (const std::bad_alloc&) {  // the connection that needed the memory has ended
      }
    }
  }

  void watch(int operation, int fd, uint32_t events, uint64_t id) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    ::epoll_ctl(epoll_.get(), operation, fd, &event);
  }

  // ---- Accepting, watching and ending connections
  void accept_all() {
    for (;;) {
      if (strangers_.size() >= max_strangers_ && !drop_oldest_stranger()) return shut_door();
      Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
        if (!drop_oldest_stranger()) return shut_door();
        continue;
      }
      if (connections_.size() >= limits_.max_connections) {
        const std::string sorry = refusal(
            absl::StrCat("the store has ", limits_.max_connections, " connections and takes no more"));
        ::send(socket.get(), sorry.data(), sorry.size(), MSG_NOSIGNAL);
        continue;
      }
      const int on = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      const uint64_t id = next_id_++;
      auto connection = std::make_unique<Connection>();
      Connection& c = *connection;
      c.id = id;
      c.socket = std::move(socket);
      c.came = Clock::now();
      c.in_by = after(limits_.greeting_time);
      connections_.emplace(id, std::move(connection));
      strangers_.insert(id);
      c.events = EPOLLIN;
      watch(EPOLL_CTL_ADD, c.socket.get(), EPOLLIN, id);
      update(c);
    }
  }

  // Closes the oldest unproved connection. Returns false, and closes none, if there is none that is older than
  // kStrangersTime.
  bool drop_oldest_stranger() {
    if (strangers_.empty()) return false;
    Connection& oldest = *connections_.at(*strangers_.begin());
    if (Clock::now() < oldest.came + kStrangersTime) return false;
    end(oldest);
    bury();
    return true;
  }

  // Returns how many unproved connections there may be: at most half of the descriptors that this process may open, so
  // that clients with the token find some free.
  static size_t most_strangers() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxUnprovedClients;
    return std::clamp<size_t>(limit.rlim_cur / 2, 1, kMaxUnprovedClients);
  }

  void shut_door() {
    watch(EPOLL_CTL_MOD, listener_.get(), 0, kDoor);
    door_opens_ = after(kDoorPause);
  }

  void handle_events(uint64_t id, uint32_t events) {
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second->ended) return;
    Connection& c = *found->second;
    try {
      if ((events & EPOLLOUT) != 0) write_to(c);
      // While the client waits for an answer, only the end of its connection matters: the answer is then not needed.
      if ((c.events & EPOLLIN) == 0 && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) end(c);
      else if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_from(c);
      if (!c.ended) work_off(c);
      update(c);
    } catch (const std::bad_alloc&) {
      end(c);
    }
    answer_satisfied();
  }

  void end(Connection& c) {
    if (c.ended) return;
    c.ended = true;
    ended_.push_back(c.id);
  }

  // Removes the connections that have ended, and sets their last messages.
  void bury() {
    while (!ended_.empty()) {
      const uint64_t id = ended_.back();
      ended_.pop_back();
      const auto found = connections_.find(id);
      if (found == connections_.end()) continue;
      Connection& c = *found->second;
      if (c.deadline) deadlines_.erase({*c.deadline, id});
      buffers_ -= c.counted;
      strangers_.erase(id);
      deferred_.erase(id);
      connections_.erase(found);
      table_.forget(id);
      answer_satisfied();
    }
  }

  // Tells epoll and the deadlines what the connection now waits for, and counts its buffers.
  void update(Connection& c) {
    if (c.ended) return;
    if (c.out_begin == c.out.size()) {
      c.out_begin = 0;
      c.out.clear();
      if (c.out.capacity() > kFreeBuffer) std::string().swap(c.out);
      c.out_by.reset();
    } else if (!c.out_by) {
      c.out_by = after(limits_.stall_time);
    }
    const auto above = [](size_t bytes) { return bytes > kFreeBuffer ? bytes - kFreeBuffer : 0; };
    const size_t count = above(c.in.capacity()) + above(c.out.capacity());
    buffers_ += count - c.counted;
    c.counted = count;

    // While a client waits, or does not receive its replies, its next requests stay in the socket.
    const bool reads = !table_.is_waiting(c.id) && !c.deferred && c.unsent() < kMaxMessage;
    const uint32_t events = (reads ? EPOLLIN : static_cast<uint32_t>(EPOLLRDHUP)) | (c.unsent() > 0 ? EPOLLOUT : 0u);
    if (events != c.events) watch(EPOLL_CTL_MOD, c.socket.get(), c.events = events, c.id);

    if (c.known) {
      if (c.in.empty() || !reads) c.in_by.reset();
      else if (!c.in_by) c.in_by = after(limits_.stall_time);
    }
    std::optional<Deadline> next = c.in_by;
    if (c.out_by && (!next || *c.out_by < *next)) next = c.out_by;
    if (table_.is_waiting(c.id) && (!next || c.wait_until < *next)) next = c.wait_until;
    if (next == c.deadline) return;
    if (c.deadline) deadlines_.erase({*c.deadline, c.id});
    if (next) deadlines_.insert({*next, c.id});
    c.deadline = next;
  }

  Deadline next_deadline() const {
    Deadline next = deadlines_.empty() ? after(kNever) : deadlines_.begin()->first;
    if (door_opens_) next = std::min(next, *door_opens_);
    if (!deferred_.empty()) next = std::min(next, after(Milliseconds(50)));
    return next;
  }

  void check_deadlines() {
    const Deadline now = Clock::now();
    if (door_opens_ && now >= *door_opens_) {
      door_opens_.reset();
      watch(EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kDoor);
    }
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      Connection& c = *connections_.at(deadlines_.begin()->second);
      if (c.ended) {
        deadlines_.erase(deadlines_.begin());
        c.deadline.reset();
        continue;
      }
      if (table_.is_waiting(c.id) && now >= c.wait_until) {
        answer_timeout(c);
        work_off(c);
        update(c);
      }
      if ((c.in_by && now >= *c.in_by) || (c.out_by && now >= *c.out_by)) {
        deadlines_.erase({*c.deadline, c.id});
        c.deadline.reset();
        end(c);
      }
    }
    answer_satisfied();
  }

  // ---- Reading and writing bytes
  // Returns the length of the message at the beginning of `in`, or 0 if it is not known yet.
  static size_t message_size(const Connection& c) {
    if (!c.greeted || c.in.size() < 4) return 0;
    uint32_t size = 0;
    std::memcpy(&size, c.in.data(), sizeof size);
    return size_t{4} + size;
  }

  void read_from(Connection& c) {
    const size_t size = message_size(c), want = std::max(size, kFreeBuffer);
    if (c.in.size() >= want) return;
    if (want > c.in.capacity()) {
      // A small request always has room: large requests of one client must not block the others.
      if (want > kFreeBuffer && buffers_ + want > limits_.max_buffers) return defer(c);
      c.in.reserve(want);
    }
    const size_t before = c.in.size(), chunk = std::min(want - before, size_t{1} << 18);
    c.in.resize(before + chunk);
    const ssize_t n = ::recv(c.socket.get(), c.in.data() + before, chunk, 0);
    c.in.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) end(c);
  }
  void write_to(Connection& c) {
    if (c.unsent() == 0) return;
    const ssize_t n = ::send(c.socket.get(), c.out.data() + c.out_begin, c.unsent(), MSG_NOSIGNAL);
    if (n > 0) {
      c.out_begin += static_cast<size_t>(n);
      if (c.out_begin == c.out.size() || n >= 1 << 16) c.out_by.reset();  // the peer still reads
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      end(c);
    }
  }

  // Returns true if there is room for a reply of this size. Small replies always have room.
  bool has_room(const Connection& c, size_t bytes) const {
    return c.out.size() + bytes <= kFreeBuffer || buffers_ + c.out.size() + bytes <= limits_.max_buffers;
  }
  void reply(Connection& c, std::string_view message) {
    if (c.out.size() + message.size() > c.out.capacity()) c.out.reserve(c.out.size() + message.size());
    c.out.append(message);
    write_to(c);
    update(c);
  }
  void defer(Connection& c) {
    c.deferred = true;
    deferred_.insert(c.id);
    update(c);
  }
  void serve_deferred() {
    const std::set<uint64_t> deferred = std::move(deferred_);
    deferred_.clear();
    for (const uint64_t id : deferred) {
      const auto found = connections_.find(id);
      if (found == connections_.end() || found->second->ended) continue;
      Connection& c = *found->second;
      c.deferred = false;
      try {
        if (table_.is_waiting(id)) answer_if_there(c);
        else read_from(c);
        work_off(c);
        update(c);
      } catch (const std::bad_alloc&) {
        end(c);
      }
    }
    answer_satisfied();
  }

  // ---- Handling requests
  // Handles the complete messages in c.in.
  void work_off(Connection& c) {
    size_t at = 0;
    if (!c.greeted && c.in.size() >= kGreeting.size()) {
      if (!c.in.starts_with(kGreeting)) return end(c);
      c.greeted = true;
      at = kGreeting.size();
      // The challenge is unpredictable and different for each connection.
      c.challenge = keyed_hash(secret_, absl::StrCat(c.id));
      reply(c, MessageWriter(static_cast<uint8_t>(StoreStatus::kOk)).text(c.challenge).finish());
    }
    while (c.greeted && !c.ended && !c.deferred && !table_.is_waiting(c.id) && c.unsent() < kMaxMessage &&
           c.in.size() - at >= 4) {
      uint32_t size = 0;
      std::memcpy(&size, c.in.data() + at, sizeof size);
      if (size == 0 || size > (c.known ? kMaxMessage : kMaxHello)) return end(c);
      if (c.in.size() - at - 4 < size) break;
      const std::string_view message = std::string_view(c.in).substr(at + 4, size);
      if (!c.known) say_hello(c, message);
      else handle(c, message);
      at += 4 + size;
      c.in_by.reset();  // the next message has its own deadline
    }
    c.in.erase(0, at);
    if (c.in.capacity() > kFreeBuffer && message_size(c) <= kFreeBuffer) std::string(c.in).swap(c.in);
    if (!c.greeted && c.in.size() > kGreeting.size()) end(c);
  }

  void say_hello(Connection& c, std::string_view message) {
    MessageReader fields(message.substr(1));
    const std::string_view random = fields.text(), proof = fields.text();
    if (static_cast<StoreOp>(message[0]) != StoreOp::kHello || !fields.done()) return end(c);
    if (!same_bytes(proof, store_proof(token_, "client", c.challenge, random))) {
      reply(c, refusal("this is the store of another job: the token (RONDO_STORE_TOKEN) is not its own"));
      return end(c);
    }
    c.known = true;
    c.in_by.reset();
    strangers_.erase(c.id);
    reply(c, MessageWriter(static_cast<uint8_t>(StoreStatus::kOk))
                 .text(store_proof(token_, "server", c.challenge, random))
                 .finish());
  }

  void handle(Connection& c, std::string_view message) {
    const auto op = static_cast<StoreOp>(message[0]);
    MessageReader fields(message.substr(1));
    const auto answer = [&](const char* trouble) { reply(c, trouble == nullptr ? ok_reply() : refusal(trouble)); };
    switch (op) {
      case StoreOp::kHello: break;
      case StoreOp::kSet:
      case StoreOp::kPost:
      case StoreOp::kHold: {
        const std::string_view key = fields.text(), value = fields.text();
        if (!fields.done()) break;
        const char* trouble = table_.set(key, value, op == StoreOp::kHold ? c.id : 0);
        if (op != StoreOp::kPost) answer(trouble);
        return;
      }
      case StoreOp::kClaim: {
        const std::string_view key = fields.text(), value = fields.text();
        if (!fields.done()) break;
        if (const std::string* now = table_.find(key); now == nullptr || *now == value)
          if (const char* trouble = table_.set(key, value, c.id)) return answer(trouble);
        return reply(c, MessageWriter(static_cast<uint8_t>(StoreStatus::kOk)).text(*table_.find(key)).finish());
      }
      case StoreOp::kLastMessage: {
        const std::string_view key = fields.text(), value = fields.text();
        if (!fields.done() || table_.set_last_message(c.id, key, value) != nullptr) break;
        return;
      }
      case StoreOp::kGet:
      case StoreOp::kWait: {
        const auto patience = Milliseconds(std::clamp<int64_t>(fields.get<int64_t>(), 0, kNever.count()));
        const uint32_t count = op == StoreOp::kGet ? 1 : fields.get<uint32_t>();
        if (count > kMaxKeys) break;
        std::vector<std::string> keys;
        for (uint32_t i = 0; i < count && fields.ok(); ++i) keys.emplace_back(fields.text());
        if (!fields.done()) break;
        c.wants_value = op == StoreOp::kGet;
        c.wait_until = after(patience);
        if (const char* trouble = table_.wait(c.id, std::move(keys))) return answer(trouble);
        answer_if_there(c);
        if (patience.count() == 0 && !c.deferred && table_.is_waiting(c.id)) answer_timeout(c);
        return;
      }
      case StoreOp::kAdd: {
        const std::string_view key = fields.text();
        const auto delta = fields.get<int64_t>();
        if (!fields.done()) break;
        int64_t sum = 0;
        const std::string* value = table_.find(key);
        if (value != nullptr && !absl::SimpleAtoi(*value, &sum))
          return reply(c, refusal(absl::StrCat(std::string(key), " is not a number")));
        // Wraps around like any 64-bit counter.
        sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(delta));
        if (const char* trouble = table_.set(key, absl::StrCat(sum))) return answer(trouble);
        return reply(c, MessageWriter(static_cast<uint8_t>(StoreStatus::kOk)).put(sum).finish());
      }
      case StoreOp::kRemove: {
        const std::string_view key = fields.text();
        if (!fields.done()) break;
        table_.remove(key);
        return answer(nullptr);
      }
    }
    end(c);  // the message was not valid
  }

  void answer_satisfied() {
    for (std::vector<StoreTable::Client> all = table_.take_satisfied(); !all.empty(); all = table_.take_satisfied())
      for (const StoreTable::Client id : all) {
        const auto found = connections_.find(id);
        if (found == connections_.end() || found->second->ended || !table_.is_waiting(id)) continue;
        Connection& c = *found->second;
        try {
          answer_if_there(c);
          work_off(c);
          update(c);
        } catch (const std::bad_alloc&) {
          end(c);
        }
      }
  }

  void answer_if_there(Connection& c) {
    if (!table_.is_satisfied(c.id)) return;
    const std::string* value = c.wants_value ? table_.find(table_.keys_of_wait(c.id)[0]) : nullptr;
    if (!has_room(c, value == nullptr ? 16 : value->size() + 16)) return defer(c);
    MessageWriter message(static_cast<uint8_t>(StoreStatus::kOk));
    if (value != nullptr) message.text(*value);
    table_.end_wait(c.id);
    reply(c, message.finish());
  }

  // Replies with the missing keys if there is room for them, otherwise with an empty list, which means all keys.
  void answer_timeout(Connection& c) {
    std::vector<std::string_view> missing = table_.missing(c.id);
    size_t bytes = 16;
    for (const std::string_view key : missing) bytes += key.size() + 4;
    if (!has_room(c, bytes)) missing.clear();
    MessageWriter message(static_cast<uint8_t>(StoreStatus::kTimeout));
    message.put(static_cast<uint32_t>(missing.size()));
    for (const std::string_view key : missing) message.text(key);
    table_.end_wait(c.id);
    reply(c, message.finish());
  }

  const std::string token_, secret_ = random_bytes(kHashBytes);
  const StoreLimits limits_;
  const size_t max_strangers_ = most_strangers();
  Fd listener_, wake_, epoll_;
  const int port_;
  StoreTable table_;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::set<std::pair<Deadline, uint64_t>> deadlines_;
  std::set<uint64_t> strangers_;  // connections that have not proved that they know the token; the oldest first
  std::set<uint64_t> deferred_;
  std::vector<uint64_t> ended_;
  std::optional<Deadline> door_opens_;
  size_t buffers_ = 0;
  uint64_t next_id_ = kFirstClient;
  std::thread thread_;
};

StoreServer::StoreServer(const std::string& host, int port, std::string token, StoreLimits limits)
    : loop_(std::make_unique<Loop>(host, port, std::move(token), limits)) {}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return loop_->port(); }

}  // namespace rondo::dist
