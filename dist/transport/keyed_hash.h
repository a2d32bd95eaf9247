// SHA-256 (FIPS 180-4) and HMAC (RFC 2104): the processes of a job use them to prove that they know its token.
//
//   const std::string challenge = random_bytes(32);                 // one side makes it and uses it only once
//   const std::string proof = keyed_hash(token, challenge);         // the other side answers
//   if (!same_bytes(proof, keyed_hash(token, challenge))) drop();   // the other side does not know the token
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rondo::dist {

inline constexpr size_t kHashBytes = 32;

std::string sha256(std::string_view bytes);
// Returns the HMAC-SHA-256 of `message`, kHashBytes long. `key` may have any length, and may be empty.
std::string keyed_hash(std::string_view key, std::string_view message);
// Returns n unpredictable bytes from the kernel's generator. Throws Error if the kernel has none.
std::string random_bytes(size_t n);
// Compares in constant time: the time does not depend on where the texts differ.
bool same_bytes(std::string_view a, std::string_view b);

}  // namespace rondo::dist
