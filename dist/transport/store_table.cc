#include "rondo/dist/transport/store_table.h"

#include <algorithm>

#include "rondo/dist/transport/store_protocol.h"

namespace rondo::dist {
namespace {

// The overhead of a map entry, or of a key that is waited for, in bytes: nodes, string headers, the allocator's own.
constexpr size_t kEntry = 192;

constexpr const char* kFull = "the store is full";
constexpr const char* kBadKey = "a key has 1 to 1024 bytes";

bool is_key(std::string_view key) { return !key.empty() && key.size() <= kMaxKey; }
size_t cost_of(std::string_view key, std::string_view value) { return key.size() + value.size() + kEntry; }
// A key that is waited for is stored twice: in the wait and in waiters_.
size_t cost_of_wait(std::string_view key) { return 2 * (key.size() + kEntry); }

}  // namespace

const char* StoreTable::set(std::string_view key, std::string_view value, Client owner) {
  if (!is_key(key)) return kBadKey;
  const auto found = entries_.find(key);
  const size_t owned = owner == 0 ? 0 : key.size() + kEntry;
  const size_t before = found == entries_.end() ? 0 : cost_of(key, found->second.value);
  if (!fits(cost_of(key, value) + owned, before)) return kFull;
  if (owner != 0) {
    std::vector<std::string>& keys = owned_[owner];
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      keys.emplace_back(key);
      bytes_ += owned;
    }
  }
  if (found != entries_.end()) {
    found->second.value.assign(value);
    found->second.value.shrink_to_fit();
    found->second.owner = owner;
  } else {
    entries_.emplace(key, Entry{std::string(value), owner});
  }
  bytes_ += cost_of(key, value) - before;
  if (found == entries_.end()) count_waiters(key, true);
  return nullptr;
}

const std::string* StoreTable::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second.value;
}

void StoreTable::remove(std::string_view key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  bytes_ -= cost_of(key, found->second.value);
  count_waiters(key, false);
  entries_.erase(found);
}

// Updates the waits for `key`, which was just added (`there`) or is about to be removed.
void StoreTable::count_waiters(std::string_view key, bool there) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  for (const Client client : found->second) {
    Wait& wait = waits_.at(client);
    wait.n_missing += there ? size_t{0} - 1 : 1;
    if (wait.n_missing == 0) satisfied_.push_back(client);
  }
}

const char* StoreTable::wait(Client client, std::vector<std::string> keys) {
  size_t cost = 0;
  for (const std::string& key : keys) {
    if (!is_key(key)) return kBadKey;
    cost += cost_of_wait(key);
  }
  if (!fits(cost, 0)) return kFull;
  bytes_ += cost;
  Wait& wait = waits_[client];
  for (const std::string& key : keys) {
    waiters_[key].push_back(client);
    if (!entries_.contains(key)) ++wait.n_missing;
  }
  wait.keys = std::move(keys);
  if (wait.n_missing == 0) satisfied_.push_back(client);
  return nullptr;
}

std::vector<std::string_view> StoreTable::missing(Client client) const {
  std::vector<std::string_view> missing;
  for (const std::string& key : waits_.at(client).keys)
    if (!entries_.contains(key)) missing.push_back(key);
  return missing;
}

void StoreTable::end_wait(Client client) {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) return;
  for (const std::string& key : wait->second.keys) {
    bytes_ -= cost_of_wait(key);
    const auto found = waiters_.find(key);
    if (found == waiters_.end()) continue;  // this wait contains the key twice
    std::erase(found->second, client);
    if (found->second.empty()) waiters_.erase(found);
  }
  waits_.erase(wait);
}

const char* StoreTable::set_last_message(Client client, std::string_view key, std::string_view value) {
  const auto found = last_messages_.find(client);
  const size_t before = found == last_messages_.end() ? 0 : cost_of(found->second.key, found->second.value);
  if (key.empty()) {
    bytes_ -= before;
    if (found != last_messages_.end()) last_messages_.erase(found);
    return nullptr;
  }
  if (!is_key(key)) return kBadKey;
  if (!fits(cost_of(key, value), before)) return kFull;
  last_messages_[client] = Message{std::string(key), std::string(value)};
  bytes_ += cost_of(key, value) - before;
  return nullptr;
}

void StoreTable::forget(Client client) {
  end_wait(client);
  if (const auto found = owned_.find(client); found != owned_.end()) {
    for (const std::string& key : found->second) {
      bytes_ -= key.size() + kEntry;
      // Another client may have set the key since; then the key is kept.
      if (const auto entry = entries_.find(key); entry != entries_.end() && entry->second.owner == client) remove(key);
    }
    owned_.erase(client);
  }
  if (const auto found = last_messages_.find(client); found != last_messages_.end()) {
    const Message message = std::move(found->second);
    bytes_ -= cost_of(message.key, message.value);
    last_messages_.erase(client);
    set(message.key, message.value);
  }
}

}  // namespace rondo::dist
