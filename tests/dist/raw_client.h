// A client of the store that says what a test wants, byte by byte.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/dist/transport/socket.h"
#include "rondo/dist/transport/store_protocol.h"

namespace rondo::test {

inline constexpr dist::Milliseconds kGreets{30'000};

// The next reply, with its status in front.
inline std::string reply_of(const dist::Fd& socket) {
  uint32_t size = 0;
  dist::receive_exactly(socket, reinterpret_cast<char*>(&size), sizeof size, dist::after(kGreets), "the store");
  std::string reply(size, '\0');
  dist::receive_exactly(socket, reply.data(), size, dist::after(kGreets), "the store");
  return reply;
}
// Makes a new connection one that may ask.
inline void greet(const dist::Fd& socket, std::string_view token = "") {
  dist::send_all(socket, dist::kGreeting, dist::after(kGreets), "the store");
  const std::string reply = reply_of(socket);
  const std::string_view challenge = dist::MessageReader(std::string_view(reply).substr(1)).text();
  dist::send_all(socket, dist::hello_message(token, challenge, dist::random_bytes(dist::kHashBytes)),
                 dist::after(kGreets), "the store");
  reply_of(socket);
}

}  // namespace rondo::test
