#include "rondo/dist/transport/mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/transport/keyed_hash.h"
#include "rondo/dist/transport/rendezvous.h"
#include "rondo/dist/transport/store_protocol.h"

namespace rondo::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kMagic = "RONDOPR1";
constexpr size_t kRandom = 32;
// The most connections without a proof. Beyond this, the oldest one is closed.
constexpr size_t kMaxStrangers = 128;
// The most connections that are accepted in a row. After that, the open connections are handled first.
constexpr int kAtOnce = 64;
// How long to wait before connecting again to a rank that gave no proof, or accepting again without free descriptors.
constexpr Milliseconds kPause{50};

// The first bytes from the rank that connects.
struct Hello {
  char magic[kMagic.size()] = {};
  int32_t from = 0, to = 0;
  char random[kRandom] = {};
  char proof[kHashBytes] = {};
};
static_assert(sizeof(Hello) == 80);

struct Peer {
  std::string host;
  int port = 0;
  std::string challenge;
};

class Mesh {
 public:
  Mesh(Store& store, const MeshOptions& options)
      : store_(store),
        options_(options),
        deadline_(after(options.timeout)),
        challenge_(random_bytes(kRandom)),
        connections_(static_cast<size_t>(options.world_size)),
        attempts_(static_cast<size_t>(options.rank)) {}

  std::vector<Fd> run() {
    const std::string host = store_.local_address();
    const bool listens = options_.rank + 1 < options_.world_size;
    if (listens) listener_ = listen_on(host, 0);
    MessageWriter address(0);
    address.text(host).put(static_cast<uint32_t>(listens ? port_of(listener_) : 0)).text(challenge_);
    store_.set(key(options_.rank), address.finish());
    for (int r = 0; r < options_.rank; ++r) {
      attempts_[index(r)].peer = address_of(r);
      connect(r);
    }
    while (!is_complete()) {
      if (Clock::now() >= deadline_) throw_missing();
      step();
    }
    return std::move(connections_);
  }

 private:
  // A connection to a lower rank that has not answered yet.
  struct Attempt {
    Peer peer;
    Hello hello = {};
    Fd socket;
    std::string answer;
    Deadline again{};  // when to connect again, if there is no socket
    std::string trouble;
  };
  // A connection that this rank has accepted and that has no proof yet.
  struct Stranger {
    Fd socket;
    std::string bytes;
    Deadline until;
  };

  static size_t index(int rank) { return static_cast<size_t>(rank); }
  std::string key(int rank) const { return absl::StrCat(options_.prefix, "address/", rank); }
  Milliseconds left() const {
    return std::max(Milliseconds(0), std::chrono::ceil<Milliseconds>(deadline_ - Clock::now()));
  }

  bool is_complete() const {
    for (int r = 0; r < options_.world_size; ++r)
      if (r != options_.rank && !connections_[index(r)]) return false;
    return true;
  }
  [[noreturn]] void throw_missing() const {
    std::vector<std::string> missing;
    std::vector<int> ranks;
    for (int r = 0; r < options_.world_size; ++r) {
      if (r == options_.rank || connections_[index(r)]) continue;
      const std::string& trouble = r < options_.rank ? attempts_[index(r)].trouble : std::string();
      ranks.push_back(r);
      missing.push_back(absl::StrCat("rank ", r, trouble.empty() ? "" : " (" + trouble + ")"));
    }
    throw MissingRanksError(absl::StrCat("rank ", options_.rank, " is not connected with ",
                                         absl::StrJoin(missing, ", "), " after ", options_.timeout.count(), " ms"),
                            std::move(ranks));
  }

  Peer address_of(int rank) {
    std::string value;
    try {
      value = store_.get(key(rank), left());
    } catch (const TimeoutError&) {
      throw MissingRanksError(absl::StrCat("rank ", options_.rank, " is not connected with rank ", rank,
                                           " (it has published no address) after ", options_.timeout.count(), " ms"),
                              {rank});
    }
    MessageReader fields(std::string_view(value).substr(std::min<size_t>(5, value.size())));
    Peer peer;
    peer.host = std::string(fields.text());
    peer.port = static_cast<int>(fields.get<uint32_t>());
    peer.challenge = std::string(fields.text());
    if (!fields.done() || peer.challenge.size() != kRandom)
      throw ConnectionError(absl::StrCat("rank ", rank, " published no address that this build knows"));
    return peer;
  }

  // Returns the proof for one direction of a connection. `word` differs between the two: "connects" or "listens".
  std::string proof(std::string_view word, const Hello& hello, std::string_view challenge) const {
    MessageWriter message(0);
    message.text(word).text(options_.prefix).put(hello.from).put(hello.to).text(challenge);
    message.text(std::string_view(hello.random, sizeof hello.random));
    return keyed_hash(options_.token, message.finish());
  }

