// The contents of the store's server: keys with values, and which clients wait for which keys. It has no sockets, so
// tests use it alone.
//
// The cost of changing a key depends only on the clients that wait for this key. bytes() counts everything and stays
// under the limit; what does not fit is refused and changes nothing.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rondo::dist {

class StoreTable {
 public:
  using Client = uint64_t;
  explicit StoreTable(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Sets a key. Returns null, or why the table refuses. `owner`: the client whose forget() removes the key; 0: none.
  const char* set(std::string_view key, std::string_view value, Client owner = 0);
  const std::string* find(std::string_view key) const;
  void remove(std::string_view key);

  // Registers a wait until all keys exist. A client has at most one wait. Returns null, or why the table refuses.
  const char* wait(Client client, std::vector<std::string> keys);
  bool is_waiting(Client client) const { return waits_.contains(client); }
  // Returns the keys of a client's wait that do not exist yet.
  std::vector<std::string_view> missing(Client client) const;
  const std::vector<std::string>& keys_of_wait(Client client) const { return waits_.at(client).keys; }
  bool is_satisfied(Client client) const { return waits_.at(client).n_missing == 0; }
  void end_wait(Client client);
  // Returns the clients whose wait was satisfied since the last call. A key may have been removed again: check
  // is_satisfied().
  std::vector<Client> take_satisfied() { return std::move(satisfied_); }

  // Keeps a value that forget(client) sets. An empty key cancels it. Returns null, or why the table refuses.
  const char* set_last_message(Client client, std::string_view key, std::string_view value);
  // Call when the client is gone: ends its wait, removes its own keys and sets its last message.
  void forget(Client client);

  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string value;
    Client owner = 0;
  };
  struct Wait {
    std::vector<std::string> keys;
    size_t n_missing = 0;
  };
  struct Message {
    std::string key, value;
  };
  bool fits(size_t more, size_t less) const { return bytes_ - less + more <= max_bytes_; }
  void count_waiters(std::string_view key, bool there);

  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::vector<Client>, std::less<>> waiters_;  // the clients that wait for each key
  std::unordered_map<Client, Wait> waits_;
  std::unordered_map<Client, Message> last_messages_;
  std::unordered_map<Client, std::vector<std::string>> owned_;
  std::vector<Client> satisfied_;
};

}  // namespace rondo::dist
