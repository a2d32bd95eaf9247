// EncodedChat: the text and ids that a chat template makes of a conversation. See chat.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::text {

struct EncodedChat {
  std::string text;
  std::vector<int32_t> ids;
  // One per id: true if the id is part of a {% generation %} block.
  std::vector<bool> assistant;
  // True if the template has {% generation %} blocks. Without them `assistant` is false for every id.
  bool has_generation = false;
};

}  // namespace rondo::text
#pragma GCC visibility pop