  // ---- The rank that connects
  void connect(int rank) {
    Attempt& a = attempts_[index(rank)];
    a.answer.clear();
    a.hello = {.from = options_.rank, .to = rank};
    kMagic.copy(a.hello.magic, kMagic.size());
    random_bytes(kRandom).copy(a.hello.random, kRandom);
    proof("connects", a.hello, a.peer.challenge).copy(a.hello.proof, kHashBytes);
    try {
      a.socket = connect_to(a.peer.host, a.peer.port, std::min(deadline_, after(Milliseconds(1000))));
      send_all(a.socket, std::string_view(reinterpret_cast<const char*>(&a.hello), sizeof a.hello), deadline_, "peer");
    } catch (const DistError& e) {
      give_up(a, e.what());
    }
  }
  static void give_up(Attempt& a, std::string trouble) {
    a.socket.reset();
    a.trouble = std::move(trouble);
    a.again = after(kPause);
  }

  void hear(int rank) {
    Attempt& a = attempts_[index(rank)];
    char bytes[kHashBytes];
    const ssize_t n = ::recv(a.socket.get(), bytes, kHashBytes - a.answer.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return give_up(a, "it closed the connection");
    a.answer.append(bytes, static_cast<size_t>(n));
    if (a.answer.size() < kHashBytes) return;
    if (!same_bytes(a.answer, proof("listens", a.hello, a.peer.challenge)))
      return give_up(a,
                     absl::StrCat("what listens at ", a.peer.host, ":", a.peer.port, " does not know the job's token"));
    connections_[index(rank)] = std::move(a.socket);
  }

  // ---- The rank that listens
  void accept_some() {
    for (int i = 0; i < kAtOnce; ++i) {
      Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        // All descriptors are in use, maybe by strangers: wait until some are free.
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) accept_again_ = after(kPause);
        return;
      }
      // Reads the hello at once: a rank's bytes have usually arrived already, so a crowd of silent strangers does not
      // push a rank out of the list.
      Stranger stranger{std::move(socket), "", after(options_.proof_time)};
      if (!examine(stranger)) continue;
      if (strangers_.size() >= kMaxStrangers) strangers_.pop_front();
      strangers_.push_back(std::move(stranger));
    }
  }

  // Reads what has arrived from `s`. Returns false if `s` must leave the list of strangers: its hello is invalid, or it
  // has become a connection.
  bool examine(Stranger& s) {
    char bytes[sizeof(Hello)];
    const ssize_t n = ::recv(s.socket.get(), bytes, sizeof bytes - s.bytes.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    s.bytes.append(bytes, static_cast<size_t>(n));
    if (!kMagic.starts_with(std::string_view(s.bytes).substr(0, kMagic.size()))) return false;
    if (s.bytes.size() < sizeof(Hello)) return true;
    Hello hello;
    std::memcpy(&hello, s.bytes.data(), sizeof hello);
    if (hello.to != options_.rank || hello.from <= options_.rank || hello.from >= options_.world_size ||
        !same_bytes(std::string_view(hello.proof, kHashBytes), proof("connects", hello, challenge_)))
      return false;
    Fd& connection = connections_[index(hello.from)];
    if (connection) return false;  // that rank is connected already
    const int on = 1;
    setsockopt(s.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::string answer = proof("listens", hello, challenge_);
    // The socket is new, so it takes these few bytes at once unless it is broken.
    if (::send(s.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answer.size()))
      return false;
    connection = std::move(s.socket);
    return false;
  }

  // Waits for the next event of any connection and handles it.
  void step() {
    const Deadline now = Clock::now();
    Deadline next = deadline_;
    for (int r = 0; r < options_.rank; ++r) {
      Attempt& a = attempts_[index(r)];
      if (connections_[index(r)] || a.socket) continue;
      if (a.again <= now) connect(r);
      if (!a.socket) next = std::min(next, a.again);
    }
    strangers_.remove_if([now](const Stranger& s) { return s.until <= now; });
    if (!strangers_.empty()) next = std::min(next, strangers_.front().until);
    const bool accepts = listener_ && accept_again_ <= now;
    if (listener_ && !accepts) next = std::min(next, accept_again_);

    // In this order: the listener, the strangers, the attempts. poll(2) skips a descriptor of -1.
    std::vector<pollfd> fds = {{accepts ? listener_.get() : -1, POLLIN, 0}};
    const auto watch = [&fds](const Fd& socket) { fds.push_back({socket.get(), POLLIN, 0}); };
    for (const Stranger& s : strangers_) watch(s.socket);
    for (const Attempt& a : attempts_) watch(a.socket);
    const int ready = ::poll(fds.data(), fds.size(), milliseconds_until(next));
    if (ready < 0 && errno != EINTR) throw ConnectionError(absl::StrCat("poll: ", std::strerror(errno)));
    if (ready <= 0) return;
    size_t i = 1;
    for (auto s = strangers_.begin(); s != strangers_.end(); ++i)
      s = fds[i].revents != 0 && !examine(*s) ? strangers_.erase(s) : std::next(s);
    for (int r = 0; r < options_.rank; ++r, ++i)
      if (fds[i].revents != 0) hear(r);
    if (fds[0].revents != 0) accept_some();
  }

  Store& store_;
  const MeshOptions& options_;
  const Deadline deadline_;
  const std::string challenge_;
  Fd listener_;
  Deadline accept_again_{};
  std::vector<Fd> connections_;
  std::vector<Attempt> attempts_;  // to the ranks below this one
  std::list<Stranger> strangers_;  // the oldest first
};

}  // namespace

std::vector<Fd> connect_mesh(Store& store, const MeshOptions& options) { return Mesh(store, options).run(); }

}  // namespace rondo::dist
