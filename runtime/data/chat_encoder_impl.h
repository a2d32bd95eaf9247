// The work of ChatEncoder, by the kind of its template: ChatTemplate (chat_encoder.cc) or Jinja (jinja_chat.cc).
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
  // Without a mask: of the conversation as it is, or up to where the model's words begin.
  virtual Ids ids(const text::Conversation& conversation, bool for_generation) const = 0;
  // Null for Jinja.
  virtual const ChatTemplate* plain() const { return nullptr; }
};

Example example_of(const ChatEncoder& encoder, const text::Conversation& conversation);

}  // namespace rondo::data
