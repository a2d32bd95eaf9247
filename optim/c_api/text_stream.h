// TextStream: receives tokens one by one, and sends their text as soon as it is certain. It holds back characters of
// which some bytes are still missing, and text that may be the start of a stop text. Together, the pieces are the whole
// text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::optim::c_api {

class TextStream {
 public:
  using Decode = std::function<std::string(std::span<const int64_t> tokens)>;
  // Called with each piece of text. Returns false to end the stream.
  using Sink = std::function<bool(const std::string& piece)>;
  TextStream(Decode decode, std::vector<std::string> stops, Sink sink);

  // Adds a token. Returns false if the sink has ended the stream.
  bool add(int64_t token);
  // Sends the part of the final text `text` that has not been sent yet.
  void finish(std::string_view text);

 private:
  bool send(std::string_view text, size_t end);
  Decode decode_;
  std::vector<std::string> stops_;
  Sink sink_;
  std::vector<int64_t> tokens_;
  size_t sent_ = 0;  // how many bytes of the text are sent
  bool wanted_ = true;
};

}  // namespace rondo::optim::c_api
