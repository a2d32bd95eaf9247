#include "rondo/dist/launcher/rank_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rondo::dist {
namespace {

constexpr size_t kLongestLine = 1 << 16;

}  // namespace

RankOutput::RankOutput(int n_ranks, bool prefix, OutputQueue::Writer writer)
    : prefix_(prefix), queue_(std::move(writer)), ranks_(static_cast<size_t>(n_ranks)) {}

void RankOutput::say(std::string_view text) {
  queue_.push(STDERR_FILENO, absl::StrCat("rondorun: ", std::string(text), "\n"));
}

void RankOutput::open(size_t r, Fd out, Fd err) {
  ranks_[r].of[0].fd = std::move(out);
  ranks_[r].of[1].fd = std::move(err);
  for (const Stream& stream : ranks_[r].of) ::fcntl(stream.fd.get(), F_SETFL, O_NONBLOCK);
}

bool RankOutput::any_open() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Streams& rank) { return rank.of[0].fd || rank.of[1].fd; });
}

bool RankOutput::waits_for_reader() const { return !queue_.has_room(STDOUT_FILENO) || !queue_.has_room(STDERR_FILENO); }

void RankOutput::watch(std::vector<pollfd>& fds) const {
  const bool room[] = {queue_.has_room(STDOUT_FILENO) || drops_, queue_.has_room(STDERR_FILENO) || drops_};
  fds.push_back({queue_.fd(), POLLIN, 0});
  for (const Streams& rank : ranks_)
    for (int s = 0; s < 2; ++s) fds.push_back({room[s] ? rank.of[s].fd.get() : -1, POLLIN, 0});
}

bool RankOutput::take(std::span<const pollfd> fds) {
  queue_.clear();
  const std::span<const pollfd> streams = fds.subspan(1);
  bool read = false;
  for (size_t i = 0; i < streams.size(); ++i)
    if (streams[i].revents != 0) {
      read_from(i / 2, static_cast<int>(i % 2));
      read = true;
    }
  return read;
}

void RankOutput::read_from(size_t r, int s) {
  char buffer[1 << 16];
  auto& [fd, line] = ranks_[r].of[s];
  const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    end_line(r, s);
    fd.reset();
  }
  if (n <= 0) return;
  line.append(buffer, static_cast<size_t>(n));
  size_t begin = 0;
  for (size_t end; (end = line.find('\n', begin)) != std::string::npos; begin = end + 1)
    emit(r, s, std::string_view(line).substr(begin, end - begin));
  line.erase(0, begin);
  if (line.size() >= kLongestLine) end_line(r, s);
}

void RankOutput::end_line(size_t r, int s) {
  std::string& line = ranks_[r].of[s].line;
  if (!line.empty()) emit(r, s, line);
  line.clear();
}

void RankOutput::end_lines() {
  for (size_t r = 0; r < ranks_.size(); ++r)
    for (int s = 0; s < 2; ++s) end_line(r, s);
}

void RankOutput::emit(size_t r, int s, std::string_view line) {
  const int stream = s == 0 ? STDOUT_FILENO : STDERR_FILENO;
  if (drops_ && !queue_.has_room(stream)) return;
  queue_.push(stream, prefix_ ? absl::StrCat("[rank ", r, "] ", std::string(line), "\n") : std::string(line) + "\n");
}

}  // namespace rondo::dist
