// What becomes of a conversation by a chat template: see chat.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::text {

struct EncodedChat {
  std::string text;
  std::vector<int32_t> ids;
  // One per id: it is part of a {% generation %} block.
  std::vector<bool> assistant;
  // The template has such blocks; without them nothing is the assistant's.
  bool has_generation = false;
};

}  // namespace rondo::text
#pragma GCC visibility pop
