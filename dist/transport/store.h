// The store: a small table of text that the processes of a job share over TCP. They use it before they are connected.
//
//   StoreServer server("127.0.0.1", 0);                        // in the launcher, or in rank 0
//   Store store("127.0.0.1", server.port(), 10s);              // in every process
//   store.set("rank/0", "here");
//   store.get("rank/1", 10s);                                  // waits for it; TimeoutError names the missing key
//   store.barrier("start", rank, world_size, 10s);             // TimeoutError names the missing ranks
//
// A job's token keeps other jobs and users out. A client and a server prove to each other that they know it, without
// sending it; if one cannot, the other closes the connection. The token does not protect against someone who reads the
// network, so listen on loopback or a trusted network. A connection that does not speak the protocol, or exceeds a
// limit (StoreLimits, store_protocol.h), is closed without disturbing the others.
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

// The limits of a server. With the defaults it stays under 256 MiB whatever its clients do.
struct StoreLimits {
  size_t max_connections = 4096;
  // Bytes of keys, values, last messages and the keys that clients wait for, with the overhead of their containers.
  size_t max_stored = 128 << 20;
  // Bytes of requests and replies in flight. Beyond this, connections wait for their turn.
  size_t max_buffers = 64 << 20;
  Milliseconds greeting_time{5'000};  // how long a new connection has to prove that it knows the token
  // How long a client has to send the rest of a request, and to receive a reply.
  Milliseconds stall_time{30'000};
};

// Serves from its own thread until it is destroyed.
class StoreServer {
 public:
  // Port 0: any free port. Throws ConnectionError.
  StoreServer(const std::string& host, int port, std::string token = "", StoreLimits limits = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  int port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// One connection to the store. Thread safe, one call at a time: a call that waits blocks the others. Throws
// TimeoutError after the given time, and ConnectionError if the server is gone or refuses. Once the connection is lost,
// every call throws ConnectionError.
class Store {
 public:
  // Tries until `timeout` has passed. Throws ConnectionError at once if the server has another token.
  Store(const std::string& host, int port, Milliseconds timeout, std::string_view token = "");
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(std::string_view key, std::string_view value);
  // Like set(), but does not wait for an answer: takes a few microseconds.
  void post(std::string_view key, std::string_view value);
  // Waits for the key to be set and returns its value.
  std::string get(std::string_view key, Milliseconds timeout);
  std::optional<std::string> get_if_there(std::string_view key);
  void wait(std::span<const std::string> keys, Milliseconds timeout);
  // Like wait(), but returns the keys that are not set instead of throwing TimeoutError.
  std::vector<std::string> wait_for(std::span<const std::string> keys, Milliseconds timeout);
  // Adds to the number that is the key's value (0 if the key is not set) and returns the sum. The key's value is
  // decimal text.
  int64_t add(std::string_view key, int64_t delta);
  void remove(std::string_view key);
  // Like set(), but the server removes the key when this connection ends, also if this process is killed.
  void hold(std::string_view key, std::string_view value);
  // Like hold(), but does nothing if the key already has another value. Returns the value that the key has now.
  std::string claim(std::string_view key, std::string_view value);
  // Asks the server to set the key when this connection ends, also if this process is killed. Each connection has at
  // most one last message: a later call replaces it, and an empty key cancels it. Does not wait for an answer.
  void set_last_message(std::string_view key, std::string_view value);
  // Waits until `world_size` ranks have called it with this name. The same ranks can reuse a name.
  void barrier(const std::string& name, int rank, int world_size, Milliseconds timeout);

  // Returns this machine's address as the store sees it.
  std::string local_address() const { return dist::local_address(socket_); }

 private:
  struct Reply;
  Reply call(std::string request, Milliseconds patience);
  void send(const std::string& request);
  Reply receive(Milliseconds patience);

  const std::string peer_;
  std::mutex mutex_;
  Fd socket_;
  std::string broken_;  // why the connection cannot be used any more; empty if it can
};

}  // namespace rondo::dist
