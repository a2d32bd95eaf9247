// The bytes on the store's connections. Little-endian (all supported machines are).
//
//   client: kGreeting once, then requests: u32 size of the rest, u8 StoreOp, fields. The first request is kHello.
//   server: a reply to the greeting: kOk, text: a challenge, random bytes for this connection
//   server: one reply per request, in order: u32 size of the rest, u8 StoreStatus, fields (kPost, kLastMessage: none)
//   fields: u32, i64, or text as u32 length + bytes
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "rondo/dist/transport/keyed_hash.h"

namespace rondo::dist {

inline constexpr std::string_view kGreeting = "RONDOST3";

enum class StoreOp : uint8_t {
  kHello,        // random bytes, proof that the client knows the job's token -> proof that the server does
  kSet,          // key, value
  kPost,         // as kSet, but without a reply
  kGet,          // i64 milliseconds, key -> value
  kWait,         // i64 milliseconds, u32 count, keys
  kAdd,          // key, i64 delta -> i64 sum
  kRemove,       // key
  kHold,         // key, value: as kSet, and removed when this connection ends
  kClaim,        // key, value -> text: as kHold, but if the key has another value, replies with that one
  kLastMessage,  // key, value: set when this connection ends, however it ends; an empty key cancels it. No reply
};
enum class StoreStatus : uint8_t {
  kOk,
  kTimeout,  // u32 count, the missing keys; no keys: the server had no room to list them
  kRefused,  // text: why the server refuses
};

// Limits of a message. The server closes a connection that exceeds one, before it allocates anything for the message.
inline constexpr uint32_t kMaxMessage = 8 << 20;
inline constexpr size_t kMaxKey = 1 << 10;
inline constexpr uint32_t kMaxKeys = 1 << 14;   // keys in one kWait
inline constexpr uint32_t kMaxHello = 1 << 10;  // bytes of the first request

class MessageWriter {
 public:
  explicit MessageWriter(uint8_t code) : bytes_(4, '\0') { bytes_.push_back(static_cast<char>(code)); }
  template <class T> MessageWriter& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  MessageWriter& text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  // Returns the whole message, with its length in front.
  std::string finish() {
    const auto size = static_cast<uint32_t>(bytes_.size() - 4);
    std::memcpy(bytes_.data(), &size, sizeof size);
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// Returns the proof that one side knows the token. The token itself is never sent, because an impostor may listen at
// the store's address. `word` is "client" or "server", so that neither proof can be sent back as the other.
inline std::string store_proof(std::string_view token, std::string_view word, std::string_view challenge,
                               std::string_view random) {
  return keyed_hash(token, MessageWriter(0).text("store").text(word).text(challenge).text(random).finish());
}
inline std::string hello_message(std::string_view token, std::string_view challenge, std::string_view random) {
  return MessageWriter(static_cast<uint8_t>(StoreOp::kHello))
      .text(random)
      .text(store_proof(token, "client", challenge, random))
      .finish();
}

// Reads untrusted bytes: past the end, every field is empty and ok() is false.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : left_(bytes) {}
  template <class T> T get() {
    T value = {};
    if (left_.size() < sizeof value) return ok_ = false, left_ = {}, value;
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view text() {
    const auto size = get<uint32_t>();
    if (left_.size() < size) return ok_ = false, left_ = {}, std::string_view();
    const std::string_view text = left_.substr(0, size);
    left_.remove_prefix(size);
    return text;
  }
  bool ok() const { return ok_; }
  // True if everything was read without error.
  bool done() const { return ok_ && left_.empty(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace rondo::dist
