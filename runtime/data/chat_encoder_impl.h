// The implementation of ChatEncoder. Subclasses: for ChatTemplate (chat_encoder.cc), for Jinja (jinja_chat.cc).
#pragma once

#include <string>

#include "rondo/runtime/chat/chat_renderer.h"
#include "rondo/runtime/data/chat_template.h"
#include "rondo/runtime/data/text_encoder.h"

namespace rondo::data {

struct ChatEncoder::Impl {
  int32_t end_token = -1;
  std::string end_text{};

  virtual ~Impl() = default;
  virtual Example example(const text::Conversation& conversation) const = 0;
  // Returns the token ids without loss flags. `for_generation`: true for a prompt that the model is to continue; false
  // for the whole conversation.
  virtual Ids ids(const text::Conversation& conversation, bool for_generation) const = 0;
  // Returns the ChatTemplate; null for a Jinja template.
  virtual const ChatTemplate* plain() const { return nullptr; }
};

Example example_of(const ChatEncoder& encoder, const text::Conversation& conversation);

}  // namespace rondo::data
