// The store: a small table of text that the processes of a job share, over TCP. They meet here before they know each
// other.
//
//   StoreServer server("127.0.0.1", 0);                        // in the launcher, or in rank 0
//   Store store("127.0.0.1", server.port(), 10s);              // in every process
//   store.set("rank/0", "here");
//   store.get("rank/1", 10s);                                  // waits for it; TimeoutError names what did not come
//   store.barrier("start", rank, world_size, 10s);             // TimeoutError names the ranks that did not come
//
// A job's token keeps other jobs and users out: a client and a server that cannot prove to each other that they know it
// part at once, and neither sends it. It is no protection against someone who reads the network, so listen on loopback
// or a trusted network. A connection that does not speak the protocol, or asks for too much (StoreLimits,
// store_protocol.h), is closed and disturbs no other connection.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

// The limits of a server: it stays under 256 MiB whatever its clients do.
struct StoreLimits {
  size_t max_connections = 4096;
  // Bytes of keys, values, last messages and waiting keys, with the cost of keeping them.
  size_t max_stored = 128 << 20;
  // Bytes of requests and replies on their way. Beyond this, connections wait for their turn.
  size_t max_buffers = 64 << 20;
  Milliseconds greeting_time{5'000};  // how long a new connection has to send the token
  // How long a client has to send the rest of a request, and to take a reply.
  Milliseconds stall_time{30'000};
};

// Serves from its own thread until it is destroyed.
class StoreServer {
 public:
  // Port 0: a free one. Throws ConnectionError.
  StoreServer(const std::string& host, int port, std::string token = "", StoreLimits limits = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  int port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// One connection to the store. Thread safe, one call at a time: a call that waits keeps the others out.
// Throws TimeoutError if the time given is over, and ConnectionError if the server is gone or refuses. After a
// ConnectionError every call throws it again.
class Store {
 public:
  // Tries until `timeout` is over. Throws ConnectionError at once if the server has another token.
  Store(const std::string& host, int port, Milliseconds timeout, std::string_view token = "");
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(std::string_view key, std::string_view value);
  // As set(), without waiting for an answer: some microseconds.
  void post(std::string_view key, std::string_view value);
  // Returns the value, as soon as there is one.
  std::string get(std::string_view key, Milliseconds timeout);
  std::optional<std::string> get_if_there(std::string_view key);
  void wait(std::span<const std::string> keys, Milliseconds timeout);
  // As wait(), but returns the keys that nobody has set, instead of throwing TimeoutError.
  std::vector<std::string> wait_for(std::span<const std::string> keys, Milliseconds timeout);
  // Adds to a number, 0 at first, and returns the sum. As text it is decimal.
  int64_t add(std::string_view key, int64_t delta);
  void remove(std::string_view key);
  // As set(). The server removes the key when this connection ends, also if this process is killed.
  void hold(std::string_view key, std::string_view value);
  // As hold(), but only if nobody has set the key to another value. Returns the value that it has now.
  std::string claim(std::string_view key, std::string_view value);
  // The server sets the key when this connection ends, also if this process is killed. One message for each connection:
  // a later call replaces it, an empty key takes it back. Does not wait for an answer.
  void set_last_message(std::string_view key, std::string_view value);
  // Waits until `world_size` ranks have come with this name. The same ranks can use a name again.
  void barrier(const std::string& name, int rank, int world_size, Milliseconds timeout);

  // This machine's address on the way to the store.
  std::string local_address() const { return dist::local_address(socket_); }

 private:
  struct Reply;
  Reply call(std::string request, Milliseconds patience);
  void send(const std::string& request);
  Reply receive(Milliseconds patience);

  const std::string peer_;
  std::mutex mutex_;
  Fd socket_;
  std::string broken_;  // why it cannot be used any more
};

}  // namespace rondo::dist
