// RankOutput: what the ranks print, line by line, on its way to the reader.
//
// Output whose reader is behind stays in its pipe, so its rank waits as it would without a launcher. After drop() what
// has no room is lost, so that the rank can end.
#pragma once

#include <poll.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/launcher/output_queue.h"
#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

class RankOutput {
 public:
  // `prefix`: "[rank 1] " stands before each line.
  RankOutput(int n_ranks, bool prefix, OutputQueue::Writer writer);

  // A line of the launcher itself.
  void say(std::string_view text);
  // A rank has started: what it writes to stdout and stderr.
  void open(size_t rank, Fd out, Fd err);
  bool any_open() const;

  // Appends what poll() should wait for.
  void watch(std::vector<pollfd>& fds) const;
  // Takes output. `fds`: what watch() has appended, after poll(). False if there was none.
  bool take(std::span<const pollfd> fds);
  // Nothing more comes: what there is of a line is passed on.
  void end_lines();

  // The reader of a stream is behind.
  bool waits_for_reader() const;
  // The reader has got everything.
  bool is_empty() const { return queue_.is_empty(); }
  void drop() { drops_ = true; }
  bool drops() const { return drops_; }

 private:
  struct Stream {
    Fd fd;
    std::string line;  // its beginning; the end has not come yet
  };
  struct Streams {
    Stream of[2];  // stdout, stderr
  };
  void read_from(size_t rank, int s);
  void end_line(size_t rank, int s);
  void emit(size_t rank, int s, std::string_view line);

  const bool prefix_;
  OutputQueue queue_;
  std::vector<Streams> ranks_;
  bool drops_ = false;
};

}  // namespace rondo::dist
