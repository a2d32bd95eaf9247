#include "rondo/optim/c_api/text_stream.h"

#include <algorithm>

namespace rondo::optim::c_api {
namespace {

// Decoders write U+FFFD for bytes that are no character, or that are not a whole character yet.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Returns the start of the longest suffix of `text` that is a proper prefix of `stop`; text.size() if there is none.
size_t start_of_stop(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return text.size() - n;
  return text.size();
}

}  // namespace

TextStream::TextStream(Decode decode, std::vector<std::string> stops, Sink sink)
    : decode_(std::move(decode)), stops_(std::move(stops)), sink_(std::move(sink)) {}

bool TextStream::add(int64_t token) {
  tokens_.push_back(token);
  const std::string text = decode_(tokens_);
  std::string_view certain = text;
  while (certain.ends_with(kReplacement)) certain.remove_suffix(kReplacement.size());
  size_t end = certain.size();
  for (const std::string& stop : stops_) end = std::min({end, certain.find(stop), start_of_stop(certain, stop)});
  return send(text, end);
}

void TextStream::finish(std::string_view text) { send(text, text.size()); }

bool TextStream::send(std::string_view text, size_t end) {
  if (wanted_ && end > sent_) {
    wanted_ = sink_(std::string(text.substr(sent_, end - sent_)));
    sent_ = end;
  }
  return wanted_;
}

}  // namespace rondo::optim::c_api
