#include "rondo/dist/transport/store.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/transport/store_protocol.h"

namespace rondo::dist {
namespace {

// The server's answer may take this much longer than the wait that the client has asked for.
constexpr Milliseconds kPatience{10'000};

}  // namespace

struct Store::Reply {
  StoreStatus status;
  std::string bytes;
  MessageReader fields() const { return MessageReader(bytes); }
};

Store::Store(const std::string& host, int port, Milliseconds timeout, std::string_view token)
    : peer_(absl::StrCat("the store at ", host, ":", port)), socket_(connect_to(host, port, after(timeout))) {
  try {
    send_all(socket_, kGreeting, after(timeout), peer_);
  } catch (const ConnectionError&) {  // receive() below says why the server closed this connection
  }
  const std::string challenge(receive(timeout).fields().text()), random = random_bytes(kHashBytes);
  if (challenge.size() != kHashBytes) throw ConnectionError(absl::StrCat(peer_, " is not a store"));
  const Reply reply = call(hello_message(token, challenge, random), timeout);
  // Only a store of this job can give this answer.
  if (!same_bytes(reply.fields().text(), store_proof(token, "server", challenge, random)))
    throw ConnectionError(absl::StrCat(peer_, " is not that of this job: it does not know the token"));
}

void Store::send(const std::string& request) {
  if (request.size() - 4 > kMaxMessage)
    throw Error(absl::StrCat("store: a message of ", request.size(), " bytes; at most ", kMaxMessage));
  if (!broken_.empty()) throw ConnectionError(broken_);
  try {
    send_all(socket_, request, after(kPatience), peer_);
  } catch (const DistError& e) {
    broken_ = e.what();  // a part of the message may have been sent
    throw ConnectionError(broken_);
  }
}

Store::Reply Store::call(std::string request, Milliseconds patience) {
  const std::lock_guard lock(mutex_);
  send(request);
  return receive(patience);
}

Store::Reply Store::receive(Milliseconds patience) {
  Reply reply;
  try {
    const Deadline deadline = after(patience);
    uint32_t size = 0;
    receive_exactly(socket_, reinterpret_cast<char*>(&size), sizeof size, deadline, peer_);
    if (size == 0 || size > kMaxMessage) throw ConnectionError(absl::StrCat(peer_, " is not a store"));
    reply.bytes.resize(size);
    receive_exactly(socket_, reply.bytes.data(), size, deadline, peer_);
  } catch (const DistError& e) {
    broken_ = e.what();  // a late reply would be mistaken for the reply to the next call
    throw ConnectionError(broken_);
  }
  reply.status = static_cast<StoreStatus>(reply.bytes[0]);
  reply.bytes.erase(0, 1);
  if (reply.status == StoreStatus::kRefused)
    throw ConnectionError(absl::StrCat(peer_, " refuses: ", std::string(reply.fields().text())));
  return reply;
}

void Store::set(std::string_view key, std::string_view value) {
  call(MessageWriter(static_cast<uint8_t>(StoreOp::kSet)).text(key).text(value).finish(), kPatience);
}

void Store::post(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  send(MessageWriter(static_cast<uint8_t>(StoreOp::kPost)).text(key).text(value).finish());
}

std::optional<std::string> Store::get_if_there(std::string_view key) {
  const Reply reply = call(MessageWriter(static_cast<uint8_t>(StoreOp::kGet)).put(int64_t{0}).text(key).finish(),
                           kPatience);
  if (reply.status != StoreStatus::kOk) return std::nullopt;
  return std::string(reply.fields().text());
}

std::string Store::get(std::string_view key, Milliseconds timeout) {
  const Reply reply = call(
      MessageWriter(static_cast<uint8_t>(StoreOp::kGet)).put(int64_t{timeout.count()}).text(key).finish(),
      timeout + kPatience);
  if (reply.status != StoreStatus::kOk)
    throw TimeoutError(absl::StrCat("store: nobody has set ", std::string(key), " within ", timeout.count(), " ms"));
  return std::string(reply.fields().text());
}

std::vector<std::string> Store::wait_for(std::span<const std::string> keys, Milliseconds timeout) {
  MessageWriter request(static_cast<uint8_t>(StoreOp::kWait));
  request.put(int64_t{timeout.count()}).put(static_cast<uint32_t>(keys.size()));
  for (const std::string& key : keys) request.text(key);
  const Reply reply = call(request.finish(), timeout + kPatience);
  std::vector<std::string> missing;
  if (reply.status == StoreStatus::kOk) return missing;
  MessageReader fields = reply.fields();
  for (auto n = fields.get<uint32_t>(); n > 0 && fields.ok(); --n) missing.emplace_back(fields.text());
  if (missing.empty()) missing.assign(keys.begin(), keys.end());
  return missing;
}

void Store::wait(std::span<const std::string> keys, Milliseconds timeout) {
  if (const std::vector<std::string> missing = wait_for(keys, timeout); !missing.empty())
    throw TimeoutError(
        absl::StrCat("store: nobody has set ", absl::StrJoin(missing, ", "), " within ", timeout.count(), " ms"));
}

int64_t Store::add(std::string_view key, int64_t delta) {
  return call(MessageWriter(static_cast<uint8_t>(StoreOp::kAdd)).text(key).put(delta).finish(), kPatience)
      .fields()
      .get<int64_t>();
}

void Store::remove(std::string_view key) {
  call(MessageWriter(static_cast<uint8_t>(StoreOp::kRemove)).text(key).finish(), kPatience);
}

void Store::hold(std::string_view key, std::string_view value) {
  call(MessageWriter(static_cast<uint8_t>(StoreOp::kHold)).text(key).text(value).finish(), kPatience);
}

std::string Store::claim(std::string_view key, std::string_view value) {
  const Reply reply = call(MessageWriter(static_cast<uint8_t>(StoreOp::kClaim)).text(key).text(value).finish(),
                           kPatience);
  return std::string(reply.fields().text());
}

void Store::set_last_message(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  send(MessageWriter(static_cast<uint8_t>(StoreOp::kLastMessage)).text(key).text(value).finish());
}

void Store::barrier(const std::string& name, int rank, int world_size, Milliseconds timeout) {
  // A rank's own count says how often it used this name: no rank can be two uses ahead of another.
  const int64_t use = add(absl::StrCat(name, "/uses/", rank), 1);
  const auto key = [&](int r) { return absl::StrCat(name, "/", use, "/", r); };
  set(key(rank), "");
  std::vector<std::string> keys;
  for (int r = 0; r < world_size; ++r) keys.push_back(key(r));
  if (!wait_for(keys, timeout).empty()) {
    std::vector<int> missing;
    for (int r = 0; r < world_size; ++r)
      if (!get_if_there(key(r))) missing.push_back(r);
    if (!missing.empty())
      throw TimeoutError(absl::StrCat(name, ": rank ", absl::StrJoin(missing, ", rank "), " did not come within ",
                                      timeout.count(), " ms"));
  }
  // Every rank has passed the previous barrier, so its keys are not needed any more.
  if (use > 1) remove(absl::StrCat(name, "/", use - 1, "/", rank));
}

}  // namespace rondo::dist
