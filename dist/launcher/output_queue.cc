#include "rondo/dist/launcher/output_queue.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace rondo::dist {

struct OutputQueue::Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::string pending;
  size_t in_flight = 0;  // bytes that the writer is writing
  bool closing = false;
  std::thread thread;
};

OutputQueue::OutputQueue(Writer writer) : progress_(std::make_shared<Fd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  if (!*progress_) throw Error(absl::StrCat("eventfd: ", ::strerror(errno)));
  for (int s = 0; s < 2; ++s) {
    streams_[s] = std::make_shared<Stream>();
    streams_[s]->thread = std::thread([s, writer, stream = streams_[s], progress = progress_] {
      std::unique_lock lock(stream->mutex);
      for (;;) {
        stream->changed.wait(lock, [&] { return stream->closing || !stream->pending.empty(); });
        if (stream->closing) break;
        const std::string text = std::move(stream->pending);
        stream->pending.clear();
        stream->in_flight = text.size();
        lock.unlock();
        try {
          writer(s == 0 ? STDOUT_FILENO : STDERR_FILENO, text);
        } catch (const std::exception&) {  // text that cannot be written is dropped
        }
        lock.lock();
        stream->in_flight = 0;
        const uint64_t one = 1;
        // The write fails only if the eventfd's counter would overflow.
        if (::write(progress->get(), &one, sizeof one) < 0) break;
      }
    });
  }
}

OutputQueue::~OutputQueue() {
  for (const std::shared_ptr<Stream>& stream : streams_) {
    bool stuck = false;
    {
      const std::lock_guard lock(stream->mutex);
      stream->closing = true;
      stuck = stream->in_flight > 0;
    }
    stream->changed.notify_all();
    if (stuck) stream->thread.detach();
    else stream->thread.join();
  }
}

void OutputQueue::push(int stream, std::string_view text) {
  Stream& to = *streams_[stream == STDOUT_FILENO ? 0 : 1];
  {
    const std::lock_guard lock(to.mutex);
    to.pending.append(text);
  }
  to.changed.notify_all();
}

bool OutputQueue::has_room(int stream) const {
  Stream& of = *streams_[stream == STDOUT_FILENO ? 0 : 1];
  const std::lock_guard lock(of.mutex);
  return of.pending.size() + of.in_flight < kLimit;
}

bool OutputQueue::is_empty() const {
  for (const std::shared_ptr<Stream>& stream : streams_) {
    const std::lock_guard lock(stream->mutex);
    if (!stream->pending.empty() || stream->in_flight > 0) return false;
  }
  return true;
}

int OutputQueue::fd() const { return progress_->get(); }

void OutputQueue::clear() {
  uint64_t count = 0;
  if (::read(progress_->get(), &count, sizeof count) < 0) return;  // no writer has returned since the last clear()
}

}  // namespace rondo::dist
