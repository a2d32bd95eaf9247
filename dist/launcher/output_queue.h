// Queues text for a reader that may be slow, stopped or gone. This class writes on its own threads, one for each
// stream, so the launcher itself never waits for a reader.
//
// Thread safety: one thread uses the object. The writer may be called from two threads at once, for different streams.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

class OutputQueue {
 public:
  // Writes text to a stream: STDOUT_FILENO or STDERR_FILENO. May block.
  using Writer = std::function<void(int stream, std::string_view text)>;
  // A stream has no room while at least this many bytes of its text are queued or being written.
  static constexpr size_t kLimit = 1 << 20;

  explicit OutputQueue(Writer writer);
  // Drops text that has not been written yet. If a writer does not return, its thread is detached.
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  // Always accepts the text: the caller should check has_room() before it reads more.
  void push(int stream, std::string_view text);
  bool has_room(int stream) const;
  // True if everything has been passed to the writer, and the writer has returned.
  bool is_empty() const;
  // Returns a descriptor that is readable when a writer has returned since the last clear().
  int fd() const;
  void clear();

 private:
  struct Stream;
  std::shared_ptr<Stream> streams_[2];
  std::shared_ptr<Fd> progress_;
};

}  // namespace rondo::dist
